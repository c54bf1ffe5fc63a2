"""The driver: sends the commands of the work scheduler to the rollout workers, and restarts lost workers.

Several rollouts can be pending. Any thread can start a rollout or send weights. Of the threads that wait, one at a time uses the
transport, for all of them.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Self

from rlvr.config.cluster import ClusterConfig
from rlvr.contracts import Sampling
from rlvr.episode import Episode
from rlvr.errors import CollectorsLost, RlvrError, SamplerError
from rlvr.rollout.columns import Columns, Damaged, from_columns
from rlvr.rollout.draws import Draw
from rlvr.rollout.timing import Timing
from rlvr.scale.checks.compared import again, answer_of, comparable, difference, is_again, twice
from rlvr.scale.figures import Figures
from rlvr.scale.orders import Again, Assign, Cancel, Drop, GiveUp, Keep, Load, Order
from rlvr.scale.pool import Pool
from rlvr.scale.record import Record
from rlvr.scale.transport import Ended, Event, Loaded, Lost, Started, Transport
from rlvr.scale.units import Unit, check_found, given_up, units_of
from rlvr.scale.weights.parcels import Parcel

NOTHING = Parcel(())
"""Placeholder for the weights of a sampler that loads none."""
POLL_S = 0.05
"""How long to wait for an event before the timeouts and the requests of other threads are checked."""


@dataclass(slots=True, eq=False)
class Batch:
    """Handle to draws that are being sampled, by one version of the weights."""

    driver: Driver
    units: dict[str, Unit]
    sampling: Sampling
    label: int
    """The policy version that is written into the episodes."""
    weights: int
    """The driver's number of the weights: counts all weights that were sent."""
    timing: Timing = field(default_factory=Timing)
    began: float = field(default_factory=time.perf_counter)
    found: dict[str, list[Episode]] = field(default_factory=dict)
    done: threading.Event = field(default_factory=threading.Event)
    by: dict[str, str] = field(default_factory=dict)
    """For each task: the worker that sampled it."""
    audit: Batch | None = None
    """A second sampling of some of the tasks, to compare with the first (`cluster.audit`)."""

    def result(self) -> list[Episode]:
        """Wait for the episodes, one for each draw, in order. SamplerError if no worker is left."""
        self.driver.wait(self)
        if self.audit is not None:
            self.driver.wait(self.audit)
            self.driver.compare(self, self.audit)
            self.audit = None  # compare only once
        return [episode for name in self.units for episode in self.found[name]]


