"""GSPO-token: the ratio of GSPO, with a separate gradient for each token.

    s_it = sg(s_i) exp(l_it - sg(l_it)),  s_i as in GSPO, sg stops the gradient
    L = (1/B) sum_i (1/T_i) sum_t -min(s A, clip(s, 1 - 3e-4, 1 + 4e-4) A)

paper                    2507.18071
differs from the paper   no; it differs from GSPO only where advantages differ within an answer
"""

from __future__ import annotations

from rlvr.algorithms.base.policy_gradient import define_policy_gradient
from rlvr.algorithms.grpo import advantage, loss

make = define_policy_gradient(
    __name__, __doc__, advantage, loss, importance_sampling_level="sequence_token", epsilon=3e-4, epsilon_high=4e-4
)
