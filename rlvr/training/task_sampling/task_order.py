"""The endless order of the tasks of a split, a pure function of the seed.

A procedural environment has a new task at each position; a finite split is reshuffled for each pass.
"""

from __future__ import annotations

import random
from functools import lru_cache

from rlvr.contracts import Environment
from rlvr.contracts.environment import NUM_PROCEDURAL_TASKS
from rlvr.errors import ConfigError
from rlvr.rollout.rollout import derive_seed
from rlvr.task import Task

WARMUP_PURPOSE = "warmstart"  # part of a seed: another word would change every run
"""Seeds the order of the tasks of an SFT warmup; another text would give every run other tasks."""


class TaskOrder:
    """The tasks of one split, in the order of one seed.

    >>> import rlvr
    >>> len(TaskOrder(rlvr.make_env("arithmetic"), "train", seed=0).load_tasks(first_position=0, num_tasks=32))
    32
    """

    def __init__(self, environment: Environment, split: str, *, seed: int, purpose: str = "rollout") -> None:
        self.environment, self.split, self.seed, self.purpose = environment, split, seed, purpose
        self.num_tasks = environment.num_tasks(split)
        if self.num_tasks is not None and self.num_tasks < 1:
            raise ConfigError(f"{type(environment).__name__} has no task in its split {split!r}; check its path and its filters")

    def get_index(self, position: int) -> int:
        """Return the index of the task at a position of the order."""
        if self.num_tasks is None:
            return derive_seed(self.seed, self.purpose, position) % NUM_PROCEDURAL_TASKS
        return compute_shuffled_index(self.num_tasks, self.seed, self.purpose, position)

    def load_tasks(self, first_position: int, num_tasks: int) -> list[tuple[int, Task]]:
        """Load the tasks from a position on, with their indices."""
        indices = [self.get_index(position) for position in range(first_position, first_position + num_tasks)]
        return [(index, self.environment.task(self.split, index)) for index in indices]


def compute_shuffled_index(size: int, seed: int, purpose: str, position: int) -> int:
    """Return which of `size` items is at a position: every pass contains each item once, in a new order.

    >>> sorted(compute_shuffled_index(3, 0, "rollout", position) for position in range(3))
    [0, 1, 2]
    """
    return _shuffle_indices(size, derive_seed(seed, purpose, position // size))[position % size]


@lru_cache(maxsize=4)
def _shuffle_indices(size: int, seed: int) -> list[int]:
    order = list(range(size))
    random.Random(seed).shuffle(order)
    return order
