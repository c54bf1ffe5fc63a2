"""Metrics of a cluster: how rollout workers spend their time, and counts of losses. The driver counts; the trainer reads once per step."""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable

WORKER_STATES = ("sampling", "loading", "idle", "starting")
"""The states of a worker. A lost worker that is not restarted has none."""
COUNTERS = ("retried_tasks", "workers_lost", "abandoned_tasks", "weights_bytes", "audited_tasks", "differing_tasks")
"""The counters: retried tasks, lost workers, failed tasks, bytes of weights sent to workers, tasks that two workers sampled,
and how many of these differ."""


class ClusterMetrics:
    """The share of time that workers spent in each state, and counters, since the last reading.

    A lock protects them, since the trainer reads while another thread samples.

    >>> metrics = ClusterMetrics(num_workers=1, clock=iter([0.0, 0.0, 2.0, 8.0]).__next__)
    >>> metrics.set_state("c0.0", "starting"); metrics.set_state("c0.0", "sampling"); metrics.add_count("retried_tasks")
    >>> found = metrics.take_step_metrics()
    >>> found["cluster/sampling_fraction"], found["cluster/starting_fraction"], found["cluster/rollout_workers"], found["cluster/retried_tasks"]
    (0.75, 0.25, 0.75, 1.0)
    """

    def __init__(self, num_workers: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.num_workers, self.clock = num_workers, clock
        self.get_verifier_load: Callable[[], float] | None = None
        """Returns the share of busy threads of the verifier workers; None: there are no verifier workers."""
        self._lock = threading.Lock()
        self._states = dict[str, tuple[str, float]]()
        """For each worker: its state, and since when that is counted."""
        self._seconds_by_state, self._counts = defaultdict[str, float](float), Counter[str]()
        self._since = clock()

    def set_state(self, worker: str, state: str | None) -> None:
        """Set the state of a worker; None: the worker is gone, and later states are ignored until it starts."""
        with self._lock:
            now = self.clock()
            self._add_time(worker, now)
            known = self._states.pop(worker, None) is not None
            if state is not None and (known or state == "starting"):
                self._states[worker] = (state, now)

    def add_count(self, name: str, by: int = 1) -> None:
        """Add to a counter."""
        with self._lock:
            self._counts[name] += by

    def take_step_metrics(self) -> dict[str, float]:
        """Return the shares of time since the last call, the average number of workers, and the counters; reset them."""
        with self._lock:
            now = self.clock()
            for worker in self._states:
                self._add_time(worker, now)
            passed, spent, counts = now - self._since, self._seconds_by_state, self._counts
            self._since, self._seconds_by_state, self._counts = now, defaultdict(float), Counter()
        whole = max(passed * self.num_workers, 1e-9)
        shares = {state: spent[state] / whole for state in WORKER_STATES}
        there = {"rollout_workers": self.num_workers * (shares["sampling"] + shares["loading"] + shares["idle"])}
        if self.get_verifier_load is not None:
            there["verifier_busy_fraction"] = self.get_verifier_load()
        fractions = {f"{state}_fraction": share for state, share in shares.items()}
        found = fractions | there | {name: float(counts[name]) for name in COUNTERS}
        return {f"cluster/{name}": value for name, value in found.items()}

    def _add_time(self, worker: str, now: float) -> None:
        if worker in self._states:
            state, since = self._states[worker]
            self._seconds_by_state[state] += now - since
            self._states[worker] = (state, now)
