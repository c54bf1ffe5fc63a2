"""Run health: find out that a run is in trouble, say in which step that began and what the likely cause is, and stop it.

Every rule needs several steps in a row, because one bad step is noise; only a fall of the held-out figure counts at once. From the first of
them on no checkpoint is written, except of the last step and while steps merely have no gradient. A run that is
stopped sets aside the checkpoints since the trouble, or since the update that caused it, so that a resume goes on from before.

A falling reward alone is no trouble: tasks get harder, and steps differ. It counts if the answers have changed too: their length, their
entropy, their repetition, how many are cut, or whether they differ at all.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.console import Console

from rlvr.config.config import RunConfig
from rlvr.errors import CheckFailed
from rlvr.runs.run_log import read_metrics
from rlvr.training.callbacks import Callback, StepRecord
from rlvr.training.processes import run_on_main
from rlvr.training.train_report import TrainReport

if TYPE_CHECKING:
    from rlvr.training.trainer import Trainer

Row = Mapping[str, Any]

WINDOW_STEPS = 8
"""The number of steps whose mean reward is compared with the best earlier ones."""
FIRST_STEPS = 5
"""The number of steps that show how a run was at first."""
MAX_FACTOR = 3.0
"""The factor by which length and entropy may change while the reward falls."""
MIN_SIGMAS = 4.0
"""How many standard errors a fall of the reward must have, so that it is no accident of a few prompts."""
LARGE_UPDATE_KL, LARGE_UPDATE_FACTOR = 0.1, 5.0
"""An update that moves the policy by this much per token, and by this much more than the usual update of the run, destroys more than it
teaches; usual ones are below 0.01."""
BLAMED_STEPS = 3
"""How many steps before a trouble an update is its likely cause."""
MIN_ANSWERS_WITHOUT_REWARD = 4096
"""The number of answers that may score 0 from the first step on: where right answers are rare, a small batch has none for long."""
SOLVED_REWARD = 0.99
"""Steps without a gradient are no trouble from this mean reward on: every answer is right."""


class Trouble(NamedTuple):
    """What is wrong with a run.

    >>> Trouble("reward", 7, "the reward fell from 0.6 to 0.1", "lower train.learning_rate").since
    7
    """

    kind: str
    since: int
    """The first step of the trouble."""
    what: str
    cause: str
    """The likely cause, and what to do."""
    last_good_step: int = -1
    """The last step whose weights are from before the trouble and its cause; -1: the trouble is not one of the weights."""


class RunHealth(Callback):
    """Stops a run beyond the bounds of the section `health`.

    >>> from rlvr.config.config import load_config
    >>> health = RunHealth(load_config("quickstart"))
    >>> for step in range(1, 6):
    ...     trouble = health.observe({"step": step, "reward": 1.0, "unscored": 120, "num_completions": 128})
    >>> trouble.kind, trouble.since
    ('unscored', 1)
    """

    def __init__(self, config: RunConfig, console: Console | None = None) -> None:
        self.config, self.bounds, self.console = config, config.health, console or Console(quiet=True)
        self.rows: list[Row] = []
        """The metrics of the steps so far."""
        self._scored_rows: list[Row] = []
        self._best_start, self._best_end = 0, 0
        """The steps with the best mean reward so far, as places in `_scored_rows`."""
        self.is_in_doubt = False
        """True from the first step that looks like trouble until a step that does not; no checkpoint is written meanwhile."""
        self._told_kinds: set[str] = set()
        self._unscored_reasons = Counter[str]()
        """Why answers of the steps so far have no score."""

    def on_run_begin(self, trainer: Trainer) -> None:
        """Read the steps before a resume."""
        if trainer.is_resumed:
            for row in run_on_main(trainer.accelerator, lambda: list(read_metrics(trainer.folder))):
                self.observe(row)

    def on_step_end(self, trainer: Trainer, step: int, record: StepRecord) -> None:
        """Check the step; stop the run or warn if it is in trouble."""
        self._unscored_reasons.update(_list_unscored_reasons(record) if record.metrics.get("unscored") else ())
        trouble = self.observe(record.metrics) or self._find_held_out_fall(step, trainer.report_values.get("accuracy_before"))
        trainer.healthy_step = self.healthy_step
        if trouble is None or self.bounds.action == "off":
            return
        if self.bounds.action == "stop":
            raise CheckFailed(self._format_stop(trainer, step, trouble))
        if trouble.kind not in self._told_kinds:
            self._told_kinds.add(trouble.kind)
            self._warn(f"since step {trouble.since} {trouble.what}\nlikely cause: {trouble.cause}")

    def on_evaluate(self, trainer: Trainer, step: int, accuracy: float | None) -> None:
        """Say where a held-out figure is withheld."""
        if accuracy is None and step and trainer.config.eval.tasks and self.bounds.action != "off" and "withheld" not in self._told_kinds:
            self._told_kinds.add("withheld")
            self._warn(f"the held-out figure of step {step} is withheld: more than 2 % of the answers have no score")

    def on_run_end(self, trainer: Trainer, report: TrainReport) -> None:
        """Stop a run that never had a gradient, or whose policy is much worse than before: it must not end as if it had trained. A few
        steps without a gradient may be bad luck.
        """
        idle = bool(self.rows) and all(map(self._lacks_gradient, self.rows))
        unscored = all(row.get("reward") is None for row in self.rows)
        if self.bounds.action == "stop" and idle and (unscored or len(self.rows) >= self.bounds.patience):
            raise CheckFailed(f"no step of this run changed the weights\nlikely cause: {self._explain_missing_gradient(self.rows)}")
        answers, lost = report.held_out_answers, report.held_out_unscored
        if (
            self.bounds.action == "stop"
            and report.accuracy_after is None
            and answers
            and lost > answers * (self.bounds.max_unscored or 1.0)
        ):
            raise CheckFailed(
                f"the run has finished and is saved, but {lost} of {answers} held-out answers have no score\nlikely cause: Not the answers but "
                f"the verifier, its sandbox or the references of the split {trainer.config.eval.split!r}; the reasons are in the log"
            )
        before, after, count = report.accuracy_before, report.accuracy_after, report.held_out_tasks
        if self.bounds.action != "stop" or before is None or after is None or not self.rows or not self._has_fallen(before, after, count):
            return
        raise CheckFailed(
            f"the run has finished and is saved, but its policy is much worse than before: held-out {before:.1%} -> {after:.1%} on {count} "
            f"tasks\nlikely cause: {self._explain_change(int(self.rows[0]['step']) + 1)}"
        )

    def observe(self, row: Row) -> Trouble | None:
        """Add the metrics of a step; return what is wrong, if anything is for long enough."""
        self.rows.append(row)
        if row.get("reward") is not None:
            self._add_scored_row(row)
        rules = (self._find_unscored, self._find_nonfinite, self._find_missing_gradient, self._find_repetition, self._find_mismatch)
        found = [find() for find in (*rules, self._find_collapse)]
        self.is_in_doubt = self.bounds.action == "stop" and any(doubt for doubt, _ in found)
        return next((trouble for _, trouble in found if trouble is not None), None)

    @property
    def healthy_step(self) -> int:
        """The last of the best steps so far, which are from before any fall of the reward; -1 if none has a reward."""
        return int(self._scored_rows[self._best_end - 1]["step"]) if self._scored_rows else -1

    # ---- rules: whether the last step is in doubt, and the trouble if it has lasted long enough --------------------------

    def _find_unscored(self) -> tuple[bool, Trouble | None]:
        bound = self.bounds.max_unscored
        count = self._count_last(lambda row: _compute_unscored_fraction(row) > bound) if bound is not None else 0
        if count < self.bounds.patience:
            return count > 0, None
        shares = [_compute_unscored_fraction(row) for row in self.rows[-count:]]
        what = f"at least {min(shares):.0%} of the answers of every step have no score (health.max_unscored is {bound:g})"
        cause = (
            f"Not the answers but the verifier, its sandbox or its service fails{self._quote_reason()}; the reasons are in episodes.jsonl "
            "(`error`, `verdict`). Repair it, then continue with --resume"
        )
        if (common := self._unscored_reasons.most_common(1)) and "log-probability nan" in common[0][0]:
            cause = f"The weights or the logits are not numbers{self._quote_reason()}: a broken checkpoint, or an update that overflowed"
            return True, self._make_weight_trouble("unscored", self._get_first_step(count), what, cause)
        return True, Trouble("unscored", self._get_first_step(count), what, cause)

    def _find_nonfinite(self) -> tuple[bool, Trouble | None]:
        count = self._count_last(lambda row: bool(row.get("step/nonfinite_minibatches")) and not row.get("optimizer_steps"))
        if count < self.bounds.patience:
            return count > 0, None
        cause = (
            "The weights or the loss overflow: lower train.learning_rate, or use model.dtype=float32 with train.mixed_precision=bf16 or no"
        )
        what = "every gradient is infinite or not a number, so nothing is learned"
        return True, self._make_weight_trouble("nonfinite", self._get_first_step(count), what, cause)

    def _find_missing_gradient(self) -> tuple[bool, Trouble | None]:
        bound = self.bounds.max_steps_without_gradient
        if bound is None or self.config.data is not None:  # stored answers are what they are
            return False, None
        count = self._count_last(self._lacks_gradient)
        if count < bound:
            return count > 1, None
        rows = self.rows[-count:]
        never_right = count == len(self.rows) and not any(row.get("reward") for row in rows) and any(row.get("reward") == 0 for row in rows)
        is_cut = (_mean(rows, "completions/clipped_ratio") or 0.0) > 0.5
        if never_right and not is_cut and sum(row.get("num_completions") or 0 for row in rows) < MIN_ANSWERS_WITHOUT_REWARD:
            return True, None
        what = f"no step has changed the weights for {count} steps (health.max_steps_without_gradient is {bound})"
        cause = self._explain_missing_gradient(rows)
        return True, self._make_weight_trouble("gradient", self._get_first_step(count), what, cause)

    def _find_repetition(self) -> tuple[bool, Trouble | None]:
        bound = self.bounds.max_repetition
        first = _mean(self.rows[:FIRST_STEPS], "completions/repetition")
        if bound is None or first is None or first > bound / 2:
            return False, None
        count = self._count_last(lambda row: (row.get("completions/repetition") or 0.0) > bound)
        if count < self.bounds.patience:
            return count > 0, None
        now = _mean(self.rows[-count:], "completions/repetition") or 0.0
        what = f"answers repeat themselves: {now:.0%} of their four-token sequences occur before in the same answer, at first {first:.0%}"
        first_step = self._get_first_step(count)
        return True, self._make_weight_trouble("repetition", first_step, what, self._explain_change(first_step))

    def _find_mismatch(self) -> tuple[bool, Trouble | None]:
        bound, first = self.bounds.max_mismatch_kl, _mean(self.rows[:FIRST_STEPS], "mismatch_kl")
        if bound is None or first is None or self.config.data is not None:
            return False, None
        count = self._count_last(lambda row: (row.get("mismatch_kl") or 0.0) > max(bound, 10 * first))
        if count < self.bounds.patience:
            return count > 0, None
        now = _mean(self.rows[-count:], "mismatch_kl") or 0.0
        what = f"the sampler and the trainer differ by {now:.2g} nats per token (health.max_mismatch_kl is {bound:g}), at first {first:.2g}"
        cause = (
            "Answers come from weights up to rollout.max_staleness steps older: lower it, or train.learning_rate"
            if self.config.rollout.max_staleness
            else "The sampler does not have the weights of the trainer, or computes in another precision: `rlvr doctor` compares them"
        )
        return True, Trouble("mismatch", self._get_first_step(count), what, cause)

    def _find_held_out_fall(self, step: int, before: Any) -> Trouble | None:
        """Find that the newest held-out figure has fallen far below the best earlier one."""
        known = [(0, before), *((row["step"], row.get("eval/accuracy")) for row in self.rows)]
        figures = [(int(at), float(value)) for at, value in known if _is_number(value)]
        if len(figures) < 2 or figures[-1][0] != step:
            return None
        (at, high), (_, now) = max(figures[:-1], key=lambda one: one[1]), figures[-1]
        if not self._has_fallen(high, now, self.config.eval.tasks):
            return None
        since = next(later for later, value in figures if later > at and value < (high + now) / 2)
        what = f"the held-out figure is {now:.1%}; at step {at} it was {high:.1%}"
        return self._make_weight_trouble("held-out", since, what, self._explain_change(since))._replace(last_good_step=at)

    def _has_fallen(self, high: float, now: float, num_tasks: int) -> bool:
        """Whether one held-out figure is so far below another that it is no accident of the tasks."""
        bound, count = self.bounds.max_reward_drop, max(1, num_tasks)
        error = math.sqrt((high * (1 - high) + now * (1 - now)) / count) if 0 <= now <= high <= 1 else math.inf
        return bound is not None and self.config.data is None and high - now > max(bound * high, MIN_SIGMAS * error, 1 / count)

    def _find_collapse(self) -> tuple[bool, Trouble | None]:
        """Find a reward that has fallen from its best steps while the answers changed."""
        bound, rows = self.bounds.max_reward_drop, self._scored_rows
        if bound is None or self.config.data is not None or len(rows) < 2:
            return False, None
        best, after = rows[self._best_start : self._best_end], rows[self._best_end :]
        recent = after[-WINDOW_STEPS:]
        high, low = _mean(best, "reward") or 0.0, _mean(recent, "reward") or 0.0
        floor = min(0.0, low)
        error = math.hypot(self._estimate_error(best), self._estimate_error(recent))
        if not (high - low > bound * (high - floor) and high - low > MIN_SIGMAS * error):
            return False, None
        changes = _describe_changes(best, recent)
        if not changes:
            return False, None
        since = next((k for k, row in enumerate(after) if row["reward"] < (high + low) / 2), 0)
        if len(after) - since < WINDOW_STEPS:
            return True, None
        step = int(after[since]["step"])
        what = f"the reward has fallen from {high:.3g} to {low:.3g} and the answers have changed: {'; '.join(changes)}"
        return True, self._make_weight_trouble("reward", step, what, self._explain_change(step))

    # ---- causes --------------------------------------------------------------------------------------------------------

    def _find_blamed_update(self, step: int) -> Row | None:
        """Find a large update just before the step in which a trouble begins."""
        known = [row for row in self.rows if _is_number(row.get("update_kl"))]
        near = [row for row in known if step - BLAMED_STEPS <= row["step"] <= step]
        largest = max(near, key=lambda row: float(row["update_kl"]), default=None)
        if largest is None:
            return None
        usual = sorted(float(row["update_kl"]) for row in known if row["step"] < largest["step"])
        bound = max(LARGE_UPDATE_KL, LARGE_UPDATE_FACTOR * usual[len(usual) // 2] if usual else 0.0)
        return largest if largest["update_kl"] > bound else None

    def _make_weight_trouble(self, kind: str, since: int, what: str, cause: str) -> Trouble:
        """Build a trouble of the weights: those that sampled the last good step are from before it, and from before a large update."""
        blamed = self._find_blamed_update(since)
        before = [since - 2, *([int(blamed["step"]) - 1] if blamed is not None else [])]
        return Trouble(kind, since, what, cause, max(0, min(before)))

    def _quote_reason(self) -> str:
        """Quote the most common reason for which answers have no score."""
        common = self._unscored_reasons.most_common(1)
        return f" (mostly: {common[0][0]})" if common else ""

    def _explain_change(self, step: int) -> str:
        """Explain a change of the policy that shows from a step on by the updates just before it."""
        largest = self._find_blamed_update(step)
        if largest is not None:
            return (
                f"The update of step {largest['step']} moved the policy by {largest['update_kl']:.2g} nats per token, and usual updates by "
                f"less than 0.01: lower train.learning_rate (it was {largest.get('learning_rate', math.nan):g}), or raise train.warmup_steps"
            )
        return (
            "No single update just before was large, so many have gone the same way: the reward pays for it, or train.learning_rate is too "
            "high, or nothing holds the policy back (algorithm.beta). Read the answers of this step in episodes.jsonl"
        )

    def _explain_missing_gradient(self, rows: Sequence[Row]) -> str:
        """Explain why steps have no gradient."""
        earlier = self.rows[: len(self.rows) - len(rows)]
        if any(row.get("step/nonfinite_minibatches") for row in rows):
            return (
                "Gradients are infinite or not a number: lower train.learning_rate, or look at the loss and the advantages of these steps"
            )
        if any((row.get("reward_std") or 0.0) > 0 and row.get("grad_norm") == 0.0 for row in rows):
            return "The rewards differ and the gradient is 0: no weight is trainable, or train.max_grad_norm removes all of it"
        reward, cut = _mean(rows, "reward"), _mean(rows, "completions/clipped_ratio") or 0.0
        if reward is None:
            reasons = self._unscored_reasons.most_common(1)
            why = f" Most often: {' '.join(reasons[0][0].split())[:200]}" if reasons else ""
            return f"No answer has a score: the verifier or its sandbox fails, and the reasons are in episodes.jsonl.{why}"
        changes = _describe_changes(earlier[-WINDOW_STEPS:], rows[-WINDOW_STEPS:]) if earlier else []
        if changes:
            return f"The answers have changed: {'; '.join(changes)}. {self._explain_change(int(rows[0]['step']))}"
        told = f"All answers of every group score the same, {reward:.3g} in the mean"
        if cut > 0.5:
            return f"{told}, and {cut:.0%} of them are cut at the length limit: raise rollout.max_new_tokens, or check the stop tokens"
        if reward > 0:
            return f"{told}: the verifier does not tell answers apart, or each task has one answer for good. Read answers in episodes.jsonl"
        return (
            f"{told}: the tasks are too hard, or no answer can be read. Compare an answer in episodes.jsonl with what the verifier expects "
            "(`rlvr verify --explain`); easier tasks, a longer sft_warmup or more rollout.num_generations help where answers are readable"
        )

    def _add_scored_row(self, row: Row) -> None:
        """Add a step with a reward, and keep the best earlier window: of all steps while there are few."""
        rows = self._scored_rows
        start, end = max(0, len(rows) - WINDOW_STEPS), len(rows)
        is_full = self._best_end - self._best_start == WINDOW_STEPS
        if not is_full or (_mean(rows[start:], "reward") or 0.0) > (_mean(rows[self._best_start : self._best_end], "reward") or 0.0):
            self._best_start, self._best_end = start, end
        rows.append(row)

    def _warn(self, words: str) -> None:
        self.console.print(f"warning: {words}", highlight=False, markup=False, soft_wrap=True)

    # ---- parts ---------------------------------------------------------------------------------------------------------

    def _lacks_gradient(self, row: Row) -> bool:
        """Return whether a step taught nothing, although its tasks are not solved."""
        reward = row.get("reward")
        if self.config.data is not None:  # stored answers have what rewards they have
            return bool(row.get("step/skipped"))
        if reward is None:
            return True
        # a critic with weights of its own may learn alone for some steps
        stands_still = row.get("grad_norm") == 0.0 and self.config.train.separate_critic is None
        # with value estimates, equal rewards teach too
        is_even = row.get("reward_std") == 0.0 and "value_loss" not in row
        idle = bool(row.get("step/skipped")) or is_even or stands_still
        return idle and reward < SOLVED_REWARD

    def _count_last(self, is_bad: Callable[[Row], bool]) -> int:
        """Count the newest steps in a row that are bad."""
        return next((k for k, row in enumerate(reversed(self.rows)) if not is_bad(row)), len(self.rows))

    def _get_first_step(self, count: int) -> int:
        return int(self.rows[-count]["step"])

    def _estimate_error(self, rows: Sequence[Row]) -> float:
        """Estimate the standard error of a mean reward; the answers to one prompt count as one."""
        prompts = sum((row.get("num_completions") or 1) / self.config.rollout.num_generations for row in rows)
        variance = math.fsum((row.get("reward_std") or 0.0) ** 2 for row in rows) / len(rows)
        return math.sqrt(variance / max(1.0, prompts))

    def _format_stop(self, trainer: Trainer, step: int, trouble: Trouble) -> str:
        good = trouble.last_good_step if trouble.last_good_step >= 0 else trainer.last_saved_step
        kept = trainer.set_aside_checkpoints_after(good)
        which = "from before that" if kept <= good else "the oldest there is; none is from before that"
        return (
            f"the run stopped after step {step}: since step {trouble.since} {trouble.what}\n"
            f"likely cause: {trouble.cause}\n"
            f"kept: the checkpoint of step {kept} in {trainer.folder / 'checkpoints'}, {which}. --resume continues there, also with other "
            "bounds (health.action=warn only warns)"
        )


def _list_unscored_reasons(record: StepRecord) -> list[str]:
    """List why the answers of a step have no score."""
    episodes = [episode for group in record.batch.all_groups for episode in group if not episode.is_scored]
    return [str(episode.error)[:160] for episode in episodes if episode.error]


def _compute_unscored_fraction(row: Row) -> float:
    count = row.get("num_completions") or 0
    return (row.get("unscored") or 0) / count if count else 0.0


def _describe_changes(before: Sequence[Row], after: Sequence[Row]) -> list[str]:
    """Describe how answers differ from earlier ones by more than a healthy policy changes while its reward falls."""
    found = []
    for name, key in (("mean length", "completions/mean_length"), ("entropy", "entropy")):
        old, new = _mean(before, key), _mean(after, key)
        if old and new is not None and not old / MAX_FACTOR <= new <= old * MAX_FACTOR:
            found.append(f"{name} {old:.3g} before, {new:.3g} now")
    for name, key, rise in (
        ("repeated sequences", "completions/repetition", 0.3),
        ("cut at the length limit", "completions/clipped_ratio", 0.5),
        ("groups whose answers all score the same", "frac_reward_zero_std", 0.4),
    ):
        old, new = _mean(before, key) or 0.0, _mean(after, key) or 0.0
        if new - old > rise:
            found.append(f"{name} {old:.0%} before, {new:.0%} now")
    return found


def _mean(rows: Sequence[Row], key: str) -> float | None:
    values = [float(row[key]) for row in rows if _is_number(row.get(key))]
    return math.fsum(values) / len(values) if values else None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
