"""SAPO: a soft sigmoid gate instead of the clip.

    f(r) = (4/tau) sigmoid(tau (r - 1)),  tau is sapo_temperature_pos where A > 0, else sapo_temperature_neg
    L = (1/B) sum_i (1/T_i) sum_t -f(r) A,  A as in GRPO

paper                    2511.20347
differs from the paper   no; with one optimizer step per batch every ratio is 1 and it is GRPO
"""

from __future__ import annotations

from rlvr.algorithms.base.algorithm_spec import declare_traits
from rlvr.algorithms.base.policy_gradient import define_policy_gradient
from rlvr.algorithms.functions.surrogate import SurrogateLoss, compute_gated_loss, compute_log_ratio
from rlvr.algorithms.grpo import advantage
from rlvr.contracts.algorithm import LossInputs


@declare_traits("noop_on_policy")
def loss(x: LossInputs, *, sapo_temperature_pos: float = 1.0, sapo_temperature_neg: float = 1.05) -> SurrogateLoss:
    """Weight the advantage by a sigmoid gate of the ratio instead of a clip; the gate has slope 1 at ratio 1 for every temperature."""
    ratio = compute_log_ratio(x.logprobs, x.old_logprobs, x.rows, x.num_rows, "token").exp()
    return compute_gated_loss(ratio, x.advantages, sapo_temperature_pos, sapo_temperature_neg)


make = define_policy_gradient(__name__, __doc__, advantage, loss)
