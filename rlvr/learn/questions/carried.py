"""Groups with answers that were cut, which continue in the next step (`rollout.max_tokens_per_version`).

In each step every answer that has not ended, old or new, gets at most so many tokens more, by that step's version of the weights. A
group is trained on in the step in which its last answer ends, in the order in which the groups began. Which step that is depends on the
answers alone, so a repeated run is the same. If no group ends in a step, its answers continue by the same weights.
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
"""An answer that has ended, what is there of one, or nothing yet."""


@dataclass(slots=True)
class Begun:
    """A group, and what is there of its answers.

    >>> Begun((7, task), draws, [None, None]).ended                     # doctest: +SKIP
    False
    """

    asked: tuple[int, Task]
    """The task's index in its split, and the task."""
    draws: list[Draw]
    answers: list[Answer]

    @property
    def ended(self) -> bool:
        """Whether all its answers have."""
        return all(isinstance(answer, Episode) for answer in self.answers)

    @property
    def open(self) -> list[Draw]:
        """The draws whose answers have not ended, with what is there."""
        both = zip(self.draws, self.answers, strict=True)
        return [replace(draw, part=answer or Part()) for draw, answer in both if not isinstance(answer, Episode)]


class Carried:
    """The groups that have begun and are not trained on yet, in the order in which they began.

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
        """What has not ended, by group."""
        return [group.open for group in self.groups]

    @property
    def continued(self) -> int:
        """How many answers are cut."""
        return sum(isinstance(answer, Part) for group in self.groups for answer in group.answers)

    def came(self, episodes: Sequence[Sequence[Episode]]) -> None:
        """What became of all that was open, by group."""
        for group, found in zip(self.groups, episodes, strict=True):
            fresh = iter([part_of(episode) or episode for episode in found])
            group.answers = [answer if isinstance(answer, Episode) else next(fresh) for answer in group.answers]

    def ended(self) -> list[Begun]:
        """The groups that have ended; they are not kept."""
        done, self.groups = [group for group in self.groups if group.ended], [group for group in self.groups if not group.ended]
        return done

    def state_dict(self) -> dict[str, Any]:
        """For the checkpoint."""
        return {"groups": json.dumps([_written(group) for group in self.groups])}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` gave."""
        self.groups = [_read(row, self.environment) for row in json.loads(state["groups"])]


def _written(group: Begun) -> dict[str, Any]:
    """A group as plain JSON, with every number exact."""
    draws = [{"group": draw.group, "seed": draw.seed, "meta": draw.meta} for draw in group.draws]
    done = [answer for answer in group.answers if isinstance(answer, Episode)]
    parts = [(answer.tokens, answer.logprobs, answer.versions) if isinstance(answer, Part) else None for answer in group.answers]
    ended = [isinstance(answer, Episode) for answer in group.answers]
    episodes = base64.b64encode(to_columns([done]).to_bytes()).decode()
    return {"index": group.asked[0], "draws": draws, "ended": ended, "parts": parts, "episodes": episodes}


def _read(row: Mapping[str, Any], environment: Environment) -> Begun:
    """The group that was written."""
    task = environment.task("train", row["index"])
    [done] = from_columns(Columns.from_bytes(base64.b64decode(row["episodes"])))
    fresh, answers = iter(done), list[Answer]()
    for ended, part in zip(row["ended"], row["parts"], strict=True):
        answers.append(next(fresh) if ended else part and Part(*part))
    draws = [Draw(task, draw["group"], draw["seed"], draw["meta"]) for draw in row["draws"]]
    return Begun((row["index"], task), draws, answers)
