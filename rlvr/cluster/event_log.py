"""The event log of a cluster run: `rollout_workers.jsonl` in its folder, with a row for each lost worker, failed task and resume.

A resumed run appends to the log, and no row is ever removed.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

FILE_NAME = "rollout_workers.jsonl"
MAX_MESSAGE_CHARACTERS = 1_000
"""The end of a message of another process that is shown."""
MAX_LOG_BYTES, MAX_LOG_LINES = 16_384, 30
"""Limits of the log lines of a process that are kept."""


class EventLog:
    """Append rows to the event log of a run. Rows are held in memory until the run has a folder."""

    def __init__(self, folder: Path | None, start_file: str = "config.yaml") -> None:
        """`start_file`: the file that is not empty once the run has started."""
        self.folder, self.start_file = folder, start_file
        self._pending = list[Mapping[str, Any]]()

    def add(self, event: str, **facts: Any) -> None:
        """Add a row."""
        self._pending.append({"time": datetime.now(UTC).isoformat(timespec="milliseconds"), "event": event, **facts})
        self.flush()

    def flush(self) -> None:
        """Write the held rows, if the run has started. Write errors are ignored here: the other logs of the run raise them."""
        if self.folder is None or not self._pending:
            return
        path = self.folder / FILE_NAME
        try:
            if not (self.folder / self.start_file).stat().st_size or (path.exists() and not path.is_file()):
                return  # opening a pipe would wait for ever
            with path.open("a", encoding="utf-8", errors="backslashreplace") as file:
                file.writelines(json.dumps(row, ensure_ascii=False, default=str) + "\n" for row in self._pending)
        except OSError:
            return
        self._pending.clear()


def find_ray_stderr_file() -> str:
    """Find the file into which Ray redirects the standard error of this process; empty if unknown."""
    with suppress(OSError):
        if os.path.isfile(path := os.readlink("/proc/self/fd/2")):
            return path
    return ""


def find_ray_log_folder() -> str:
    """Find the folder of this session in which Ray keeps the logs of the processes on this machine; empty if unknown."""
    node = getattr(sys.modules.get("ray._private.worker"), "_global_node", None)
    with suppress(Exception):  # not a public function of Ray
        return str(node.get_logs_dir_path()) if node is not None else ""
    return ""


def read_last_log_lines_in(folder: str, log_path: str) -> list[str]:
    """Read the last lines of a log if it is a regular file under this folder; none otherwise.

    >>> read_last_log_lines_in("/tmp", "/etc/hostname")
    []
    """
    try:
        found = os.path.realpath(log_path)
        allowed = bool(folder) and Path(found).is_relative_to(os.path.realpath(folder)) and os.path.isfile(found)
    except (OSError, ValueError):
        return []
    return read_last_lines(found) if allowed else []


def limit_log_lines(lines: object) -> list[str]:
    """Return lines that another process has sent as the last of its log, within the limits; none if they are not lines.

    >>> limit_log_lines(["x", 5]), limit_log_lines(["y" * 400]) == ["y" * 300]
    ([], True)
    """
    if not isinstance(lines, list) or not all(isinstance(line, str) for line in lines):
        return []
    return [line[:300] for line in lines[-MAX_LOG_LINES:]]


def read_last_lines(log_path: str) -> list[str]:
    """Read the last lines of a file, without the marker lines of Ray; none if the file cannot be read.

    >>> read_last_lines("/no/such/file")
    []
    """
    try:
        with open(log_path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - MAX_LOG_BYTES))
            lines = file.read(MAX_LOG_BYTES).decode("utf-8", "replace").splitlines()
    except (OSError, ValueError):
        return []
    return [line[:300] for line in lines if line and not line.startswith((":job_id:", ":actor_name:"))][-MAX_LOG_LINES:]


def make_printable(text: str) -> str:
    r"""Return a text of another process on one line, without control characters, and shortened: a terminal would obey them.

    >>> make_printable("no\x1b[2J such\n file")
    'no [2J such file'
    """
    line = " ".join("".join(c if c.isprintable() else " " for c in text[-MAX_MESSAGE_CHARACTERS:]).split())
    return line if len(text) <= MAX_MESSAGE_CHARACTERS else f"...{line}"


def read_message(error: BaseException) -> str:
    """Return the message of an error; empty if the error, which may come from another process, cannot say it."""
    try:
        return str(error)
    except (Exception, SystemExit):
        return ""


def describe_raised(error: BaseException) -> str:
    r"""Return the type and the message of what another process has raised, in one line.

    >>> describe_raised(ValueError("no such\nfile"))
    'ValueError: no such file'
    """
    name, message = type(error).__name__[:100], " ".join(read_message(error).split())[-300:]
    return make_printable(f"{name}: {message}" if message else name)


class CommonErrorDetector:
    """The errors of rlvr with which processes fail before any has succeeded. One that two slots have says that all would fail so.

    A single process that fails, or lies, must not end a run that others could go on with.

    >>> errors = CommonErrorDetector(num_slots=3)
    >>> [errors.record_and_check_shared(slot, "no such file") for slot in ("0", "0", "1")]
    [False, False, True]
    """

    def __init__(self, num_slots: int) -> None:
        self.num_needed, self._slots_by_error = min(2, num_slots), defaultdict[str, set[str]](set)

    def record_and_check_shared(self, slot: str, error: str) -> bool:
        """Add the error of a process, and return whether another slot has had the same one; with one slot, True."""
        self._slots_by_error[error].add(slot)
        return len(self._slots_by_error[error]) >= self.num_needed


def describe_exit(ray_message: str, log_lines: Sequence[str]) -> str:
    """Describe how a process ended, from the message of Ray and its last log lines. Ray does not know the signal.

    >>> describe_exit("... WorkerProcess exits with an exit code 3.", [])
    'exit code 3'
    >>> describe_exit("... error code 2. End of file. Some common causes include ...", ["Fatal Python error: Segmentation fault"])
    'Fatal Python error: Segmentation fault'
    >>> describe_exit("... error code 2. End of file. Some common causes include ...", [])
    'it ended without a message, as by SIGKILL, which the system also sends when memory runs out'
    """
    if fatal := [line for line in log_lines if line.startswith("Fatal Python error")]:
        return fatal[-1]
    if "receives a SIGTERM" in ray_message:
        return "SIGTERM"
    if found := re.search(r"exit code -?\d+", ray_message):
        return found.group()
    if "End of file" in ray_message:
        return "it ended without a message, as by SIGKILL, which the system also sends when memory runs out"
    return extract_ray_error(ray_message)


def extract_ray_error(ray_message: str) -> str:
    r"""Extract the cause from a message of Ray: the error below a traceback, otherwise the first sentence.

    >>> extract_ray_error("The actor died because of an error in its creation task, ray::A()\n  File ...\nValueError: no such device\n")
    'ValueError: no such device'
    >>> extract_ray_error("The actor died. See the logs.")
    'The actor died'
    """
    errors = [line for line in ray_message.splitlines() if re.match(r"[\w.<>]+: ", line)]
    if errors and ("ray::" in ray_message or "Traceback" in ray_message):
        return errors[-1][:300]
    return " ".join(ray_message.split()).split(". ")[0][:200]
