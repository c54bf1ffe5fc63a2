"""DPPO: a token is left out where its probability has moved too far from the sampler's, in the direction of its advantage.

    M_t = 0 where A > 0 and p - p_sampler > dppo_mask_high, or A < 0 and p_sampler - p > dppo_mask_low, else 1
    L = (1/N) sum -M r A,  r = p / p_sampler, p the probability of the token

paper                    2602.04879 (the binary form of total variation)
differs from the paper   r is bounded by exp(20), and by 20 in the authors' code (verl), whose scripts have 0.15 for both masks; the
                         advantage is GRPO's without the deviation
"""

from __future__ import annotations

from rlvr.algorithms.base.policy_gradient import define_policy_gradient
from rlvr.algorithms.functions.surrogate import SurrogateLoss, compute_log_ratio
from rlvr.algorithms.grpo import advantage
from rlvr.contracts.algorithm import LossInputs


def loss(x: LossInputs, *, dppo_mask_low: float = 0.2, dppo_mask_high: float = 0.2) -> SurrogateLoss:
    """Compute the ratio to the sampler times the advantage, without the tokens that moved too far."""
    moved = (x.logprobs.exp() - x.rollout_logprobs.exp()).detach()
    high, low = (x.advantages > 0) & (moved > dppo_mask_high), (x.advantages < 0) & (moved < -dppo_mask_low)
    kept = (~(high | low)).to(x.logprobs.dtype)
    ratio = compute_log_ratio(x.logprobs, x.rollout_logprobs, x.rows, x.num_rows, "token").exp()
    return SurrogateLoss(-kept * ratio * x.advantages, low.to(x.logprobs.dtype), high.to(x.logprobs.dtype))


make = define_policy_gradient(
    __name__, __doc__, advantage, loss, scale_rewards="none", loss_aggregation="token-mean", old_from_sampler=True
)
