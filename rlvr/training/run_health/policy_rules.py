"""Rules about what the policy does: its answers, its reward and the held-out figure.

A falling reward alone is no trouble: tasks get harder, and steps differ. So the answers of the best steps are verified again, and their
tasks are sampled again (`AnswerProbe`). Where that decides nothing, a fall counts if the answers have changed too: their length, their
entropy, their repetition, or how many are cut.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rlvr.errors import CheckFailed
from rlvr.training.answer_probe import Change, KeptAnswer, keep_answers
from rlvr.training.reward_history import FALL_SIGMAS
from rlvr.training.run_health import causes
from rlvr.training.run_health.evidence import FIRST_STEPS, MAX_QUOTE, compute_mean, is_number
from rlvr.training.run_health.rule import Doubt, Finding, HealthRule
from rlvr.training.train_report import TrainReport

if TYPE_CHECKING:
    from rlvr.training.trainer import Trainer

EXPECTED_CHANGES = {
    Change.TASKS: "on the tasks of before the policy is as good as it was, so the tasks are harder now",
    Change.SCORING: "the verifier gives the same answers lower scores now",
}
"""What a fall of the reward may mean without a fault."""


class Repetition(HealthRule):
    """Answers repeat themselves, and did not at first."""

    def check(self) -> Finding:
        """Look at the fraction of four-token sequences that an answer has said before."""
        bound, run, key = self.bounds.max_repetition, self.run, "completions/repetition"
        first = compute_mean(run.rows[:FIRST_STEPS], key)
        if bound is None or first is None or first > bound / 2:
            return None
        count = run.count_last(lambda row: (row.get(key) or 0.0) > bound)
        if count < self.bounds.patience:
            return Doubt() if count else None
        since, now = run.get_first_step(count), compute_mean(run.rows[-count:], key) or 0.0
        what = f"answers repeat themselves: {now:.0%} of their four-token sequences occur before in the same answer, at first {first:.0%}"
        trouble = causes.make_weight_trouble(run, "repetition", since, what, causes.explain_change(run, since))
        good = run.find_last_step_below(key, first + 0.1 * (now - first))
        return trouble._replace(last_good_step=min(trouble.last_good_step, max(0, good - 1)))


class RewardFall(HealthRule):
    """The reward has fallen from its best steps, and neither harder tasks nor another scale of scores explain that."""

    def check(self) -> Finding:
        """Compare the newest rewards with the best ones."""
        bound, run = self.bounds.max_reward_drop, self.run
        if bound is None or self.config.data is not None or (fall := run.rewards.find_fall(bound)) is None:
            return None
        rows, probe, (best, recent) = run.scored_rows, run.probe, fall[:2]
        changes = causes.describe_changes(rows[best.start : best.end], rows[recent.start : recent.end])
        if not fall.is_lasting:
            return Doubt() if probe is not None or changes else None
        kept, step = run.list_best_answers(), int(rows[fall.since]["step"])
        change = run.examine("fall", lambda: probe.explain_fall(kept, bound)) if probe is not None and kept else Change.UNKNOWN
        if change in EXPECTED_CHANGES:
            told = f"since step {step} the reward is {recent.mean:.3g}, before {best.mean:.3g}"
            run.warn_once(f"fall: {change}", f"{told}: {EXPECTED_CHANGES[change]}")
            run.rewards.begin_anew(fall.since)
            return None
        if change is Change.UNKNOWN and not changes and not run.is_since_resume(step):
            return None
        what = f"the reward has fallen from {best.mean:.3g} to {recent.mean:.3g}"
        if change is Change.VERIFIER:
            cause = causes.explain_verifier(run, kept, f"of step {run.best_answers_step}")
        else:
            what += f" and the answers have changed: {'; '.join(changes)}" if changes else ""
            cause = causes.explain_change(run, step, fall)
        trouble = causes.make_weight_trouble(run, "reward", step, what, cause)
        good = int(rows[fall.last_good]["step"]) if fall.last_good >= 0 else 0
        return trouble._replace(last_good_step=min(good, trouble.last_good_step))


class HeldOutFall(HealthRule):
    """The newest held-out figure is far below the best earlier one, or there is none because answers have no score."""

    checks_if_others_find_nothing = True
    _best_accuracy = -math.inf
    _best_answers: Sequence[KeptAnswer] = ()
    """Answers of the best evaluation so far."""

    def check(self) -> Finding:
        """Compare the figure of the newest step, if it has one, with the best of those before."""
        rows = self.run.rows
        if not is_number(rows[-1].get("eval/accuracy")):
            return None
        before = self.run.trainer.report_values.get("accuracy_before") if self.run.trainer is not None else None
        known: list[tuple[int, Any]] = [(0, before), *((int(row["step"]), row.get("eval/accuracy")) for row in rows)]
        figures = [(at, float(value)) for at, value in known if is_number(value)]
        if len(figures) < 2:
            return None
        (at, high), (_, now) = max(figures[:-1], key=lambda one: one[1]), figures[-1]
        if not self._has_fallen(high, now, self.config.eval.tasks):
            return None
        change = self._explain_fall(high, now, self.config.eval.tasks)
        if change is Change.SCORING:
            return None
        since = next(later for later, value in figures if later > at and value < (high + now) / 2)
        what = f"the held-out figure is {now:.1%}; at step {at} it was {high:.1%}"
        return causes.make_weight_trouble(self.run, "held-out", since, what, self._explain(change, since))._replace(last_good_step=at)

    def check_evaluation(self, trainer: Trainer, step: int, accuracy: float | None) -> None:
        """Say where a held-out figure is withheld; do not begin a run that cannot score its held-out answers."""
        if accuracy is not None and accuracy >= self._best_accuracy:
            self._best_accuracy = accuracy
            self._best_answers = keep_answers(trainer.environment, trainer.held_out_episodes)
        if accuracy is not None or not trainer.config.eval.tasks or self.bounds.action == "off":
            return
        lost = [str(episode.error) for episode in trainer.held_out_episodes if not episode.is_scored]
        if not step and self.bounds.action == "stop" and len(lost) == len(trainer.held_out_episodes):
            raise CheckFailed(
                f"none of the {len(lost)} held-out answers before training has a score (mostly: {Counter(lost).most_common(1)[0][0][:MAX_QUOTE]})\n"
                "likely cause: Not the answers but the verifier, its sandbox or the references of the split "
                f"{trainer.config.eval.split!r}. Repair it, or measure nothing with eval.tasks=0"
            )
        if step:
            self.run.warn_once("withheld", f"the held-out figure of step {step} is withheld: more than 2 % of the answers have no score")

    def check_end(self, trainer: Trainer, report: TrainReport) -> None:
        """Stop a run whose held-out answers have no score, or whose policy is much worse than before training."""
        answers, lost = report.held_out_answers, report.held_out_unscored
        if report.accuracy_after is None and answers and lost > answers * (self.bounds.max_unscored or 1.0):
            raise CheckFailed(
                f"the run has finished and is saved, but {lost} of {answers} held-out answers have no score\nlikely cause: Not the answers but "
                f"the verifier, its sandbox or the references of the split {trainer.config.eval.split!r}; the reasons are in the log"
            )
        before, after, count = report.accuracy_before, report.accuracy_after, report.held_out_tasks
        if before is None or after is None or not self.run.rows or before <= after:
            return
        told = f"held-out {before:.1%} -> {after:.1%} on {count} tasks"
        if not self._has_fallen(before, after, count):
            is_beyond_chance = self._has_fallen(before, after, count, bound=0.0)
            if is_beyond_chance and self._explain_fall(before, after, count, bound=0.0) is Change.UNKNOWN:
                self.run.warn(f"the policy is worse than before training, beyond chance: {told}")
            return
        if (change := self._explain_fall(before, after, count)) is Change.SCORING:
            self.run.warn(f"{told}; the verifier scores the same answers so much lower now, so the policy may be as good as before")
            return
        since = max(1, self.run.healthy_step + 1)
        what = f"the policy has become much worse: {told}"
        trouble = causes.make_weight_trouble(self.run, "held-out", since, what, self._explain(change, since))
        raise CheckFailed(trouble.format_stop(trainer, trainer.num_completed_steps))

    def _explain(self, change: Change, since: int) -> str:
        is_verifier = change is Change.VERIFIER
        return causes.explain_verifier(self.run, self._best_answers, "before") if is_verifier else causes.explain_change(self.run, since)

    def _explain_fall(self, high: float, now: float, num_tasks: int, bound: float | None = None) -> Change:
        """Find what a fall of the held-out figure means, by verifying the answers of the best evaluation again."""
        probe = self.run.probe
        if probe is None or not self._best_answers:
            return Change.UNKNOWN
        scores = probe.verify_again(self._best_answers)
        if probe.describe_change(self._best_answers, scores):
            return Change.VERIFIER
        pairs = [(answer.score, score) for answer, score in zip(self._best_answers, scores, strict=True) if score is not None]
        before, again = (math.fsum(values) for values in zip(*pairs, strict=True)) if pairs else (0.0, 0.0)
        return Change.SCORING if before and not self._has_fallen(high * again / before, now, num_tasks, bound) else Change.UNKNOWN

    def _has_fallen(self, high: float, now: float, num_tasks: int, bound: float | None = None) -> bool:
        """Whether one held-out figure is so far below another that it is no accident of the tasks."""
        bound, count = self.bounds.max_reward_drop if bound is None else bound, max(1, num_tasks)
        error = math.sqrt((high * (1 - high) + now * (1 - now)) / count) if 0 <= now <= high <= 1 else math.inf
        return bound is not None and self.config.data is None and high - now > max(bound * high, FALL_SIGMAS * error, 1 / count)
