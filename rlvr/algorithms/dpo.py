"""DPO: makes the better answer of a pair more likely than the worse one, relative to a reference.

    d = beta ((l+ - l+_ref) - (l- - l-_ref)),  l summed over the answer
    L = -mean over pairs of (1 - label_smoothing) log sigmoid(d) + label_smoothing log sigmoid(-d)

paper                    2305.18290; label_smoothing is cDPO, preference_loss=ipo is 2310.12036
differs from the paper   pairs are made of scores: the best answer of a group with the worst, and pairs_per_group more
"""

from __future__ import annotations

from rlvr.algorithms.base.algorithm_spec import declare_traits
from rlvr.algorithms.base.preference import define_preference
from rlvr.algorithms.functions.advantages import AllReduce, Rewards
from rlvr.algorithms.functions.answer_batch import Groups
from rlvr.algorithms.functions.preferences import PreferenceAdvantages, compute_preference_advantages, select_paired_answers
from rlvr.episode import Episode


@declare_traits("requires_group", "skips_zero_variance")
def prefer(
    groups: Groups,
    rewards: list[Rewards],
    implicit_rewards: list[list[float]],
    beta: float,
    all_reduce: AllReduce,
    *,
    preference_loss: str = "dpo",
    label_smoothing: float = 0.0,
    pairs_per_group: int = 1,
) -> PreferenceAdvantages:
    """Compute the loss on the pairs of each group, and its advantages; `implicit_rewards` has beta (l - l_ref) of each answer."""
    return compute_preference_advantages(
        rewards,
        implicit_rewards,
        beta,
        preference_loss=preference_loss,
        smoothing=label_smoothing,
        max_pairs=pairs_per_group,
        all_reduce=all_reduce,
    )


def select_offline(groups: Groups, *, pairs_per_group: int = 1) -> list[list[Episode]]:
    """Select the answers of recorded groups that form pairs."""
    return select_paired_answers(groups, pairs_per_group)


make = define_preference(__name__, __doc__, prefer, select_offline)
