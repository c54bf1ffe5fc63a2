"""Dr.GRPO: GRPO without the deviation and with a constant length divisor, so neither biases the gradient.

    A_i = R_i - mean_g
    L = (1/(B L_max)) sum_i sum_t -min(r A, clip(r, 1 - epsilon, 1 + epsilon_high) A)

paper                    2503.20783
differs from the paper   no: L_max is max_new_tokens, or the run's limit
"""

from __future__ import annotations

from rlvr.algorithms.base.policy_gradient import define_policy_gradient
from rlvr.algorithms.grpo import advantage, loss

make = define_policy_gradient(__name__, __doc__, advantage, loss, scale_rewards="none", loss_aggregation="seq-mean-token-sum-norm")
