"""KL-Cov: a few tokens whose log-probability and advantage vary together most are held near their old probability.

    cov_t = (A_t - mean A) (l_t - mean l) over the tokens of the optimizer step
    L = (1/N) sum -r A + kl_cov_coef |l - l_old| at the kl_cov_ratio of the tokens with the largest cov

paper                    2505.22617
differs from the paper   the share is 0.002, the paper's for its model of 7B (0.0002 for that of 32B, and in verl); l is l_old in cov,
                         which is the same at the first optimizer step; answers of groups with equal rewards are not compared; a token
                         that moved by less than 1e-5 is not held: at the first optimizer step of a batch l is l_old up to rounding, and
                         the sign of a rounding error would be its gradient. So the penalty needs several optimizer steps per batch
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rlvr.algorithms import grpo
from rlvr.algorithms.base.algorithm_spec import declare_traits
from rlvr.algorithms.base.policy_gradient import define_policy_gradient
from rlvr.algorithms.functions.advantages import AllReduce
from rlvr.algorithms.functions.covariance import compute_covariance, find_top_fraction_threshold
from rlvr.algorithms.functions.surrogate import compute_log_ratio
from rlvr.contracts.algorithm import LossInputs

if TYPE_CHECKING:
    from torch import Tensor


MIN_LOGPROB_CHANGE = 1e-5
"""Smaller changes of a log-probability are treated as rounding errors."""


def _compute_kl_penalty_mask(columns: Mapping[str, Tensor], all_reduce: AllReduce, *, kl_cov_ratio: float, **_: Any) -> Tensor:
    """Return 1 at the tokens with the largest covariance, 0 elsewhere."""
    cov = compute_covariance(columns, all_reduce)
    return (cov >= find_top_fraction_threshold(cov, kl_cov_ratio, all_reduce)).to(cov.dtype)


@declare_traits("old_logprobs", compute_token_batch_stats=_compute_kl_penalty_mask)
def loss(x: LossInputs, *, kl_cov_ratio: float = 0.002, kl_cov_coef: float = 1.0) -> Tensor:
    """The unclipped ratio times the advantage, plus a KL penalty at the tokens with the largest covariance."""
    assert x.batch_stats is not None
    delta = compute_log_ratio(x.logprobs, x.old_logprobs, x.rows, x.num_rows, "token")
    held = x.batch_stats * (delta.detach().abs() > MIN_LOGPROB_CHANGE)
    return -delta.exp() * x.advantages + kl_cov_coef * held * delta.abs()


make = define_policy_gradient(__name__, __doc__, grpo.advantage, loss, loss_aggregation="token-mean")
