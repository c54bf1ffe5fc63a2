"""Progress display: a bar with metrics on a terminal, plain lines in a log."""

from __future__ import annotations

import time
from collections.abc import Mapping

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

QUIET_SECONDS = 5.0
"""The minimum time between two log lines."""


class Work:
    """Shows the progress of work with a known number of steps.

    >>> with Work(Console(), "training", total=100) as work:              # doctest: +SKIP
    ...     work.advance({"reward": 0.5, "tokens/s": 900.0})
    """

    def __init__(self, console: Console, title: str, total: int, done: int = 0, *, patience_s: float = 0.0) -> None:
        """`patience_s` is the time before the first log line."""
        self.console, self.title, self.total, self.done, self.patience_s = console, title, total, done, patience_s
        self._said = 0.0
        self._began = time.monotonic()
        self._first = done
        self._bar = None
        if console.is_terminal:
            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
                TextColumn("{task.fields[numbers]}"),
            )
            self._bar = Progress(*columns, console=console)
            self._task = self._bar.add_task(title, total=total, completed=done, numbers="")

    def prepared(self) -> None:
        """Restart the estimate of the remaining time, to exclude preparation."""
        self._began, self._first = time.monotonic(), self.done

    def advance(self, numbers: Mapping[str, float | str], by: int = 1) -> None:
        """Count `by` finished steps and show the numbers."""
        self.done += by
        text = "  ".join(f"{name} {value:.3g}" if isinstance(value, float) else f"{name} {value}" for name, value in numbers.items())
        if self._bar is not None:
            self._bar.update(self._task, completed=self.done, numbers=text)
            return
        now = time.monotonic()
        if now - self._began < self.patience_s:
            return
        if now - self._said >= QUIET_SECONDS or self.done == self.total:
            self._said = now
            left = (now - self._began) / max(self.done - self._first, 1) * (self.total - self.done)
            self.console.print(f"{self.title} {self.done}/{self.total}  {text}  {left:.0f} s left", soft_wrap=True, highlight=False)

    def __enter__(self) -> Work:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._bar is not None:
            self._bar.stop()
