"""Verify an SQL query by the rows that it returns on databases that the policy has not seen."""

from __future__ import annotations

import json
import re
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from rlvr.contracts import Verifier, VerifierExample
from rlvr.errors import require_text_answers
from rlvr.extraction import extract_answer
from rlvr.task import Fault, Task, Verdict
from rlvr.verifiers import _sql_runner as _sqlrun

QUERY_START = re.compile(r"\s*(?:(?:--[^\n]*\n|/\*.*?\*/)\s*)*(?:select|with|values)\b", re.IGNORECASE | re.DOTALL)
"""The beginning of a query, after comments. Anything else is not run."""
MAX_WALL_S = 120.0
"""Wall-clock limit. Reaching it is an infrastructure fault, because a query that computes is stopped far earlier by its CPU limit."""
_RUNNER_PATH = str(_sqlrun.__file__)
EXAMPLE_SCRIPT = "create table item(name text, price real); insert into item values "


class SqlRows(Verifier):
    """The query returns the same rows as the reference's query, on each of its databases.

    The reference is {"query": gold, "databases": [script, ...], "ordered": false}. Rows are compared in any order unless `ordered`. The
    names of columns do not count; 3 equals 3.0, and '3' does not. The query runs in a separate process with limits on time, memory, rows
    and size; exceeding a limit scores 0. The query is read-only: no other file, no settings, no random numbers. If the reference's rows are
    the same on every database, a query that gives them with empty tables or with fewer rows too is wrong: it only states them.

    >>> import rlvr
    >>> verify = rlvr.make_verifier("sql_rows").verify
    >>> reference = {"query": "select sum(n) from t", "databases": ["create table t(n); insert into t values (1), (2)"]}
    >>> task = rlvr.Task(rlvr.make_user_prompt("The sum of n?"), reference, id="t")
    >>> verify(task, "SELECT total(n) FROM t").score, verify(task, "SELECT count(*) FROM t").score
    (1.0, 0.0)
    """

    version = "5"  # 4: a wide format of printf is refused; 5: a query may be in <answer>
    examples = (
        VerifierExample(
            {
                "query": "select name from item where price > 2",
                "databases": [f"{EXAMPLE_SCRIPT}('a', 1), ('b', 3)", f"{EXAMPLE_SCRIPT}('c', 9), ('d', 2.5)"],
            },
            correct=(
                "SELECT name FROM item WHERE price > 2",
                "select name from item where not price <= 2 order by price;",
                "-- dear ones\nselect name as dear from item where price > 2",
                "This is it:\n```sql\nSELECT name FROM item WHERE price > 2\n```",
            ),
            incorrect=(
                "SELECT name FROM item",
                "SELECT 'b'",
                "SELECT name, price FROM item WHERE price > 2",
                "SELECT name FROM item WHERE price > 2 UNION ALL SELECT name FROM item WHERE price > 2",
                "DELETE FROM item",
                "ATTACH ':memory:' AS x",
                "SELECT name FROM item WHERE price > 2; SELECT 1",
                "b",
            ),
        ),
        VerifierExample(
            {"query": "select name from item order by price", "databases": [f"{EXAMPLE_SCRIPT}('a', 5), ('b', 3)"], "ordered": True},
            correct=("select name from item order by price",),
            incorrect=("select name from item order by price desc",),
        ),
    )

    @require_text_answers
    def verify(self, task: Task, answer: str) -> Verdict:
        """Run the query of the answer, and compare."""
        broken = _find_reference_flaw(task.reference)
        if broken:
            return Verdict(None, broken, fault=Fault.TASK)
        query, databases = task.reference["query"], tuple(task.reference["databases"])
        try:
            expected = _run_reference(query, databases)
        except (sqlite3.Error, sqlite3.Warning, ValueError, _sqlrun.QueryLimitExceeded) as error:
            return Verdict(None, f"the reference does not run: {type(error).__name__}: {error}"[:400], fault=Fault.TASK)
        if not any(expected):
            return Verdict(None, "the query of the reference gives no row on any database", fault=Fault.TASK)
        first = expected[:1]
        is_constant = all((rows,) == first for rows in expected)
        script = databases[0]
        emptied = _delete_rows(script) if is_constant else ""
        if is_constant and _run_reference(query, (emptied,)) == first:
            if len(databases) > 1:
                return Verdict(
                    None, "the query of the reference gives the same rows on every database, also on an empty one", fault=Fault.TASK
                )
            is_constant = False  # with one database, a query about no table may be meant
        tagged = extract_answer(answer, "tag")
        found = extract_answer(answer if tagged.text is None else tagged.text, ["fence", "whole"])
        if found.text is None or len(found.text) > _sqlrun.MAX_QUERY_CHARS or not QUERY_START.match(found.text):
            why = found.reason if found.text is None else f"it begins with {found.text[:40]!r} and has {len(found.text)} characters"
            return Verdict(0.0, f"no query of at most {_sqlrun.MAX_QUERY_CHARS:,} characters that begins with SELECT or WITH: {why}")
        changed = (emptied, *_find_changed_databases(query, script)) if is_constant else ()
        asked = (*databases, *changed)
        result = _run_isolated(found.text, asked)
        verdict = _compare_rows(result, expected, ordered=bool(task.reference.get("ordered", False)))
        if verdict.passed and isinstance(result, dict):
            for rows, state in zip(result["rows"][len(databases) :], ("are empty", "have fewer rows"), strict=False):
                if rows == result["rows"][0]:
                    return Verdict(0.0, f"the query gives the same rows when the tables {state}: it does not read them")
        return verdict


