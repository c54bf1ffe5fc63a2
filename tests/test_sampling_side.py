"""What is asked and what is kept: dynamic sampling and the curriculum."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from rlvr.episode import Episode
from rlvr.errors import ConfigError
from rlvr.learn.curriculum import Curriculum
from rlvr.learn.dynamic import DynamicSampling
from tests.test_algos_credit import said


def group(*rewards: float | None) -> list[Episode]:
    return [said(r) for r in rewards]


def test_groups_are_kept_by_the_groups_spread_and_refilled() -> None:
    collector = DynamicSampling(wanted=2, max_rounds=3)
    collector.offer([group(1.0, 1.0), group(0.95, 0.95 + 1e-9), group(1.0, None), group(0.0, 1.0)])
    assert collector.missing == 1 and not collector.done
    collector.offer([group(0.4, 0.5), group(0.0, 1.0)])
    assert collector.done and [[e.reward for e in g] for g in collector.groups()] == [[0.0, 1.0], [0.4, 0.5]]
    figures = collector.figures()
    assert figures["reward/before_filter"] == pytest.approx((2 + 1.9 + 1 + 1 + 0.9 + 1) / 11)
    assert figures["dynamic_sampling/rounds"] == 2 and figures["dynamic_sampling/kept_share"] == pytest.approx(2 / 6)
    assert figures["dynamic_sampling/wasted_tokens"] == 4 * 2 * 2 and figures["dynamic_sampling/short_by"] == 0


def test_a_spent_budget_fills_up_with_flat_groups_and_says_so() -> None:
    collector = DynamicSampling(wanted=3, max_rounds=2)
    for _ in range(2):
        collector.offer([group(1.0, 1.0), group(0.0, 0.0)])
    assert collector.done and len(collector.groups()) == 3
    assert collector.figures()["dynamic_sampling/short_by"] == 3 and collector.figures()["dynamic_sampling/wasted_tokens"] == 4
    with pytest.raises(ConfigError):
        DynamicSampling(wanted=0, max_rounds=1)


def test_the_curriculum_asks_what_is_open_and_forgets_nothing() -> None:
    tasks = [f"t{k}" for k in range(30)]
    curriculum = Curriculum(decay=0.5, floor=0.05)
    for k, task in enumerate(tasks):
        curriculum.observe(task, 1.0 if k < 10 else 0.0 if k < 20 else 0.5)
    drawn = Counter(task for seed in range(300) for task in curriculum.choose(tasks, 5, seed=seed))
    open_ones = sum(drawn[t] for t in tasks[20:])
    assert open_ones > 0.7 * sum(drawn.values()) and all(drawn[t] for t in tasks)
    assert len(set(curriculum.choose(tasks, 30, seed=0))) == 30
    with pytest.raises(ConfigError, match="31"):
        curriculum.choose(tasks, 31, seed=0)


def test_a_restored_curriculum_draws_the_same() -> None:
    first = Curriculum(decay=0.5)
    first.observe("a", 1.0)
    first.observe("a", 0.0)
    assert first.rates["a"] == 0.5 and first.weight("a") == 1.0 and first.weight("new") == 1.0
    second = Curriculum(decay=0.5)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    tasks = ["a", "b", "c", "d"]
    assert [first.choose(tasks, 2, seed=s) for s in range(9)] == [second.choose(tasks, 2, seed=s) for s in range(9)]
