"""REINFORCE++: reward to go with k1 in the reward, whitened over the batch's tokens, PPO clip, no critic.

    A_t = whiten(sum_{k>=t} gamma^(k-t) r_k),  r less beta (l - l_ref)
    L = (1/N) sum -min(r A, clip(r, 1 - epsilon, 1 + epsilon_high) A),  N the tokens of the whole step

paper                    2501.03262
differs from the paper   no
"""

from __future__ import annotations

from rlvr.algorithms.base.algorithm_spec import declare_traits
from rlvr.algorithms.base.policy_gradient import define_policy_gradient
from rlvr.algorithms.functions.answer_batch import Advantages, AnswerBatch
from rlvr.algorithms.functions.returns import compute_returns
from rlvr.algorithms.grpo import loss


@declare_traits("per_token")
def advantage(answers: AnswerBatch, *, gamma: float = 1.0) -> Advantages:
    """Compute the reward to go at each token, which is whitened over the batch afterwards."""
    return compute_returns(answers, gamma)


make = define_policy_gradient(
    __name__, __doc__, advantage, loss, whiten="tokens", loss_aggregation="token-mean", beta=0.01, kl_estimator="k1", kl_in="reward"
)
