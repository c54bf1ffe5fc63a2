"""REINFORCE++-baseline: reward minus the group mean, whitened over the batch's tokens, k2 in the loss.

    A = whiten(R - mean_g)
    L = (1/N) sum -min(r A, clip(r, 1 - epsilon, 1 + epsilon_high) A) + beta k2,  N the tokens of the whole step

paper                    2501.03262
differs from the paper   no
"""

from __future__ import annotations

from rlvr.algorithms.base.policy_gradient import define_policy_gradient
from rlvr.algorithms.grpo import advantage, loss

make = define_policy_gradient(
    __name__, __doc__, advantage, loss, scale_rewards="none", whiten="tokens", loss_aggregation="token-mean", beta=0.01, kl_estimator="k2"
)
