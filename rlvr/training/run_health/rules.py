"""The rules of run health, each about one way in which a run can go wrong.

A falling reward alone is no trouble: tasks get harder, and steps differ. So the answers of the best steps are verified again, and their
tasks are sampled again (`RewardFallProbe`). Where that decides nothing, a fall counts if the answers have changed too: their length, their
entropy, their repetition, or how many are cut.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from rlvr.config.config import RunConfig
from rlvr.episode import Episode
from rlvr.errors import CheckFailed
from rlvr.training.processes import run_and_all_gather, run_on_main
from rlvr.training.reward_fall_probe import MAX_ANSWERS, SAME_SCORE, FallCause, KeptAnswer, RewardFallProbe, keep_answers
from rlvr.training.reward_history import LASTING_STEPS, Steps
from rlvr.training.run_health import causes
from rlvr.training.run_health.causes import Trouble
from rlvr.training.run_health.evidence import (
    MAX_QUOTE,
    WINDOW_STEPS,
    ComponentFall,
    Row,
    RunEvidence,
    compute_mean,
    count_unanswered,
    is_number,
)
from rlvr.training.run_health.held_out import HeldOutChange, HeldOutHistory, compare_figures
from rlvr.training.task_changes import TaskChange, TaskChanges, list_places
from rlvr.training.train_report import TrainReport

if TYPE_CHECKING:
    from rlvr.training.trainer import Trainer

FIRST_STEPS = 5
"""The number of steps that show how a run was at first."""
PATIENCE_OF_CHECKS = 3
"""In how many checks in a row at most something must show that is no noise: another verifier, other tasks, a sampler with other weights."""
EXACT_MISMATCH_KL, JUMP_MISMATCH_KL = 1e-9, 1e-4
"""Below the first, sampler and trainer have the same weights and compute in float32; a later mismatch above the second is no rounding."""
SAMPLER_HAS_OTHER_WEIGHTS = (
    "The sampler samples from other weights than the trainer's: its weights are older, or those of another model. Look at how they reach it"
)


class Doubt:
    """A step that looks like trouble, while too few steps have. No checkpoint is written of it."""


Finding = Trouble | Doubt | None
"""What a rule finds in the newest step; None: the step is good, or the rule cannot say."""


class HealthRule:
    """One way in which a run can go wrong. A rule looks at the evidence, and has its bounds from the section `health`."""

    checks_if_others_find_nothing: ClassVar[bool] = False
    """True for a rule that is asked only in steps in which no rule before it has found trouble."""

    def __init__(self, run: RunEvidence) -> None:
        self.run, self.config, self.bounds = run, run.config, run.config.health

    def begin(self, trainer: Trainer) -> None:
        """Prepare the rule for the steps of this process.

        Not called for runs on stored answers, nor if `health.action` is off.
        """

    def check(self) -> Finding:
        """Look at the newest step, the last of `self.run.rows`."""
        raise NotImplementedError

    def check_evaluation(self, trainer: Trainer, step: int, accuracy: float | None) -> None:
        """Look at an evaluation on the held-out tasks; `step` is 0 before training."""

    def check_end(self, trainer: Trainer, report: TrainReport) -> None:
        """Raise CheckFailed at the end of a run that must not end as if it had trained. Called only if `health.action` is stop."""


class BrokenWeights(HealthRule):
    """Weights are not finite, in any process: no later step mends them."""

    def check(self) -> Finding:
        """Return trouble if any process of the run has weights that are not finite."""
        if self.run.trainer is None:
            return None
        found = run_and_all_gather(self.run.trainer.accelerator, lambda: [self.run.weights.broken])
        broken = next((one for one in found if one is not None), None)
        return None if broken is None else Trouble("broken", *broken)


class ChangedTasks(HealthRule):
    """The environment's tasks are not those that they were, or questions no longer reach the policy."""

    STORED_TASKS = "first_tasks"
    """Where a checkpoint's progress has the tasks that are compared after a resume."""
    _tasks: TaskChanges | None = None
    _num_changed = 0
    """For how many steps in a row the tasks have been others than at first."""

    def begin(self, trainer: Trainer) -> None:
        """Begin to watch the tasks; warn if they are others than before a resume.

        The tasks may have been repaired, so a change alone is no reason to stop.
        """
        self._tasks = tasks = TaskChanges(trainer.environment)
        rows = trainer.report_values.pop(self.STORED_TASKS, None)
        change = run_on_main(trainer.accelerator, lambda: tasks.restore(rows)) if rows else None
        if change is not None and change.breaks_contract:
            self.run.change_at_resume = (
                f"The tasks have changed between step {self.run.first_step - 1} and the resume: {change.what}. If that is no repair, a file, a "
                "template or a service of the environment is not as it was"
            )
            self.run.warn(self.run.change_at_resume)

    def check(self) -> Finding:
        """Return trouble if the tasks have changed, or if tasks with different references have one and the same prompt."""
        tasks, trainer, record = self._tasks, self.run.trainer, self.run.record
        if tasks is None or trainer is None or record is None:
            return None
        groups, step = record.batch.all_groups, record.step

        def look() -> TaskChange | None:
            tasks.watch(list_places(groups))
            if tasks.is_table_full:
                trainer.report_values.setdefault(self.STORED_TASKS, tasks.to_json())
            return tasks.find()

        change, are_lost = run_on_main(trainer.accelerator, look), tasks.have_lost_distinct_prompts(groups)
        if change is not None and not change.breaks_contract and not are_lost:
            if not change.is_renamed:
                told = f"since step {step} {change.what}. Tasks should depend on the settings, the split and the index only"
                self.run.warn_once("ids", told)
            change = None
        self._num_changed = self._num_changed + 1 if change is not None or are_lost else 0
        if self._num_changed < min(PATIENCE_OF_CHECKS, self.bounds.patience):
            return Doubt() if self._num_changed else None
        since = step - self._num_changed + 1
        what = change.what if change is not None else "tasks with different references have one and the same prompt"
        cause = (
            "The tasks changed, not the policy: a file, a template or a service of the environment is not as it was when the run began, or "
            "its `task` depends on more than the settings, the split and the index"
        )
        return Trouble("tasks", since, what, cause, since - 1)


