"""Explanations of surprising metrics of a step, each printed once per run."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console

from rlvr.config.config import RunConfig
from rlvr.contracts.algorithm import Algorithm
from rlvr.episode import Episode
from rlvr.registry.plugins import build_from_config
from rlvr.runs.bottleneck import find_bottleneck
from rlvr.training.callbacks import Callback, StepRecord
from rlvr.training.run_health.rules import JUMP_MISMATCH_KL, SAMPLER_HAS_OTHER_WEIGHTS, find_last_exact_step
from rlvr.training.step_metrics import drop_baselines_and_canaries
from rlvr.training.task_sampling.audit_monitor import MIN_PAIRS

if TYPE_CHECKING:
    from rlvr.training.trainer import Trainer

MAX_MISMATCH_KL, MIN_EFFECTIVE_SAMPLE_FRACTION = 0.01, 0.9
"""Limits beyond which the sampler's and the trainer's probabilities differ by more than rounding."""

MAX_AUDIT_GAP = 0.1
"""The allowed gap between reward and audit score on the same answers; correlations may fall by 0.2 more."""

KTO_KINDS = ("desirable", "undesirable")
MIN_KTO_WEIGHT_RATIO = 0.5
"""Below this ratio KTO's undesirable answers outweigh the desirable ones so far that training may collapse; its paper advises 1 to 4/3."""

NO_ANSWER_REASON = re.compile(r"no answer|the answer cannot be read|.{0,90} (?:is not one number|does not name one option)", re.DOTALL)
"""The reasons of verifiers that find nothing to judge, or cannot read it."""
MAX_UNREADABLE_FRACTION = 0.5

SPEED_WINDOW_STEPS = 5
"""The number of steps over which the bottleneck of a cluster run is determined."""

MIN_BF16_LEARNING_RATE = 1e-4
"""From this learning rate, AdamW's steps are large enough to change most weights stored in 16 bits."""


def explain_rounding_risk(config: RunConfig) -> str:
    """Return why rounding would prevent learning; empty if it would not.

    AdamW changes each weight by about the learning rate. In bfloat16, a step of less than 6e-5 does not change a weight of 0.02.
    """
    if config.model.dtype == "float32" or config.model.lora is not None or config.train.learning_rate >= MIN_BF16_LEARNING_RATE:
        return ""
    return (
        f"model.dtype is {config.model.dtype}, and at a learning rate of {config.train.learning_rate:g} most steps are too small for it, "
        "so the weights hardly change; use model.dtype=float32 with train.mixed_precision=bf16, or train an adapter (model.lora)"
    )


