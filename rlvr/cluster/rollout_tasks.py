"""Rollout tasks: the draws that one call of a worker samples.

The split depends only on the order of the draws, so each completion is sampled in the same batch for any number of workers.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from rlvr.episode import Episode, StopReason
from rlvr.rollout.episode_encoding import CorruptData
from rlvr.rollout.partial_rollouts import is_continuation
from rlvr.rollout.rollout_request import RolloutRequest
from rlvr.task import Fault, Verdict

SINGLES_PER_TASK = 64
"""Draws per task when each group has one member, as in evaluations."""
RolloutTask = list[RolloutRequest]


def split_into_tasks(requests: Sequence[RolloutRequest], groups_per_task: int = 1) -> list[RolloutTask]:
    """Split the requests into rollout tasks of `groups_per_task` whole groups, in order."""
    groups = [list(group) for _, group in groupby(requests, key=lambda draw: draw.group)]
    size = groups_per_task if any(len(group) > 1 for group in groups) else max(groups_per_task, SINGLES_PER_TASK)
    return [[draw for group in groups[first : first + size] for draw in group] for first in range(0, len(groups), size)]


def check_task_episodes(task_name: str, rollout_task: RolloutTask, episodes: Sequence[Episode]) -> None:
    """Raise CorruptData if the episodes do not belong to the requests of a rollout task, or do not continue their partial completions."""
    if [(episode.group, episode.task_id) for episode in episodes] != [(draw.group, draw.task.id) for draw in rollout_task]:
        raise CorruptData(f"task {task_name} came back with the episodes of other draws")
    for member, (draw, episode) in enumerate(zip(rollout_task, episodes, strict=True)):
        if draw.partial_completion is not None and not is_continuation(episode, draw.partial_completion):
            raise CorruptData(f"completion {member} of task {task_name} does not begin with its partial episode")


def make_failed_episodes(rollout_task: RolloutTask, policy_version: int, why: str) -> list[Episode]:
    """Make the episodes of a task that could not be sampled: failed, without a score."""
    reason = f"no rollout worker could sample it: {why}"
    verdict = Verdict(None, reason, fault=Fault.INFRA)

    def failed(draw: RolloutRequest) -> Episode:
        meta = {**draw.meta, "finish": StopReason.FAILED.value}
        return Episode(
            draw.task.id, draw.group, [], [], [], [], StopReason.FAILED, policy_version, verdict, turns=0, error=reason, meta=meta
        )

    return [failed(draw) for draw in rollout_task]