class UnscoredAnswers(HealthRule):
    """Too many answers have no score: the verifier fails, or its service does."""

    def check(self) -> Finding:
        """Look at the fraction of answers without a score."""
        bound, run = self.bounds.max_unscored, self.run
        if bound is None or not (count := run.count_last(lambda row: _compute_unscored_fraction(row) > bound)):
            return None
        if count < self.bounds.patience:
            return Doubt()
        since, least = run.get_first_step(count), min(map(_compute_unscored_fraction, run.rows[-count:]))
        what = f"at least {least:.0%} of the answers of every step have no score (health.max_unscored is {bound:g})"
        common = run.unscored_reasons.most_common(1)
        quoted = f" (mostly: {common[0][0]})" if common else ""
        if "log-probability nan" in quoted:
            cause = f"The weights or the logits are not numbers{quoted}: a broken checkpoint, or an update that overflowed"
            return causes.make_weight_trouble(run, "unscored", since, what, cause)
        where = "the reasons are in episodes.jsonl (`error`, `verdict`). Repair it, then continue with --resume"
        cause = causes.explain_unscored(run.unscored_reasons, run.num_unanswered, where=where)
        return Trouble("unscored", since, what, cause)


class NonfiniteGradients(HealthRule):
    """Every gradient is infinite or not a number."""

    def check(self) -> Finding:
        """Look for steps without an optimizer step because no gradient was finite."""
        run = self.run
        count = run.count_last(lambda row: bool(row.get("step/nonfinite_minibatches")) and not row.get("optimizer_steps"))
        if count < self.bounds.patience:
            return Doubt() if count else None
        what = "every gradient is infinite or not a number, so nothing is learned"
        return causes.make_weight_trouble(run, "nonfinite", run.get_first_step(count), what, _explain_nonfinite(run))


class WrongSign(HealthRule):
    """The updates of a run, from the first on, make answers with a positive advantage less likely."""

    def __init__(self, run: RunEvidence) -> None:
        super().__init__(run)
        self._gains: list[float] = []
        """How far the updates so far went along the advantages."""
        self._first_step = self._num_seen = 0

    def check(self) -> Finding:
        """Return trouble if the updates so far went against the advantages."""
        if self.config.data is not None:
            return None
        for row in self.run.rows[self._num_seen :]:
            if (gain := causes.estimate_log_ratio_advantage_correlation(row)) is not None:
                self._first_step = self._first_step if self._gains else int(row["step"])
                self._gains.append(gain)
        self._num_seen = len(self.run.rows)
        if len(self._gains) < WINDOW_STEPS // 2 or not causes.go_against_advantages(self._gains):
            return None
        if len(self._gains) < WINDOW_STEPS:
            return Doubt()
        if causes.describe_penalty(self.run, self.run.rows[-WINDOW_STEPS:]):  # it may well outweigh the advantages
            return None
        what = f"the updates of {len(self._gains)} steps went against the advantages (update_gain is below 0)"
        return Trouble("sign", self._first_step, what, causes.explain_updates_against_advantages(self.run), self._first_step - 1)


