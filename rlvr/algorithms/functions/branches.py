"""Credit for the branches of an agent's conversation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlvr.episode import Episode, find_path

BRANCH_CREDITS = ("all", "even", "last")
"""How the advantage of an episode is given to its branches."""


def divide_by_branches(advantages: Sequence[Sequence[Any]], groups: Sequence[Sequence[Episode]]) -> list[list[Any]]:
    """Divide the advantages of each episode by the number of its branches.

    >>> from rlvr.episode import Segment
    >>> tree = Episode("t", "g", [5, 6, 7], [False, True, True], [0.0] * 3, [0.0] * 3, "terminated", segments=(Segment(0), Segment(1, 0), Segment(2, 0)))
    >>> divide_by_branches([[[0.0, 1.0, 1.0]]], [[tree]])[0][0].tolist()
    [0.0, 0.5, 0.5]
    """
    return [
        [np.asarray(row) / len(episode.branches) if episode.segments else row for row, episode in zip(rows, group, strict=True)]
        for rows, group in zip(advantages, groups, strict=True)
    ]


def mask_out_earlier_branches(episode: Episode, mask: Sequence[bool]) -> Sequence[bool]:
    """Return a mask without the tokens that do not lead to the episode's last token.

    >>> from rlvr.episode import Segment
    >>> tree = Episode("t", "g", [5, 6, 7], [False, True, True], [0.0] * 3, [0.0] * 3, "terminated", segments=(Segment(0), Segment(1, 0), Segment(2, 0)))
    >>> mask_out_earlier_branches(tree, tree.action_mask)
    [False, False, True]
    """
    if not episode.segments:
        return mask
    kept = [False] * len(mask)
    for start, end in find_path(episode.segments, len(episode.segments) - 1, len(episode.tokens)):
        kept[start:end] = mask[start:end]
    return kept
