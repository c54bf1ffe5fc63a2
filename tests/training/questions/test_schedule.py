"""The schedule: which tasks come when, from the seed and the position alone."""

from __future__ import annotations

import pytest

from rlvr.errors import ConfigError
from rlvr.training.task_sampling.task_order import TaskOrder
from tests.fixtures.worlds import Sums


class Few(Sums):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.count = size

    def num_tasks(self, split: str) -> int | None:
        return self.count


def test_each_pass_over_a_finite_split_has_every_task_once_in_another_order() -> None:
    schedule = TaskOrder(Few(7), "train", seed=0)
    passes = [[schedule.get_index(p * 7 + i) for i in range(7)] for p in range(3)]
    assert all(sorted(one) == list(range(7)) for one in passes)
    assert len({tuple(one) for one in passes}) > 1


def test_a_position_does_not_depend_on_what_was_asked_before() -> None:
    a, b = (TaskOrder(Few(10), "train", seed=4) for _ in range(2))
    for first in range(0, 27, 3):
        a.load_tasks(first, 3)
    assert a.load_tasks(27, 3) == b.load_tasks(27, 3)


def test_seeds_and_purposes_give_other_tasks() -> None:
    rows = {
        tuple(TaskOrder(Sums(), "train", seed=s, purpose=p).get_index(i) for i in range(5))
        for s in (0, 1)
        for p in ("rollout", "sft_warmup")
    }
    assert len(rows) == 4


def test_an_empty_split_is_refused() -> None:
    with pytest.raises(ConfigError, match="no task in its split 'train'"):
        TaskOrder(Few(0), "train", seed=0)
