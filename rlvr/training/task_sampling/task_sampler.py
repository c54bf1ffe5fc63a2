"""Task samplers: select the next tasks, in order or with a curriculum.

The position and the solve rates are the only state between steps; both are saved in the checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlvr.config.rollout import RolloutConfig
from rlvr.episode import Episode
from rlvr.errors import ConfigError
from rlvr.rollout.rollout import derive_seed
from rlvr.task import Task
from rlvr.training.task_sampling.curriculum import Curriculum
from rlvr.training.task_sampling.reward_monitor import CanaryAndAuditMonitor, build_reward_hacking_monitor
from rlvr.training.task_sampling.task_order import TaskOrder

IndexedTasks = Sequence[tuple[int, Task]]
"""Tasks with their indices in their split."""


class TaskSampler:
    """Returns tasks in a fixed order.

    >>> import rlvr
    >>> len(TaskSampler(TaskOrder(rlvr.make_env("arithmetic"), "train", seed=0)).next_tasks(32))
    32
    """

    needs_previous_batch = False
    """True if the next tasks depend on the results of earlier ones."""

    def __init__(self, task_order: TaskOrder, reward_monitor: CanaryAndAuditMonitor | None = None) -> None:
        self.task_order, self.reward_monitor, self.position = task_order, reward_monitor, 0

    def next_tasks(self, num_tasks: int) -> IndexedTasks:
        """Return the next tasks."""
        self.position += num_tasks
        return self.task_order.load_tasks(self.position - num_tasks, num_tasks)

    def on_verified(
        self, tasks: IndexedTasks, groups: Sequence[Sequence[Episode]], canary_groups: Sequence[Sequence[Episode]] = ()
    ) -> None:
        """Process the episodes of the last tasks, and those of their canaries."""
        if self.reward_monitor is not None:
            self.reward_monitor.observe_groups(groups, canary_groups)

    def pop_metrics(self) -> dict[str, float]:
        """Return the metrics of canary tasks and of the audit verifier, and reset the counters of the step; empty without both."""
        return self.reward_monitor.pop_metrics() if self.reward_monitor is not None else {}

    def state_dict(self) -> dict[str, Any]:
        """Return the state for the checkpoint."""
        return {"position": self.position, "curriculum": None, "reward_monitor": self.reward_monitor and self.reward_monitor.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state from `state_dict`."""
        self.position = int(state["position"])
        if self.reward_monitor is not None and state.get("reward_monitor"):
            self.reward_monitor.load_state_dict(state["reward_monitor"])


def build_task_sampler(config: RolloutConfig, task_order: TaskOrder) -> TaskSampler:
    """Build the task sampler of a run: in order, or with a curriculum."""
    watch = build_reward_hacking_monitor(config, task_order.environment, seed=task_order.seed)
    guide = config.curriculum
    return TaskSampler(task_order, watch) if guide is None else CurriculumTaskSampler(task_order, Curriculum(**guide.model_dump()), watch)


class CurriculumTaskSampler(TaskSampler):
    """Selects among the next candidate tasks with a curriculum.

    >>> import rlvr
    >>> task_order = TaskOrder(rlvr.make_env("arithmetic"), "train", seed=0)
    >>> len(CurriculumTaskSampler(task_order, Curriculum(meta_key="level")).next_tasks(32))
    32
    """

    needs_previous_batch = True

    def __init__(self, task_order: TaskOrder, curriculum: Curriculum, reward_monitor: CanaryAndAuditMonitor | None = None) -> None:
        super().__init__(task_order, reward_monitor)
        self.curriculum = curriculum
        [(_, first)] = task_order.load_tasks(0, 1)
        curriculum.get_rate_key(first)
        if curriculum.meta_key is None and task_order.num_tasks is None:
            shared = ", ".join(first.meta) or "nothing; this environment cannot have a curriculum"
            raise ConfigError(
                "curriculum: these tasks are generated and never repeat, so a single task has no solve rate; "
                f"set curriculum.meta_key to a key of their meta that many tasks share (available: {shared})"
            )

    def next_tasks(self, num_tasks: int) -> IndexedTasks:
        """Return tasks, selected from several candidates each; tasks that are not selected return in the next pass."""
        first, size, curriculum = self.position, self.task_order.num_tasks, self.curriculum
        window = max(num_tasks, min(num_tasks * curriculum.candidates_per_task, size or num_tasks * curriculum.candidates_per_task))
        tasks = self.task_order.load_tasks(first, window)
        if num_tasks <= (size or num_tasks):
            different = dict(tasks)  # the window may span two passes; no task is used twice in a step
            while len(different) < num_tasks:
                different.update(self.task_order.load_tasks(first + window, 1))
                window += 1
            tasks = list(different.items())
        self.position += window
        seed = derive_seed(self.task_order.seed, "curriculum", first)
        places = curriculum.draw_positions([curriculum.get_rate_key(task) for _, task in tasks], num_tasks, seed=seed)
        return [tasks[place] for place in places]

    def on_verified(
        self, tasks: IndexedTasks, groups: Sequence[Sequence[Episode]], canary_groups: Sequence[Sequence[Episode]] = ()
    ) -> None:
        """Update the solve rates with the episodes of the last tasks."""
        super().on_verified(tasks, groups, canary_groups)
        for (_, task), group in zip(tasks, groups, strict=True):
            self.curriculum.update_from_group(task, group)

    def pop_metrics(self) -> dict[str, float]:
        """Return metrics of the reward monitor and the curriculum."""
        return super().pop_metrics() | self.curriculum.metrics()

    def state_dict(self) -> dict[str, Any]:
        """Return the state for the checkpoint."""
        return {**super().state_dict(), "curriculum": self.curriculum.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state from `state_dict`."""
        super().load_state_dict(state)
        self.curriculum.load_state_dict(state["curriculum"])
