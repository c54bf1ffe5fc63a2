"""The probe: a fixed token sequence that the trainer and the engine both score after every reload of weights.

An engine with old or wrong weights continues to answer, and only the reward would show it. The probe detects it before any
token is sampled.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import torch

from rlvr.errors import SamplerError

LENGTH = 32
TOLERANCE = {"float32": 1e-4, "float16": 0.1, "bfloat16": 0.5}
"""How much two correct implementations may differ on one token, by the engine's precision."""
NOISE = {"float32": 1e-6}
COARSE = 1e-3
"""How much the trainer's scores must change before an engine whose scores did not change counts as stale."""


class Probe:
    """Scores the same tokens with trainer and engine, and remembers both scores from the last time the engine's changed.

    >>> Probe(vocabulary=100, dtype="float32").check(engine.score, model, "the engine", 3)      # doctest: +SKIP
    """

    def __init__(self, vocabulary: int, dtype: str, *, tolerance: float | None = None, room: int = LENGTH) -> None:
        dice = random.Random(0)
        self.tokens = [dice.randrange(vocabulary) for _ in range(min(LENGTH, room))]
        self.tolerance = TOLERANCE.get(dtype, COARSE) if tolerance is None else tolerance
        self.noise = NOISE.get(dtype, COARSE)
        self.difference = 0.0
        """The largest difference in the latest check."""
        self._last: dict[str, tuple[list[float], list[float]]] = {}
        """The scores of the trainer and of each engine when that engine's scores last changed."""

    def check(self, score: Callable[[Sequence[int]], list[float]], model: Any, where: str, version: int) -> None:
        """Compare the scores; raise SamplerError with the engine and the cause if they differ."""
        ours, theirs = trainer_scores(model, self.tokens), score(self.tokens)
        self.difference = apart(ours, theirs)
        last = self._last.get(where)
        if last is not None and theirs == last[1]:
            moved = apart(ours, last[0])
            if moved > self.noise:
                raise SamplerError(
                    f"{where} still samples from old weights: its log-probabilities of the probe did not change, but the trainer's changed "
                    f"by {moved:.3g}, and version {version} was sent. The reload had no effect; resume the run to load again"
                )
        else:
            self._last[where] = (ours, theirs)
        if not self.difference <= self.tolerance:  # also raises on NaN
            raise SamplerError(
                f"{where} does not sample from the trainer's weights: at version {version} its log-probabilities of the probe differ by "
                f"{self.difference:.3g}; {self.tolerance:g} is allowed. It has another model, or another precision (set dtype, or "
                "probe_tolerance if that is intended); `rlvr doctor --model DIR --sampler vllm` shows where they differ"
            )


@torch.no_grad()
def trainer_scores(model: Any, tokens: Sequence[int]) -> list[float]:
    """The trainer's log-probability of each token except the first, from one forward pass."""
    training = model.training
    model.eval()
    try:
        ids = torch.tensor([list(tokens)], device=model.device)
        logprobs = model(input_ids=ids, use_cache=False).logits[0, :-1].float().log_softmax(-1)
        return [float(x) for x in logprobs.gather(1, ids[0, 1:, None])[:, 0]]
    finally:
        model.train(training)


def apart(one: Sequence[float], other: Sequence[float]) -> float:
    """The largest absolute difference; NaN if any is NaN."""
    return float((torch.tensor(one) - torch.tensor(other)).abs().max())
