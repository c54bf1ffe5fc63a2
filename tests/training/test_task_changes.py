"""Tasks that change while a run goes on: the environment loses the question, or takes other references, or makes its tasks harder."""

from __future__ import annotations

import io
import random
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import rlvr
from rlvr import Task
from rlvr.episode import Episode, StopReason
from rlvr.errors import CheckFailed
from rlvr.task import make_user_prompt
from rlvr.training.callbacks import StepRecord
from rlvr.training.run_health import RunHealth
from rlvr.training.run_health.causes import explain_policy_change
from rlvr.training.task_changes import TaskChanges
from rlvr.training.trainer import Trainer
from tests.fixtures.tiny import tiny_run
from tests.fixtures.worlds import Sums

Change = Callable[[Task], Task]


class Changing(Sums):
    """Sums, until something is done to each task."""

    def __init__(self) -> None:
        super().__init__()
        self.change: Change = lambda task: task

    def task(self, split: str, index: int) -> Task:
        return self.change(super().task(split, index))


def lose_question(task: Task) -> Task:
    return Task(make_user_prompt("="), task.reference, task.id)


def lose_question_and_id(task: Task) -> Task:
    return Task(make_user_prompt("="), task.reference)


def shift_reference(task: Task) -> Task:
    return Task(task.prompt, str(int(task.reference) + 1), task.id)


def make_harder(task: Task) -> Task:
    return Task(make_user_prompt("1" + task.question), str(int(task.reference) + 100), "harder/" + task.id)


def make_harder_without_id(task: Task) -> Task:
    return Task(make_user_prompt("1" + task.question), str(int(task.reference) + 100))


@pytest.mark.parametrize(
    ("change", "stop"),
    [
        (lose_question, r"since step 5 8 of 8 tasks are others than at first: the prompt of 'sums/train/\d+' was '\d+\+\d+=' and is '='"),
        (shift_reference, r"since step 5 8 of 8 tasks are others than at first: the reference of"),
        (lose_question_and_id, "since step 5 8 of 8 tasks are others than at first: the prompt of"),
        (make_harder, ""),
        (make_harder_without_id, ""),
    ],
)
def test_a_run_whose_tasks_change_stops_but_for_harder_ones(tmp_path: Path, change: Change, stop: str) -> None:
    env, shown = Changing(), io.StringIO()

    class Switch(rlvr.Callback):
        def on_step_end(self, trainer: Trainer, step: int, record: StepRecord) -> None:
            env.change = change if step >= 4 else env.change

    config = tiny_run(rollout={"prompts_per_step": 12, "num_generations": 2}, train={"steps": 9}, eval={"tasks": 0})
    with (
        pytest.raises(CheckFailed, match=f"stopped after step 7: {stop}.*\nlikely cause: The tasks changed") if stop else nullcontext(),
        Trainer(config, env=env, callbacks=Switch(), out=tmp_path / "run", console=Console(file=shown, width=300)) as trainer,
    ):
        trainer.fit()
        told = shown.getvalue()
        assert (
            told.count("warning: since step 5 8 of 8 tasks are others")
            == told.count("the prompt of task ")
            == int(change is not make_harder)
        )
    if stop:
        assert (tmp_path / "run" / "checkpoints" / "last").resolve().name == "step-000004"


@pytest.mark.parametrize(("change", "told"), [(None, False), (shift_reference, True), (make_harder, False)])
def test_tasks_are_compared_after_a_resume_too_and_a_change_is_a_likely_cause(tmp_path: Path, change: Change | None, told: bool) -> None:
    env, shown = Changing(), io.StringIO()
    for steps, resume in ((3, False), (5, True), (6, True)):
        config = tiny_run(rollout={"prompts_per_step": 12, "num_generations": 2}, train={"steps": steps}, eval={"tasks": 0})
        console = Console(file=shown, width=400)
        with Trainer(config, env=env, out=tmp_path / "run", console=console, resume=resume) as trainer:
            trainer.fit()
            [health] = [callback for callback in trainer.callbacks if isinstance(callback, RunHealth)]
        if steps == 5:
            assert ("The tasks have changed between step 3 and the resume" in explain_policy_change(health.run, 4)) == told
        env.change = change or env.change
    assert shown.getvalue().count("of 8 tasks are others than at first") == int(told)


def test_tasks_that_are_drawn_anew_at_each_call_or_only_once_show_no_change() -> None:
    env, dice = Changing(), random.Random(0)
    env.change = lambda task: Task(make_user_prompt(f"{dice.random()}"), task.reference, task.id)
    changes = TaskChanges(env)
    changes.watch([("train", index) for index in range(20)])
    env.change = lose_question
    assert changes.find() is None

    def fail(task: Task) -> Task:
        raise LookupError("each row is read once")

    env.change = lambda task: task
    changes = TaskChanges(env)
    changes.watch([("train", index) for index in range(20)])
    env.change = fail
    assert changes.find() is None


def test_a_question_that_is_lost_shows_also_where_no_task_can_be_asked_for_again() -> None:
    def answer(said: list[int], reference: int) -> list[Episode]:
        mask = [*[False] * len(said), True]
        return [
            Episode("t", "g", [*said, 9], mask, [0.0] * len(mask), [0.0] * len(mask), StopReason.TERMINATED, meta={"reference": reference})
        ]

    right, lost = ([answer([1, k if asks else 0, 2], k) for k in range(8)] for asks in (True, False))
    changes = TaskChanges(Changing())
    assert [changes.have_lost_distinct_prompts(groups) for groups in (lost, right, lost, lost[:7], right)] == [
        False,
        False,
        True,
        False,
        False,
    ]


@pytest.mark.parametrize("rows", [7, [["train", 0]], [["train", "x", "a", "b", "c"]], [None], [["train", 0, "a", 7, "c"]]])
def test_damaged_tasks_of_a_checkpoint_are_not_compared(rows: Any) -> None:
    changes = TaskChanges(Sums())
    assert changes.restore(rows) is None
    changes.watch([("train", 0), ("train", 1)])
    assert changes.find() is None and len(changes.to_json()) == 2
