"""Output of the commands: tables, text and JSON go to stdout, progress and errors to stderr."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text


def make_stdout_console() -> Console:
    """Make the console for standard output, as wide as the terminal or COLUMNS; a pipe gets up to 200 columns and no wrapped lines."""
    return _make_console(stderr=False)


def make_stderr_console() -> Console:
    """Make the console for standard error (progress, warnings, errors), as wide as the terminal or COLUMNS."""
    return _make_console(stderr=True)


def _make_console(*, stderr: bool) -> Console:
    known = (sys.stderr if stderr else sys.stdout).isatty() or os.environ.get("COLUMNS", "").isdecimal()
    return Console(stderr=stderr, highlight=False, soft_wrap=not known, width=None if known else 200)


def print_json(value: Any) -> None:
    """Print a value as one line of JSON; NaN is an error."""
    print(json.dumps(value, ensure_ascii=False, allow_nan=False, default=str), flush=True)


def make_facts_table(rows: Iterable[tuple[str, str]]) -> Table:
    """Make a table of names and values."""
    made = Table.grid(padding=(0, 3))
    for name, value in rows:
        made.add_row(Text(name, style="dim"), Text(value))
    return made


def make_status_mark(ok: bool) -> Text:
    """Make a tick or a cross."""
    return Text("✓", style="green") if ok else Text("✗", style="bold red")