class MissingGradient(HealthRule):
    """No step changes the weights, although the tasks are not solved."""

    HIGH_TEMPERATURE = 2.0
    """From here on tokens are drawn nearly at random."""
    MIN_ANSWERS_WITHOUT_REWARD = 4096
    """The number of answers that may score 0 from the first step on: where right answers are rare, a small batch has none for long."""
    MAX_CHANCE = 1e-3
    """Steps without a gradient are no accident if, as seldom as such steps were before, so many in a row are less probable than this."""

    def check(self) -> Finding:
        """Return trouble if the newest steps had no gradient, more of them than allowed and than chance gives."""
        bound, run = self.bounds.max_steps_without_gradient, self.run
        if bound is None or self.config.data is not None:  # stored answers are what they are
            return None
        count = run.count_last(run.taught_nothing_though_unsolved)
        if count < bound:
            return None
        rows, earlier = run.rows[-count:], run.rows[:-count]
        had_gradient = sum(not run.taught_nothing_though_unsolved(row) for row in earlier) / len(earlier) if earlier else 1.0
        if (1 - had_gradient) ** count > self.MAX_CHANCE:  # such steps were as common before
            return None
        never_right = not earlier and not any(row.get("reward") for row in rows) and any(row.get("reward") == 0 for row in rows)
        is_cut = (compute_mean(rows, "completions/clipped_ratio") or 0.0) > 0.5
        if never_right and not is_cut and sum(row.get("num_completions") or 0 for row in rows) < self.MIN_ANSWERS_WITHOUT_REWARD:
            return None
        what = f"no step has changed the weights for {count} steps (health.max_steps_without_gradient is {bound})"
        cause, reward, probe, checked = self._explain(rows), compute_mean(rows, "reward"), run.probe, run.checked_answers
        since = run.get_first_step(count)
        if probe is not None and reward is not None:
            if told := run.examine_or_reuse("verifier", lambda: probe.describe_change(checked, probe.verify_again(checked))):
                cause = causes.explain_changed_verifier(run, checked, f"up to step {run.checked_step}", told)
                return Trouble("gradient", since, what, cause, since - 1)
            elif reward > 0 and run.examine_or_reuse("saturation", lambda: self._is_saturated(probe, rows, reward)):
                run.solved_reward = reward - SAME_SCORE
                run.warn(
                    f"since step {rows[0]['step']} every answer scores {reward:.3g}, and a wrong one would score less: nothing is left to learn"
                )
                return None
        return causes.make_weight_trouble(run, "gradient", since, what, cause)

    def check_end(self, trainer: Trainer, report: TrainReport) -> None:
        """Stop a run that never had a gradient. A few steps without may be bad luck, unless no answer has a score."""
        rows = self.run.rows
        has_time = len(rows) >= self.bounds.patience or not self.run.scored_rows
        if rows and has_time and all(map(self.run.taught_nothing_though_unsolved, rows)):
            raise CheckFailed(f"no step of this run changed the weights\nlikely cause: {self._explain(rows)}")

    def _is_saturated(self, probe: RewardFallProbe, rows: Sequence[Row], reward: float) -> bool:
        """Whether all answers score the same because all are as good as can be: no step was better, and other answers score less."""
        best = self.run.rewards.find_best()
        if self.run.record is None or best is None or reward < best.mean - 2 * best.error - SAME_SCORE:
            return False
        if max((row.get("reward_std") or 0.0) for row in rows) > SAME_SCORE:
            return False
        return probe.tells_swapped_answers_apart(self.run.list_step_answers(probe))

    def _explain(self, rows: Sequence[Row]) -> str:
        """Explain why the newest steps have no gradient."""
        run, config = self.run, self.config
        if any(row.get("step/nonfinite_minibatches") for row in rows):
            return _explain_nonfinite(run)
        if any((row.get("reward_std") or 0.0) > 0 and row.get("grad_norm") == 0.0 for row in rows):
            if {row.get("advantage/std") for row in rows} == {0.0}:
                return "The rewards differ and the advantages do not: look at algorithm.advantage"
            own = run.own_parts.get("loss", "")
            own = f"{own} gives 0, or does not depend on the policy; else " if own else ""
            return f"The rewards differ and the gradient is 0: {own}no weight is trainable, or train.max_grad_norm removes all of it"
        # a rate that is set between two steps shows in the next one
        if all(row.get("learning_rate") == 0.0 for row in rows[len(rows) > 1 :]) and config.train.learning_rate:
            return (
                f"The learning rate is 0, and train.learning_rate is {config.train.learning_rate:g}: something sets that of the optimizer"
            )
        if any(row["step"] in run.weights.undone_steps for row in rows):
            return "Something other than the optimizer puts the weights back after each step: look for a callback that writes them"
        if any(row["step"] in run.weights.idle_steps and row.get("grad_norm") for row in rows):
            dtype = config.model.dtype
            small = "" if dtype == "float32" else f", or each update is smaller than {dtype} can express; use model.dtype=float32"
            return (
                "There is a gradient, and the step of the optimizer leaves the weights as they are: it was made for other tensors than the weights "
                "of this model (somebody replaced the model, its parameters or the optimizer later), or its step does nothing. Look for a "
                f"callback, or code of your own, that touches the model or the optimizer{small}"
            )
        if run.misplaced_references:
            return run.misplaced_references
        reward, cut = compute_mean(rows, "reward"), compute_mean(rows, "completions/clipped_ratio") or 0.0
        if reward is None:
            where = "the reasons are in episodes.jsonl"
            return f"No answer has a score. {causes.explain_unscored(run.unscored_reasons, run.num_unanswered, where=where)}"
        earlier = run.rows[: len(run.rows) - len(rows)]
        if earlier and (changes := causes.describe_answer_changes(earlier[-WINDOW_STEPS:], rows[-WINDOW_STEPS:])):
            return f"The answers have changed: {'; '.join(changes)}. {causes.explain_policy_change(run, int(rows[0]['step']))}"
        told = f"All answers of every group score the same, {reward:.3g} in the mean"
        if (temperature := config.rollout.temperature) > self.HIGH_TEMPERATURE and not reward:
            return f"{told}: at rollout.temperature={temperature:g} tokens are drawn nearly at random; 1 is usual"
        if cut > 0.5:
            return f"{told}, and {cut:.0%} of them are cut at the length limit: raise rollout.max_new_tokens, or check the stop tokens"
        if reward > 0:
            return f"{told}: the verifier does not tell answers apart, or each task has one answer for good. Read answers in episodes.jsonl"
        return (
            f"{told}: the tasks are too hard, or no answer can be read. Compare an answer in episodes.jsonl with what the verifier expects "
            "(`rlvr verify --explain`); easier tasks, a longer sft_warmup or more rollout.num_generations help where answers are readable"
        )


class ZeroRate(HealthRule):
    """The learning rate is 0 from the first step on, and the schedule never raises it."""

    def check(self) -> Finding:
        """Look at the learning rates of all steps, and at those to come."""
        run, train = self.run, self.config.train
        if not train.learning_rate or any(row.get("learning_rate") != 0.0 for row in run.rows) or self._may_rise():
            return None
        if len(run.rows) < self.bounds.patience:
            return Doubt()
        what = f"the learning rate is 0, and train.lr_scheduler={train.lr_scheduler} keeps it so to the last step"
        cause = (
            f"The learning rate is 0, and train.learning_rate is {train.learning_rate:g}: the schedule multiplies it by 0. It gets the step "
            "and the number of steps, and returns a factor"
        )
        return Trouble("gradient", int(run.rows[0]["step"]), what, cause, 0)

    def _may_rise(self) -> bool:
        """Whether the schedule has a rate above 0 in a later step, as far as that is known."""
        trainer = self.run.trainer
        schedule = getattr(trainer.learner.scheduler, "lr_lambdas", None) if trainer is not None else None
        if trainer is None or not schedule:
            return True
        return any(factor(step) for step in range(trainer.num_steps) for factor in schedule)


class EqualAnswers(HealthRule):
    """All answers of each group have the same tokens, which is no chance at the probabilities that these had."""

    MAX_CHANCE = 1e-6
    """Equal answers that are more probable than this show only that the policy is sure of them."""
    _num_equal = 0
    """For how many steps in a row the answers were equal."""

    def check(self) -> Finding:
        """Compare the answers of the newest step within their groups."""
        if self.run.record is None or self.config.data is not None:
            return None
        self._num_equal = self._num_equal + 1 if self._are_equal(self.run.record.batch.all_groups) else 0
        if self._num_equal < self.bounds.patience:
            return Doubt() if self._num_equal else None
        since = self.run.get_first_step(self._num_equal)
        what = f"all answers of each group have the same tokens, though by their log-probabilities the chance of that is below {self.MAX_CHANCE:g}"
        cause = (
            "The sampler draws all answers to a prompt with one and the same seed, or gives one answer to all of them: look at how it uses "
            f"the seed of each request, and rollout.temperature ({self.config.rollout.temperature:g})"
        )
        return Trouble("equal", since, what, cause, since - 1)

    def _are_equal(self, groups: Sequence[Sequence[Episode]]) -> bool:
        sampled = [[one for one in group if one.policy_version >= 0 and not one.is_auxiliary] for group in groups]
        sampled = [group for group in sampled if len(group) > 1]
        if any(one.tokens != group[0].tokens for group in sampled for one in group):
            return False
        return math.fsum((len(group) - 1) * math.fsum(group[0].logprobs) for group in sampled) < math.log(self.MAX_CHANCE)


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
        trouble = causes.make_weight_trouble(run, "repetition", since, what, causes.explain_policy_change(run, since))
        good = run.find_last_step_below(key, first + 0.1 * (now - first))
        if run.fallen_component is not None:
            good = min(good, run.fallen_component.last_good_step + 1)
        return trouble._replace(last_good_step=min(trouble.last_good_step, max(0, good - 1)))


