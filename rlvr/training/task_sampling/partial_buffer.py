"""The buffer of partial rollouts: groups with interrupted completions, which continue in the next step.

In each step every unfinished completion gets at most `rollout.partial_rollout_tokens` more tokens, with the current weights. A group is
trained on in the step in which its last completion ends, in the order in which the groups started. That step depends only on the
completions, so a run is repeatable. If no group ends in a step, sampling continues with the same weights.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rlvr.contracts import Environment
from rlvr.episode import Episode
from rlvr.rollout.episode_encoding import EncodedEpisodes, decode_episodes, encode_episodes
from rlvr.rollout.partial_rollouts import get_partial_completion
from rlvr.rollout.rollout_request import PartialCompletion, RolloutRequest
from rlvr.task import Task
from rlvr.training.task_sampling.task_sampler import IndexedTasks

CompletionState = Episode | PartialCompletion | None
"""A finished episode, a partial completion, or None if it has not started."""


@dataclass(slots=True)
class PartialGroup:
    """A group with finished and partial completions.

    >>> task = Task("2+2=", "4")
    >>> PartialGroup((7, task), [RolloutRequest(task, "1:0", seed=3)], [None]).is_finished
    False
    """

    indexed_task: tuple[int, Task]
    """The index of the task in its split, and the task."""
    requests: list[RolloutRequest]
    completions: list[CompletionState]

    @property
    def is_finished(self) -> bool:
        """Whether all completions of the group have ended."""
        return all(isinstance(answer, Episode) for answer in self.completions)

    @property
    def open_requests(self) -> list[RolloutRequest]:
        """The requests of unfinished completions, with their partial completions."""
        both = zip(self.requests, self.completions, strict=True)
        return [
            replace(request, partial_completion=answer or PartialCompletion())
            for request, answer in both
            if not isinstance(answer, Episode)
        ]


class PartialRolloutBuffer:
    """The groups that have started and are not trained on yet, in order.

    >>> import rlvr
    >>> PartialRolloutBuffer(rlvr.make_env("arithmetic")).groups
    []
    """

    def __init__(self, environment: Environment) -> None:
        self.environment, self.groups = environment, list[PartialGroup]()

    def add_groups(self, tasks: IndexedTasks, requests: Sequence[Sequence[RolloutRequest]]) -> None:
        """Add new groups."""
        self.groups += [PartialGroup(one, list(mine), [None] * len(mine)) for one, mine in zip(tasks, requests, strict=True)]

    @property
    def open_requests(self) -> list[list[RolloutRequest]]:
        """The requests of unfinished completions, by group."""
        return [group.open_requests for group in self.groups]

    @property
    def num_partial(self) -> int:
        """The number of partial completions."""
        return sum(isinstance(answer, PartialCompletion) for group in self.groups for answer in group.completions)

    def store_results(self, episodes: Sequence[Sequence[Episode]]) -> None:
        """Store the results of all open requests, by group."""
        for group, found in zip(self.groups, episodes, strict=True):
            fresh = iter([get_partial_completion(episode) or episode for episode in found])
            group.completions = [answer if isinstance(answer, Episode) else next(fresh) for answer in group.completions]

    def pop_finished(self) -> list[PartialGroup]:
        """Remove and return the groups that have ended."""
        done, self.groups = [group for group in self.groups if group.is_finished], [group for group in self.groups if not group.is_finished]
        return done

    def state_dict(self) -> dict[str, Any]:
        """Return the state for the checkpoint."""
        return {"groups": json.dumps([_group_to_json(group) for group in self.groups])}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state from `state_dict`."""
        self.groups = [_group_from_json(row, self.environment) for row in json.loads(state["groups"])]


def _group_to_json(group: PartialGroup) -> dict[str, Any]:
    """Convert a group to JSON, losslessly."""
    requests = [{"group": request.group, "seed": request.seed, "meta": request.meta} for request in group.requests]
    done = [answer for answer in group.completions if isinstance(answer, Episode)]
    parts = [
        (answer.tokens, answer.logprobs, answer.version_spans) if isinstance(answer, PartialCompletion) else None
        for answer in group.completions
    ]
    ended = [isinstance(answer, Episode) for answer in group.completions]
    episodes = base64.b64encode(encode_episodes([done]).to_bytes()).decode()
    return {"index": group.indexed_task[0], "draws": requests, "ended": ended, "parts": parts, "episodes": episodes}


def _group_from_json(row: Mapping[str, Any], environment: Environment) -> PartialGroup:
    """Build a group from JSON."""
    task = environment.task("train", row["index"])
    [done] = decode_episodes(EncodedEpisodes.from_bytes(base64.b64decode(row["episodes"])))
    fresh, answers = iter(done), list[CompletionState]()
    for ended, part in zip(row["ended"], row["parts"], strict=True):
        answers.append(next(fresh) if ended else part and PartialCompletion(*part))
    requests = [RolloutRequest(task, request["group"], request["seed"], request["meta"]) for request in row["draws"]]
    return PartialGroup((row["index"], task), requests, answers)
