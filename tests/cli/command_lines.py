"""Read a command line of a message without running it."""

from __future__ import annotations

import shlex
from typing import Any

import typer

from rlvr.cli.commands import app

GROUP: Any = typer.main.get_command(app)


def find_command_fault(line: str) -> str:
    """Say why a command line of a message would be refused, or ""; words in capitals stand for values, and `...` for anything.

    >>> find_command_fault("rlvr compare DIR DIR"), find_command_fault("rlvr compare DIR")
    ('', "rlvr compare DIR: Missing argument 'B'")
    """
    name, *words = [word for word in shlex.split(line)[1:] if word != "..."]
    if name.startswith("-"):
        known = {opt for parameter in GROUP.params for opt in parameter.opts} | {"--help", "-h"}
        return "" if name in known else f"{line}: no option {name}"
    if name not in GROUP.commands:
        return f"{line}: no command {name}"
    try:
        GROUP.commands[name].make_context(f"rlvr {name}", words, parent=GROUP.context_class(GROUP))
    except Exception as error:  # any error of reading the arguments; Typer's classes are not the same in its versions
        said: Any = getattr(error, "format_message", error.__str__)
        return "" if type(error).__name__ == "Exit" else f"{line}: {said().rstrip('.')}"
    return ""