class SamplerJump(HealthRule):
    """Sampler and trainer, which agreed to the last digits, no longer do."""

    def check(self) -> Finding:
        """Look whether their mismatch has jumped."""
        run = self.run
        if self.bounds.max_mismatch_kl is None or run.has_experts:
            return None
        count = run.count_last(lambda row: (row.get("mismatch_kl") or 0.0) > JUMP_MISMATCH_KL)
        if not count or (agreed := find_last_exact_step(run.rows, self.config)) is None:
            return None
        if count < min(PATIENCE_OF_CHECKS, self.bounds.patience):
            return Doubt()
        least = max(row["mismatch_kl"] for row in run.rows if row["step"] <= agreed and is_number(row.get("mismatch_kl")))
        now = compute_mean(run.rows[-count:], "mismatch_kl") or 0.0
        what = f"the sampler and the trainer differ by {now:.2g} nats per token; up to step {agreed} it was {least:.1g}"
        cause = run.weights.explain_foreign_weight_change(agreed + 1, agreed + 2) or SAMPLER_HAS_OTHER_WEIGHTS
        return Trouble("mismatch", run.get_first_step(count), what, cause, agreed)  # the update of that step had the right answers


class SamplerMismatch(HealthRule):
    """Sampler and trainer differ by more than a bound and by far more than at first; or, on-policy, by half the bound from the start."""

    SMALL_MISMATCH_KL = 1e-3
    """Sampler and trainer may always differ by this much: rounding, and what staleness does to them."""

    def check(self) -> Finding:
        """Look at their mismatch."""
        bound, run = self.bounds.max_mismatch_kl, self.run
        known = [row["mismatch_kl"] for row in run.rows[:FIRST_STEPS] if is_number(row.get("mismatch_kl"))]
        if bound is None or not known or self.config.data is not None:
            return None
        first, rollout = min(known), self.config.rollout
        if len(known) >= PATIENCE_OF_CHECKS and first > bound / 2 and not (rollout.is_off_policy or rollout.top_p < 1 or rollout.top_k):
            what = f"the sampler and the trainer differ by {first:.2g} nats per token or more since the first step, which is no rounding"
            cause = "The sampler has another model, or other weights, or gets another prompt (a template of its own, a token more or less)"
            return Trouble("mismatch", 1, what, f"{cause}: `rlvr doctor` compares them", 0)
        count = run.count_last(lambda row: (row.get("mismatch_kl") or 0.0) > max(bound, 10 * first))
        if count < self.bounds.patience:
            return Doubt() if count else None
        now = compute_mean(run.rows[-count:], "mismatch_kl") or 0.0
        what = f"the sampler and the trainer differ by {now:.2g} nats per token (health.max_mismatch_kl is {bound:g}), at first {first:.2g}"
        cause = (
            "Answers come from weights up to rollout.max_staleness steps older: lower it, or train.learning_rate"
            if self.config.rollout.max_staleness
            else "The sampler does not have the weights of the trainer, or computes in another precision: `rlvr doctor` compares them"
        )
        good = run.find_last_step_below("mismatch_kl", max(10 * first, self.SMALL_MISMATCH_KL))
        return Trouble("mismatch", run.get_first_step(count), what, cause, max(0, good - 1))


class RewardFall(HealthRule):
    """The reward has fallen from its best steps, and neither harder tasks nor another scale of scores explain that."""

    EXPECTED_CHANGES = {
        FallCause.TASKS: "on the tasks of before the policy is as good as it was, so the tasks are harder now",
        FallCause.SCORING: "the verifier gives the same answers lower scores now",
    }
    """What a fall of the reward may mean without a fault."""

    def check(self) -> Finding:
        """Compare the newest rewards with the best ones."""
        bound, run = self.bounds.max_reward_drop, self.run
        if run.probe is not None:
            run.probe.check_tool_repeatability(run.list_step_answers(run.probe))
        if bound is None or self.config.data is not None or (fall := run.rewards.find_fall(bound)) is None:
            return None
        rows, probe, (best, recent) = run.scored_rows, run.probe, fall[:2]
        changes = causes.describe_answer_changes(rows[best.start : best.end], rows[recent.start : recent.end])
        if not fall.is_lasting:
            return Doubt() if probe is not None or changes else None
        kept, step = run.list_best_answers(), int(rows[fall.since]["step"])
        change = (
            run.examine_or_reuse("fall", lambda: probe.explain_reward_fall(kept, bound))
            if probe is not None and kept
            else FallCause.UNKNOWN
        )
        if change in self.EXPECTED_CHANGES:
            told = f"since step {step} the reward is {recent.mean:.3g}, before {best.mean:.3g}"
            run.warn_once(f"fall: {change}", f"{told}: {self.EXPECTED_CHANGES[change]}")
            run.rewards.compare_only_from(fall.since)
            return None
        if change is FallCause.UNKNOWN and not changes and not run.began_after_resume_with_other_tasks(step):
            return None
        what = f"the reward has fallen from {best.mean:.3g} to {recent.mean:.3g}"
        if change is FallCause.VERIFIER:
            cause = causes.explain_changed_verifier(run, kept, f"of step {run.best_answers_step}")
        else:
            what += f" and the answers have changed: {'; '.join(changes)}" if changes else ""
            cause = causes.explain_policy_change(run, step, fall)
        trouble = causes.make_weight_trouble(run, "reward", step, what, cause)
        good = int(rows[fall.last_good]["step"]) if fall.last_good >= 0 else 0
        return trouble._replace(last_good_step=min(good, trouble.last_good_step))


