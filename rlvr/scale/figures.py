"""What the collectors of a run do with their time, and what was lost: counted by the driver, read once a step."""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable

STATES = ("sampling", "loading", "idle", "starting")
"""What a collector does at a time. One that was lost and is not started again does nothing."""
COUNTS = ("again", "lost", "given_up", "weights_bytes", "audited", "differing")
"""What is counted: calls sampled again, collectors lost, calls given up, bytes of weights that were sent to collectors,
and calls that two collectors sampled, and how many of these differ."""


class Figures:
    """The share of time that collectors spent in each state, and counts, since they were read last.

    The trainer reads while another thread samples, so there is a lock.

    >>> figures = Figures(collectors=1, clock=iter([0.0, 0.0, 2.0, 8.0]).__next__)
    >>> figures.turns("c0.0", "starting"); figures.turns("c0.0", "sampling"); figures.count("again")
    >>> found = figures.of_step()
    >>> found["cluster/sampling"], found["cluster/starting"], found["cluster/collectors"], found["cluster/again"]
    (0.75, 0.25, 0.75, 1.0)
    """

    def __init__(self, collectors: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.collectors, self.clock = collectors, clock
        self.judging: Callable[[], float] | None = None
        """The share of the threads of judge hosts that are busy; None: there are no such hosts."""
        self._lock = threading.Lock()
        self._states = dict[str, tuple[str, float]]()
        """By collector: its state, and since when it is counted."""
        self._spent, self._counts = defaultdict[str, float](float), Counter[str]()
        self._since = clock()

    def turns(self, collector: str, state: str | None) -> None:
        """From now on a collector is in this state; None: it is gone, and what it says later does not count."""
        with self._lock:
            now = self.clock()
            self._spend(collector, now)
            known = self._states.pop(collector, None) is not None
            if state is not None and (known or state == "starting"):
                self._states[collector] = (state, now)

    def count(self, name: str, by: int = 1) -> None:
        """Add to a count."""
        with self._lock:
            self._counts[name] += by

    def of_step(self) -> dict[str, float]:
        """Shares of the time of all collectors since the last call, how many were there on average, and the counts."""
        with self._lock:
            now = self.clock()
            for collector in self._states:
                self._spend(collector, now)
            passed, spent, counts = now - self._since, self._spent, self._counts
            self._since, self._spent, self._counts = now, defaultdict(float), Counter()
        whole = max(passed * self.collectors, 1e-9)
        shares = {state: spent[state] / whole for state in STATES}
        there = {"collectors": self.collectors * (shares["sampling"] + shares["loading"] + shares["idle"])}
        if self.judging is not None:
            there["judging"] = self.judging()
        found = shares | there | {name: float(counts[name]) for name in COUNTS}
        return {f"cluster/{name}": value for name, value in found.items()}

    def _spend(self, collector: str, now: float) -> None:
        if collector in self._states:
            state, since = self._states[collector]
            self._spent[state] += now - since
            self._states[collector] = (state, now)
