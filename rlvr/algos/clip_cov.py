"""Clip-Cov: a few tokens whose log-probability and advantage vary together most get no gradient, which keeps the entropy up.

    cov_t = (A_t - mean A) (l_t - mean l) over the tokens of the optimizer step
    L = GRPO's, as a mean over all tokens, without the gradient of clip_cov_ratio of them, taken from those with cov between the bounds

paper                    2505.22617
differs from the paper   the candidates with the largest cov are taken, not random ones, so that a resumed run repeats them; l is l_old,
                         which is the same at the first optimizer step; answers of groups with equal rewards are not compared; the authors'
                         code (verl) also leaves out tokens that PPO's clip stops anyway
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rlvr.algos import grpo
from rlvr.algos.base.policy_gradient import policy_gradient
from rlvr.algos.base.recipe import part
from rlvr.algos.parts.covariance import covariance, largest_from
from rlvr.algos.parts.credit import Total
from rlvr.algos.parts.surrogate import Surrogate
from rlvr.contracts.algorithm import LossInputs

if TYPE_CHECKING:
    from torch import Tensor


def chosen(
    columns: Mapping[str, Tensor], total: Total, *, clip_cov_ratio: float, clip_cov_lb: float, clip_cov_ub: float, **_: Any
) -> Tensor:
    """Return 1 at the tokens that get no gradient, 0 elsewhere."""
    cov = covariance(columns, total)
    held = cov.where((cov > clip_cov_lb) & (cov < clip_cov_ub), cov.new_tensor(clip_cov_lb))
    return ((held >= largest_from(held, clip_cov_ratio, total)) & (held > clip_cov_lb)).to(cov.dtype)


@part("old", prepare=chosen)
def loss(
    x: LossInputs,
    *,
    clip_cov_ratio: float = 0.0002,
    clip_cov_lb: float = 1.0,
    clip_cov_ub: float = 5.0,
    epsilon: float = 0.2,
    epsilon_high: float | None = None,
) -> Surrogate:
    """PPO's clip, without the gradient of the chosen tokens."""
    assert x.prepared is not None
    clipped = grpo.loss(x, epsilon=epsilon, epsilon_high=epsilon_high)
    return clipped._replace(loss=clipped.loss * (1 - x.prepared) + clipped.loss.detach() * x.prepared)


make = policy_gradient(__name__, __doc__, grpo.advantage, loss, loss_aggregation="token-mean")
