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

from rlvr.algorithms import grpo
from rlvr.algorithms.base.algorithm_spec import declare_traits
from rlvr.algorithms.base.policy_gradient import define_policy_gradient
from rlvr.algorithms.functions.advantages import AllReduce
from rlvr.algorithms.functions.covariance import compute_covariance, find_top_fraction_threshold
from rlvr.algorithms.functions.surrogate import SurrogateLoss
from rlvr.contracts.algorithm import LossInputs

if TYPE_CHECKING:
    from torch import Tensor


def _compute_no_gradient_mask(
    columns: Mapping[str, Tensor], all_reduce: AllReduce, *, clip_cov_ratio: float, clip_cov_lb: float, clip_cov_ub: float, **_: Any
) -> Tensor:
    """Return 1 at the tokens that get no gradient, 0 elsewhere."""
    cov = compute_covariance(columns, all_reduce)
    held = cov.where((cov > clip_cov_lb) & (cov < clip_cov_ub), cov.new_tensor(clip_cov_lb))
    return ((held >= find_top_fraction_threshold(held, clip_cov_ratio, all_reduce)) & (held > clip_cov_lb)).to(cov.dtype)


@declare_traits("old_logprobs", compute_token_batch_stats=_compute_no_gradient_mask)
def loss(
    x: LossInputs,
    *,
    clip_cov_ratio: float = 0.0002,
    clip_cov_lb: float = 1.0,
    clip_cov_ub: float = 5.0,
    epsilon: float = 0.2,
    epsilon_high: float | None = None,
) -> SurrogateLoss:
    """PPO's clipped loss, without a gradient at the tokens that `_compute_no_gradient_mask` has chosen."""
    assert x.batch_stats is not None
    clipped = grpo.loss(x, epsilon=epsilon, epsilon_high=epsilon_high)
    return clipped._replace(loss=clipped.loss * (1 - x.batch_stats) + clipped.loss.detach() * x.batch_stats)


make = define_policy_gradient(__name__, __doc__, grpo.advantage, loss, loss_aggregation="token-mean")
