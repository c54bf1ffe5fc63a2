"""Run the statements of one conversation on its database, as a separate program, so that any statement can be stopped.

Standard library only. It reads JSON lines from stdin: first the settings {"path", "script", "mode"}, then statements {"query", "timeout",
"max_rows"}. To each it writes one JSON line: {} or {"config": why} to the settings, {"names", "rows", "changed"}, {"error": why},
{"unreadable": why} or {"late": true} to a statement. A single step of SQLite, which no progress handler interrupts, may take hours: then
the processor limit kills this process.
"""

from __future__ import annotations

import json
import re
import resource
import sqlite3
import sys
import time
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

WIDE_FORMAT = re.compile(r"%[^a-zA-Z%]*(?:\*|[0-9]{4,})")
MAX_CELL_CHARS = 200
"""Maximum characters of a value in a result."""
SQLITE_LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: 100_000,
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: 50_000,
    sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 500,
    sqlite3.SQLITE_LIMIT_COLUMN: 100,
}
PROGRESS_STEPS = 40
"""Number of SQLite virtual machine steps between two checks of the timeout."""
GRACE_CPU_S = 2
"""Processor time after the timeout in which a statement may still be interrupted; then the kernel kills this process."""
MAX_MEMORY_BYTES = 2 << 30
MAX_SCRATCH_PAGES = 16_384
"""Maximum size of a scratch copy: 64 MiB in 4 KiB pages."""
READ_ACTIONS = {
    sqlite3.SQLITE_SELECT,
    sqlite3.SQLITE_READ,
    sqlite3.SQLITE_FUNCTION,
    sqlite3.SQLITE_RECURSIVE,
}
FORBIDDEN_ACTIONS = {sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH, sqlite3.SQLITE_PRAGMA}
"""Actions that are always denied: they access other files or change the limits."""
READ_PRAGMAS = {"table_info", "table_list", "table_xinfo", "index_list", "index_info", "foreign_key_list"}
"""The allowed pragmas, which only read."""


class CannotOpen(Exception):
    """The database of the settings cannot be opened."""


def _open_database(path: str, script: str, mode: str) -> sqlite3.Connection:
    """Open the database, or create the copy, with all limits.

    >>> _open_database("", "create table t(n); insert into t values (1)", "read").execute("select n from t").fetchall()
    [(1,)]
    """
    connection = _create_scratch(script, path) if script or mode == "scratch" else _open_file(path)
    if script and mode == "read":
        connection.execute("pragma query_only = on")
    for limit, most in SQLITE_LIMITS.items():
        connection.setlimit(limit, most)
    for name in ("printf", "format"):
        connection.create_function(name, -1, _run_printf)

    def authorize(action: int, one: str | None, two: str | None, database: str | None, trigger: str | None) -> int:
        if action == sqlite3.SQLITE_PRAGMA and (one or "").lower() in READ_PRAGMAS:
            return sqlite3.SQLITE_OK
        if action in FORBIDDEN_ACTIONS or (
            action == sqlite3.SQLITE_FUNCTION and (two or "").lower() in ("load_extension", "edit", "fts3_tokenizer")
        ):
            return sqlite3.SQLITE_DENY
        return sqlite3.SQLITE_OK if mode == "scratch" or action in READ_ACTIONS else sqlite3.SQLITE_DENY

    connection.set_authorizer(authorize)
    return connection


def _open_file(path: str) -> sqlite3.Connection:
    connection: sqlite3.Connection | None = None
    try:
        connection = sqlite3.connect(f"{Path(path).resolve().as_uri()}?mode=ro", uri=True, isolation_level=None)
        connection.execute("select count(*) from sqlite_schema").fetchone()
    except sqlite3.Error as error:
        if connection is not None:
            connection.close()
        raise CannotOpen(f"{path!r} cannot be opened as a SQLite database: {error}") from error
    return connection


def _create_scratch(script: str, path: str) -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    try:
        if script:
            connection.executescript(script)
        else:
            with closing(_open_file(path)) as source:
                source.backup(connection)
        connection.execute(f"pragma max_page_count = {MAX_SCRATCH_PAGES}")
    except sqlite3.Error as error:
        raise CannotOpen(f"the script of the tool 'sql' does not run: {error}") from error
    return connection


def _run_statement(connection: sqlite3.Connection, query: str, timeout: float, max_rows: int) -> dict[str, Any]:
    """Run one statement within the limits, and return the reply. Time is processor time, so a busy machine stops nobody.

    >>> _run_statement(sqlite3.connect(":memory:"), "select 1 as one", 5.0, 10)
    {'names': ['one'], 'rows': ['1'], 'changed': -1}
    """
    end = time.process_time() + timeout
    connection.set_progress_handler(lambda: time.process_time() > end, PROGRESS_STEPS)
    try:
        cursor = connection.execute(query)
        names = [column[0] for column in cursor.description or ()]
        rows = ["\t".join(map(_format_cell, row)) for row in islice(cursor, max_rows + 1)]
        changed = cursor.rowcount
        cursor.close()
    except (sqlite3.Error, sqlite3.Warning) as error:
        return {"late": True} if "interrupted" in str(error) and time.process_time() > end else {"error": str(error)}
    except (UnicodeError, ValueError) as error:
        return {"unreadable": str(error)}
    except MemoryError:
        return {"error": "out of memory"}
    return {"names": names, "rows": rows, "changed": changed}


def _run_printf(*parts: Any) -> Any:
    """Call `printf` of SQLite, but refuse widths of more than three digits: SQLite would write up to two billion spaces."""
    if parts and isinstance(parts[0], str) and WIDE_FORMAT.search(parts[0]):
        raise ValueError("too wide")
    with closing(sqlite3.connect(":memory:")) as own:
        return own.execute(f"select printf({', '.join('?' * len(parts))})", parts).fetchone()[0]


def _format_cell(value: Any) -> str:
    text = "NULL" if value is None else f"[{len(value)} bytes]" if isinstance(value, bytes) else str(value)
    text = text if len(text) <= MAX_CELL_CHARS else text[: MAX_CELL_CHARS - 3] + "..."
    return text.replace("\t", " ").replace("\n", " ")


def main() -> None:
    """Set the process limits, open the database and serve statements until stdin ends."""
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        connection = _open_database(**json.loads(sys.stdin.readline()))
    except CannotOpen as error:
        print(json.dumps({"config": str(error)}), flush=True)
        return
    print("{}", flush=True)
    for line in sys.stdin:
        statement = json.loads(line)
        last_s = int(time.process_time() + statement["timeout"]) + GRACE_CPU_S
        resource.setrlimit(resource.RLIMIT_CPU, (last_s, resource.RLIM_INFINITY))
        print(json.dumps(_run_statement(connection, **statement)), flush=True)


if __name__ == "__main__":
    main()
