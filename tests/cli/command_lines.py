"""Read a command line, or one of a message, without running it."""

from __future__ import annotations

import shlex
from typing import Any

import typer

from rlvr.cli.commands import app
from rlvr.cli.commands.usage_errors import quote, translate_command_line

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


def read_command_line(line: str) -> str:
    """Return the line as which a command line is read and run, without `rlvr`; "" if it is refused.

    >>> read_command_line("check --env gsm8k"), read_command_line("check --env gsm8k --colour red")
    ('check env gsm8k', '')
    """
    name, *words = arguments = shlex.split(line)
    try:
        GROUP.commands[name].make_context(name, words, parent=GROUP.context_class(GROUP, info_name="rlvr"))
    except Exception as error:
        meant = translate_command_line(error, arguments)
        return "" if meant is None else " ".join(map(quote, meant))
    return line