def _find_reference_flaw(reference: Any) -> str:
    if not isinstance(reference, dict) or not {"query", "databases"} <= reference.keys() <= {"query", "databases", "ordered"}:
        return f'the reference {reference!r:.80} is not {{"query": ..., "databases": [script, ...], "ordered": true or false}}'
    scripts = reference["databases"]
    if not isinstance(reference["query"], str) or not isinstance(scripts, list | tuple) or not scripts:
        return f"the reference {reference!r:.80} has no query, or no list of scripts as databases"
    return "" if all(isinstance(script, str) for script in scripts) else f"a database of the reference is not a script: {scripts!r:.80}"


@lru_cache(maxsize=256)
def _run_reference(query: str, databases: tuple[str, ...]) -> tuple[list[list[Any]], ...]:
    """Run the reference's query, which is trusted and runs in this process."""
    found = []
    for script in databases:
        connection = _sqlrun.create_database(script)
        try:
            found.append(_sqlrun.run_query(connection, query))
        finally:
            connection.close()
    return tuple(found)


@lru_cache(maxsize=256)
def _find_changed_databases(query: str, script: str) -> tuple[str, ...]:
    """Find a database with fewer rows, on which the reference's query gives other rows: a query that only states rows does not; () if
    there is none.
    """
    (rows,) = _run_reference(query, (script,))
    for condition in ("rowid % 2 = 0", "rowid % 2 = 1", "rowid > 1"):
        changed = _delete_rows(script, condition)
        try:
            found = _run_reference(query, (changed,))[0]
        except (sqlite3.Error, sqlite3.Warning, ValueError, _sqlrun.QueryLimitExceeded):
            continue  # such as a table without a rowid
        if found and found != rows:
            return (changed,)
    return ()


@lru_cache(maxsize=256)
def _delete_rows(script: str, condition: str = "true") -> str:
    """Return the script of the same database without the rows of a condition in each table; as a rule, without any row."""
    connection = _sqlrun.create_database(script)
    try:
        names = [row[0] for row in _sqlrun.run_query(connection, "select name from sqlite_master where type = 'table'")]
    finally:
        connection.close()
    quoted = (str(name).replace('"', '""') for name in names if not str(name).startswith("sqlite_"))
    return f"{script.rstrip().rstrip(';')};" + "".join(f'delete from "{name}" where {condition};' for name in quoted)


def _run_isolated(query: str, databases: Sequence[str]) -> dict[str, Any] | Verdict:
    """Run the query in a separate process and return its reply, or a verdict if there is none."""
    command = [sys.executable, "-I", "-S", _RUNNER_PATH]
    asked = json.dumps({"databases": list(databases), "query": query})
    try:
        ran = subprocess.run(
            command,
            input=asked.encode(),
            capture_output=True,
            timeout=MAX_WALL_S,
            check=False,
            env={},
            start_new_session=True,  # Ctrl-C is for this process; the query's would take it for a break of its own, and score 0
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Verdict(None, f"the query's process failed: {error!r:.300}", fault=Fault.INFRA)
    ready, _, said = ran.stdout.decode("ascii", "replace").partition("\n")
    if ready != "ready" or ran.returncode == -signal.SIGKILL:
        why = ran.stderr[-300:].decode("utf-8", "replace")
        return Verdict(None, f"the query's process ended with {ran.returncode}: {why}", fault=Fault.INFRA)
    try:
        result: dict[str, Any] = json.loads(said)
    except ValueError:
        return Verdict(0.0, f"the query broke its process, which ended with {ran.returncode}", fault=Fault.ANSWER)
    return result


def _compare_rows(result: dict[str, Any] | Verdict, expected: Sequence[list[list[Any]]], *, ordered: bool) -> Verdict:
    if isinstance(result, Verdict):
        return result
    if "limit" in result:
        return Verdict(0.0, f"the query was stopped: too much {result['limit']}", fault=Fault.ANSWER)
    if "error" in result:
        return Verdict(0.0, f"the query fails: {result['error']}")
    for number, (rows, wanted) in enumerate(zip(result["rows"][: len(expected)], expected, strict=True), start=1):
        had, want = [_normalize_row(row) for row in rows], [_normalize_row(row) for row in wanted]
        if had != want if ordered else Counter(had) != Counter(want):
            return Verdict(0.0, f"on database {number} it gives {had!r:.120}, not {want!r:.120}")
    return Verdict(1.0, f"the rows are right on {len(expected)} database{'s' * (len(expected) > 1)}")


def _normalize_row(row: Sequence[Any]) -> tuple[Any, ...]:
    """Normalize a row so that equal SQL values compare equal in Python: 3.0 is 3, floats are rounded, '3' stays a text."""
    return tuple(_normalize_value(value) for value in row)


def _normalize_value(value: Any) -> Any:
    if isinstance(value, dict):
        return ("bytes", value["hex"])
    if isinstance(value, float):
        rounded = float(f"{value:.12g}")
        return int(rounded) if rounded.is_integer() and abs(rounded) < 1e15 else rounded
    return value


make = SqlRows
