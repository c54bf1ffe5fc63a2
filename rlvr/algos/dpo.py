"""DPO: makes the better answer of a pair more likely than the worse one, relative to a reference.

    d = beta ((l+ - l+_ref) - (l- - l-_ref)),  l summed over the answer
    L = -mean over pairs of (1 - label_smoothing) log sigmoid(d) + label_smoothing log sigmoid(-d)

paper                    2305.18290; label_smoothing is cDPO, preference_loss=ipo is 2310.12036
differs from the paper   pairs are made of scores: the best answer of a group with the worst, and pairs_per_group more
"""

from __future__ import annotations

from rlvr.algos.base.preference import preference
from rlvr.algos.base.recipe import part
from rlvr.algos.parts.answers import Groups
from rlvr.algos.parts.credit import Rewards, Total
from rlvr.algos.parts.preferences import Pulls, of_pairs, paired
from rlvr.episode import Episode


@part("pairs")
def prefer(
    groups: Groups,
    rewards: list[Rewards],
    shifts: list[list[float]],
    beta: float,
    total: Total,
    *,
    preference_loss: str = "dpo",
    label_smoothing: float = 0.0,
    pairs_per_group: int = 1,
) -> Pulls:
    """Compute the loss on the pairs of each group, and its advantages; `shifts` has beta (l - l_ref) of each answer."""
    return of_pairs(rewards, shifts, beta, how=preference_loss, smoothing=label_smoothing, most=pairs_per_group, total=total)


def learnable(groups: Groups, *, pairs_per_group: int = 1) -> list[list[Episode]]:
    """Select the members of the pairs."""
    return paired(groups, pairs_per_group)


make = preference(__name__, __doc__, prefer, learnable)
