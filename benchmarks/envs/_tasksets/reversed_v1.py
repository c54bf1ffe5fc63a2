"""A taskset of verifiers v1 that is never at an end, with a reward and a metric, as an author would show how much was right."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any

import verifiers.v1 as vf  # noqa: TID251  # the package, not our folder

__all__ = ["ReverseTaskset"]


class ReverseData(vf.TaskData):
    """The text."""

    text: str = ""


class ReverseTask(vf.Task[ReverseData]):
    """One text."""

    @vf.reward(weight=2.0)
    async def whole(self, trace: Any) -> float:
        """Whether all of it is right."""
        return float((trace.last_reply or "").strip() == self.data.text[::-1])

    @vf.metric
    async def length(self, trace: Any) -> float:
        """How long the reply is."""
        return float(len(trace.last_reply or ""))


class ReverseTaskset(vf.Taskset[ReverseTask, vf.TasksetConfig]):
    """Texts of letters to write backwards."""

    INFINITE = True

    def load(self) -> Iterator[ReverseTask]:
        """Tasks without an end."""
        for number in itertools.count():
            text = "".join(random.Random(number).choices("abcdefgh", k=6))
            yield ReverseTask(ReverseData(idx=number, prompt=f"Write backwards: {text}", text=text), self.config.task)
