"""Terms that are added to the policy loss: the KL to the reference, and the loss of a critic."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlvr.algorithms.functions import kl, surrogate
from rlvr.contracts.algorithm import LossInputs

if TYPE_CHECKING:
    from torch import Tensor


def compute_kl_term(x: LossInputs, beta: float, estimator: str) -> Tensor:
    """Compute beta times the KL to the reference at each token."""
    assert x.reference_logprobs is not None
    ratio = (x.logprobs - x.old_logprobs).clamp(-surrogate.LOG_RATIO_LIMIT, surrogate.LOG_RATIO_LIMIT).exp()
    return beta * kl.estimate_kl(x.logprobs, x.reference_logprobs, estimator, ratio)


def compute_value_loss(values: Tensor, old_values: Tensor, returns: Tensor, epsilon: float | None) -> Tensor:
    """Compute half the squared error per token: the larger of the unclipped and the clipped one (epsilon None: unclipped)."""
    free = (values - returns).square()
    if epsilon is None:
        return 0.5 * free
    held = old_values + (values - old_values).clamp(-epsilon, epsilon)
    return 0.5 * free.maximum((held - returns).square())
