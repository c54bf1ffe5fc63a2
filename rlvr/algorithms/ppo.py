"""PPO with a critic: GAE, clipped policy and value losses, k1 in the reward.

    A = whiten(GAE(gamma, lam)),  r less beta (l - l_ref)
    L = (1/N) sum -min(r A, clip(r, 1 - epsilon, 1 + epsilon_high) A) + vf_coef 0.5 max((V - R)^2, (V_clip - R)^2)

paper                    1707.06347, and 1506.02438 for GAE; for language models 1909.08593 and 2203.02155
differs from the paper   the critic is a linear head on the policy's own trunk, so both losses train the trunk and share max_grad_norm,
                         unless train.separate_critic gives it weights of its own; the KL is in the reward, as in the papers on language models
"""

from __future__ import annotations

from rlvr.algorithms.base.algorithm_spec import declare_traits
from rlvr.algorithms.base.policy_gradient import define_policy_gradient
from rlvr.algorithms.functions.answer_batch import Advantages, AnswerBatch
from rlvr.algorithms.functions.returns import compute_returns, compute_value_targets
from rlvr.algorithms.grpo import loss


@declare_traits("per_token", "values")
def advantage(answers: AnswerBatch, *, gamma: float = 1.0, lam: float = 0.95) -> Advantages:
    """Generalised advantage estimation; the critic's targets are taken from it before any whitening."""
    found = compute_returns(answers, gamma, lam=lam, use_critic=True)
    answers.value_targets = compute_value_targets(answers, found)
    return found


make = define_policy_gradient(
    __name__,
    __doc__,
    advantage,
    loss,
    whiten="tokens",
    loss_aggregation="token-mean",
    beta=0.05,
    kl_estimator="k1",
    kl_in="reward",
    num_iterations=4,
)
