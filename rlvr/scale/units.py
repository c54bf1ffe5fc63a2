"""The units of work: which draws are sampled in one call.

They are cut by the order of the draws alone, so for any number of collectors each answer is sampled in the same company.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from rlvr.episode import End, Episode
from rlvr.rollout.columns import Damaged
from rlvr.rollout.draws import Draw
from rlvr.rollout.parts import begins_with
from rlvr.task import Fault, Verdict

SINGLE = 64
"""How many draws that are alone in their groups are sampled in one call: held-out tasks, greedy answers."""
Unit = list[Draw]


def units_of(draws: Sequence[Draw], groups_per_call: int = 1) -> list[Unit]:
    """The draws in their order, cut into units: so many whole groups each.

    >>> [len(unit) for unit in units_of(draws)]                        # doctest: +SKIP
    [8, 8, 8]
    """
    groups = [list(group) for _, group in groupby(draws, key=lambda draw: draw.group)]
    size = groups_per_call if any(len(group) > 1 for group in groups) else max(groups_per_call, SINGLE)
    return [[draw for group in groups[first : first + size] for draw in group] for first in range(0, len(groups), size)]


def check_found(name: str, unit: Unit, found: Sequence[Episode]) -> None:
    """Damaged if these are not the episodes of a unit, or do not go on from what was there of them."""
    if [(episode.group, episode.task_id) for episode in found] != [(draw.group, draw.task.id) for draw in unit]:
        raise Damaged(f"unit {name} came back with the episodes of other draws")
    for member, (draw, episode) in enumerate(zip(unit, found, strict=True)):
        if draw.part is not None and not begins_with(episode, draw.part):
            raise Damaged(f"answer {member} of unit {name} came back with another beginning")


def given_up(unit: Unit, version: int, why: str) -> list[Episode]:
    """The episodes of a unit that could not be sampled: failed, without a score."""
    reason = f"no collector could sample it: {why}"
    verdict = Verdict(None, reason, fault=Fault.INFRA)

    def failed(draw: Draw) -> Episode:
        meta = {**draw.meta, "finish": End.FAILED.value}
        return Episode(draw.task.id, draw.group, [], [], [], [], End.FAILED, version, verdict, turns=0, error=reason, meta=meta)

    return [failed(draw) for draw in unit]
