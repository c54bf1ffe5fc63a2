"""Ctrl-C and SIGTERM during a run: the first one ends it after its step, with a checkpoint unless run health stops it; the second one at once."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import current_thread, main_thread
from types import FrameType
from typing import Any

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopSignals:
    """Receives the signals that ask a run to stop. Outside of `receive`, signals do what they did before."""

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        """The signal that asks for a stop after the step; None if there was none."""

    @contextmanager
    def receive(self, describe: Callable[[], str]) -> Iterator[None]:
        """Receive signals inside the block. `describe` returns what is said at the first one; empty: nothing.

        Handlers of the caller are left in place, and only the main thread can receive signals.
        """
        self.received = None
        if current_thread() is not main_thread():
            yield
            return

        def handle(number: int, frame: FrameType | None) -> None:
            if self.received == number:  # a launcher sends SIGTERM after Ctrl-C: another signal is not the second one
                raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)
            if self.received is None:
                self.received = signal.Signals(number)
                os.write(2, describe().encode())  # print and logging may be in the middle of a line, and are not reentrant

        replaced = {number: signal.getsignal(number) for number in STOP_SIGNALS if _is_replaceable(signal.getsignal(number))}
        for number in replaced:
            signal.signal(number, handle)
        try:
            yield
        finally:
            for number, before in replaced.items():
                signal.signal(number, before)


def _is_replaceable(handler: Any) -> bool:
    """Whether a handler is Python's own, or one of rlvr."""
    is_own = str(getattr(handler, "__module__", "")).partition(".")[0] == "rlvr"
    return handler in (signal.SIG_DFL, signal.default_int_handler) or is_own
