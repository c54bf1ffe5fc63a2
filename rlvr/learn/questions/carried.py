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
from rlvr.learn.questions.questions import Asked
from rlvr.rollout.columns import Columns, from_columns, to_columns
from rlvr.rollout.draws import Draw, Part
from rlvr.rollout.parts import part_of
from rlvr.task import Task

Answer = Episode | Part | None
"""A finished episode, a partial completion, or None if it has not started."""


@dataclass(slots=True)
class Begun:
    """A group with finished and partial completions.

    >>> Begun((7, task), draws, [None, None]).ended                     # doctest: +SKIP
    False
    """

    asked: tuple[int, Task]
    """The index of the task in its split, and the task."""
    draws: list[Draw]
    answers: list[Answer]

    @property
    def ended(self) -> bool:
        """Whether all completions of the group have ended."""
        return all(isinstance(answer, Episode) for answer in self.answers)

    @property
    def open(self) -> list[Draw]:
        """The requests of unfinished completions, with their partial completions."""
        both = zip(self.draws, self.answers, strict=True)
        return [replace(draw, part=answer or Part()) for draw, answer in both if not isinstance(answer, Episode)]


class Carried:
    """The groups that have started and are not trained on yet, in order.

    >>> Carried(environment).groups                                     # doctest: +SKIP
    []
    """

    def __init__(self, environment: Environment) -> None:
        self.environment, self.groups = environment, list[Begun]()

    def begin(self, asked: Asked, draws: Sequence[Sequence[Draw]]) -> None:
        """Add new groups."""
        self.groups += [Begun(one, list(mine), [None] * len(mine)) for one, mine in zip(asked, draws, strict=True)]

    @property
    def open(self) -> list[list[Draw]]:
        """The requests of unfinished completions, by group."""
        return [group.open for group in self.groups]

    @property
    def continued(self) -> int:
        """The number of partial completions."""
        return sum(isinstance(answer, Part) for group in self.groups for answer in group.answers)

    def came(self, episodes: Sequence[Sequence[Episode]]) -> None:
        """Store the results of all open requests, by group."""
        for group, found in zip(self.groups, episodes, strict=True):
            fresh = iter([part_of(episode) or episode for episode in found])
            group.answers = [answer if isinstance(answer, Episode) else next(fresh) for answer in group.answers]

    def ended(self) -> list[Begun]:
        """Remove and return the groups that have ended."""
        done, self.groups = [group for group in self.groups if group.ended], [group for group in self.groups if not group.ended]
        return done

    def state_dict(self) -> dict[str, Any]:
        """Return the state for the checkpoint."""
        return {"groups": json.dumps([_written(group) for group in self.groups])}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state from `state_dict`."""
        self.groups = [_read(row, self.environment) for row in json.loads(state["groups"])]


def _written(group: Begun) -> dict[str, Any]:
    """Convert a group to JSON, losslessly."""
    draws = [{"group": draw.group, "seed": draw.seed, "meta": draw.meta} for draw in group.draws]
    done = [answer for answer in group.answers if isinstance(answer, Episode)]
    parts = [(answer.tokens, answer.logprobs, answer.versions) if isinstance(answer, Part) else None for answer in group.answers]
    ended = [isinstance(answer, Episode) for answer in group.answers]
    episodes = base64.b64encode(to_columns([done]).to_bytes()).decode()
    return {"index": group.asked[0], "draws": draws, "ended": ended, "parts": parts, "episodes": episodes}


def _read(row: Mapping[str, Any], environment: Environment) -> Begun:
    """Build a group from JSON."""
    task = environment.task("train", row["index"])
    [done] = from_columns(Columns.from_bytes(base64.b64decode(row["episodes"])))
    fresh, answers = iter(done), list[Answer]()
    for ended, part in zip(row["ended"], row["parts"], strict=True):
        answers.append(next(fresh) if ended else part and Part(*part))
    draws = [Draw(task, draw["group"], draw["seed"], draw["meta"]) for draw in row["draws"]]
    return Begun((row["index"], task), draws, answers)
