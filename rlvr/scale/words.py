"""The last words of a process: what it printed before it ended, and how it ended."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import suppress

LAST_BYTES, LAST_LINES = 16_384, 30
"""How much of what a process printed is kept."""


def log_of() -> str:
    """The file into which Ray writes what this process prints as an error; empty if it is not known."""
    with suppress(OSError):
        if os.path.isfile(path := os.readlink("/proc/self/fd/2")):
            return path
    return ""


def last_lines(log: str) -> list[str]:
    """The last lines of a file, without those that are meant for Ray; none if it cannot be read.

    >>> last_lines("/no/such/file")
    []
    """
    try:
        with open(log, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - LAST_BYTES))
            lines = file.read(LAST_BYTES).decode("utf-8", "replace").splitlines()
    except (OSError, ValueError):
        return []
    return [line[:300] for line in lines if line and not line.startswith((":job_id:", ":actor_name:"))][-LAST_LINES:]


def ending(said: str, words: Sequence[str]) -> str:
    """How a process ended, from what Ray says and from the last lines that it printed. Ray does not know a signal that was not caught.

    >>> ending("... Worker exits with an exit code 3.", [])
    'exit code 3'
    >>> ending("... error code 2. End of file. Some common causes include ...", ["Fatal Python error: Segmentation fault"])
    'Fatal Python error: Segmentation fault'
    >>> ending("... error code 2. End of file. Some common causes include ...", [])
    'it ended without a word, as by SIGKILL, which the system also sends for want of memory'
    """
    if fatal := [line for line in words if line.startswith("Fatal Python error")]:
        return fatal[-1]
    if "receives a SIGTERM" in said:
        return "SIGTERM"
    if found := re.search(r"exit code -?\d+", said):
        return found.group()
    if "End of file" in said:
        return "it ended without a word, as by SIGKILL, which the system also sends for want of memory"
    return " ".join(said.split()).split(". ")[0][:200]
