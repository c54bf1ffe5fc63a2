"""The probe: one fixed sequence that the trainer and the engine both score after every reload.

An engine that kept its old weights, or was given somebody else's, goes on answering and nothing looks wrong but the reward.
The probe finds it at once, before a single token is sampled from it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import torch

from rlvr.errors import SamplerError

LENGTH = 32
TOLERANCE = {"float32": 1e-4, "float16": 0.1, "bfloat16": 0.5}
"""How far two honest implementations may be apart on one token, by the engine's precision."""
NOISE = {"float32": 1e-6}
COARSE = 1e-3
"""How far the trainer must move before an engine that did not move at all is called stale."""


class Probe:
    """Scores the same tokens on both sides, and remembers what both said when the engine last moved.

    >>> Probe(vocabulary=100, dtype="float32").check(engine.score, model, "the engine", 3)      # doctest: +SKIP
    """

    def __init__(self, vocabulary: int, dtype: str, *, tolerance: float | None = None, room: int = LENGTH) -> None:
        dice = random.Random(0)
        self.tokens = [dice.randrange(vocabulary) for _ in range(min(LENGTH, room))]
        self.tolerance = TOLERANCE.get(dtype, COARSE) if tolerance is None else tolerance
        self.noise = NOISE.get(dtype, COARSE)
        self.difference = 0.0
        """The largest difference of the latest check."""
        self._last: dict[str, tuple[list[float], list[float]]] = {}
        """What the trainer and each engine said when that engine last moved."""

    def check(self, score: Callable[[Sequence[int]], list[float]], model: Any, where: str, version: int) -> None:
        """Compare, or stop the run and say what is wrong with which engine."""
        ours, theirs = trainer_scores(model, self.tokens), score(self.tokens)
        self.difference = apart(ours, theirs)
        last = self._last.get(where)
        if last is not None and theirs == last[1]:
            moved = apart(ours, last[0])
            if moved > self.noise:
                raise SamplerError(
                    f"{where} still samples from old weights: since its log-probabilities of the probe last moved, the trainer's "
                    f"moved by {moved:.3g}, and it was sent version {version}. The reload did nothing; resume the run to load anew"
                )
        else:
            self._last[where] = (ours, theirs)
        if not self.difference <= self.tolerance:  # NaN is no agreement
            raise SamplerError(
                f"{where} does not sample from the trainer's weights: at version {version} its log-probabilities of the probe are off by "
                f"{self.difference:.3g}, and {self.tolerance:g} is allowed. It holds another model, or computes in another precision "
                "(dtype; probe_tolerance where that is meant); `rlvr doctor --model DIR --sampler vllm` shows where they differ"
            )


@torch.no_grad()
def trainer_scores(model: Any, tokens: Sequence[int]) -> list[float]:
    """The trainer's log-probability of each token but the first, by one plain forward pass."""
    training = model.training
    model.eval()
    try:
        ids = torch.tensor([list(tokens)], device=model.device)
        logprobs = model(input_ids=ids, use_cache=False).logits[0, :-1].float().log_softmax(-1)
        return [float(x) for x in logprobs.gather(1, ids[0, 1:, None])[:, 0]]
    finally:
        model.train(training)


def apart(one: Sequence[float], other: Sequence[float]) -> float:
    """The largest difference; NaN where there is one."""
    return float((torch.tensor(one) - torch.tensor(other)).abs().max())
