"""GSPO: one ratio per answer, the geometric mean of its tokens', clipped tightly.

    s_i = exp((1/T_i) sum_t l - l_old)
    L = (1/B) sum_i -min(s A, clip(s, 1 - 3e-4, 1 + 4e-4) A),  A as in GRPO

paper                    2507.18071
differs from the paper   no; the paper takes four optimizer steps per batch (train.minibatches_per_step=4). With one, every ratio is 1
                         and it is GRPO
"""

from __future__ import annotations

from rlvr.algorithms.base.policy_gradient import define_policy_gradient
from rlvr.algorithms.grpo import advantage, loss

make = define_policy_gradient(__name__, __doc__, advantage, loss, importance_sampling_level="sequence", epsilon=3e-4, epsilon_high=4e-4)
