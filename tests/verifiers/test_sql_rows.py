"""The verifier `sql_rows`: which rows are equal, and whose fault it is that a query gives none."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from rlvr import make_verifier
from rlvr.task import Fault, Task, Verdict, make_user_prompt
from rlvr.verifiers import _sql_runner as _sqlrun
from rlvr.verifiers import sql_rows

VERIFIER: Any = make_verifier("sql_rows")
TABLE = "create table t(a, b); insert into t values (1, 'x'), (2, 'y'), (2, 'y'), (null, '3')"
OTHER = "create table t(a, b); insert into t values (7, 'x'), (8, 'z'), (5, '3')"


def judged(gold: str, answer: str, *, ordered: bool = False, databases: tuple[str, ...] = (TABLE,)) -> Verdict:
    reference = {"query": gold, "databases": list(databases), "ordered": ordered}
    return VERIFIER.verify(Task(make_user_prompt("?"), reference, id="t"), answer)


@pytest.mark.parametrize(
    ("gold", "answer", "score"),
    [
        ("select a, b from t", "select a as other, b from t order by b desc", 1.0),
        ("select a, b from t", "select b, a from t", 0.0),
        ("select a, b from t", "select distinct a, b from t", 0.0),
        ("select a from t", "select a from t where a is not null", 0.0),
        ("select 3", "select 3.0", 1.0),
        ("select 3", "select '3'", 0.0),
        ("select '3'", "select x'33'", 0.0),
        ("select 0", "select null", 0.0),
        ("select ''", "select null", 0.0),
        ("select 'x'", "select 'X'", 0.0),
        ("select avg(a) from t", "select sum(a) * 1.0 / count(a) from t", 1.0),
        ("select 0.1 + 0.2", "select 0.3", 1.0),
        ("select 0.3", "select 0.3001", 0.0),
        ("select 9007199254740993", "select 9007199254740992", 0.0),
    ],
)
def test_which_rows_are_equal(gold: str, answer: str, score: float) -> None:
    assert judged(gold, answer).score == score


def test_the_order_counts_only_where_it_was_asked_for() -> None:
    gold, other = "select b from t order by b", "select b from t order by b desc"
    assert judged(gold, other).score == 1.0
    assert judged(gold, other, ordered=True).score == 0.0 and judged(gold, gold, ordered=True).score == 1.0


def test_every_database_must_agree() -> None:
    gold, answer = "select max(a) from t", "select count(distinct a) from t"
    assert judged(gold, answer).score == 1.0
    told = judged(gold, answer, databases=(TABLE, OTHER))
    assert told.score == 0.0 and "database 2" in told.reason


@pytest.mark.parametrize("gold", ["select no from t", "select a from t where 0", "delete from t", ""])
def test_a_reference_that_cannot_be_judged_gives_no_score(gold: str) -> None:
    found = judged(gold, "select 1")
    assert (found.score, found.fault) == (None, Fault.TASK)


@pytest.mark.parametrize(
    "program",
    ["import sys; sys.exit(3)", "import os; os.kill(os.getpid(), 9)", "print('ready', flush=True); import os; os.kill(os.getpid(), 9)"],
)
def test_a_process_that_fails_by_itself_is_never_a_zero(program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text(program, "utf-8")
    monkeypatch.setattr(sql_rows, "_RUNNER_PATH", str(broken))
    found = judged("select 1", "select 1")
    assert (found.score, found.fault) == (None, Fault.INFRA)


@pytest.mark.parametrize("program", ["print('ready')", "print('ready', flush=True); import os; os.abort()"])
def test_a_process_that_the_query_broke_is_a_zero(program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text(program, "utf-8")
    monkeypatch.setattr(sql_rows, "_RUNNER_PATH", str(broken))
    found = judged("select 1", "select 1")
    assert (found.score, found.fault) == (0.0, Fault.ANSWER)


def test_a_machine_that_has_no_time_is_never_a_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    def late(*args: Any, **settings: Any) -> Any:
        raise subprocess.TimeoutExpired("query", settings["timeout"])

    monkeypatch.setattr(subprocess, "run", late)
    found = judged("select 1", "select 1")
    assert (found.score, found.fault) == (None, Fault.INFRA)


def test_the_query_runs_in_a_process_of_its_own_that_knows_no_gold(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []
    run = subprocess.run

    def seen(*args: Any, **settings: Any) -> Any:
        asked.append({"input": settings["input"], "env": settings["env"]})
        return run(*args, **settings)

    monkeypatch.setattr(subprocess, "run", seen)
    assert judged("select max(a) from t", "select count(distinct a) from t").score == 1.0
    assert b"max(a)" not in asked[0]["input"] and asked[0]["env"] == {}


def test_a_table_that_is_too_wide_or_a_long_text_is_refused() -> None:
    assert judged("select 1", "select " + ", ".join("1" * 101)).score == 0.0
    assert "no query" in judged("select 1", "select 1" + " " * _sqlrun.MAX_QUERY_CHARS + "-- x").reason


@pytest.mark.parametrize("databases", [(TABLE,), (TABLE, TABLE + ", (1, 'q')")])
def test_a_query_that_only_asks_whether_there_is_a_row_is_wrong(databases: tuple[str, ...]) -> None:
    told = judged("select max(a) from t", "select 2 from t limit 1", databases=databases)
    assert told.score == 0.0 and "fewer rows" in told.reason
    assert judged("select max(a) from t", "select a from t where a is not null order by a desc limit 1", databases=databases).score == 1.0


def test_tables_without_a_rowid_are_judged_as_before() -> None:
    table = "create table t(a primary key) without rowid; insert into t values (1), (2)"
    assert judged("select max(a) from t", "select a from t order by a desc limit 1", databases=(table,)).score == 1.0


@pytest.mark.parametrize(
    "call",
    [
        "printf('%.*c', 900000000, 'a')",
        "format('%*d', '900000000', 1)",
        "printf('%900000000d', 1)",
        "printf('%-0.900000f', 1)",
        "printf('%.*c', 9e8, 'a')",
    ],
)
def test_a_wide_printf_ends_at_once_with_a_zero(call: str) -> None:
    started = time.process_time() + sum(os.times()[2:4])
    verdict = judged("select a from t", f"select length({call}) from t")
    assert verdict.score == 0.0 and "width of printf" in verdict.reason, verdict
    assert time.process_time() + sum(os.times()[2:4]) - started < 1.5


def test_printf_with_a_usual_width_is_judged_by_its_rows() -> None:
    gold = "select printf('%5.2f %s', a, b) from t"
    assert judged(gold, "select format('%*.*f', 5, 2, a) || ' ' || b from t where a is not null union all select '0.00 3'").score == 0.0
    assert judged(gold, "select printf('%5.*f', 2, a) || ' ' || printf('%s', b) from t").score == 1.0
    # what is printed is no width: a number, a date, and a star behind a percent sign
    for call in ("printf('%.*f', 1, 1234.5)", "printf('100%%*%d', 5000)", "printf('%s %*d', '2024-01-01', 3, 1)"):
        assert judged(f"select {call} from t", f"select format({call[7:]} from t").score == 1.0, call


@pytest.mark.parametrize(
    ("answer", "score"),
    [
        ("<think>count them</think><answer>select count(*) from t</answer>", 1.0),
        ("It counts.\n<answer>\n```sql\nselect count(*) from t\n```\n</answer>", 1.0),
        ("<answer>select count(*) from t</answer><answer>select 1 from t</answer>", 0.0),
        ("The answer is not <answer>select count(*) from t</answer>", 0.0),
        ("<answer>select 1 from t</answer>\n```sql\nselect count(*) from t\n```", 0.0),
        ("<answer>select count(*) from t where b <> '</answer>'</answer>", 0.0),
    ],
)
def test_a_query_may_be_in_answer_tags(answer: str, score: float) -> None:
    assert judged("select count(*) from t", answer, databases=(TABLE, OTHER)).score == score