class HeldOutFall(HealthRule):
    """The newest held-out figure is far below an earlier one, or falls while the reward rises, or is missing because answers have no score.

    A fall beyond `health.max_reward_drop` stops the run. A smaller one, or one that few tasks leave in doubt, is a warning where the reward
    rises: the policy learns what only the training reward pays.
    """

    STORED_SCORES = "held_out_scores"
    """Where a checkpoint's progress has the held-out scores of the evaluations before it."""
    GAP_SIGMAS = 4.0
    """By how many standard errors the reward must have risen, above the held-out figure, and more than it."""
    FIRST_SIGMAS, CHOSEN_SIGMAS = 2.25, 3.5
    """By how many a held-out figure must have fallen besides: from the first evaluation, or from the one of many that shows it most."""
    NEAR_STEPS = 4
    """The steps before and after evaluations whose rewards are compared with these."""
    checks_if_others_find_nothing = True
    _best_accuracy = -math.inf
    _best_answers: Sequence[KeptAnswer] = ()
    """Answers of the best evaluation so far."""

    def __init__(self, run: RunEvidence) -> None:
        super().__init__(run)
        self._history = HeldOutHistory()

    def begin(self, trainer: Trainer) -> None:
        """Take the scores of the evaluations before a resume."""
        if trainer.is_resumed:
            self._history.restore(trainer.report_values.get(self.STORED_SCORES, []))

    def check(self) -> Finding:
        """Compare the figure of the newest step, if it has one, with those before."""
        rows = self.run.rows
        if not is_number(rows[-1].get("eval/accuracy")) or self.config.data is not None:
            return None
        before = self.run.trainer.report_values.get("accuracy_before") if self.run.trainer is not None else None
        known: list[tuple[int, Any]] = [(0, before), *((int(row["step"]), row.get("eval/accuracy")) for row in rows)]
        figures = [(at, float(value)) for at, value in known if is_number(value)]
        if len(figures) < 2:
            return None
        fall = self._find_fall(figures)
        if fall is None:
            self._warn_of_gap()
            return None
        change = self._explain_fall(fall.high, fall.now)
        if change is FallCause.SCORING:
            return None
        since, good = self._locate(fall, figures)
        trouble = causes.make_weight_trouble(self.run, "held-out", since, fall.describe(), self._explain(change, fall, since))
        return trouble._replace(last_good_step=good)

    def check_evaluation(self, trainer: Trainer, step: int, accuracy: float | None) -> None:
        """Keep the scores; report missing ones, and stop before training if no held-out answer has a score."""
        episodes = trainer.held_out_episodes
        if accuracy is not None:
            prompts = [(*episode.tokens[: episode.prompt_length],) for episode in episodes]
            self._history.add(step, [episode.reward if episode.is_scored else None for episode in episodes], prompts)
            trainer.report_values[self.STORED_SCORES] = self._history.to_json()
            if accuracy >= self._best_accuracy:
                self._best_accuracy = accuracy
                self._best_answers = keep_answers(trainer.environment, episodes)
        if accuracy is not None or not trainer.config.eval.tasks or self.bounds.action == "off":
            return
        lost = [episode for episode in episodes if not episode.is_scored]
        if not step and self.bounds.action == "stop" and len(lost) == len(episodes):
            raise CheckFailed(
                f"none of the {len(lost)} held-out answers before training has a score\n"
                f"likely cause: {self._explain_unscored(lost, 'repair it, or measure nothing with eval.tasks=0')}"
            )
        if step:
            self.run.warn_once("withheld", f"the held-out figure of step {step} is withheld: more than 2 % of the answers have no score")

    def check_end(self, trainer: Trainer, report: TrainReport) -> None:
        """Stop a run that ends with too many unscored held-out answers, or with a much worse accuracy than before."""
        answers, lost = report.held_out_answers, report.held_out_unscored
        if report.accuracy_after is None and answers and lost > answers * (self.bounds.max_unscored or 1.0):
            unscored = [episode for episode in trainer.held_out_episodes if not episode.is_scored]
            raise CheckFailed(
                f"the run has finished and is saved, but {lost} of {answers} held-out answers have no score\n"
                f"likely cause: {self._explain_unscored(unscored, 'the reasons are in the log')}"
            )
        before, after, count = report.accuracy_before, report.accuracy_after, report.held_out_tasks
        if before is None or after is None or not self.run.rows or self.config.data is not None:
            return
        ended = report.steps
        known: list[tuple[int, Any]] = [(int(row["step"]), row.get("eval/accuracy")) for row in self.run.rows if row["step"] < ended]
        figures = [(0, before), *((at, float(value)) for at, value in known if is_number(value)), (ended, after)]
        whole, fall = compare_figures(before, after, count, 0, ended), self._find_fall(figures, count)
        told = f"held-out {before:.1%} -> {after:.1%} on {count} tasks"
        if fall is None:
            if not self._warn_of_gap() and whole and whole.is_certain and self._explain_fall(before, after) is FallCause.UNKNOWN:
                self.run.warn(f"the policy is worse than before training, beyond chance: {told}")
            return
        if (change := self._explain_fall(fall.high, fall.now)) is FallCause.SCORING:
            self.run.warn(f"{told}; the verifier scores the same answers so much lower now, so the policy may be as good as before")
            return
        since, good = self._locate(fall, figures)
        if len(figures) == 2 and self._measure_reward_rise(fall) is None:  # the rewards tell more
            since = max(1, self.run.best_reward_step + 1)
            good = max(0, since - 2)
        what = f"the policy has become much worse: {told if fall.first == fall.last == 0 else fall.describe()}"
        trouble = causes.make_weight_trouble(self.run, "held-out", since, what, self._explain(change, fall, since))
        trouble = trouble._replace(last_good_step=min(good, trouble.last_good_step) if len(figures) == 2 else good)
        raise CheckFailed(trouble.set_aside_checkpoints_and_explain(trainer, trainer.num_completed_steps))

    def _explain_unscored(self, lost: Sequence[Episode], where: str) -> str:
        reasons = Counter(str(episode.error)[:MAX_QUOTE] for episode in lost)
        references = f", or a reference of the split {self.config.eval.split!r},"
        return causes.explain_unscored(reasons, count_unanswered(lost), where=where, references=references)

    def _find_fall(self, figures: Sequence[tuple[int, float]], num_tasks: int | None = None) -> HeldOutChange | None:
        """Find the surest fall of the newest figure that is large enough to stop the run; None without one."""
        bound = self.bounds.max_reward_drop
        if bound is None:
            return None
        (at, high), (step, now) = max(figures[:-1], key=lambda one: one[1]), figures[-1]
        compared = compare_figures(high, now, num_tasks or self.config.eval.tasks, at, step)
        if self._history.newest_step == step:
            changes = list(self._history.iter_accuracy_changes())
        else:
            changes = []
        if not changes and compared is not None:  # evaluations of which only the figures are known
            changes = [compared]
        found = [one for one in changes if one.is_certain and one.is_below(bound)]
        return max(found, key=lambda one: max(one.sigmas, one.unpaired_sigmas), default=None)

    def _locate(self, fall: HeldOutChange, figures: Sequence[tuple[int, float]]) -> tuple[int, int]:
        """Find the first evaluation that is low, and the last one that is about as good as the best."""
        good = max(at for at, value in figures[:-1] if value >= fall.high - (fall.high - fall.now) / 4 or at <= fall.first)
        since = next(at for at, value in figures if at > good and (value < (fall.high + fall.now) / 2 or at == figures[-1][0]))
        return since, good

    def _measure_reward_rise(self, change: HeldOutChange, sigmas: float = GAP_SIGMAS) -> RewardRise | None:
        """Measure the reward near the earlier and near the newest evaluations; None if it has not risen by so many standard errors."""
        run, until = self.run, self._history.newest_step
        places = [place for place, row in enumerate(run.scored_rows) if row["step"] <= max(until, change.since)]
        then = [
            at
            for at in places
            if change.first - self.NEAR_STEPS < run.scored_rows[at]["step"] <= min(change.last + self.NEAR_STEPS, change.since)
        ]
        if not then or not (recent := [at for at in places if at > then[-1]][-WINDOW_STEPS:]):
            return None
        before, now = run.rewards.measure(then[0], then[-1] + 1), run.rewards.measure(recent[0], recent[-1] + 1)
        error = math.hypot(before.error, now.error)
        return RewardRise(before, now, error) if now.mean - before.mean > sigmas * error else None

    def _warn_of_gap(self) -> bool:
        """Warn, once, that the reward rises while the held-out figure falls; return whether it does."""
        falls = (one for one in self._history.iter_accuracy_changes() if one.is_certain or one.sigmas >= self.FIRST_SIGMAS)
        found = [(one, rise) for one in falls if (rise := self._measure_reward_rise(one)) and self._is_gap(one, rise)]
        if not found or self.bounds.action == "off":
            return False
        change, rise = max(found, key=lambda one: (one[0].is_from_first, one[0].sigmas))
        if self._explain_fall(change.high, change.now) is FallCause.UNKNOWN:
            cause = causes.explain_reward_without_held_out(self.run, rise.before.mean, rise.now.mean)
            doubt = "" if change.is_certain else " (by chance perhaps, of so few tasks, but that it does not follow the reward is none)"
            self.run.warn_once("gap", f"{change.describe()}{doubt}. {cause}")
        return True

    def _is_gap(self, change: HeldOutChange, rise: RewardRise) -> bool:
        """Whether a fall beside a rising reward is no accident of the tasks."""
        if change.is_certain:
            return True
        if change.sigmas < (self.FIRST_SIGMAS if change.is_from_first else self.CHOSEN_SIGMAS) or not change.is_below(0.25):
            return False
        before, now, fall = rise.before, rise.now, change.high - change.now
        if change.high < before.mean - 2 * math.hypot(change.score_error, before.error):  # held-out tasks that were harder from the first
            return False
        opened = now.mean - before.mean + fall > self.GAP_SIGMAS * math.hypot(rise.error, change.error)
        return opened and now.mean - change.now > self.GAP_SIGMAS * math.hypot(change.score_error, now.error)

    def _explain(self, change: FallCause, fall: HeldOutChange, since: int) -> str:
        if change is FallCause.VERIFIER:
            return causes.explain_changed_verifier(self.run, self._best_answers, "before")
        if rise := self._measure_reward_rise(fall, sigmas=1.0):
            return causes.explain_reward_without_held_out(self.run, rise.before.mean, rise.now.mean)
        return causes.explain_policy_change(self.run, since)

    def _explain_fall(self, high: float, now: float) -> FallCause:
        """Find what a fall of the held-out figure means, by verifying the answers of the best evaluation again."""
        probe = self.run.probe
        if probe is None or not self._best_answers:
            return FallCause.UNKNOWN
        scores = probe.verify_again(self._best_answers)
        if probe.describe_change(self._best_answers, scores):
            return FallCause.VERIFIER
        pairs = [(answer.score, score) for answer, score in zip(self._best_answers, scores, strict=True) if score is not None]
        before, again = (math.fsum(values) for values in zip(*pairs, strict=True)) if pairs else (0.0, 0.0)
        # the same answers have lost more than half of what the figure has
        return FallCause.SCORING if before > 0 and high * (1 - again / before) > (high - now) / 2 else FallCause.UNKNOWN


