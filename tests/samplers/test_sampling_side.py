"""What is asked and what is kept: dynamic sampling and the curriculum."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from rlvr.episode import Episode
from rlvr.errors import ConfigError
from rlvr.training.task_sampling.curriculum import Curriculum
from rlvr.training.task_sampling.dynamic_sampling import DynamicSampling
from rlvr.training.task_sampling.task_order import TaskOrder
from rlvr.training.task_sampling.task_sampler import CurriculumTaskSampler, TaskSampler
from tests.algorithms.test_credit import said
from tests.fixtures.worlds import Sums


def group(*rewards: float | None) -> list[Episode]:
    return [said(r) for r in rewards]


def test_groups_are_kept_by_the_groups_spread_and_refilled() -> None:
    collector = DynamicSampling(num_groups=2, max_rounds=3)
    collector.add_groups([group(1.0, 1.0), group(0.95, 0.95 + 1e-9), group(1.0, None), group(0.0, 1.0)])
    assert collector.num_missing == 1 and not collector.is_done and collector.next_num_groups == 2
    collector.add_groups([group(0.4, 0.5), group(0.0, 1.0)])
    assert collector.is_done and [[e.reward for e in g] for g in collector.select_groups()] == [[0.0, 1.0], [0.4, 0.5]]
    figures = collector.metrics()
    assert figures["dynamic_sampling/rounds"] == 2 and figures["dynamic_sampling/useful_fraction"] == pytest.approx(3 / 6)
    assert figures["frac_reward_zero_std"] == pytest.approx(3 / 6) and figures["dynamic_sampling/missing_groups"] == 0
    assert {reason: len(groups) for reason, groups in collector.list_dropped().items()} == {"zero_std": 3, "surplus": 1}


def test_a_spent_budget_fills_up_with_flat_groups_and_says_so() -> None:
    collector = DynamicSampling(num_groups=3, max_rounds=2)
    for _ in range(2):
        collector.add_groups([group(1.0, 1.0), group(0.0, 0.0)])
    assert collector.is_done and len(collector.select_groups()) == 3
    assert collector.metrics()["dynamic_sampling/missing_groups"] == 3 and len(collector.list_dropped()["zero_std"]) == 1
    with pytest.raises(ConfigError):
        DynamicSampling(num_groups=0, max_rounds=1)


def test_where_no_answer_has_a_score_no_reward_is_reported() -> None:
    collector = DynamicSampling(num_groups=1, max_rounds=1)
    collector.add_groups([group(None, None)])
    assert "dynamic_sampling/kept_reward_mean" not in collector.metrics() and collector.metrics()["dynamic_sampling/missing_groups"] == 1


def test_the_curriculum_asks_what_is_open_and_forgets_nothing() -> None:
    tasks = [f"t{k}" for k in range(30)]
    curriculum = Curriculum(ema_decay=0.5, min_weight=0.05)
    for k, task in enumerate(tasks):
        curriculum.update_solve_rate(task, 1.0 if k < 10 else 0.0 if k < 20 else 0.5)
    drawn = Counter(tasks[place] for seed in range(300) for place in curriculum.draw_positions(tasks, 5, seed=seed))
    open_ones = sum(drawn[t] for t in tasks[20:])
    assert open_ones > 0.7 * sum(drawn.values()) and all(drawn[t] for t in tasks)
    assert len(set(curriculum.draw_positions(tasks, 30, seed=0))) == 30
    with pytest.raises(ConfigError, match="31"):
        curriculum.draw_positions(tasks, 31, seed=0)


class Few(Sums):
    def num_tasks(self, split: str) -> int | None:
        return 10


def test_questions_walk_the_schedule_and_a_curriculum_looks_ahead() -> None:
    plain = TaskSampler(TaskOrder(Few(), "train", seed=1))
    assert [i for _ in range(2) for i, _ in plain.next_tasks(5)] == [plain.task_order.get_index(k) for k in range(10)]
    guided = CurriculumTaskSampler(TaskOrder(Few(), "train", seed=1), Curriculum(candidates_per_task=4))
    for _, task in guided.task_order.load_tasks(0, 10):
        guided.curriculum.update_solve_rate(task.id, 0.5 if task.id.endswith(("3", "7")) else 0.0)
    drawn = Counter(index for _ in range(40) for index, _ in guided.next_tasks(3))
    assert guided.position == 400 and drawn[3] + drawn[7] > 60 and len(drawn) == 10  # of 120; without weights, 24
    assert len({i for i, _ in guided.next_tasks(3)}) == 3


def test_questions_learn_from_scored_groups_only() -> None:
    questions = CurriculumTaskSampler(TaskOrder(Few(), "train", seed=1), Curriculum(ema_decay=0.5))
    asked = questions.next_tasks(3)
    questions.on_verified(asked, [group(1.0, 0.0, None), group(None, None), group(0.0, 0.0)])
    rates = questions.curriculum.solve_rates
    assert [rates.get(task.id) for _, task in asked] == [0.5, None, 0.0]
    again = CurriculumTaskSampler(TaskOrder(Few(), "train", seed=1), Curriculum(ema_decay=0.5))
    again.load_state_dict(json.loads(json.dumps(questions.state_dict())))
    assert again.next_tasks(3) == questions.next_tasks(3)


def test_a_restored_curriculum_draws_the_same() -> None:
    first = Curriculum(ema_decay=0.5)
    first.update_solve_rate("a", 1.0)
    first.update_solve_rate("a", 0.0)
    assert first.solve_rates["a"] == 0.5 and first.compute_weight("a") == 1.0 and first.compute_weight("new") == 1.0
    second = Curriculum(ema_decay=0.5)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    tasks = ["a", "b", "c", "d"]
    assert [first.draw_positions(tasks, 2, seed=s) for s in range(9)] == [second.draw_positions(tasks, 2, seed=s) for s in range(9)]


def test_no_task_is_asked_twice_in_a_step_where_two_passes_meet() -> None:
    for count in (4, 8, 10):
        questions = CurriculumTaskSampler(TaskOrder(Few(), "train", seed=0), Curriculum(candidates_per_task=4))
        for step in range(20):
            asked = [index for index, _ in questions.next_tasks(1 if step % 3 == 2 else count)]  # odd sizes: windows do not end with a pass
            assert len(asked) == len(set(asked))
    many = CurriculumTaskSampler(TaskOrder(Few(), "train", seed=0), Curriculum(candidates_per_task=4)).next_tasks(12)
    assert len(many) == 12 and len(dict(many)) == 10  # more than there are
