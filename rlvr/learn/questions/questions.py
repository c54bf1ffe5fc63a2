"""Task samplers: select the next tasks, in order or with a curriculum.

The position and the solve rates are the only state between steps; both are saved in the checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlvr.config.rollout import RolloutConfig
from rlvr.episode import Episode
from rlvr.errors import ConfigError
from rlvr.learn.questions.curriculum import Curriculum
from rlvr.learn.questions.schedule import Schedule
from rlvr.learn.questions.watch import Watch, watch_for
from rlvr.rollout.rollout import seed_of
from rlvr.task import Task

Asked = Sequence[tuple[int, Task]]
"""Tasks with their indices in their split."""


class Questions:
    """Returns tasks in a fixed order.

    >>> Questions(Schedule(environment, "train", seed=0)).take(32)        # doctest: +SKIP
    """

    looks_back = False
    """True if the next tasks depend on the results of earlier ones."""

    def __init__(self, schedule: Schedule, watch: Watch | None = None) -> None:
        self.schedule, self.watch, self.position = schedule, watch, 0

    def take(self, count: int) -> Asked:
        """Return the next tasks."""
        self.position += count
        return self.schedule.tasks(self.position - count, count)

    def judged(self, asked: Asked, groups: Sequence[Sequence[Episode]], opened: Sequence[Sequence[Episode]] = ()) -> None:
        """Process the episodes of the last tasks, and those of their canaries."""
        if self.watch is not None:
            self.watch.seen(groups, opened)

    def figures(self) -> dict[str, float]:
        """Return metrics of the reward monitor."""
        return self.watch.figures() if self.watch is not None else {}

    def state_dict(self) -> dict[str, Any]:
        """Return the state for the checkpoint."""
        return {"position": self.position, "curriculum": None, "watch": self.watch and self.watch.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state from `state_dict`."""
        self.position = int(state["position"])
        if self.watch is not None and state.get("watch"):
            self.watch.load_state_dict(state["watch"])


def questions_for(config: RolloutConfig, schedule: Schedule) -> Questions:
    """Build the task sampler of a run: in order, or with a curriculum."""
    watch = watch_for(config, schedule.environment, seed=schedule.seed)
    guide = config.curriculum
    return Questions(schedule, watch) if guide is None else GuidedQuestions(schedule, Curriculum(**guide.model_dump()), watch)


class GuidedQuestions(Questions):
    """Selects among the next candidate tasks with a curriculum.

    >>> GuidedQuestions(Schedule(environment, "train", seed=0), Curriculum(candidates=4)).take(32)        # doctest: +SKIP
    """

    looks_back = True

    def __init__(self, schedule: Schedule, curriculum: Curriculum, watch: Watch | None = None) -> None:
        super().__init__(schedule, watch)
        self.curriculum = curriculum
        [(_, first)] = schedule.tasks(0, 1)
        curriculum.key(first)
        if curriculum.by is None and schedule.size is None:
            shared = ", ".join(first.meta) or "nothing; this environment cannot have a curriculum"
            raise ConfigError(
                "curriculum: these tasks are generated and never repeat, so a single task has no solve rate; "
                f"set curriculum.by to a key of their meta that many tasks share (available: {shared})"
            )

    def take(self, count: int) -> Asked:
        """Return tasks, selected from several candidates each; tasks that are not selected return in the next pass."""
        first, size, curriculum = self.position, self.schedule.size, self.curriculum
        window = max(count, min(count * curriculum.candidates, size or count * curriculum.candidates))
        tasks = self.schedule.tasks(first, window)
        if count <= (size or count):
            different = dict(tasks)  # the window may span two passes; no task is used twice in a step
            while len(different) < count:
                different.update(self.schedule.tasks(first + window, 1))
                window += 1
            tasks = list(different.items())
        self.position += window
        seed = seed_of(self.schedule.seed, "curriculum", first)
        places = curriculum.choose([curriculum.key(task) for _, task in tasks], count, seed=seed)
        return [tasks[place] for place in places]

    def judged(self, asked: Asked, groups: Sequence[Sequence[Episode]], opened: Sequence[Sequence[Episode]] = ()) -> None:
        """Update the solve rates with the episodes of the last tasks."""
        super().judged(asked, groups, opened)
        for (_, task), group in zip(asked, groups, strict=True):
            self.curriculum.judged(task, group)

    def figures(self) -> dict[str, float]:
        """Return metrics of the reward monitor and the curriculum."""
        return super().figures() | self.curriculum.figures()

    def state_dict(self) -> dict[str, Any]:
        """Return the state for the checkpoint."""
        return {**super().state_dict(), "curriculum": self.curriculum.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state from `state_dict`."""
        super().load_state_dict(state)
        self.curriculum.load_state_dict(state["curriculum"])
