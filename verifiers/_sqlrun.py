"""Run one SQL query of a policy on the databases of a task, as a separate program, so that it can be killed.

Standard library only. It reads {"databases": [script, ...], "query": ...} as JSON from stdin, prints `ready` once the databases exist, and
then writes one JSON line: {"rows": [[[value, ...], ...], ...]}, {"error": why} or {"limit": which}.
"""

from __future__ import annotations

import json
import resource
import sqlite3
import sys
from typing import Any

STEPS = 5_000_000
"""Maximum steps of SQLite's virtual machine for a query on one database; the verdict does not depend on the speed of the machine."""
CPU_SECONDS = 3
"""CPU limit, because the step limit cannot stop a single step that takes very long."""
HEAP, MEMORY = 64 << 20, 512 << 20
"""Maximum bytes that SQLite may allocate, and that the process may map."""
MOST_ROWS, MOST_CHARACTERS = 2_000, 500_000
"""Maximum number of rows and characters of a result."""
LONGEST_QUERY = 20_000
LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: 100_000,
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: LONGEST_QUERY,
    sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 500,
    sqlite3.SQLITE_LIMIT_COLUMN: 100,
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 200,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
}
READING = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
REFUSED = {"load_extension", "edit", "fts3_tokenizer", "random", "randomblob", "readfile", "writefile"}
"""Functions that access data outside the database, or make a verdict random."""


class OverLimit(Exception):
    """Raised when a query exceeds a limit; the message names the limit."""


def opened(script: str) -> sqlite3.Connection:
    """Create an in-memory database from a script of the task.

    >>> opened("create table t(n); insert into t values (1)").execute("select n from t").fetchall()
    [(1,)]
    """
    connection = sqlite3.connect(":memory:", isolation_level=None)
    connection.executescript(script)
    return connection


def rows_of(connection: sqlite3.Connection, query: str) -> list[list[Any]]:
    """Run one read-only query within the limits and return its rows; bytes are written as {"hex": ...}.

    >>> rows_of(opened("create table t(n); insert into t values (1)"), "select n, x'00' from t")
    [[1, {'hex': '00'}]]
    """
    for limit, most in LIMITS.items():
        connection.setlimit(limit, most)
    connection.text_factory = lambda raw: raw.decode("utf-8", "backslashreplace")
    connection.set_authorizer(_allowed)
    taken = 0

    def stop() -> bool:
        nonlocal taken
        taken += 1_000
        return taken > STEPS

    connection.set_progress_handler(stop, 1_000)
    try:
        return _fetched(connection.execute(query))
    except MemoryError as error:
        raise OverLimit("memory") from error
    except sqlite3.OperationalError as error:
        if taken > STEPS:
            raise OverLimit("time") from error
        raise


def _fetched(cursor: sqlite3.Cursor) -> list[list[Any]]:
    if cursor.description is None:
        raise ValueError("it is not a query that gives rows")
    rows: list[list[Any]] = []
    characters = 0
    for row in cursor:
        rows.append([{"hex": value.hex()} if isinstance(value, bytes) else value for value in row])
        characters += sum(len(value) if isinstance(value, str | bytes) else 8 for value in row)
        if len(rows) > MOST_ROWS:
            raise OverLimit("rows")
        if characters > MOST_CHARACTERS:
            raise OverLimit("size")
    return rows


def _allowed(action: int, one: str | None, two: str | None, database: str | None, trigger: str | None) -> int:
    if action not in READING or (action == sqlite3.SQLITE_FUNCTION and (two or "").lower() in REFUSED):
        return sqlite3.SQLITE_DENY
    return sqlite3.SQLITE_OK


def main() -> None:
    """Set the process limits, read the request, run the query and write the reply."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS + 2))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    asked = json.load(sys.stdin)
    connections = [opened(script) for script in asked["databases"]]
    for connection in connections:
        connection.execute(f"pragma hard_heap_limit = {HEAP}")
        connection.execute("pragma temp_store = memory")
    print("ready", flush=True)
    try:
        said: dict[str, Any] = {"rows": [rows_of(connection, asked["query"]) for connection in connections]}
    except (OverLimit, MemoryError) as error:
        said = {"limit": str(error) or "memory"}
    except (sqlite3.Error, sqlite3.Warning, ValueError, OverflowError) as error:
        said = {"error": ascii(str(error))[1:-1][:300]}
    print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main()
