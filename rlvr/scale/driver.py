"""The driver: lets the pool decide, carries its orders to the collectors, and starts lost ones again."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from rlvr.config.cluster import ClusterConfig
from rlvr.contracts import Sampling
from rlvr.episode import Episode
from rlvr.errors import RlvrError, SamplerError
from rlvr.rollout.columns import Columns, Damaged, from_columns
from rlvr.rollout.draws import Draw
from rlvr.rollout.timing import Timing
from rlvr.scale.orders import Again, Assign, Cancel, Drop, GiveUp, Keep, Load, Order
from rlvr.scale.parcels import Parcel
from rlvr.scale.pool import Pool
from rlvr.scale.transport import Ended, Event, Loaded, Lost, Started, Transport
from rlvr.scale.units import Unit, given_up, units_of

NOTHING = Parcel(())
"""The weights of a sampler that takes none."""
POLL_S = 0.5
"""How long to wait for an event before deadlines are checked."""


class Driver:
    """Samples draws in collectors; the result is the same whatever happens to them. One thread at a time calls it.

    >>> with Driver(transport, ClusterConfig(collectors=2)) as driver:                      # doctest: +SKIP
    ...     driver.load(Packer("whole", "float32").pack(model))
    ...     episodes = driver.collect(draws, Sampling(), version=0)
    """

    def __init__(self, transport: Transport, settings: ClusterConfig, *, tell: Callable[[str], None] = print) -> None:
        self.transport, self.settings, self.tell = transport, settings, tell
        self.pool = Pool(
            group_s=settings.group_s, load_s=settings.start_s, most_losses=settings.losses, backups=settings.backups
        )  # fmt: skip
        self.again, self.lost, self.given_up = 0, 0, 0
        """How many units were sampled again, collectors lost, and units given up, in the whole run."""
        self.timing, self.closed = Timing(), False
        """Of the latest call; and whether another thread wants the present call to end."""
        self._version, self._calls = -1, 0
        self._starts = dict.fromkeys(range(settings.collectors), 0)
        self._starting = dict[str, float]()
        """Until when a collector must be ready."""
        self._units = dict[str, Unit]()
        self._found = dict[str, list[Episode]]()
        self._asked, self._last = (Sampling(), 0), ""
        for slot in self._starts:
            self._start(slot)

    def load(self, parcel: Parcel = NOTHING) -> None:
        """Give the collectors new weights. It does not wait: no collector gets work before it has loaded them."""
        self._version += 1
        self.transport.hold(self._version, parcel)
        orders = self.pool.made(self._version)
        self.transport.keep(self.pool.needed)
        self._follow(orders)

    def collect(self, draws: Sequence[Draw], sampling: Sampling, *, version: int = 0) -> list[Episode]:
        """One episode a draw, in order; `version` is what the episodes name. SamplerError if no collector is left."""
        if self._version < 0:
            self.load()
        began, self.timing, self._asked = time.perf_counter(), Timing(), (sampling, version)
        self._calls += 1
        self._units = {f"{self._calls}:{place}": unit for place, unit in enumerate(units_of(draws, self.settings.groups_per_call))}
        self._found = {}
        self._follow(self.pool.ask(self._units, self._version))
        while self.pool.left:
            self._look()
        self.timing.sampling = time.perf_counter() - began
        return [episode for name in self._units for episode in self._found[name]]

    def close(self) -> None:
        """End all collectors."""
        self.transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    # ---- what happens

    def _look(self) -> None:
        """Wait for something to happen, follow what the pool says to it, and look at the clock."""
        for event in self.transport.poll(POLL_S):
            self._happened(event)
        if self.closed:
            raise SamplerError("the collectors were closed while they sampled")
        now = time.monotonic()
        self._follow(self.pool.late(now))
        for worker in [worker for worker, until in self._starting.items() if now > until]:
            self._gone(Lost(worker, f"it was not ready after {self.settings.start_s:g} s (cluster.start_s)"))
        if not self.pool.workers and not self._starting:
            raise SamplerError(
                f"no collector is left: each was started {self.settings.restarts + 1} times; the last one was lost: {self._last}; "
                "correct the cause, then continue with --resume"
            )

    def _happened(self, event: Event) -> None:
        match event:
            case Started(worker):
                if self._starting.pop(worker, None) is not None:
                    self._follow(self.pool.joined(worker, None))
            case Loaded(order):
                self._follow(self.pool.loaded(order))
            case Ended(order, data, seconds):
                self._ended(order, data, seconds)
            case Lost():
                self._gone(event)

    def _ended(self, order: Assign, data: bytes, seconds: float) -> None:
        """A unit has come. What cannot be read is no reason to end the run: its collector is replaced."""
        unit = self._units.get(str(order.group))
        try:
            [found] = from_columns(Columns.from_bytes(data)) if data else [[]]
            if data and unit is not None and [(e.group, e.task_id) for e in found] != [(draw.group, draw.task.id) for draw in unit]:
                raise Damaged(f"unit {order.group} came back with the episodes of other draws")
        except Damaged as error:
            self._gone(Lost(order.worker, str(error)))
            return
        orders = self.pool.ended(order)
        if Keep(order) in orders:
            self._found[str(order.group)] = found
            self.timing.judged.append((0.0, seconds))
        self._follow(orders)

    def _gone(self, event: Lost) -> None:
        """A collector is lost: its process is ended, what it had is sampled elsewhere, and it is started again."""
        self._starting.pop(event.worker, None)
        self.transport.stop(event.worker)
        if event.hopeless:
            raise RlvrError(f"collector {event.worker} cannot start: {event.why}")
        orders = self.pool.lost(event.worker, event.why, blame=event.blame)
        self._replace(event.worker, event.why)
        self._follow(orders)

    def _replace(self, worker: str, why: str) -> None:
        self.lost += 1
        self._last = why
        slot = int(worker[1:].split(".")[0])
        left = self.settings.restarts + 1 - self._starts[slot]
        what = f"it is started again ({left} more times at most)" if left > 0 else "it is not started again, the run continues with fewer"
        self.tell(f"collector {worker} is lost: {why}; {what}")
        if left > 0:
            self._start(slot)

    def _start(self, slot: int) -> None:
        worker = f"c{slot}.{self._starts[slot]}"
        self._starts[slot] += 1
        self._starting[worker] = time.monotonic() + self.settings.start_s
        self.transport.start(worker)

    # ---- what the pool says

    def _follow(self, orders: Sequence[Order]) -> None:
        for order in orders:
            match order:
                case Assign():
                    self.transport.sample(order, self._units[str(order.group)], *self._asked)
                case Load():
                    self.transport.load(order)
                case Cancel(stopped):
                    self.transport.cancel(stopped)
                case Again():
                    self.again += 1
                case GiveUp(group, why):
                    self.given_up += 1
                    unit = self._units[str(group)]
                    self._found[str(group)] = given_up(unit, self._asked[1], why)
                    self.tell(f"{len(unit)} answers from group {unit[0].group} on are left out: {why}")
                case Drop(worker, why):
                    self.transport.stop(worker)
                    self._replace(worker, why)
                case Keep():
                    pass
