"""KTO: each answer is desirable or undesirable, relative to a reference and to answers to other prompts.

    s = beta (l - l_ref),  z = max(0, mean s of prompts with answers to other prompts), a constant to the gradient
    L = mean of desirable_weight (1 - sigmoid(s - z)) or undesirable_weight (1 - sigmoid(z - s))

paper                    2402.01306
differs from the paper   an answer is desirable if its score is at least desirable_threshold
"""

from __future__ import annotations

from rlvr.algorithms.base.algorithm_spec import declare_traits
from rlvr.algorithms.base.preference import define_preference
from rlvr.algorithms.functions.advantages import AllReduce, Rewards
from rlvr.algorithms.functions.answer_batch import Groups
from rlvr.algorithms.functions.preferences import PreferenceAdvantages, compute_kto_advantages, require_desirable_and_undesirable
from rlvr.episode import Episode


@declare_traits("needs_kl_samples")
def prefer(
    groups: Groups,
    rewards: list[Rewards],
    implicit_rewards: list[list[float]],
    beta: float,
    all_reduce: AllReduce,
    *,
    desirable_threshold: float = 0.5,
    desirable_weight: float = 1.0,
    undesirable_weight: float = 1.0,
) -> PreferenceAdvantages:
    """Compute the loss on each answer, and its advantages; `implicit_rewards` has beta (l - l_ref) of each answer."""
    rows = zip(groups, implicit_rewards, strict=True)
    elsewhere = [s for group, row in rows for e, s in zip(group, row, strict=True) if e.meta.get("mismatched")]
    weights = desirable_weight, undesirable_weight
    return compute_kto_advantages(
        rewards, implicit_rewards, elsewhere, beta, desirable_threshold=desirable_threshold, weights=weights, all_reduce=all_reduce
    )


def select_offline(groups: Groups, *, desirable_threshold: float = 0.5) -> list[list[Episode]]:
    """Select all answers; raise ConfigError unless some are desirable and some are not."""
    return require_desirable_and_undesirable(groups, desirable_threshold)


make = define_preference(__name__, __doc__, prefer, select_offline)
