"""Questions: what the policy is asked next. A place in the schedule and, where there is a curriculum, its choice among the next few.

The place and the solve rates are all that is carried from step to step on this side; both go into the checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlvr.episode import Episode
from rlvr.errors import ConfigError
from rlvr.learn.questions.curriculum import Curriculum
from rlvr.learn.questions.schedule import Schedule
from rlvr.rollout.rollout import seed_of
from rlvr.task import Task

Asked = Sequence[tuple[int, Task]]
"""Tasks with their indices in their split."""


class Questions:
    """Hands out tasks in the order of a schedule.

    >>> Questions(Schedule(environment, "train", seed=0)).take(32)        # doctest: +SKIP
    """

    def __init__(self, schedule: Schedule, curriculum: Curriculum | None = None) -> None:
        self.schedule, self.curriculum, self.position = schedule, curriculum, 0
        if curriculum is not None:
            [(_, first)] = schedule.tasks(0, 1)
            curriculum.key(first)
            if curriculum.by is None and schedule.size is None:
                shared = ", ".join(first.meta) or "nothing; this environment cannot have a curriculum"
                raise ConfigError(
                    "curriculum: these tasks are made anew each time, so none has a solve rate of its own; "
                    f"set curriculum.by to what they share (their meta holds: {shared})"
                )

    def take(self, count: int) -> Asked:
        """The next tasks."""
        if self.curriculum is not None:
            return self._chosen(count, self.curriculum)
        self.position += count
        return self.schedule.tasks(self.position - count, count)

    def _chosen(self, count: int, curriculum: Curriculum) -> Asked:
        """A curriculum looks at several tasks for each one it asks; what it passes over comes again in the next pass."""
        first, size = self.position, self.schedule.size
        window = max(count, min(count * curriculum.candidates, size or count * curriculum.candidates))
        tasks = self.schedule.tasks(first, window)
        if count <= (size or count):
            different = dict(tasks)  # two passes may meet in the window; no task is asked twice in a step
            while len(different) < count:
                different.update(self.schedule.tasks(first + window, 1))
                window += 1
            tasks = list(different.items())
        self.position += window
        seed = seed_of(self.schedule.seed, "curriculum", first)
        places = curriculum.choose([curriculum.key(task) for _, task in tasks], count, seed=seed)
        return [tasks[place] for place in places]

    def judged(self, asked: Asked, groups: Sequence[Sequence[Episode]]) -> None:
        """Record the answers to the tasks that were taken last."""
        if self.curriculum is not None:
            for (_, task), group in zip(asked, groups, strict=True):
                self.curriculum.judged(task, group)

    def figures(self) -> dict[str, float]:
        """The curriculum's metrics."""
        return {} if self.curriculum is None else self.curriculum.figures()

    def state_dict(self) -> dict[str, Any]:
        """For the checkpoint."""
        return {"position": self.position, "curriculum": self.curriculum.state_dict() if self.curriculum else None}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` gave."""
        self.position = int(state["position"])
        if self.curriculum is not None:
            self.curriculum.load_state_dict(state["curriculum"])
