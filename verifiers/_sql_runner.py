"""Run one SQL query of a policy on the databases of a task, as a separate program, so that it can be killed.

Standard library only. It reads {"databases": [script, ...], "query": ...} as JSON from stdin, prints `ready` once the databases exist, and
then writes one JSON line: {"rows": [[[value, ...], ...], ...]}, {"error": why} or {"limit": which}.
"""

from __future__ import annotations

import json
import re
import resource
import sqlite3
import sys
from typing import Any

MAX_VM_STEPS = 5_000_000
"""Maximum steps of SQLite's virtual machine for a query on one database; the verdict does not depend on the speed of the machine."""
MAX_CPU_S = 3
"""CPU limit, because the step limit cannot stop a single step that takes very long."""
MAX_HEAP_BYTES, MAX_MEMORY_BYTES = 64 << 20, 512 << 20
"""Maximum bytes that SQLite may allocate, and that the process may map."""
MAX_ROWS, MAX_RESULT_CHARS = 2_000, 500_000
"""Maximum number of rows and characters of a result."""
MAX_QUERY_CHARS = 20_000
SQLITE_LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: 100_000,
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: MAX_QUERY_CHARS,
    sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 500,
    sqlite3.SQLITE_LIMIT_COLUMN: 100,
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 200,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
}
READ_ACTIONS = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
FORBIDDEN_FUNCTIONS = {"load_extension", "edit", "fts3_tokenizer", "random", "randomblob", "readfile", "writefile"}
"""Functions that access data outside the database, or make a verdict random."""


WIDE_FORMAT = re.compile(r"%[-+ 0#,!']*(?:\d{4,}|\d*\.\d{4,})")
"""A width or a precision of more than three digits in a format of `printf`."""
FORMAT_PART = re.compile(r"%(?:%|[-+ 0#,!']*(\*|\d+)?(?:\.(\*|\d+)?)?(?:ll?)?[a-zA-Z])")
"""A part of a format that takes a value, with its width and its precision; or a percent sign."""
STARRED_FORMAT = re.compile(r"%[^%a-zA-Z]*\*")
"""A width or a precision that is an argument of `printf`."""


class QueryLimitExceeded(Exception):
    """Raised when a query exceeds a limit; the message names the limit."""


def create_database(script: str) -> sqlite3.Connection:
    """Create an in-memory database from a script of the task.

    >>> create_database("create table t(n); insert into t values (1)").execute("select n from t").fetchall()
    [(1,)]
    """
    connection = sqlite3.connect(":memory:", isolation_level=None)
    connection.executescript(script)
    return connection


def run_query(connection: sqlite3.Connection, query: str) -> list[list[Any]]:
    """Run one read-only query within the limits and return its rows; bytes are written as {"hex": ...}.

    >>> run_query(create_database("create table t(n); insert into t values (1)"), "select n, x'00' from t")
    [[1, {'hex': '00'}]]
    """
    for limit, most in SQLITE_LIMITS.items():
        connection.setlimit(limit, most)
    connection.text_factory = lambda raw: raw.decode("utf-8", "backslashreplace")
    connection.set_authorizer(_authorize)
    too_wide = _guard_printf(connection)
    taken = 0

    def stop() -> bool:
        nonlocal taken
        taken += 1_000
        return taken > MAX_VM_STEPS

    connection.set_progress_handler(stop, 1_000)
    try:
        return _fetch_rows(connection.execute(query))
    except MemoryError as error:
        raise QueryLimitExceeded("memory") from error
    except sqlite3.OperationalError as error:
        if taken > MAX_VM_STEPS:
            raise QueryLimitExceeded("time") from error
        if too_wide:
            raise QueryLimitExceeded("width of printf") from error
        raise


def _guard_printf(connection: sqlite3.Connection) -> list[str]:
    """Replace `printf` by one that refuses wide formats; return the list of refused formats, filled later.

    SQLite would write up to two billion characters in one step, which no limit of steps stops.
    """
    own, too_wide = sqlite3.connect(":memory:"), list[str]()

    def run_printf(*parts: Any) -> Any:
        layout = parts[0] if parts and isinstance(parts[0], str) else ""
        if _takes_a_wide_size(layout, parts[1:]) or WIDE_FORMAT.search(layout.replace("%%", "")):
            too_wide.append(layout)
            raise ValueError("too wide")
        return own.execute(f"select printf({', '.join('?' * len(parts))})", parts).fetchone()[0]

    for name in ("printf", "format"):
        connection.create_function(name, -1, run_printf, deterministic=True)
    return too_wide


def _takes_a_wide_size(layout: str, values: tuple[Any, ...]) -> bool:
    """Whether a width or a precision that a format takes from the values may be wide."""
    if STARRED_FORMAT.search(FORMAT_PART.sub("", layout)):  # a format that is not understood: any of the values may be a size
        return any(map(_may_be_wide, values))
    rest = iter(values)
    for part in FORMAT_PART.finditer(layout):
        if part[0] == "%%":
            continue
        if any(_may_be_wide(next(rest, None)) for size in part.groups() if size == "*"):
            return True
        next(rest, None)  # the value that is printed
    return False


def _may_be_wide(value: Any) -> bool:
    """Whether SQLite may read a value as a width of more than three digits; text counts by the number at its beginning."""
    if value is None or isinstance(value, int | float):
        return value is not None and abs(value) >= 1_000
    return not isinstance(value, str) or re.match(r"\s*[-+.]?\d", value) is not None


def _fetch_rows(cursor: sqlite3.Cursor) -> list[list[Any]]:
    if cursor.description is None:
        raise ValueError("it is not a query that gives rows")
    rows: list[list[Any]] = []
    characters = 0
    for row in cursor:
        rows.append([{"hex": value.hex()} if isinstance(value, bytes) else value for value in row])
        characters += sum(len(value) if isinstance(value, str | bytes) else 8 for value in row)
        if len(rows) > MAX_ROWS:
            raise QueryLimitExceeded("rows")
        if characters > MAX_RESULT_CHARS:
            raise QueryLimitExceeded("size")
    return rows


def _authorize(action: int, one: str | None, two: str | None, database: str | None, trigger: str | None) -> int:
    if action not in READ_ACTIONS or (action == sqlite3.SQLITE_FUNCTION and (two or "").lower() in FORBIDDEN_FUNCTIONS):
        return sqlite3.SQLITE_DENY
    return sqlite3.SQLITE_OK


def main() -> None:
    """Set the process limits, read the request, run the query and write the reply."""
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (MAX_CPU_S, MAX_CPU_S + 2))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    asked = json.load(sys.stdin)
    connections = [create_database(script) for script in asked["databases"]]
    for connection in connections:
        connection.execute(f"pragma hard_heap_limit = {MAX_HEAP_BYTES}")
        connection.execute("pragma temp_store = memory")
    print("ready", flush=True)
    try:
        said: dict[str, Any] = {"rows": [run_query(connection, asked["query"]) for connection in connections]}
    except (QueryLimitExceeded, MemoryError) as error:
        said = {"limit": str(error) or "memory"}
    except (sqlite3.Error, sqlite3.Warning, ValueError, OverflowError) as error:
        said = {"error": ascii(str(error))[1:-1][:300]}
    print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main()
