"""Rules about what updates do: gradients, the sign of the updates, the penalty that holds the policy back, and weights."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import TYPE_CHECKING

from rlvr.config.config import RunConfig
from rlvr.errors import CheckFailed
from rlvr.training.answer_probe import SAME_SCORE, AnswerProbe
from rlvr.training.processes import run_and_all_gather
from rlvr.training.run_health import causes
from rlvr.training.run_health.evidence import FIRST_STEPS, PATIENCE_OF_CHECKS, WINDOW_STEPS, Row, RunEvidence, compute_mean, is_number
from rlvr.training.run_health.rule import Doubt, Finding, HealthRule, Trouble
from rlvr.training.train_report import TrainReport

if TYPE_CHECKING:
    from rlvr.training.trainer import Trainer

HIGH_TEMPERATURE = 2.0
"""From here on tokens are drawn nearly at random."""
MIN_ANSWERS_WITHOUT_REWARD = 4096
"""The number of answers that may score 0 from the first step on: where right answers are rare, a small batch has none for long."""
MAX_CHANCE = 1e-3
"""Steps without a gradient are no accident if, as seldom as such steps were before, so many in a row are less probable than this."""
SMALL_MISMATCH_KL = 1e-3
"""Sampler and trainer may always differ by this much: rounding, and what staleness does to them."""
EXACT_MISMATCH_KL, JUMP_MISMATCH_KL = 1e-9, 1e-4
"""Below the first, sampler and trainer have the same weights and compute in float32; a later mismatch above the second is no rounding."""
SAMPLER_HAS_OTHER_WEIGHTS = (
    "The sampler samples from other weights than the trainer's: its weights are older, or those of another model. Look at how they reach it"
)


class NonfiniteGradients(HealthRule):
    """Every gradient is infinite or not a number."""

    def check(self) -> Finding:
        """Look whether an optimizer step was taken."""
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
        """Look at the log ratios of all updates."""
        if self.config.data is not None:
            return None
        for row in self.run.rows[self._num_seen :]:
            if (gain := causes.measure_gain(row)) is not None:
                self._first_step = self._first_step if self._gains else int(row["step"])
                self._gains.append(gain)
        self._num_seen = len(self.run.rows)
        if len(self._gains) < WINDOW_STEPS // 2 or not causes.are_against(self._gains):
            return None
        if len(self._gains) < WINDOW_STEPS:
            return Doubt()
        if causes.describe_penalty(self.run, self.run.rows[-WINDOW_STEPS:]):  # it may well outweigh the advantages
            return None
        what = f"the updates of {len(self._gains)} steps went against the advantages (update_gain is below 0)"
        return Trouble("sign", self._first_step, what, causes.explain_wrong_sign(self.run), self._first_step - 1)


class MissingGradient(HealthRule):
    """No step changes the weights, although the tasks are not solved."""

    def check(self) -> Finding:
        """Look at the steps without a gradient since the last one with: whether there are more than chance gives."""
        bound, run = self.bounds.max_steps_without_gradient, self.run
        if bound is None or self.config.data is not None:  # stored answers are what they are
            return None
        count = run.count_last(run.lacks_gradient)
        if count < bound:
            return None
        rows, earlier = run.rows[-count:], run.rows[:-count]
        had_gradient = sum(not run.lacks_gradient(row) for row in earlier) / len(earlier) if earlier else 1.0
        if (1 - had_gradient) ** count > MAX_CHANCE:  # such steps were as common before
            return None
        never_right = not earlier and not any(row.get("reward") for row in rows) and any(row.get("reward") == 0 for row in rows)
        is_cut = (compute_mean(rows, "completions/clipped_ratio") or 0.0) > 0.5
        if never_right and not is_cut and sum(row.get("num_completions") or 0 for row in rows) < MIN_ANSWERS_WITHOUT_REWARD:
            return None
        what = f"no step has changed the weights for {count} steps (health.max_steps_without_gradient is {bound})"
        cause, reward, probe, checked = self._explain(rows), compute_mean(rows, "reward"), run.probe, run.checked_answers
        if probe is not None and reward is not None:
            if told := run.examine("verifier", lambda: probe.describe_change(checked, probe.verify_again(checked))):
                cause = causes.explain_verifier(run, checked, f"of step {run.checked_step}", told)
            elif reward > 0 and run.examine("saturation", lambda: self._is_saturated(probe, rows, reward)):
                run.solved_reward = reward - SAME_SCORE
                run.warn(
                    f"since step {rows[0]['step']} every answer scores {reward:.3g}, and a wrong one would score less: nothing is left to learn"
                )
                return None
        return causes.make_weight_trouble(run, "gradient", run.get_first_step(count), what, cause)

    def check_end(self, trainer: Trainer, report: TrainReport) -> None:
        """Stop a run that never had a gradient. A few steps without may be bad luck, unless no answer has a score."""
        rows = self.run.rows
        has_time = len(rows) >= self.bounds.patience or not self.run.scored_rows
        if rows and has_time and all(map(self.run.lacks_gradient, rows)):
            raise CheckFailed(f"no step of this run changed the weights\nlikely cause: {self._explain(rows)}")

    def _is_saturated(self, probe: AnswerProbe, rows: Sequence[Row], reward: float) -> bool:
        """Whether all answers score the same because all are as good as can be: no step was better, and other answers score less."""
        best = self.run.rewards.find_best()
        if self.run.record is None or best is None or reward < best.mean - 2 * best.error - SAME_SCORE:
            return False
        if max((row.get("reward_std") or 0.0) for row in rows) > SAME_SCORE:
            return False
        return probe.tells_apart(self.run.list_step_answers(probe))

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
            return f"There is a gradient and the weights stay as they are: the optimizer does not hold these weights{small}"
        if run.misplaced_references:
            return run.misplaced_references
        reward, cut = compute_mean(rows, "reward"), compute_mean(rows, "completions/clipped_ratio") or 0.0
        if reward is None:
            reasons = run.unscored_reasons.most_common(1)
            why = f" Most often: {' '.join(reasons[0][0].split())}" if reasons else ""
            return f"No answer has a score: the verifier or its sandbox fails, and the reasons are in episodes.jsonl.{why}"
        earlier = run.rows[: len(run.rows) - len(rows)]
        if earlier and (changes := causes.describe_changes(earlier[-WINDOW_STEPS:], rows[-WINDOW_STEPS:])):
            return f"The answers have changed: {'; '.join(changes)}. {causes.explain_change(run, int(rows[0]['step']))}"
        told = f"All answers of every group score the same, {reward:.3g} in the mean"
        if (temperature := config.rollout.temperature) > HIGH_TEMPERATURE and not reward:
            return f"{told}: at rollout.temperature={temperature:g} tokens are drawn nearly at random; 1 is usual"
        if cut > 0.5:
            return f"{told}, and {cut:.0%} of them are cut at the length limit: raise rollout.max_new_tokens, or check the stop tokens"
        if reward > 0:
            return f"{told}: the verifier does not tell answers apart, or each task has one answer for good. Read answers in episodes.jsonl"
        return (
            f"{told}: the tasks are too hard, or no answer can be read. Compare an answer in episodes.jsonl with what the verifier expects "
            "(`rlvr verify --explain`); easier tasks, a longer sft_warmup or more rollout.num_generations help where answers are readable"
        )


class HeavyPenalty(HealthRule):
    """The KL to the reference weighs more than the advantages. It only warns, once in a run."""

    def check(self) -> Finding:
        """Look at the newest steps."""
        if self.bounds.action != "off" and (told := causes.describe_penalty(self.run, self.run.rows[-WINDOW_STEPS:])):
            self.run.warn_once("penalty", f"up to step {self.run.rows[-1]['step']} {told}")
        return None


class BrokenWeights(HealthRule):
    """Weights are not finite, in any process: no later step mends them."""

    def check(self) -> Finding:
        """Ask all processes for what they have seen of their weights."""
        if self.run.trainer is None:
            return None
        found = run_and_all_gather(self.run.trainer.accelerator, lambda: [self.run.weights.broken])
        broken = next((one for one in found if one is not None), None)
        return None if broken is None else Trouble("broken", *broken)


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
        cause = run.weights.explain_foreign_step(agreed + 1, agreed + 2) or SAMPLER_HAS_OTHER_WEIGHTS
        return Trouble("mismatch", run.get_first_step(count), what, cause, max(0, agreed - 1))


class SamplerMismatch(HealthRule):
    """Sampler and trainer differ by more than a bound, and by far more than at first."""

    def check(self) -> Finding:
        """Look at their mismatch."""
        bound, run = self.bounds.max_mismatch_kl, self.run
        first = min((row["mismatch_kl"] for row in run.rows[:FIRST_STEPS] if is_number(row.get("mismatch_kl"))), default=None)
        if bound is None or first is None or self.config.data is not None:
            return None
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
        good = run.find_last_step_below("mismatch_kl", max(10 * first, SMALL_MISMATCH_KL))
        return Trouble("mismatch", run.get_first_step(count), what, cause, max(0, good - 1))


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
    return int(exact[-1]["step"]) if len(exact) > 1 else None
