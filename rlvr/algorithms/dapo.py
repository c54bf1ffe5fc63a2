"""DAPO: higher upper clip, equal weight for every token, truncated answers masked, groups with equal rewards replaced.

    A_i = (R_i - mean_g) / (std_g + advantage_epsilon)
    L = (1/N) sum -min(r A, clip(r, 0.8, 1.28) A),  N the tokens of the whole step

paper                    2503.14476
differs from the paper   N counts the step, where equation 8 counts each group (loss_aggregation=prompt-mean is that one);
                         truncated answers are masked and the soft punishment of long answers is off: the paper's last row has both, with
                         overlong_buffer=4096. The punishment is overlong_penalty=0.5 at the limit, because scores lie in [0, 1]: the paper
                         takes off 1 of rewards in [-1, 1]
"""

from __future__ import annotations

from rlvr.algorithms.base.policy_gradient import define_policy_gradient
from rlvr.algorithms.grpo import advantage, loss

make = define_policy_gradient(
    __name__,
    __doc__,
    advantage,
    loss,
    epsilon_high=0.28,
    loss_aggregation="token-mean",
    mask_truncated_completions=True,
    dynamic_sampling_rounds=10,
)
