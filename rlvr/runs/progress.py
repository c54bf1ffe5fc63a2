"""Progress display: a bar with metrics on a terminal, plain lines in a log."""

from __future__ import annotations

import time
from collections.abc import Mapping

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

LOG_INTERVAL_S = 5.0
"""The minimum time between two log lines."""


class ProgressReporter:
    """Shows the progress of work with a known number of steps.

    >>> with ProgressReporter(Console(quiet=True), "training", total=100) as progress:
    ...     progress.advance({"reward": 0.5, "tokens/s": 900.0})
    >>> progress.num_done
    1
    """

    def __init__(self, console: Console, title: str, total: int, num_done: int = 0, *, initial_delay_s: float = 0.0) -> None:
        """`initial_delay_s` is the time before the first log line."""
        self.console, self.title, self.total, self.num_done, self.initial_delay_s = console, title, total, num_done, initial_delay_s
        self._last_log_at = 0.0
        self._started_at = time.monotonic()
        self._num_done_at_start = num_done
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
            self._task = self._bar.add_task(title, total=total, completed=num_done, numbers="")

    def reset_timer(self) -> None:
        """Restart the estimate of the remaining time, to exclude preparation."""
        self._started_at, self._num_done_at_start = time.monotonic(), self.num_done

    def advance(self, metrics: Mapping[str, float | str], num_steps: int = 1) -> None:
        """Count `num_steps` more finished steps and show the metrics."""
        self.num_done += num_steps
        text = "  ".join(f"{name} {value:.3g}" if isinstance(value, float) else f"{name} {value}" for name, value in metrics.items())
        if self._bar is not None:
            self._bar.update(self._task, completed=self.num_done, numbers=text)
            return
        now = time.monotonic()
        if now - self._started_at < self.initial_delay_s:
            return
        if now - self._last_log_at >= LOG_INTERVAL_S or self.num_done == self.total:
            self._last_log_at = now
            left = (now - self._started_at) / max(self.num_done - self._num_done_at_start, 1) * (self.total - self.num_done)
            self.console.print(f"{self.title} {self.num_done}/{self.total}  {text}  {left:.0f} s left", soft_wrap=True, highlight=False)

    def __enter__(self) -> ProgressReporter:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._bar is not None:
            self._bar.stop()
