"""Queries on a SQLite database: read-only, or on a scratch copy per conversation."""

from __future__ import annotations

import re
import sqlite3
import time
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from rlvr.contracts.tool import Tool, tool
from rlvr.errors import ConfigError, ToolError, ToolFailure
from rlvr.tools._sandbox_run import validate_timeout

WIDE_FORMAT = re.compile(r"%[^a-zA-Z%]*(?:\*|[0-9]{4,})")
MAX_CELL_CHARS = 200
"""Maximum characters of a value in a result."""
MAX_VALUE_BYTES = 100_000
"""Maximum bytes of a value. It keeps every SQLite function short, so that the timeout can be enforced."""
SQLITE_LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: MAX_VALUE_BYTES,
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: 50_000,
    sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 500,
    sqlite3.SQLITE_LIMIT_COLUMN: 100,
}
PROGRESS_STEPS = 40
"""Number of SQLite virtual machine steps between two checks of the timeout."""
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


class Sql(Tool):
    """Run one statement per call, with limits on time, rows and sizes. Other files cannot be accessed.

    >>> with Sql(script="create table t(n); insert into t values (1), (2)").session() as sql:
    ...     print(sql.sql("select sum(n) as total from t"))
    total
    3
    """

    def __init__(
        self,
        *,
        path: str = "",
        script: str = "",
        mode: Literal["read", "scratch"] = "read",
        timeout: float = 5.0,
        max_rows: int = 100,
    ) -> None:
        """Keyword arguments are the settings.

        Args:
            path: the database file. A task may provide its own, as `database` in the data for its tools.
            script: SQL that creates the database, instead of a file. A task may provide its own, as `script`.
            mode: read denies changes; scratch gives each conversation a copy in memory that it may change.
            timeout: timeout of one statement, in seconds.
            max_rows: maximum rows of a result.
        """
        if mode not in ("read", "scratch"):
            raise ValueError(f"mode is {mode!r}; it must be read or scratch")
        if isinstance(max_rows, bool) or not isinstance(max_rows, int) or max_rows < 1:
            raise ValueError(f"max_rows is {max_rows!r}; it must be a whole number from 1")
        if path and script:
            raise ValueError("path and script are both given; give one of them")
        self.path, self.script, self.mode, self.max_rows = path, script, mode, max_rows
        self.timeout = validate_timeout(timeout)
        self.connection: sqlite3.Connection | None = None

    def setup(self) -> None:
        """Open the database, or create the copy."""
        data = self.context.data
        own = "database" in data or "script" in data
        path, script = (str(data.get("database", "")), str(data.get("script", ""))) if own else (self.path, self.script)
        if not path and not script:
            raise ConfigError("the tool 'sql' has no database; set path or script, or use it in an environment whose tasks provide one")
        self.connection = self._create_scratch(script, path) if script or self.mode == "scratch" else self._open_file(path)
        if script and self.mode == "read":
            self.connection.execute("pragma query_only = on")
        for limit, most in SQLITE_LIMITS.items():
            self.connection.setlimit(limit, most)
        for name in ("printf", "format"):
            self.connection.create_function(name, -1, _run_printf)
        self.connection.set_authorizer(self._authorize)

    def teardown(self) -> None:
        """Close the database; a scratch copy is discarded."""
        if self.connection is not None:
            self.connection.close()
            self.connection = None

    @tool
    def sql(self, query: str) -> str:
        """Run one SQL statement on the SQLite database and get its rows. The schema: select sql from sqlite_schema.

        Args:
            query: one statement.
        """
        if self.connection is None:
            raise ToolFailure("the database is not open")
        end = time.monotonic() + self.timeout
        self.connection.set_progress_handler(lambda: time.monotonic() > end, PROGRESS_STEPS)
        try:
            cursor = self.connection.execute(query)
            names = [column[0] for column in cursor.description or ()]
            rows = ["\t".join(map(_format_cell, row)) for row in islice(cursor, self.max_rows + 1)]
            changed = cursor.rowcount
            cursor.close()
        except (sqlite3.Error, sqlite3.Warning) as error:
            raise self._convert_error(error, end) from error
        except (UnicodeError, ValueError) as error:
            raise ToolError(f"the query cannot be read: {error}") from error
        return self._format_table(names, rows, changed)

    def _convert_error(self, error: Exception, end: float) -> Exception:
        if "interrupted" in str(error) and time.monotonic() > end:
            return ToolError(f"the statement took longer than {self.timeout:g} s and was stopped")
        if "not authorized" in str(error) or "readonly" in str(error) or "query_only" in str(error):
            what = "it may only read" if self.mode == "read" else "it may not access other files or change settings"
            return ToolError(f"the statement is not allowed: {what} ({error})")
        if str(error).startswith(("file is not a database", "disk I/O error", "database disk image")):
            return ToolFailure(f"the database failed: {error}")
        if "user-defined function" in str(error):
            return ToolError("printf and format take no width or precision that is * or has more than three digits")
        return ToolError(str(error))

    def _authorize(self, action: int, one: str | None, two: str | None, database: str | None, trigger: str | None) -> int:
        if action == sqlite3.SQLITE_PRAGMA and (one or "").lower() in READ_PRAGMAS:
            return sqlite3.SQLITE_OK
        if action in FORBIDDEN_ACTIONS or (
            action == sqlite3.SQLITE_FUNCTION and (two or "").lower() in ("load_extension", "edit", "fts3_tokenizer")
        ):
            return sqlite3.SQLITE_DENY
        return sqlite3.SQLITE_OK if self.mode == "scratch" or action in READ_ACTIONS else sqlite3.SQLITE_DENY

    def _open_file(self, path: str) -> sqlite3.Connection:
        if not Path(path).is_file():
            raise ConfigError(f"there is no database {path!r}; give the path of a SQLite file")
        connection: sqlite3.Connection | None = None
        try:
            connection = sqlite3.connect(
                f"{Path(path).resolve().as_uri()}?mode=ro", uri=True, check_same_thread=False, isolation_level=None
            )
            connection.execute("select count(*) from sqlite_schema").fetchone()
        except sqlite3.Error as error:
            if connection is not None:
                connection.close()
            raise ConfigError(f"{path!r} cannot be opened as a SQLite database: {error}") from error
        return connection

    def _create_scratch(self, script: str, path: str) -> sqlite3.Connection:
        connection = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
        try:
            if script:
                connection.executescript(script)
            else:
                source = self._open_file(path)
                source.backup(connection)
                source.close()
            connection.execute(f"pragma max_page_count = {MAX_SCRATCH_PAGES}")
        except (sqlite3.Error, ConfigError) as error:
            connection.close()
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(f"the script of the tool 'sql' does not run: {error}") from error
        return connection

    def _format_table(self, names: list[str], rows: list[str], changed: int) -> str:
        if not names:
            return f"{changed} rows changed." if changed >= 0 else "Done."
        lines = ["\t".join(names), *rows[: self.max_rows]]
        if not rows:
            lines.append("[no rows]")
        elif len(rows) > self.max_rows:
            lines.append(f"[more than {self.max_rows} rows; the rest is not shown]")
        return "\n".join(lines)


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


make = Sql
