"""Rollout tasks: the requests that one call of a worker samples.

The split depends only on the order of the requests, so each completion is sampled in the same batch for any number of workers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import groupby

from rlvr.cluster.checks.episode_fields import (
    MIN_LOGPROB,
    EpisodeLimits,
    cut_texts,
    find_contradictory_end,
    find_invalid_text,
    find_wrong_components,
    find_wrong_meta,
    find_wrong_prompt,
    find_wrong_rewards,
    find_wrong_size,
)
from rlvr.contracts.sampler import SamplerTraits
from rlvr.episode import Episode, StopReason
from rlvr.rollout.episode_encoding import CorruptData
from rlvr.rollout.partial_rollouts import is_continuation
from rlvr.rollout.rollout_request import RolloutRequest
from rlvr.task import EMPTY_MAPPING, Fault, Verdict

REQUESTED_META = ("greedy", "mismatched", "canary", "dropped", "split", "index")
"""The keys of `Episode.meta` that decide how an episode is counted; they come from the request alone."""
NO_LIMITS = EpisodeLimits()
SINGLES_PER_TASK = 64
"""Draws per task when each group has one member, as in evaluations; and for an engine, which samples as many in hardly more time than one."""
RolloutTask = list[RolloutRequest]


def choose_groups_per_task(requested: int | None, traits: SamplerTraits, num_generations: int) -> int:
    """Return the number of groups in a task: `requested`, or what an engine samples at a time; 1 for the trainer's model.

    >>> choose_groups_per_task(None, SamplerTraits(runs_model=False), 8)
    8
    """
    has_engine = traits.loads_weights and not traits.runs_model
    return requested or (math.ceil(SINGLES_PER_TASK / num_generations) if has_engine else 1)


def split_into_tasks(requests: Sequence[RolloutRequest], groups_per_task: int | None = 1) -> list[RolloutTask]:
    """Split the requests into rollout tasks of `groups_per_task` whole groups, in order; None is 1."""
    groups = [list(group) for _, group in groupby(requests, key=lambda request: request.group)]
    asked = groups_per_task or 1
    size = asked if any(len(group) > 1 for group in groups) else max(asked, SINGLES_PER_TASK)
    return [[request for group in groups[first : first + size] for request in group] for first in range(0, len(groups), size)]


def check_task_episodes(
    task_name: str,
    rollout_task: RolloutTask,
    episodes: Sequence[Episode],
    *,
    policy_version: int,
    limits: EpisodeLimits = NO_LIMITS,
    prompts: Mapping[str, Sequence[int]] = EMPTY_MAPPING,
) -> None:
    """Raise CorruptData if the episodes are not what a rollout of these requests can give.

    A worker that computes wrongly must not end the run, and what it can change is bounded: other requests, prompts, limits or weights,
    token ids that do not exist, ends that contradict each other, rewards that the verdicts do not give, and keys of `meta` that no rollout
    writes are refused.

    Not checked, because only a second sampling could show it (`cluster.resample_fraction`): whether the policy sampled these tokens with
    these log-probabilities, whether `text` is their text, whether the verifier gave this verdict, and which member of a group is which.
    A session decides what follows its policy's turns, and its first messages, so these are not checked either. A worker that lies in
    these can change what is trained on.

    `prompts`: the prompt of each task, by its id, where it is known.
    """
    if [(episode.group, episode.task_id) for episode in episodes] != [(request.group, request.task.id) for request in rollout_task]:
        raise CorruptData(f"task {task_name} came back with the episodes of other requests")
    for member, (request, episode) in enumerate(zip(rollout_task, episodes, strict=True)):
        if problem := _find_impossible_field(request, episode, policy_version, limits, prompts.get(request.task.id)):
            raise CorruptData(f"completion {member} of task {task_name} cannot be one: {problem}")
        if request.partial_completion is not None and not is_continuation(episode, request.partial_completion):
            raise CorruptData(f"completion {member} of task {task_name} does not begin with its partial episode")


def _find_impossible_field(
    request: RolloutRequest, episode: Episode, policy_version: int, limits: EpisodeLimits = NO_LIMITS, prompt: Sequence[int] | None = None
) -> str:
    """Return what no rollout of this request gives; '' if there is nothing."""
    verdict, failed = episode.verdict, episode.stop_reason is StopReason.FAILED
    if type(episode.policy_version) is not int or episode.policy_version != policy_version:
        return f"its weights are version {episode.policy_version!r}, and version {policy_version} was asked for"
    if problem := find_invalid_text(episode):
        return problem
    if not isinstance(episode.meta, dict) or any(
        episode.meta.get(name) != request.meta.get(name) for name in {*request.meta, *REQUESTED_META}
    ):
        return "its meta is not that of its request"
    if verdict is None or verdict.is_scored == failed:
        return f"it ended as {episode.stop_reason.value} and its verdict is {verdict!r:.60}"
    if not failed and not any(episode.action_mask):
        return "it has no token of the policy"
    if episode.tokens and not 0 <= min(episode.tokens) <= max(episode.tokens) < limits.vocab_size:
        return f"its token ids go from {min(episode.tokens)} to {max(episode.tokens)}, and the tokenizer has {limits.vocab_size}"
    if min(episode.logprobs, default=0.0) < MIN_LOGPROB:
        return f"a log-probability is {min(episode.logprobs):g}, below {MIN_LOGPROB:g}"
    return (
        find_wrong_size(episode, limits)
        or find_contradictory_end(episode, limits)
        or find_wrong_prompt(episode, prompt)
        or find_wrong_components(verdict)
        or find_wrong_rewards(episode, verdict, limits)
        or find_wrong_meta(request, episode, policy_version)
    )


def make_sendable(rollout_task: RolloutTask, episodes: Sequence[Episode], *, policy_version: int, limits: EpisodeLimits) -> list[Episode]:
    """Cut the long texts of episodes, and fail each episode with another value that the driver would refuse.

    What an answer leaves behind may be larger than any worker may send. The driver would take that for a lie and end the worker.
    """
    sendable = list[Episode]()
    for request, episode in zip(rollout_task, episodes, strict=True):
        cut = cut_texts(episode)
        problem = _find_impossible_field(request, cut, policy_version, limits)
        sendable += make_failed_episodes([request], policy_version, problem) if problem else [cut]
    return sendable


def make_failed_episodes(rollout_task: RolloutTask, policy_version: int, why: str) -> list[Episode]:
    """Make the episodes of a task that could not be sampled: failed, without a score."""
    reason = f"no rollout worker could sample it: {why}"
    verdict = Verdict(None, reason, fault=Fault.INFRA)

    def failed(request: RolloutRequest) -> Episode:
        meta = {**request.meta, "finish": StopReason.FAILED.value}
        return Episode(
            request.task.id, request.group, [], [], [], [], StopReason.FAILED, policy_version, verdict, turns=0, error=reason, meta=meta
        )

    return [failed(request) for request in rollout_task]