class UnusualMetricNotes(Callback):
    """Explains surprising metrics of a step, each kind once.

    >>> from rlvr.config.config import load_config
    >>> UnusualMetricNotes(load_config("quickstart")).find_notes({"step": 3, "step/skipped": 1.0})
    ['step 3 changed nothing: ...']
    """

    def __init__(self, config: RunConfig, console: Console | None = None, algorithm: Algorithm | None = None) -> None:
        """`algorithm`: that of the run; None: the one that the configuration names."""
        self.config, self.console = config, console or Console(quiet=True)
        self._printed_kinds: set[str] = set()
        self._mismatches: list[Mapping[str, Any]] = []
        """How sampler and trainer differed in each step."""
        self._times: deque[Mapping[str, Any]] = deque(maxlen=SPEED_WINDOW_STEPS)
        built: Algorithm = build_from_config("algorithm", config.algorithm) if algorithm is None else algorithm
        settings = {name: value for name, value, _ in built.describe_settings()}
        self._wastes_zero_variance = built.traits.skips_zero_variance and config.data is None
        """True if a group with equal scores gives no gradient, so that other sampling would help."""
        self._has_no_reward_weights = settings.get("reward_weights") == {}
        """True if the algorithm weighs the components of the verdict, but no weights are set."""
        self._weights = [float(settings.get(f"{kind}_weight", 1.0)) for kind in KTO_KINDS]

    def on_step_end(self, trainer: Trainer, step: int, record: StepRecord) -> None:
        """Print the new notes."""
        notes = [
            *self.find_notes(record.metrics, record.timings),
            *self.note_unextractable_answers(step, drop_baselines_and_canaries(record.batch.all_groups)),
        ]
        for note in notes:
            self.console.print(f"note: {note}", highlight=False, markup=False)

    def note_unextractable_answers(self, step: int, episodes: Sequence[Episode]) -> list[str]:
        """Return a note with two examples, once, if the verifier finds nothing to judge in most answers of a step."""
        scored = [e for e in episodes if e.verdict is not None and e.verdict.is_scored]
        unread = [e for e in scored if e.verdict is not None and NO_ANSWER_REASON.match(e.verdict.reason)]
        if len(unread) <= MAX_UNREADABLE_FRACTION * len(scored) or "unreadable" in self._printed_kinds:
            return []
        self._printed_kinds.add("unreadable")
        examples = "".join(f"\n  ...{e.text[-60:]!r}: {e.verdict.reason}" for e in unread[:2] if e.verdict is not None)
        return [
            f"in {len(unread)} of the {len(scored)} scored answers of step {step} the verifier finds no answer. Ask for its form in the prompt, "
            f"choose another `extractor`, or let the policy learn the form first (sft_warmup). Two of them:{examples}"
        ]

    def find_notes(self, row: Mapping[str, Any], times: Mapping[str, Any] | None = None) -> list[str]:
        """Return the new notes on a step's metrics and times."""
        found = {**self._find_learning_notes(row), **self._find_sampling_notes(row), **self._find_speed_notes(times or {})}
        fresh = [text for name, text in found.items() if name not in self._printed_kinds]
        self._printed_kinds |= found.keys()
        return fresh

    def _find_speed_notes(self, times: Mapping[str, Any]) -> dict[str, str]:
        """Find the bottleneck of the last steps of a cluster run, without the first step, in which rollout workers start."""
        if times.get("step", 1) > 1:
            self._times.append(times)
        kind, text = find_bottleneck(self._times, self.config.rollout.max_staleness) if len(self._times) == SPEED_WINDOW_STEPS else ("", "")
        return {f"limit: {kind}": f"over the last {SPEED_WINDOW_STEPS} steps, {text}"} if kind else {}

    def _find_learning_notes(self, row: Mapping[str, Any]) -> dict[str, str]:
        step, found = row["step"], {}
        if row.get("step/skipped") and self.config.data is not None:
            found["skipped"] = f"step {step} changed nothing: in its stored groups no answer is better than another, or good enough"
        elif row.get("step/skipped") and row.get("reward", 0.0) is not None:  # if nothing was judged, the note on verdicts explains it
            found["skipped"] = (
                f"step {step} changed nothing: in every group all answers scored the same, or the algorithm chose no group, so there is no gradient. "
                "Other tasks (rollout.curriculum), more rollout.num_generations, a higher temperature or a longer warmup can give a spread"
            )
        elif row.get("advantage/std") and abs(row.get("loss", 1.0)) < 1e-6 < row.get("grad_norm", 0.0):
            found["loss"] = (
                "the loss is 0, which is correct: on-policy every ratio is 1 and the advantages of a group add up to 0. "
                f"The gradient is not 0 (grad_norm {row['grad_norm']:.3g}); watch grad_norm and the reward"
            )
        good, bad = (row.get(f"preference/num_{kind}", 0.0) * weight for kind, weight in zip(KTO_KINDS, self._weights, strict=True))
        if 0 < good < MIN_KTO_WEIGHT_RATIO * bad:
            found["balance"] = (
                f"in step {step} the undesirable answers weigh {bad / good:.1f} times as much as the desirable ones, and training may "
                f"collapse; algorithm.desirable_weight={self._weights[0] * bad / good:.2g} balances them (the KTO paper advises 1 to 4/3)"
            )
        parts = [name.split("/")[1] for name in row if name.startswith("rewards/") and name.endswith("/mean")]
        if self._has_no_reward_weights and parts:
            found["weights"] = (
                f"{self.config.algorithm['name']} has no reward_weights, so its only reward is the score, and it is GRPO whitened over "
                f"answers; give weights to the parts of the verdict: {', '.join(parts)}"
            )
        if row.get("step/nonfinite_minibatches"):
            found["nonfinite"] = f"in step {step} a gradient was not finite and was skipped; lower train.learning_rate if this continues"
        self._mismatches.append({name: row.get(name) for name in ("step", "mismatch_kl")})
        exact = find_last_exact_step(self._mismatches, self.config)
        has_jumped = exact is not None and row.get("mismatch_kl", 0.0) > JUMP_MISMATCH_KL
        apart = (
            row.get("mismatch_kl", 0.0) > MAX_MISMATCH_KL
            or row.get("sampling/effective_sample_size", 1.0) < MIN_EFFECTIVE_SAMPLE_FRACTION
            or has_jumped
        )
        if apart and self.config.data is None:  # stored answers come from another policy, or from none
            cause = (
                "answers come from weights up to rollout.max_staleness steps older; if this is large, lower it or the learning rate"
                if self.config.rollout.max_staleness
                else f"{SAMPLER_HAS_OTHER_WEIGHTS[0].lower()}{SAMPLER_HAS_OTHER_WEIGHTS[1:]} (they agreed up to step {exact})"
                if has_jumped
                else "top_p and top_k are applied by both, but not on the same tokens: set them to 1 and 0"
                if self.config.rollout.top_p < 1 or self.config.rollout.top_k
                else "another precision or other kernels cause this; algorithm.importance_sampling_correction corrects for it"
            )
            found["mismatch"] = (
                f"sampler and trainer disagree on the tokens' probabilities (mismatch_kl {row['mismatch_kl']:.2g}, effective sample size "
                f"{row['sampling/effective_sample_size']:.0%}): {cause}"
            )
        return found

    def _find_sampling_notes(self, row: Mapping[str, Any]) -> dict[str, str]:
        step, found = row["step"], {}
        clipped = row.get("completions/clipped_ratio", 0.0)
        if clipped and self.config.data is not None and self.config.data.run is None:
            found["cut"] = (
                f"{clipped:.0%} of the gold solutions of step {step} are longer than an answer may be and were cut before their end; "
                "raise rollout.max_new_tokens"
            )
        elif clipped > 0.5 and self.config.data is None:
            found["clipped"] = (
                f"{clipped:.0%} of the answers of step {step} reached the length limit and were "
                "judged as they were; raise rollout.max_new_tokens (and rollout.max_length, if that "
                "is the limit), or teach the policy to stop with a warmup"
            )
        if row.get("unscored"):
            found["unscored"] = (
                f"{row['unscored']} answers of step {step} have no verdict: something other than the answer failed. "
                "They are left out and not counted as wrong; the reasons are in episodes.jsonl"
            )
        if row.get("canary/rewarded"):
            found["canaries"] = (
                f"in step {step} {row['canary/rewarded']:.0f} of {row['canary/scored']:.0f} answers to tasks that cannot be solved were "
                "rewarded: the verifier has a loophole, and the policy is finding it. canaries.jsonl in the run folder has the answers"
            )
        if (
            max(row.get("audit_verifier/mean_gap", 0.0), row.get("audit_verifier/correlation_drop", 0.0) - 0.2) > MAX_AUDIT_GAP
            and row["audit_verifier/num_pairs"] >= MIN_PAIRS
        ):
            found["audit"] = (
                f"the reward and the second verifier drift apart: over the last {row['audit_verifier/num_pairs']:.0f} answers that both judged the "
                f"reward is higher by {row['audit_verifier/mean_gap']:.2f}, and their correlation fell by "
                f"{row.get('audit_verifier/correlation_drop', 0.0):.2f}; read such "
                "answers in episodes.jsonl (components.audit): one of the two verifiers is wrong about them"
            )
        if row.get("dynamic_sampling/missing_groups"):
            found["short"] = (
                f"in step {step} only {row['dynamic_sampling/useful_fraction']:.0%} of {row['dynamic_sampling/sampled_groups']:.0f} groups "
                f"had a spread of rewards; the step lacks {row['dynamic_sampling/missing_groups']:.0f} of them"
            )
        elif self._wastes_zero_variance and row.get("frac_reward_zero_std", 0.0) > 0.5 and not row.get("step/skipped"):
            found["flat"] = (
                f"{row['frac_reward_zero_std']:.0%} of the groups of step {step} have no spread of rewards and give no gradient; "
                "rollout.curriculum or algorithm.dynamic_sampling_rounds uses the samples better"
            )
        return found
