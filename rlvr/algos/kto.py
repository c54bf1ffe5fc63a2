"""KTO: each answer is desirable or undesirable, relative to a reference and to answers to other prompts.

    s = beta (l - l_ref),  z = max(0, mean s of prompts with answers to other prompts), a constant to the gradient
    L = mean of desirable_weight (1 - sigmoid(s - z)) or undesirable_weight (1 - sigmoid(z - s))

paper                    2402.01306
differs from the paper   an answer is desirable if its score is at least desirable_from
"""

from __future__ import annotations

from rlvr.algos.base.preference import preference
from rlvr.algos.base.recipe import part
from rlvr.algos.parts.answers import Groups
from rlvr.algos.parts.credit import Rewards, Total
from rlvr.algos.parts.preferences import Pulls, of_both_kinds, of_kto
from rlvr.episode import Episode


@part("mismatched")
def prefer(
    groups: Groups,
    rewards: list[Rewards],
    shifts: list[list[float]],
    beta: float,
    total: Total,
    *,
    desirable_from: float = 0.5,
    desirable_weight: float = 1.0,
    undesirable_weight: float = 1.0,
) -> Pulls:
    """Compute the loss on each answer, and its advantages; `shifts` has beta (l - l_ref) of each answer."""
    rows = zip(groups, shifts, strict=True)
    elsewhere = [s for group, row in rows for e, s in zip(group, row, strict=True) if e.meta.get("mismatched")]
    weights = desirable_weight, undesirable_weight
    return of_kto(rewards, shifts, elsewhere, beta, desirable_from=desirable_from, weights=weights, total=total)


def learnable(groups: Groups, *, desirable_from: float = 0.5) -> list[list[Episode]]:
    """Select all answers; raise ConfigError unless some are desirable and some are not."""
    return of_both_kinds(groups, desirable_from)


make = preference(__name__, __doc__, prefer, learnable)
