"""Rollout tasks: the draws that one call of a worker samples.

The split depends only on the order of the draws, so each completion is sampled in the same batch for any number of workers.
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
"""Draws per task when each group has one member, as in evaluations."""
Unit = list[Draw]


def units_of(draws: Sequence[Draw], groups_per_call: int = 1) -> list[Unit]:
    """Split the draws into tasks of so many whole groups, in order."""
    groups = [list(group) for _, group in groupby(draws, key=lambda draw: draw.group)]
    size = groups_per_call if any(len(group) > 1 for group in groups) else max(groups_per_call, SINGLE)
    return [[draw for group in groups[first : first + size] for draw in group] for first in range(0, len(groups), size)]


def check_found(name: str, unit: Unit, found: Sequence[Episode]) -> None:
    """Raise Damaged if the episodes do not belong to the draws of a task, or do not begin with their partial episodes."""
    if [(episode.group, episode.task_id) for episode in found] != [(draw.group, draw.task.id) for draw in unit]:
        raise Damaged(f"task {name} came back with the episodes of other draws")
    for member, (draw, episode) in enumerate(zip(unit, found, strict=True)):
        if draw.part is not None and not begins_with(episode, draw.part):
            raise Damaged(f"completion {member} of task {name} does not begin with its partial episode")


def given_up(unit: Unit, version: int, why: str) -> list[Episode]:
    """Make the episodes of a task that could not be sampled: failed, without a score."""
    reason = f"no rollout worker could sample it: {why}"
    verdict = Verdict(None, reason, fault=Fault.INFRA)

    def failed(draw: Draw) -> Episode:
        meta = {**draw.meta, "finish": End.FAILED.value}
        return Episode(draw.task.id, draw.group, [], [], [], [], End.FAILED, version, verdict, turns=0, error=reason, meta=meta)

    return [failed(draw) for draw in unit]
