"""Rollout tasks: the draws that one call of a worker samples.

The split depends only on the order of the draws, so each completion is sampled in the same batch for any number of workers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby

from rlvr.episode import Episode, StopReason
from rlvr.rollout.episode_encoding import CorruptData
from rlvr.rollout.partial_rollouts import is_continuation
from rlvr.rollout.rollout_request import RolloutRequest
from rlvr.task import Fault, Verdict

REQUESTED_META = ("greedy", "mismatched", "canary", "dropped", "split", "index")
"""The keys of `Episode.meta` that decide how an episode is counted; they come from the request alone."""
MAX_REWARD_ROUNDING = 1e-6
SINGLES_PER_TASK = 64
"""Draws per task when each group has one member, as in evaluations."""
RolloutTask = list[RolloutRequest]


def split_into_tasks(requests: Sequence[RolloutRequest], groups_per_task: int = 1) -> list[RolloutTask]:
    """Split the requests into rollout tasks of `groups_per_task` whole groups, in order."""
    groups = [list(group) for _, group in groupby(requests, key=lambda draw: draw.group)]
    size = groups_per_task if any(len(group) > 1 for group in groups) else max(groups_per_task, SINGLES_PER_TASK)
    return [[draw for group in groups[first : first + size] for draw in group] for first in range(0, len(groups), size)]


def check_task_episodes(
    task_name: str, rollout_task: RolloutTask, episodes: Sequence[Episode], *, policy_version: int, vocab_size: int | None = None
) -> None:
    """Raise CorruptData if the episodes are not what a rollout of these requests can give.

    A worker that computes wrongly, or another program in its place, must not be able to change what is trained on: other draws, other
    weights, token ids that do not exist, or rewards that the verdicts do not give.
    """
    if [(episode.group, episode.task_id) for episode in episodes] != [(draw.group, draw.task.id) for draw in rollout_task]:
        raise CorruptData(f"task {task_name} came back with the episodes of other draws")
    for member, (draw, episode) in enumerate(zip(rollout_task, episodes, strict=True)):
        if draw.partial_completion is not None and not is_continuation(episode, draw.partial_completion):
            raise CorruptData(f"completion {member} of task {task_name} does not begin with its partial episode")
        if problem := find_impossible_field(draw, episode, policy_version, vocab_size):
            raise CorruptData(f"completion {member} of task {task_name} cannot be one: {problem}")


def find_impossible_field(draw: RolloutRequest, episode: Episode, policy_version: int, vocab_size: int | None) -> str:
    """Return what no rollout of this request gives; '' if there is nothing."""
    verdict, failed = episode.verdict, episode.stop_reason is StopReason.FAILED
    if type(episode.policy_version) is not int or episode.policy_version != policy_version:
        return f"its weights are version {episode.policy_version!r}, and version {policy_version} was asked for"
    if not isinstance(episode.text, str) or not isinstance(episode.error, str) or type(episode.turns) is not int or episode.turns < 0:
        return f"its text, error and turns are {episode.text!r:.40}, {episode.error!r:.40}, {episode.turns!r:.40}"
    if not isinstance(episode.meta, dict) or any(episode.meta.get(name) != draw.meta.get(name) for name in {*draw.meta, *REQUESTED_META}):
        return "its meta is not that of its request"
    if verdict is None or verdict.is_scored == failed:
        return f"it ended as {episode.stop_reason.value} and its verdict is {verdict!r:.60}"
    if not failed and not any(episode.action_mask):
        return "it has no token of the policy"
    if episode.tokens and not 0 <= min(episode.tokens) <= max(episode.tokens) < (vocab_size or math.inf):
        return f"its token ids go from {min(episode.tokens)} to {max(episode.tokens)}, and the tokenizer has {vocab_size}"
    paid = math.fsum(episode.rewards)
    if abs(paid - (verdict.score or 0.0)) > MAX_REWARD_ROUNDING:
        return f"its rewards add up to {paid:g}, and its score is {verdict.score}"
    return ""


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
