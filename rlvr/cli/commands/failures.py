"""Error messages of the command line and its exit codes.

Exit codes: 0 success, 1 a check failed or a score is missing, 2 wrong usage or settings, 3 an error inside rlvr.
An error is one message on standard error, without a traceback; RLVR_TRACEBACK=1 shows the traceback.
"""

from __future__ import annotations

import errno
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlvr.conformance.plugin_location import find_plugin_location
from rlvr.errors import RlvrError, escape_control_characters

logger = logging.getLogger(__name__)
EXIT_INTERRUPTED, EXIT_SIGNAL_BASE = 130, 128
"""The exit code after Ctrl-C, and the number that is added to the number of another signal that ended a command."""

PATH_ERRORS = frozenset(
    (
        *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENOTEMPTY),
        *(errno.ENAMETOOLONG, errno.ELOOP),
    )
)
"""The errors of the system that are about a path which the user gave, and not about rlvr."""
PACKAGE_FOLDER = Path(__file__).resolve().parents[2]


def report_exception(error: Exception | SystemExit, arguments: Sequence[str] = ()) -> int:
    """Print the message of an exception of a command line, and what was noted on its way; return the exit code."""
    code = _report_message(error, arguments)
    for note in getattr(error, "__notes__", ()):
        print_failure(note, code)
    return code


def translate_arguments(error: BaseException, arguments: Sequence[str]) -> list[str] | None:
    """Return the arguments of a command line as they are written here, and log them, if an error is about words of other tools that all mean
    exactly a word here; else None. Nothing of the command has run then.
    """
    if not callable(getattr(error, "format_message", None)):
        return None
    from rlvr.cli.commands.usage_errors import quote, translate_command_line

    meant = translate_command_line(error, arguments)
    if meant is not None:
        logger.info("read as: %s", " ".join(["rlvr", *map(quote, meant)]))
    return meant


def _report_message(error: Exception | SystemExit, arguments: Sequence[str]) -> int:
    if isinstance(error, RlvrError):
        return print_failure(f"error: {error}", error.exit_code)
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        where = f" (writing {error.filename})" if error.filename else ""
        return print_failure(f"error: the disk is full{where}; free some space and resume: rlvr train --resume, or the same rlvr eval", 3)
    if place := find_plugin_location(error):
        words = " ".join(str(error).split())
        return print_failure(
            f"error: a plugin raised {type(error).__name__}: {words:.400} ({place}); RLVR_TRACEBACK=1 shows the traceback", 2
        )
    if isinstance(error, OSError) and error.errno in PATH_ERRORS and _is_outside_of_package(error.filename):
        return print_failure(
            f"error: {os.fsdecode(error.filename)} cannot be read or written: {error.strerror}; name a file or folder that can be, or "
            "change its permissions",
            2,
        )
    if isinstance(error, SystemExit):  # after a signal, or raised by Typer because the reader closed the pipe
        return error.code if isinstance(error.code, int) and error.code > EXIT_SIGNAL_BASE else 0
    if type(error).__name__ == "Abort":
        return print_failure("stopped", EXIT_INTERRUPTED)
    if callable(getattr(error, "format_message", None)):  # Typer's own errors about the arguments
        from rlvr.cli.commands.usage_errors import format_usage_error

        return print_failure(f"error: {format_usage_error(error, arguments)}", 2)
    return print_failure(
        f"internal error: {type(error).__name__}: {error}\nThis is a bug in rlvr; RLVR_TRACEBACK=1 shows the traceback.", 3
    )


def _is_outside_of_package(path: Any) -> bool:
    """Whether an error names a path, and the path is not one of rlvr's own files."""
    if not isinstance(path, str | bytes | os.PathLike):
        return False
    return not Path(os.fsdecode(path)).absolute().is_relative_to(PACKAGE_FOLDER)


def print_failure(message: str, exit_code: int) -> int:
    """Print a message on standard error and return the exit code."""
    print(escape_control_characters(message), file=sys.stderr, flush=True)
    return exit_code