class Driver:
    """Sample draws with rollout workers. Lost workers do not change the result."""

    def __init__(
        self, transport: Transport, settings: ClusterConfig, *, tell: Callable[[str], None] = print, record: Record | None = None
    ) -> None:
        self.transport, self.settings, self.tell = transport, settings, tell
        self.figures, self.record = Figures(settings.collectors), record or Record(None)
        self.pool = Pool(
            group_s=settings.group_s, load_s=settings.start_s, most_losses=settings.losses, backups=settings.backups
        )  # fmt: skip
        self.again, self.lost, self.given_up = 0, 0, 0
        """In the whole run: retried tasks, lost workers, and failed tasks."""
        self.closed = False
        """Whether all waiting threads must stop."""
        self._version, self._calls = -1, 0
        self._turn, self._todo = threading.Lock(), deque[Callable[[], None]]()
        """The thread with the lock uses the transport and runs the deferred functions of other threads."""
        self._starts = dict.fromkeys(range(settings.collectors), 0)
        self._starting = dict[str, float]()
        """For each starting worker: when it must be ready."""
        self._has = dict[str, str | None]()
        """For each worker: the first group of its current or last task."""
        self._batches, self._last = dict[str, Batch](), ""
        """For each task: the rollout that waits for it; and the reason of the last loss."""
        for slot in self._starts:
            self._start(slot)

    def load(self, parcel: Parcel = NOTHING) -> None:
        """Send new weights for all later rollouts. Does not block: no worker gets a task before it has loaded them."""
        self._version += 1
        self.transport.hold(self._version, parcel)  # in this thread: after the return the trainer may change the weights
        self._soon(partial(self._made, self._version))

    def begin(self, draws: Sequence[Draw], sampling: Sampling, *, version: int = 0, whole: bool = False) -> Batch:
        """Start to sample one episode for each draw, by the last weights and after all earlier rollouts. Does not block.

        Some thread must wait for a rollout: only waiting threads handle events. `version` is the policy version that is written into the
        episodes; `whole` samples all draws in one task.
        """
        if self._version < 0:
            self.load()
        self._calls += 1
        cut = [list(draws)] if whole else units_of(draws, self.settings.groups_per_call)
        units = {f"{self._calls}:{place}": unit for place, unit in enumerate(cut)}
        batch = Batch(self, units, sampling, version, self._version)
        self._soon(partial(self._ask, batch))
        if chosen := twice(units, self.settings.audit):
            batch.audit = Batch(self, chosen, sampling, version, self._version)
            self._soon(partial(self._ask, batch.audit))
        return batch

    def collect(self, draws: Sequence[Draw], sampling: Sampling, *, version: int = 0) -> list[Episode]:
        """Return one episode for each draw, in order, with this policy version. SamplerError if no worker is left."""
        return self.begin(draws, sampling, version=version).result()

    def come_up(self) -> None:
        """Wait until a worker has started. RlvrError if none can start."""
        with self._turn:
            while not self.pool.workers:
                self._catch_up()
                self._look()

    def wait(self, *batches: Batch) -> Batch:
        """Wait until one of these rollouts is complete, and return it. All others go on."""
        while (found := next((batch for batch in batches if batch.done.is_set()), None)) is None:
            if not self._turn.acquire(blocking=False):  # another thread uses the transport
                batches[0].done.wait(POLL_S)
                continue
            try:
                while not any(batch.done.is_set() for batch in batches):
                    self._catch_up()
                    self._look()
            finally:
                self._turn.release()
        return found

    def compare(self, batch: Batch, audit: Batch) -> None:
        """Count and log the completions that differ between two workers."""
        self._soon(partial(self._compare, batch, audit))

    def close(self) -> None:
        """End all workers."""
        self.record.write()
        self.transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    # ---- requests of other threads

    def _soon(self, work: Callable[[], None]) -> None:
        """Run a function now, or defer it to the thread that uses the transport."""
        self._todo.append(work)
        if self._turn.acquire(blocking=False):
            try:
                self._catch_up()
            finally:
                self._turn.release()

    def _catch_up(self) -> None:
        while self._todo:
            self._todo.popleft()()

    def _made(self, version: int) -> None:
        orders = self.pool.made(version)
        self.transport.keep(self.pool.needed)
        self._follow(orders)

    def _ask(self, batch: Batch) -> None:
        self._batches |= dict.fromkeys(batch.units, batch)
        self._follow(self.pool.ask(batch.units, batch.weights))
        self._ended_if_complete(batch)

    def _take(self, name: str, found: list[Episode], seconds: float = 0.0, *, by: str | None = None) -> None:
        """Store the episodes of a task; `by`: the worker that sampled them."""
        batch = self._batches.pop(name)
        if by is not None:
            batch.by[name] = by
        batch.found[name] = found
        batch.timing.judged.append((0.0, seconds))
        self._ended_if_complete(batch)

    def _ended_if_complete(self, batch: Batch) -> None:
        if len(batch.found) == len(batch.units):
            batch.timing.sampling = time.perf_counter() - batch.began
            batch.done.set()

    def _compare(self, batch: Batch, audit: Batch) -> None:
        for name, first in batch.by.items():
            second = audit.by.get(again(name), first)
            if second == first:
                continue  # the same worker sampled both, or one of the two failed
            both = batch.found[name], audit.found[again(name)]
            pairs = {at: pair for at, pair in enumerate(zip(*both, strict=True)) if comparable(*pair)}
            if not pairs:
                continue
            self.figures.count("audited")
            unlike = {at: what for at, pair in pairs.items() if (what := difference(*map(answer_of, pair)))}
            if not unlike:
                continue
            self.figures.count("differing")
            group, count, what = both[0][min(unlike)].group, f"{len(unlike)} of {len(both[0])} completions", unlike[min(unlike)]
            evidence = [[answer_of(episodes[at])._asdict() for at in unlike] for episodes in both]
            self.record.add("differs", group=group, version=batch.label, collectors=[first, second], answers=unlike, sampled=evidence)
            self.tell(
                f"rollout workers {first} and {second} sample group {group} differently: in {count}, first {what}; one of them computes "
                "wrongly, or their machines have different hardware; both completions are in collectors.jsonl"
            )

    # ---- events

    def _look(self) -> None:
        """Wait for events, execute the commands that follow from them, and check the timeouts."""
        for event in self.transport.poll(POLL_S):
            self._happened(event)
        if self.closed:
            raise SamplerError("the rollout workers were closed while they sampled")
        now = time.monotonic()
        self._follow(self.pool.late(now))
        for worker in [worker for worker, until in self._starting.items() if now > until]:
            self._gone(Lost(worker, f"it was not ready after {self.settings.start_s:g} s (cluster.startup_timeout_s)"))
        if not self.pool.workers and not self._starting:
            raise CollectorsLost(
                f"no rollout worker is left: each was started {self.settings.restarts + 1} times; the last one was lost: {self._last}; "
                "fix the cause, then continue with --resume (an evaluation: with the same command)"
            )

    def _happened(self, event: Event) -> None:
        match event:
            case Started(worker):
                self.figures.turns(worker, "idle")
                if self._starting.pop(worker, None) is not None:
                    self._follow(self.pool.joined(worker, None))
            case Loaded(order):
                self.figures.turns(order.worker, "idle")
                self._follow(self.pool.loaded(order))
            case Ended(order, data, seconds):
                self.figures.turns(order.worker, "idle")
                self._ended(order, data, seconds)
            case Lost():
                self._gone(event)

    def _ended(self, order: Assign, data: bytes, seconds: float) -> None:
        """Handle the result of a task. If the result cannot be read, its worker is replaced and the run goes on."""
        name = str(order.group)
        unit = self._batches[name].units[name] if name in self._batches else None
        try:
            if unit is not None and not data:
                raise Damaged(f"task {order.group} came back without episodes, although it was not cancelled")
            [found] = from_columns(Columns.from_bytes(data)) if data else [[]]
            if unit is not None:
                check_found(name, unit, found)
        except Damaged as error:
            self._gone(Lost(order.worker, str(error)))
            return
        orders = self.pool.ended(order)
        self._follow(orders)
        if Keep(order) in orders:
            self._take(name, found, seconds, by=order.worker)

    def _gone(self, event: Lost) -> None:
        """Handle the loss of a worker: end its process, sample its task elsewhere, and restart it."""
        if event.worker not in self._has:
            return  # already handled, for another reason
        self._starting.pop(event.worker, None)
        orders = [] if event.hopeless else self.pool.lost(event.worker, event.why, blame=event.blame)
        self._replace(event.worker, event.why, hopeless=event.hopeless)
        self._follow(orders)

    def _replace(self, worker: str, why: str, *, hopeless: bool = False) -> None:
        """End the process of a lost worker, log what is known of it, and restart it if restarts are left."""
        slot = int(worker[1:].split(".")[0])
        left = 0 if hopeless else self.settings.restarts + 1 - self._starts[slot]
        about = self.transport.about(worker)
        unit = self._has.pop(worker)
        self.record.add("lost", collector=worker, why=why, unit=unit, again=left > 0, **about)
        self.transport.stop(worker)
        self.figures.turns(worker, None)
        if hopeless:
            raise RlvrError(f"rollout worker {worker} cannot {'start' if unit is None else 'sample'}: {why}")
        self.figures.count("lost")
        self.lost += 1
        self._last = why
        what = f"it is restarted (at most {left} more times)" if left > 0 else "it is not restarted, the run continues with fewer workers"
        self.tell(f"rollout worker {worker} is lost: {why}; {what}")
        if left > 0:
            self._start(slot)

    def _start(self, slot: int) -> None:
        worker = f"c{slot}.{self._starts[slot]}"
        self._starts[slot] += 1
        self._starting[worker] = time.monotonic() + self.settings.start_s
        self._has[worker] = None
        self.figures.turns(worker, "starting")
        self.transport.start(worker)

    # ---- commands of the scheduler

    def _follow(self, orders: Sequence[Order]) -> None:
        for order in orders:
            match order:
                case Assign():
                    batch = self._batches[str(order.group)]
                    unit = batch.units[str(order.group)]
                    self.figures.turns(order.worker, "sampling")
                    self._has[order.worker] = unit[0].group
                    self.transport.sample(order, unit, batch.sampling, batch.label)
                case Load():
                    self.figures.turns(order.worker, "loading")
                    self.figures.count("weights_bytes", self.transport.load(order))
                case Cancel(stopped):
                    self.transport.cancel(stopped)
                case Again():
                    self.again += 1
                    self.figures.count("again")
                case GiveUp(group) if is_again(str(group)):
                    self._take(str(group), [])  # without a second sampling nothing is compared
                case GiveUp(group, why):
                    self.given_up += 1
                    self.figures.count("given_up")
                    batch = self._batches[str(group)]
                    unit = batch.units[str(group)]
                    self.record.add("given_up", groups=list(dict.fromkeys(draw.group for draw in unit)), answers=len(unit), why=why)
                    self._take(str(group), given_up(unit, batch.label, why))
                    self.tell(f"{len(unit)} completions from group {unit[0].group} on are left out: {why}")
                case Drop(worker, why):
                    self._replace(worker, why)
                case Keep():
                    pass
