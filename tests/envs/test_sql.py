"""The world `sql`: its questions, who answers them, and who must not be paid."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from rlvr import make_env
from rlvr.conformance.conversationkit import play_conversation
from rlvr.envs._sql_questions import QUESTION_KINDS
from rlvr.errors import ConfigError
from rlvr.task import Task
from rlvr.verifiers import _sql_runner as _sqlrun
from rlvr.verifiers.sql_rows import _normalize_value
from tests.attacks.queries import ATTACKS

ENV: Any = make_env("sql")


@pytest.fixture(scope="module")
def tasks() -> list[Task]:
    return [ENV.task(split, index) for split in ENV.splits for index in range(100)]


@pytest.fixture
def harmless() -> Iterator[Path]:
    path = Path("/tmp/rlvr-attack.db")
    path.unlink(missing_ok=True)
    yield path
    assert not path.exists(), "a query wrote a file"


opened = lru_cache(maxsize=None)(_sqlrun.create_database)


def rows(script: str, query: str) -> Any:
    """The rows, or the error: in the way of the judge, without its process."""
    try:
        return [tuple(map(_normalize_value, row)) for row in _sqlrun.run_query(opened(script), query)]
    except sqlite3.Error as error:
        return str(error)


def paid(task: Task, query: str) -> bool:
    """Whether the query has the rows of the right one on every database that it would be judged on."""
    return all(
        not isinstance(found := rows(script, query), str) and Counter(found) == Counter(rows(script, task.reference["query"]))
        for script in task.reference["databases"]
    )


def test_every_kind_of_question_is_posed_and_its_script_is_paid(tasks: list[Task]) -> None:
    first = {str(task.meta["kind"]): task for task in tasks}
    assert set(first) == set(QUESTION_KINDS)
    for task in first.values():
        verdict, play = play_conversation(ENV, task, ENV.oracle_turns(task))
        assert verdict.score == 1.0 and all(ok for ok, _ in play.tool_results), (task.id, verdict)


def test_the_rows_of_the_database_that_is_shown_are_worth_nothing(tasks: list[Task]) -> None:
    for task in tasks:
        shown = rows(str(task.meta["script"]), task.reference["query"])
        copied = "VALUES " + ", ".join("(" + ", ".join(map(repr, row)) + ")" for row in shown)
        assert rows(task.reference["databases"][0], copied) == shown and not paid(task, copied), task.id
        assert task.meta["script"] not in task.reference["databases"] and paid(task, task.reference["query"])


def test_no_constant_answer_is_paid_often(tasks: list[Task]) -> None:
    constants = {task.reference["query"] for task in tasks[:60]} | {"SELECT 1", "SELECT 0", "SELECT 1 WHERE 0", "SELECT NULL"}
    best = max((sum(paid(task, query) for task in tasks), query) for query in constants)
    assert best[0] <= 2, best  # of 200: itself, and once another question with the same rows


def test_the_same_task_in_another_process() -> None:
    code = "import rlvr; env = rlvr.make_env('sql'); t = env.task('test', 3); print(t.question, t.reference, t.meta['script'])"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True).stdout
    task = ENV.task("test", 3)
    assert told.strip() == f"{task.question} {task.reference} {task.meta['script']}"


def test_splits_share_no_question_whatever_the_seed(tasks: list[Task]) -> None:
    asked = {split: {task.question for task in tasks if f"/{split}/" in task.id} for split in ENV.splits}
    other: Any = make_env("sql", seed=5)
    asked["train"] |= {other.task("train", index).question for index in range(100)}
    assert all(len(found) > 80 for found in asked.values()) and not asked["train"] & asked["test"]


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_is_not_paid_and_has_a_score(name: str, tasks: list[Task], harmless: Path) -> None:
    verdict, _ = play_conversation(ENV, tasks[0], ATTACKS[name])
    assert verdict.score == 0.0, verdict


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("it counts without end", "stopped: too much time"),
        ("rows without end", "stopped: too much rows"),
        ("a flood of text", "stopped: too much width of printf"),
        ("memory", "stopped: too much memory"),
        ("it loads code", "authorized"),
        ("luck", "authorized"),
        ("two statements", "one statement"),
    ],
)
def test_the_judge_says_why_it_stopped_or_refused_a_query(name: str, why: str, tasks: list[Task]) -> None:
    verdict = ENV.verifier.verify(tasks[1], str(ATTACKS[name][0]))
    assert verdict.score == 0.0 and why in verdict.reason, verdict


def test_an_attack_leaves_the_next_conversation_as_it_was(tasks: list[Task]) -> None:
    task = tasks[2]
    before = play_conversation(ENV, task, ENV.oracle_turns(task))[1].tool_results
    play_conversation(ENV, task, ATTACKS["it writes the schema"])
    verdict, play = play_conversation(ENV, task, ENV.oracle_turns(task))
    assert verdict.score == 1.0 and play.tool_results == before


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"kinds": ["cuont"]}, "did you mean 'count'"), ({"kinds": "count"}, "must be a list"), ({"kinds": []}, "must be a list"),
        ({"tables": [5]}, "a list out of 2, 3 and 4"), ({"hidden": 0}, "hidden is 0"),
    ],
    ids=str,
)  # fmt: skip
def test_wrong_settings_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make_env("sql", **settings)