class RewardRise(NamedTuple):
    """A reward that has risen beyond chance: the steps before, the newest ones, and the standard error of the difference."""

    before: Steps
    now: Steps
    error: float


class ChangedVerifier(HealthRule):
    """The verifier no longer tells answers apart as it did when they were first verified.

    It gives all one score, also the highest, more to those that had less, or to each a random one. So some answers are verified again every
    some steps.
    """

    NUM_CHECKED = 16
    """The number of the worst and of the best answers of a step that are verified again every some steps."""
    checks_if_others_find_nothing = True
    _num_doubts = 0
    """The number of checks in a row in which the verifier had changed."""
    _first_answers: Sequence[KeptAnswer] = ()
    """The first answers that were verified again. They show noise: of later answers, others may be hard to judge."""

    def __init__(self, run: RunEvidence) -> None:
        super().__init__(run)
        self._since_check: list[tuple[int, list[KeptAnswer]]] = []
        """Answers of each step since the verifier was last known to be as before: verified again, they show where it changed."""

    def check(self) -> Finding:
        """Verify the checked answers again, if it is time; choose others while the verifier is as before."""
        run, probe, step = self.run, self.run.probe, int(self.run.rows[-1]["step"])
        if probe is None:
            return None
        if run.checked_answers:
            found = sorted(run.list_step_answers(probe), key=lambda answer: answer.score)
            if self._num_doubts < PATIENCE_OF_CHECKS:  # a run that only warns goes on
                self._since_check.append((step, _select_extremes(found, self.NUM_CHECKED)))
            if step % LASTING_STEPS and not self._num_doubts:
                return None
        else:
            self._choose_answers(probe, step)
            run.verified_step, self._since_check = step, []
            return None
        scores = probe.verify_again(run.checked_answers)
        told = probe.describe_change(run.checked_answers, scores)
        if told:
            told = probe.confirm_change(run.checked_answers, scores, run.list_step_answers(probe))
        elif any(score is not None and abs(score - one.score) > SAME_SCORE for one, score in zip(run.checked_answers, scores, strict=True)):
            told = probe.describe_noise(self._first_answers)
        if not told:
            self._num_doubts, run.verified_step, self._since_check = 0, step, []
            pairs = zip(run.checked_answers, scores, strict=True)
            self._choose_answers(probe, step, [one for one, score in pairs if score is not None and abs(score - one.score) <= SAME_SCORE])
            return None
        self._num_doubts += 1
        if self._num_doubts < min(PATIENCE_OF_CHECKS, self.bounds.patience):
            return Doubt()
        located = run.examine_or_reuse("change", lambda: probe.find_last_step_before_change(self._since_check))
        if located is None:
            since, good = min(run.verified_step + 1, step), run.verified_step
            when = f"not up to step {good}, but in step {step - self._num_doubts + 1}"
        else:
            last, is_whole = located
            since, good = (last + 1, last) if is_whole else (last, last - 1)
            when = f"the answers of step {last} score otherwise now, those of step {last + 1} do not"
        what = f"the verifier scores answers otherwise than at first ({when})"
        cause = causes.explain_changed_verifier(run, run.checked_answers, f"up to step {run.checked_step}", told)
        return Trouble("verifier", since, what, cause, good)

    def _choose_answers(self, probe: RewardFallProbe, step: int, confirmed: Sequence[KeptAnswer] = ()) -> None:
        """Choose answers of this step, the worst and the best; those before stay if all of these score the same. `confirmed`: answers that
        got the same score again, which stay where few others are as bad or as good as they are.
        """
        found = sorted(self.run.list_step_answers(probe), key=lambda answer: answer.score)
        if found and found[-1].score - found[0].score > SAME_SCORE:
            if not self.run.checked_answers:
                self._first_answers = _select_extremes(found, self.NUM_CHECKED)
                probe.measure_repeatability(self._first_answers)
                if probe.repeatability < 1.0:  # a few answers do not tell how noisy the verifier is
                    probe.measure_repeatability(_select_extremes(found, MAX_ANSWERS))
            worse, best = ([one for one in found if (one.score >= found[-1].score) is is_best] for is_best in (False, True))
            earlier = [one for one in confirmed if one.score <= found[0].score or one.score >= found[-1].score]
            found = sorted([*worse, *earlier, *best], key=lambda answer: answer.score)  # of equal ones those of this step are at the ends
            # where the scores of one answer differ, only many answers show a change
            self.run.checked_answers = _select_extremes(found, self.NUM_CHECKED if probe.repeatability == 1.0 else MAX_ANSWERS // 2)
            self.run.checked_step = step


class MisplacedReferences(HealthRule):
    """Answers are right for the tasks of another row, and hardly for their own. It warns once in a run, and stops it where that is certain."""

    NUM_FIRST_ANSWERS, LOW_REWARD = 64, 0.25
    """From so many first answers on, of different tasks and with at most this mean reward, is asked whether the references are of other rows."""
    _first_answers: Sequence[KeptAnswer] | None = ()
    """Answers of the first steps, one of each task; None once they were examined."""

    def check(self) -> Finding:
        """Collect answers of the first steps; once there are enough, verify them with the references of other rows."""
        run, probe, answers = self.run, self.run.probe, self._first_answers
        if probe is None or answers is None:
            return None
        by_task = {answer.task.id: answer for answer in answers}
        for answer in run.list_step_answers(probe):
            by_task.setdefault(answer.task.id, answer)
        self._first_answers = answers = [*by_task.values()]
        if len(answers) < self.NUM_FIRST_ANSWERS and len(run.rows) < self.NUM_FIRST_ANSWERS:
            return None
        answers, self._first_answers = answers[: self.NUM_FIRST_ANSWERS], None
        is_low = math.fsum(answer.score for answer in answers) <= self.LOW_REWARD * len(answers)
        if not is_low or (found := probe.find_misplaced_references(answers)) is None:
            return None
        run.misplaced_references = found.what
        if not found.is_certain:
            run.warn(found.what)
            return None
        cause = (
            "The data, not the policy: their questions and references were joined or read one row apart. It has learned wrong answers since; "
            "repair them, and start a new run"
        )
        return Trouble("references", run.first_step, found.what, cause, run.first_step - 1)


class ForeignReference(HealthRule):
    """The reference of the KL is another model than the one that training began with. It only warns, once in a run, if that is configured."""

    MIN_KL = 0.5
    """The policy of the first step, before any update, is the reference but for rounding; this far apart they are two models."""

    def check(self) -> Finding:
        """Look at the KL of the first step, and whether it lasts."""
        run, config = self.run, self.config
        first, needed = run.rows[0], min(PATIENCE_OF_CHECKS, self.bounds.patience)
        if first["step"] != 1 or not first.get("beta") or (first.get("optimizer_steps") or 1) > 1 or not run.has_penalty:
            return None
        if any((row.get("kl") or 0.0) < self.MIN_KL for row in run.rows[:needed]):
            return None
        reference = config.frozen_models.get("reference")
        which = f"frozen_models.reference ({reference.path})" if reference is not None else "the reference"
        run.foreign_reference = (
            f"In the first step, before any update, the KL of the policy to the reference was {first['kl']:.2g} nats per token, so {which} is "
            f"another model than the one that training began with. algorithm.beta ({first['beta']:g}) pulls the policy to it"
        )
        if len(run.rows) > needed:
            return None
        if reference is not None or config.model.lora is not None:  # a teacher, or the model without an adapter that it already had
            if self.bounds.action != "off":
                run.warn_once("reference", f"i{run.foreign_reference[1:]}")
            return None
        if len(run.rows) < needed:
            return Doubt()
        what = f"the KL of the policy to the reference is above {self.MIN_KL:g} nats per token"
        return Trouble("reference", 1, what, f"{run.foreign_reference}. Look for what gives the trainer this reference", 0)


class FallenComponent(HealthRule):
    """A component of the reward has fallen to 0 while the reward rises. Only the user knows whether it matters, so that is a warning, once for
    each; a checkpoint from before the fall is kept while it lasts.
    """

    NUM_BEST_STEPS, MAX_LEFT, NEARLY_BEST = 4, 0.05, 0.8
    """A component is compared with its mean over so many steps: it has fallen with at most the second part of it left, and was good with the
    third.
    """
    MIN_EXPECTED = 20.0
    """So many of the newest prompts would have had the component as often as at best: where it is rare, it may fail to appear by chance."""

    def __init__(self, run: RunEvidence) -> None:
        super().__init__(run)
        self._best: dict[str, tuple[float, float]] = {}
        """The best mean of each component, and the reward of those steps."""
        self._num_seen = 0

    def check(self) -> Finding:
        """Compare the components of the newest steps with their best ones."""
        run, recent = self.run, self.run.rows[-WINDOW_STEPS:]
        for end in range(self._num_seen + 1, len(run.rows) + 1):
            self._update_best(run.rows[max(0, end - self.NUM_BEST_STEPS) : end])
        self._num_seen, run.fallen_component = len(run.rows), None
        reward = compute_mean(recent, "reward")
        if self.config.data is not None or reward is None or len(recent) < WINDOW_STEPS:
            return None
        for key, (best, reward_then) in self._best.items():
            has_fallen = all(is_number(row.get(key)) and abs(row[key]) <= self.MAX_LEFT * best for row in recent)
            expected = min(1.0, best) * sum((row.get("num_completions") or 0) for row in recent) / self.config.rollout.num_generations
            if not has_fallen or reward <= reward_then or expected < self.MIN_EXPECTED:
                continue
            good = max(int(row["step"]) for row in run.rows if is_number(row.get(key)) and row[key] >= self.NEARLY_BEST * best)
            name = key.removeprefix("rewards/").removesuffix("/mean")
            what = (
                f"the component {name!r} of the reward has fallen from {best:.3g} to {compute_mean(recent, key) or 0.0:.3g} while the reward rose "
                f"from {reward_then:.3g} to {reward:.3g}: the others pay more for answers without it"
            )
            run.fallen_component = ComponentFall(what, max(0, good - 1))
            if self.bounds.action != "off":
                run.warn_once(key, f"since step {recent[0]['step']} {what}. Read the answers of this step in episodes.jsonl")
        return None

    def _update_best(self, rows: Sequence[Row]) -> None:
        reward = compute_mean(rows, "reward")
        if reward is None or len(rows) < self.NUM_BEST_STEPS:
            return
        for key in rows[-1]:
            if key.startswith("rewards/") and key.endswith("/mean") and all(is_number(row.get(key)) for row in rows):
                mean = compute_mean(rows, key) or 0.0
                if mean > self._best.get(key, (0.0, 0.0))[0]:
                    self._best[key] = mean, reward


class HeavyKLPenalty(HealthRule):
    """The KL to the reference weighs more than the advantages. It only warns, once in a run."""

    def check(self) -> Finding:
        """Look at the newest steps."""
        if self.bounds.action != "off" and (told := causes.describe_penalty(self.run, self.run.rows[-WINDOW_STEPS:])):
            self.run.warn_once("penalty", f"up to step {self.run.rows[-1]['step']} {told}")
        return None


RULES: tuple[type[HealthRule], ...] = (
    BrokenWeights, ChangedTasks, UnscoredAnswers, NonfiniteGradients, WrongSign, ZeroRate, EqualAnswers, MissingGradient, Repetition,
    SamplerJump, SamplerMismatch, ForeignReference, RewardFall, HeldOutFall, ChangedVerifier, MisplacedReferences, FallenComponent,
    HeavyKLPenalty,
)  # fmt: skip
"""All rules. Of several troubles in one step the first counts: it is the likely cause of the others."""


def _explain_nonfinite(run: RunEvidence) -> str:
    """Explain gradients that are infinite or not a number: weights that are not finite would have been found."""
    if own := " or ".join(run.own_parts.values()):
        return f"The weights are finite, so {own} or its gradient is infinite or not a number: look for a division, a log or a root"
    precision = ", or use model.dtype=float32 with train.mixed_precision=bf16 or no" if run.config.model.dtype != "float32" else ""
    return f"The loss or its gradient overflows, and the weights are finite: lower train.learning_rate{precision}"


def find_last_exact_step(rows: Sequence[Row], config: RunConfig) -> int | None:
    """Find the step up to which sampler and trainer agreed to the last digits, as they do where both compute in float32 with the same
    weights; None if they never did, or later ones may differ.
    """
    if config.data is not None or config.rollout.is_off_policy or config.rollout.top_p < 1 or config.rollout.top_k:
        return None
    known = (row for row in rows if is_number(row.get("mismatch_kl")))
    exact = list(takewhile(lambda row: row["mismatch_kl"] < EXACT_MISMATCH_KL, known))
    return int(exact[-1]["step"]) if len(exact) > (config.model.dtype != "float32") else None


def _compute_unscored_fraction(row: Row) -> float:
    count = row.get("num_completions") or 0
    return (row.get("unscored") or 0) / count if count else 0.0


def _select_extremes(answers: list[KeptAnswer], count: int) -> list[KeptAnswer]:
    """Select the first and the last of some answers in order."""
    return [*answers[:count], *answers[max(count, len(answers) - count) :]]
