"""The weight probe: a fixed token sequence that trainer and engine both score after every weight update.

An engine with stale or wrong weights would continue to sample, visible only in the reward. The probe detects this before any
token is sampled.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from rlvr.errors import SamplerError
from rlvr.models.device import resolve_device
from rlvr.models.plain_weights import compute_model_logprobs

PROBE_TOKENS = 32


class LogprobDifference(NamedTuple):
    """How far the log-probabilities of some tokens are apart, or may be.

    >>> LogprobDifference(mean=0.01, largest=0.2).largest
    0.2
    """

    mean: float
    largest: float


LOGPROB_TOLERANCES = {
    "float32": LogprobDifference(1e-4, 1e-4),
    "float32 on an accelerator": LogprobDifference(1e-3, 1e-2),
    "float16": LogprobDifference(0.04, 0.15),
    "bfloat16": LogprobDifference(0.3, 1.0),
}
"""Allowed difference of two correct implementations, in the mean and on one token, by the lower precision of the two. Measured with random
models of 28 layers on a CPU, autocast to bfloat16 against bfloat16 weights: 0.07 in the mean, 0.2 on one token."""
MIN_TRAINER_CHANGES = {"both in float32": 1e-6, "trainer in float32": 1e-3, "trainer below": 0.05}
"""Change of the trainer's scores above which an engine with unchanged scores counts as stale."""


class WeightSyncProbe:
    """Compares the scores of trainer and engine on fixed tokens, and stores both from the engine's last change."""

    def __init__(
        self, vocabulary: int, dtype: str, *, precision: str | None = None, tolerance: float | None = None, max_tokens: int = PROBE_TOKENS
    ) -> None:
        rng = random.Random(0)
        self.tokens = [rng.randrange(vocabulary) for _ in range(min(PROBE_TOKENS, max_tokens))]
        self.dtype, self.precision, self.tolerance = dtype, precision, tolerance
        self.mean_difference, self.max_difference = 0.0, 0.0
        """Mean and largest difference since the last reset, of the engine that differs most."""
        self._last_scores: dict[str, tuple[list[float], list[float]]] = {}
        """By engine: the scores of the trainer and of the engine when the engine's scores last changed."""

    def reset(self) -> None:
        """Reset the differences before new weights are checked."""
        self.mean_difference, self.max_difference = 0.0, 0.0

    def get_difference_metrics(self) -> dict[str, float]:
        """Return the differences as metrics."""
        return {"weight_probe/logprob_difference_mean": self.mean_difference, "weight_probe/logprob_difference_max": self.max_difference}

    def get_tolerance(self, model: Any) -> LogprobDifference:
        """Return the allowed difference of engine and trainer, in the mean and on one token."""
        if self.tolerance is not None:
            return LogprobDifference(self.tolerance, self.tolerance)
        trained = self._get_trainer_dtype(model)
        lower = next((name for name in ("bfloat16", "float16") if name in (self.dtype, trained)), "float32")
        far = model.device.type != "cpu" or resolve_device().type != "cpu"  # the engine's, if a copy of the weights is on the CPU
        return LOGPROB_TOLERANCES[f"{lower} on an accelerator" if lower == "float32" and far else lower]

    def get_stale_threshold(self, model: Any) -> float:
        """Return the change of the trainer's scores above which an engine with unchanged scores counts as stale."""
        if self._get_trainer_dtype(model) != "float32":
            return MIN_TRAINER_CHANGES["trainer below"]
        return MIN_TRAINER_CHANGES["both in float32" if self.dtype == "float32" else "trainer in float32"]

    def _get_trainer_dtype(self, model: Any) -> str:
        return self.precision or str(model.dtype).removeprefix("torch.")

    def check_engine(
        self,
        score: Callable[[Sequence[int]], list[float]],
        model: Any,
        engine_name: str,
        version: int,
        *,
        trainer_logprobs: list[float] | None = None,
    ) -> None:
        """Compare the scores; raise SamplerError with engine and cause if they differ. `trainer_logprobs`: the trainer's scores, if known."""
        trainer_logprobs, theirs = (
            compute_model_logprobs(model, self.tokens, self.precision) if trainer_logprobs is None else trainer_logprobs,
            score(self.tokens),
        )
        mean, largest = compute_logprob_differences(trainer_logprobs, theirs)
        self.mean_difference, self.max_difference = max(self.mean_difference, mean), max(self.max_difference, largest)
        last = self._last_scores.get(engine_name)
        if last is not None and theirs == last[1]:
            moved = compute_logprob_differences(trainer_logprobs, last[0]).largest
            if moved > self.get_stale_threshold(model):
                raise SamplerError(
                    f"{engine_name} still samples from old weights: its log-probabilities of the probe did not change, but the trainer's changed "
                    f"by {moved:.3g}, and version {version} was sent. The reload had no effect; resume the run to load again"
                )
        else:
            self._last_scores[engine_name] = (trainer_logprobs, theirs)
        allowed = self.get_tolerance(model)
        if not (mean <= allowed.mean and largest <= allowed.largest):  # also raises on NaN
            raise SamplerError(
                f"{engine_name} does not sample from the trainer's weights: at version {version} its log-probabilities of the probe differ by "
                f"{largest:.3g}; {allowed.largest:g} is allowed (in the mean by {mean:.3g}; {allowed.mean:g} is allowed). It has another model, "
                "or another precision (set dtype, or probe_tolerance if that is intended); `rlvr doctor --model DIR --sampler vllm` shows "
                "where they differ"
            )


def compute_logprob_differences(first: Sequence[float], second: Sequence[float]) -> LogprobDifference:
    """Return the mean and the largest absolute difference; NaN if any is NaN."""
    gaps = (torch.tensor(first) - torch.tensor(second)).abs()
    return LogprobDifference(float(gaps.mean()), float(gaps.max()))
