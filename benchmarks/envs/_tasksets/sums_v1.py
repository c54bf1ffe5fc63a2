"""A taskset of verifiers v1 with two rewards of different weight. Certain answers bring out the faults of a foreign reward."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import verifiers.v1 as vf  # noqa: TID251  # the package, not our folder

__all__ = ["SumTaskset"]


class SumData(vf.TaskData):
    """The right answer."""

    answer: str = ""


class SumTask(vf.Task[SumData]):
    """One sum."""

    @vf.reward(weight=1.0)
    async def right(self, trace: Any) -> float:
        """Whether it is right."""
        said = trace.last_reply or ""
        if said == "fault raise":
            raise RuntimeError("the reward is broken")
        if said == "fault hang":
            await asyncio.sleep(60)
        return {"fault large": 7.5, "fault nan": float("nan")}.get(said, float(said.strip() == self.data.answer))

    @vf.reward(weight=0.5)
    async def short(self, trace: Any) -> float:
        """Whether it is short."""
        return float(len(trace.last_reply or "") < 6)


class SumConfig(vf.TasksetConfig):
    """How many sums."""

    n: int = 30


class SumTaskset(vf.Taskset[SumTask, SumConfig]):
    """Sums of neighbours."""

    def load(self) -> Iterable[SumTask]:
        """All tasks."""
        return [
            SumTask(SumData(idx=n, prompt=f"{n} + {n + 1} =", system_prompt="Add.", answer=str(2 * n + 1)), self.config.task)
            for n in range(self.config.n)
        ]
