"""Queries on a SQLite database: read-only, or on a scratch copy per conversation."""

from __future__ import annotations

import json
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Literal

from rlvr.contracts.tool import Tool, tool
from rlvr.errors import ConfigError, ToolError, ToolInfrastructureError
from rlvr.tools import _sql_process
from rlvr.tools._sandbox_run import validate_timeout_setting

START_TIMEOUT_S = 60.0
"""Wall-clock limit for the process to open its database; and, after ten times its timeout, for a statement."""
RESET_NOTE = " The scratch copy is as it was at the start of the conversation."


class Sql(Tool):
    """Run one statement per call, with limits on time, rows and sizes. Other files cannot be accessed.

    The database is opened by a process for each conversation: any statement can be stopped, and none takes the time of this process.

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
        call_timeout_s: float = 5.0,
        max_rows: int = 100,
    ) -> None:
        """Keyword arguments are the settings.

        Args:
            path: the database file. A task may provide its own, as `database` in the data for its tools.
            script: SQL that creates the database, instead of a file. A task may provide its own, as `script`.
            mode: read denies changes; scratch gives each conversation a copy in memory that it may change.
            call_timeout_s: timeout of one statement, in seconds of processor time.
            max_rows: maximum rows of a result.
        """
        if mode not in ("read", "scratch"):
            raise ValueError(f"mode is {mode!r}; it must be read or scratch")
        if isinstance(max_rows, bool) or not isinstance(max_rows, int) or max_rows < 1:
            raise ValueError(f"max_rows is {max_rows!r}; it must be a whole number from 1")
        if path and script:
            raise ValueError("path and script are both given; give one of them")
        self.path, self.script, self.mode, self.max_rows = path, script, mode, max_rows
        self.call_timeout_s = validate_timeout_setting(call_timeout_s)
        self._database: dict[str, str] = {}
        """The database that the process opens."""
        self._process: subprocess.Popen[bytes] | None = None

    def setup(self) -> None:
        """Open the database, or create the copy."""
        data = self.context.data
        own = "database" in data or "script" in data
        path, script = (str(data.get("database", "")), str(data.get("script", ""))) if own else (self.path, self.script)
        if not path and not script:
            raise ConfigError("the tool 'sql' has no database; set path or script, or use it in an environment whose tasks provide one")
        if not script and not Path(path).is_file():
            raise ConfigError(f"there is no database {path!r}; give the path of a SQLite file")
        self._database = {"path": path, "script": script, "mode": self.mode}
        self._start_process()

    def teardown(self) -> None:
        """Close the database; a scratch copy is discarded."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    @tool
    def sql(self, query: str) -> str:
        """Run one SQL statement on the SQLite database and get its rows. The schema: select sql from sqlite_schema.

        Args:
            query: one statement.
        """
        if self._process is None:
            raise ToolInfrastructureError("the database is not open")
        asked = {"query": query, "timeout": self.call_timeout_s, "max_rows": self.max_rows}
        reply = self._request(asked, START_TIMEOUT_S + 10 * self.call_timeout_s)
        if reply is None:
            raise self._restart_process()
        if "names" in reply:
            return self._format_table(reply["names"], reply["rows"], reply["changed"])
        if "unreadable" in reply:
            raise ToolError(f"the query cannot be read: {reply['unreadable']}")
        raise self._build_late_error() if "late" in reply else self._convert_error(reply["error"])

    def _start_process(self) -> None:
        command = [sys.executable, "-I", "-S", str(_sql_process.__file__)]
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={},
                start_new_session=True,  # Ctrl-C is for this process, which decides what to stop
            )
        except OSError as error:
            raise ToolInfrastructureError(f"the process of the database did not start: {error}") from error
        reply = self._request(self._database, START_TIMEOUT_S)
        if reply is None or "config" in reply:
            self.teardown()
            raise ConfigError(reply["config"]) if reply else ToolInfrastructureError("the process of the database did not start")

    def _request(self, request: dict[str, Any], timeout_s: float) -> dict[str, Any] | None:
        """Send a request and return the reply; None if the process ended. Raises ToolInfrastructureError after the wall-clock limit."""
        assert self._process is not None and self._process.stdin is not None and self._process.stdout is not None
        poll, data, end = select.poll(), bytearray(), time.monotonic() + timeout_s
        poll.register(self._process.stdout, select.POLLIN)
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
            while not data.endswith(b"\n"):
                if not poll.poll(max(end - time.monotonic(), 0) * 1000):
                    self.teardown()
                    raise ToolInfrastructureError(f"the process of the database did not answer within {timeout_s:g} s")
                part = self._process.stdout.read1(1 << 16)  # type: ignore[attr-defined]
                if not part:
                    return None
                data += part
        except OSError:
            return None
        reply: dict[str, Any] = json.loads(data)
        return reply

    def _restart_process(self) -> Exception:
        """Start a new process after a statement that ended its own; return the error of the statement."""
        assert self._process is not None
        code = self._process.wait(START_TIMEOUT_S)
        self.teardown()
        if code == -signal.SIGKILL:
            return ToolInfrastructureError("the process of the database was killed")
        self._start_process()
        if code == -signal.SIGXCPU:
            return self._build_late_error(was_reset=self.mode == "scratch")
        return ToolError("the statement broke the process of the database." + (RESET_NOTE if self.mode == "scratch" else ""))

    def _build_late_error(self, *, was_reset: bool = False) -> ToolError:
        note = f".{RESET_NOTE}" if was_reset else ""
        return ToolError(f"the statement took longer than {self.call_timeout_s:g} s and was stopped{note}")

    def _convert_error(self, error: str) -> Exception:
        if "not authorized" in error or "readonly" in error or "query_only" in error:
            what = "it may only read" if self.mode == "read" else "it may not access other files or change settings"
            return ToolError(f"the statement is not allowed: {what} ({error})")
        if error.startswith(("file is not a database", "disk I/O error", "database disk image")):
            return ToolInfrastructureError(f"the database failed: {error}")
        if "user-defined function" in error:
            return ToolError("printf and format take no width or precision that is * or has more than three digits")
        return ToolError(error)

    def _format_table(self, names: list[str], rows: list[str], changed: int) -> str:
        if not names:
            return f"{changed} rows changed." if changed >= 0 else "Done."
        lines = ["\t".join(names), *rows[: self.max_rows]]
        if not rows:
            lines.append("[no rows]")
        elif len(rows) > self.max_rows:
            lines.append(f"[more than {self.max_rows} rows; the rest is not shown]")
        return "\n".join(lines)


make = Sql
