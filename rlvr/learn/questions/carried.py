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
from rlvr.rollout.draws import Draw, seed_of
from rlvr.rollout.parts import CUT, Part, Parts
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
    def open(self) -> list[tuple[Draw, Part | None]]:
        """The draws whose answers have not ended, with what is there."""
        return [(draw, answer) for draw, answer in zip(self.draws, self.answers, strict=True) if not isinstance(answer, Episode)]


class Carried:
    """The groups that have begun and are not trained on yet, in the order in which they began.

    >>> Carried(environment, Parts(sampler, 512)).groups                # doctest: +SKIP
    []
    """

    def __init__(self, environment: Environment, parts: Parts) -> None:
        self.environment, self.parts = environment, parts
        self.groups = list[Begun]()

    def begin(self, asked: Asked, draws: Sequence[Sequence[Draw]]) -> None:
        """Add new groups."""
        self.groups += [Begun(one, list(mine), [None] * len(mine)) for one, mine in zip(asked, draws, strict=True)]

    @property
    def open(self) -> list[list[tuple[Draw, Part | None]]]:
        """What has not ended, by group."""
        return [group.open for group in self.groups]

    @property
    def continued(self) -> int:
        """How many answers are cut."""
        return sum(part is not None for group in self.open for _, part in group)

    def came(self, answers: Sequence[Sequence[Answer]]) -> None:
        """What became of all that was open, by group."""
        for group, found in zip(self.groups, answers, strict=True):
            fresh = iter(found)
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


def parts_of(draws: Sequence[tuple[Draw, Part | None]]) -> dict[int, Part]:
    """What is there of the answers to these draws, by the seeds of their requests."""
    return {_seed(draw): part for draw, part in draws if part is not None}


def answer_from(episode: Episode, draw: Draw, known: Mapping[int, tuple[Part, bool]]) -> Answer:
    """What became of a draw: its episode, which names the versions of the weights that sampled it; or the part that is there."""
    part, _ = known.get(_seed(draw), (None, False))
    if part is None:
        return episode
    if episode.error == CUT:
        return part
    sampled = sum(count for _, count in part.versions)
    if len(part.versions) < 2 or sampled != episode.length:  # a failed answer has none of its tokens, or not all
        return episode
    return replace(episode, meta=episode.meta | {"versions": part.versions})


def _seed(draw: Draw) -> int:
    """That of the request for its only turn."""
    return seed_of(draw.seed, 0)


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
