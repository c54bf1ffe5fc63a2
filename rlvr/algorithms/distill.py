"""Distillation: the policy samples, and a teacher scores every token of the completion.

    sampled:  A_t = A + teacher_weight (l_teacher - l_old),  L = (1/N) sum -min(r A, clip(r, 1 - epsilon, 1 + epsilon_high) A)
    else:     L = (1/N) sum -min(r A, clip(r) A) + teacher_weight D_t,  D_t over the whole vocabulary, with p the policy and q the teacher
              reverse_kl: KL(p || q)   forward_kl: KL(q || p)   jsd: (KL(p || m) + KL(q || m)) / 2,  m = (p + q) / 2
    A is 0, or with advantage=grpo (or another name) the verifier's

paper                    2306.13649 (GKD) for the divergences; the sampled form is the KL of 2306.08543 (MiniLLM) token by token
differs from the paper   every answer is the policy's (lambda is 1 there), no gradient goes through the sampling, and a token answers for
                         its own KL only, not for that of the tokens after it
"""

from __future__ import annotations

from dataclasses import replace

from rlvr.algorithms import grpo
from rlvr.algorithms.base.algorithm_spec import declare_traits
from rlvr.algorithms.base.policy_gradient import define_policy_gradient
from rlvr.algorithms.functions.answer_batch import Advantages, AnswerBatch
from rlvr.algorithms.functions.surrogate import SurrogateLoss
from rlvr.contracts.algorithm import LossInputs


def _zero_advantage(answers: AnswerBatch) -> Advantages:
    """Return 0: only the teacher provides a signal, not the verifier."""
    return [[0.0 for _ in group] for group in answers.groups]


@declare_traits(frozen_models=("reference",), noop_on_policy=("epsilon", "epsilon_high"))
def loss(
    x: LossInputs, *, teacher_weight: float = 1.0, divergence: str = "sampled", epsilon: float = 0.2, epsilon_high: float | None = None
) -> SurrogateLoss:
    """PPO's clipped loss on the verifier's plus the teacher's signal; or on the verifier's, plus the divergence from the teacher."""
    if x.divergence is None:
        assert x.reference_logprobs is not None
        x = replace(x, advantages=x.advantages + teacher_weight * (x.reference_logprobs - x.old_logprobs))
    clipped = grpo.loss(x, epsilon=epsilon, epsilon_high=epsilon_high)
    return clipped if x.divergence is None else clipped._replace(loss=clipped.loss + teacher_weight * x.divergence)


make = define_policy_gradient(__name__, __doc__, _zero_advantage, loss, loss_aggregation="token-mean")
