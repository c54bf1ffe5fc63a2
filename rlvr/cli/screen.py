"""Output of the commands: tables, text and JSON go to stdout, progress and errors to stderr."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rlvr.runs.tables import EscapingConsole

UNPRINTABLE = re.compile(r"[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters that JSON does not escape, signs that turn a line around, and halves of a character, which no file can hold."""


def make_stdout_console() -> Console:
    """Make the console for standard output.

    The console is as wide as the terminal or COLUMNS; a pipe gets up to 200 columns and no wrapped lines.
    """
    return _make_console(stderr=False)


def make_stderr_console() -> Console:
    """Make the console for standard error (progress, warnings, errors), as wide as the terminal or COLUMNS."""
    return _make_console(stderr=True)


def _make_console(*, stderr: bool) -> Console:
    known = (sys.stderr if stderr else sys.stdout).isatty() or os.environ.get("COLUMNS", "").isdecimal()
    return EscapingConsole(stderr=stderr, highlight=False, soft_wrap=not known, width=None if known else 200)


def print_json(value: Any) -> None:
    """Print a value as one line of JSON; NaN is an error. JSON itself escapes some of the characters that a terminal obeys, this the others."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, default=str)
    print(UNPRINTABLE.sub(lambda found: json.dumps(found[0])[1:-1], text), flush=True)


def make_facts_table(rows: Iterable[tuple[str, str]]) -> Table:
    """Make a table of names and values."""
    made = Table.grid(padding=(0, 3))
    for name, value in rows:
        made.add_row(Text(name, style="dim"), Text(value))
    return made


def make_status_mark(ok: bool) -> Text:
    """Make a tick or a cross."""
    return Text("✓", style="green") if ok else Text("✗", style="bold red")
