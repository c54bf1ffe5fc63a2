"""Run health: find out that a run is in trouble, say in which step that began and what the likely cause is, and stop it.

Every rule needs several steps in a row, because one bad step is noise. From the first of them on no checkpoint is written, so the newest
one is from before the trouble and the run can be resumed from it.

A falling reward alone is no trouble: tasks get harder, and steps differ. It counts if the answers have changed too: their length, their
entropy, their repetition, how many are cut, or whether they differ at all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.console import Console

from rlvr.config.config import RunConfig
from rlvr.errors import CheckFailed
from rlvr.runs.run_log import read_jsonl
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
LARGE_UPDATE_KL = 0.1
"""An update that moves the policy by this much per token destroys more than it teaches; usual ones are below 0.01."""
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

    def on_run_begin(self, trainer: Trainer) -> None:
        """Read the steps before a resume."""
        if trainer.is_resumed:
            for row in run_on_main(trainer.accelerator, lambda: list(read_jsonl(trainer.folder / "metrics.jsonl"))):
                self.observe(row)

    def on_step_end(self, trainer: Trainer, step: int, record: StepRecord) -> None:
        """Check the step; stop the run or warn if it is in trouble."""
        trouble = self.observe(record.metrics)
        if trouble is None or self.bounds.action == "off":
            return
        if self.bounds.action == "stop":
            raise CheckFailed(self._format_stop(trainer, step, trouble))
        if trouble.kind not in self._told_kinds:
            self._told_kinds.add(trouble.kind)
            self.console.print(
                f"warning: since step {trouble.since} {trouble.what}\nlikely cause: {trouble.cause}",
                highlight=False,
                markup=False,
                soft_wrap=True,
            )

    def on_run_end(self, trainer: Trainer, report: TrainReport) -> None:
        """Stop a run that never had a gradient: it must not end as if it had trained. A few steps without one may be bad luck."""
        idle = bool(self.rows) and all(map(self._lacks_gradient, self.rows))
        unscored = all(row.get("reward") is None for row in self.rows)
        if self.bounds.action == "stop" and idle and (unscored or len(self.rows) >= self.bounds.patience):
            raise CheckFailed(f"no step of this run changed the weights\nlikely cause: {self._explain_missing_gradient(self.rows)}")

    def observe(self, row: Row) -> Trouble | None:
        """Add the metrics of a step; return what is wrong, if anything is for long enough."""
        self.rows.append(row)
        if row.get("reward") is not None:
            self._add_scored_row(row)
        rules = (self._find_unscored, self._find_nonfinite, self._find_missing_gradient, self._find_repetition, self._find_mismatch)
        found = [find() for find in (*rules, self._find_collapse)]
        self.is_in_doubt = self.bounds.action == "stop" and any(doubt for doubt, _ in found)
        return next((trouble for _, trouble in found if trouble is not None), None)

    # ---- rules: whether the last step is in doubt, and the trouble if it has lasted long enough --------------------------

    def _find_unscored(self) -> tuple[bool, Trouble | None]:
        bound = self.bounds.max_unscored
        count = self._count_last(lambda row: _compute_unscored_fraction(row) > bound) if bound is not None else 0
        if count < self.bounds.patience:
            return count > 0, None
        shares = [_compute_unscored_fraction(row) for row in self.rows[-count:]]
        what = f"at least {min(shares):.0%} of the answers of every step have no score (health.max_unscored is {bound:g})"
        cause = (
            "Not the answers but the verifier, its sandbox or its service fails; the reasons are in episodes.jsonl (`error`, `verdict`). "
            "Repair it, then continue with --resume"
        )
        return True, Trouble("unscored", self._get_first_step(count), what, cause)

    def _find_nonfinite(self) -> tuple[bool, Trouble | None]:
        count = self._count_last(lambda row: bool(row.get("step/nonfinite_minibatches")) and not _is_number(row.get("update_kl")))
        if count < self.bounds.patience:
            return count > 0, None
        cause = (
            "The weights or the loss overflow: lower train.learning_rate, or use model.dtype=float32 with train.mixed_precision=bf16 or no"
        )
        what = "every gradient is infinite or not a number, so nothing is learned"
        return True, Trouble("nonfinite", self._get_first_step(count), what, cause)

    def _find_missing_gradient(self) -> tuple[bool, Trouble | None]:
        bound = self.bounds.max_steps_without_gradient
        if bound is None or self.config.data is not None:  # stored answers are what they are
            return False, None
        count = self._count_last(self._lacks_gradient)
        if count < bound:
            return count > 1, None
        what = f"no step has changed the weights for {count} steps (health.max_steps_without_gradient is {bound})"
        return True, Trouble("gradient", self._get_first_step(count), what, self._explain_missing_gradient(self.rows[-count:]))

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
        return True, Trouble("repetition", self._get_first_step(count), what, self._explain_change(self._get_first_step(count)))

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
        return True, Trouble("reward", step, what, self._explain_change(step))

    # ---- causes --------------------------------------------------------------------------------------------------------

    def _explain_change(self, step: int) -> str:
        """Explain a change of the policy that shows from a step on by the updates just before it."""
        near = [row for row in self.rows if step - WINDOW_STEPS <= row["step"] <= step and _is_number(row.get("update_kl"))]
        largest = max(near, key=lambda row: float(row["update_kl"]), default=None)
        if largest is not None and largest["update_kl"] > LARGE_UPDATE_KL:
            return (
                f"The update of step {largest['step']} moved the policy by {largest['update_kl']:.2g} nats per token, and usual updates by "
                f"less than 0.01: lower train.learning_rate (it was {largest.get('learning_rate', math.nan):g}), or raise train.warmup_steps"
            )
        return (
            "No single update was large, so many have gone the same way: the reward pays for it, or train.learning_rate is too high, or "
            "nothing holds the policy back (algorithm.beta). Read the answers of this step in episodes.jsonl"
        )

    def _explain_missing_gradient(self, rows: Sequence[Row]) -> str:
        """Explain why steps have no gradient."""
        earlier = self.rows[: len(self.rows) - len(rows)]
        if any((row.get("reward_std") or 0.0) > 0 and row.get("grad_norm") == 0.0 for row in rows):
            return "The rewards differ and the gradient is 0: no weight is trainable, or train.max_grad_norm removes all of it"
        reward, cut = _mean(rows, "reward"), _mean(rows, "completions/clipped_ratio") or 0.0
        if reward is None:
            return "No answer has a score: the verifier or its sandbox fails, and the reasons are in episodes.jsonl"
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

    # ---- parts ---------------------------------------------------------------------------------------------------------

    def _lacks_gradient(self, row: Row) -> bool:
        """Return whether a step taught nothing, although its tasks are not solved."""
        reward = row.get("reward")
        if self.config.data is not None:  # stored answers have what rewards they have
            return bool(row.get("step/skipped"))
        if reward is None:
            return True
        # a critic with weights of its own may learn alone for some steps
        stands_still = row.get("grad_norm") == 0.0 and self.config.train.critic is None
        idle = bool(row.get("step/skipped")) or row.get("reward_std") == 0.0 or stands_still
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
        return (
            f"the run stopped after step {step}: since step {trouble.since} {trouble.what}\n"
            f"likely cause: {trouble.cause}\n"
            f"kept: the checkpoint of step {trainer.last_saved_step} in {trainer.folder / 'checkpoints'}, from before that. --resume continues "
            "there, also with other bounds (health.action=warn only warns)"
        )


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
