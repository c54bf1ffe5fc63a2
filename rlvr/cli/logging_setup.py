"""The console handler of the `rlvr` loggers: what the options -q, -v and --log-file set up.

The library only logs, to `logging.getLogger("rlvr...")`; who uses it from Python decides about handlers as with any library.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path

from rlvr.errors import ConfigError, escape_control_characters

LEVEL_WORDS = {logging.DEBUG: "debug", logging.INFO: "note", logging.WARNING: "warning", logging.ERROR: "error", logging.CRITICAL: "error"}


class _ConsoleFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        word = LEVEL_WORDS.get(record.levelno, record.levelname.lower())
        place = f" [{record.name}]" if record.levelno <= logging.DEBUG else ""
        return escape_control_characters(f"{word}:{place} {super().format(record)}")  # text of a model or of a stored run may be in it


class _StderrHandler(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes to whatever `sys.stderr` is at that moment, so that a redirection is followed."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


def configure_logging(*, quiet: bool = False, verbose: bool = False, log_file: Path | None = None) -> None:
    """Send the log of `rlvr` to the console, and to a file if one is given; a second call replaces the handlers of the first.

    Args:
        quiet: warnings and errors only.
        verbose: everything, with the name of the logger.
        log_file: a file that everything is appended to, with times.
    """
    logger = logging.getLogger("rlvr")
    for handler in [handler for handler in logger.handlers if getattr(handler, "is_from_cli", False)]:
        logger.removeHandler(handler)
        handler.close()
    console: logging.Handler = _StderrHandler()
    console.setFormatter(_ConsoleFormatter("%(message)s"))
    console.setLevel(logging.WARNING if quiet else logging.DEBUG if verbose else logging.INFO)
    handlers: list[logging.Handler] = [console]
    if log_file is not None:
        try:
            log_file.parent.mkdir(parents=True, exist_ok=True)
            file = logging.FileHandler(log_file, encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"--log-file {log_file} cannot be written: {error.strerror}; choose another file") from error
        file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
        handlers.append(file)
    for handler in handlers:
        handler.is_from_cli = True  # type: ignore[attr-defined]
        logger.addHandler(handler)
    logger.setLevel(logging.DEBUG if verbose or log_file else logging.INFO)
    logger.propagate = True
