"""The work scheduler: decides which worker samples which group next. It has no transport, no clock and no thread.

The driver calls a method for each event, and executes the commands that it returns:

    enqueue, add_version, add_worker, handle_loaded, handle_ended, remove_worker, kill_late_workers
        ->  Dispatch, LoadWeights, Accept, Retry, Fail, Cancel, Kill

The unit of work is a group (a rollout task of the driver). Its tasks and seeds follow from its name, so a retry on another worker gives
the same group, and the first of two copies that ends can be accepted. Every group has one version of the weights, and only workers that
have loaded this version get it. So neither the number of workers nor their losses change the samples.

    order        groups are dispatched in the order of `enqueue`, to the least busy worker; no worker gets more than its share
    overlap      an idle worker without groups of its version loads the next version that is needed, while others still work
    speculation  idle workers get a second copy of the last groups of a version; when one copy ends, the other is cancelled
    losses       a group whose worker is lost is retried before all others. After `max_failures` losses it is quarantined: it runs alone on
                 a worker, and fails if that worker is lost too, or if the earlier losses happened while it ran alone
"""

from __future__ import annotations

import heapq
import math
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field

from rlvr.scale.orders import Again, Assign, Cancel, Drop, GiveUp, Keep, Load, Order

Queues = defaultdict[int, list[tuple[int, Hashable]]]
"""For each version: a heap of the order number and the name of each waiting group."""


@dataclass(slots=True, eq=False)
class _Work:
    """A group that has not ended."""

    name: Hashable
    place: int
    """Its order number in `enqueue`."""
    version: int
    attempts: int = 0
    losses: int = 0
    held: list[Assign] = field(default_factory=list)
    """The copies that run."""


@dataclass(slots=True, eq=False)
class _Worker:
    """A worker, and its current commands."""

    name: str
    version: int | None
    room: int
    holds: set[Assign] = field(default_factory=set)
    turning: int | None = None
    """The version that it loads, or will load when it is idle."""
    loading: Load | None = None
    closed: bool = False
    """Whether it gets no further group beside the present one."""

    @property
    def free(self) -> bool:
        return self.loading is None and not self.closed and len(self.holds) < self.room


class Pool:
    """The state of all groups and workers.

    >>> pool = Pool()
    >>> pool.made(0), pool.ask(["1:0", "1:1"], version=0), pool.joined("c0", None)
    ([], [], [Load(worker='c0', version=0, attempt=1)])
    >>> pool.loaded(Load("c0", 0, 1))
    [Assign(worker='c0', group='1:0', version=0, attempt=1)]
    >>> pool.ended(Assign("c0", "1:0", 0, 1))
    [Keep(order=Assign(worker='c0', group='1:0', version=0, attempt=1)), Assign(worker='c0', group='1:1', version=0, attempt=1)]
    """

    def __init__(
        self, *, group_s: float = math.inf, load_s: float = math.inf, most_losses: int = 2, backups: float = 0.1, older: int = 0
    ) -> None:
        """Set the limits.

        Args:
            group_s: timeout of a group, on the clock of `kill_late_workers`.
            load_s: timeout of loading weights.
            most_losses: lost workers after which a group is quarantined.
            backups: idle workers get second copies when at most this share of the groups of a version is left; 0: never.
            older: how many versions before the newest may still be used.
        """
        self.group_s, self.load_s, self.most_losses, self.backups, self.older = group_s, load_s, most_losses, backups, older
        self._work = dict[Hashable, _Work]()
        self._workers = dict[str, _Worker]()
        self._waiting, self._suspects = Queues(list), Queues(list)
        """The waiting groups; a quarantined group must run alone on a worker."""
        self._asked, self._left = Counter[int](), Counter[int]()
        """For each version: how many groups were enqueued, and how many have not ended."""
        self._coming = Counter[int]()
        """For each version: how many workers will load it or are loading it."""
        self._versions = set[int]()
        """The existing versions that may still be loaded."""
        self._newest, self._places, self._loads = -1, 0, 0
        self._copies = dict[int, list[_Work]]()
        """For each version, during `_dispatch`: the last groups with one copy, in reverse order."""
        self._since = dict[Assign | Load, float]()
        self._said = list[Order]()

    # ---- work

    def ask(self, groups: Iterable[Hashable], version: int) -> list[Order]:
        """Add groups for a version of the weights, which may not exist yet. They come after all earlier groups."""
        if version < self._newest and version not in self.needed:
            raise ValueError(f"version {version} of the weights is gone; new groups must have version {self._newest} or a later one")
        groups = list(groups)
        for name, times in Counter(groups).items():
            if times > 1 or name in self._work:
                raise ValueError(f"group {name!r} was already added")
        for name in groups:
            self._work[name] = _Work(name, self._places, version)
            heapq.heappush(self._waiting[version], (self._places, name))
            self._places += 1
            self._asked[version] += 1
            self._left[version] += 1
        return self._deal()

    def made(self, version: int) -> list[Order]:
        """Add a new version of the weights."""
        if version <= self._newest:
            raise ValueError(f"version {version} of the weights is not newer than {self._newest}")
        if skipped := [asked for asked, left in self._left.items() if left and self._newest < asked < version]:
            raise ValueError(f"version {version} of the weights came before version {min(skipped)}, which has waiting groups")
        self._newest = version
        self._versions = {old for old in self._versions if self._left[old] or old >= version - self.older} | {version}
        for counts in (self._asked, self._left, self._waiting, self._suspects):
            for old in [old for old in counts if old < version and old not in self._versions]:
                del counts[old]
        self._coming = +self._coming
        return self._deal()

    @property
    def left(self) -> int:
        """How many groups have not ended."""
        return len(self._work)

    @property
    def workers(self) -> int:
        """How many workers there are."""
        return len(self._workers)

    @property
    def needed(self) -> set[int]:
        """The versions that may still be loaded; all others can be freed."""
        return {version for version in self._versions if self._left[version] or version >= self._newest - self.older}

    # ---- events

    def joined(self, worker: str, version: int | None, *, room: int = 1) -> list[Order]:
        """Add a worker with this version of the weights or none; it runs `room` groups at once."""
        if worker in self._workers:
            raise ValueError(f"worker {worker!r} was already added")
        if room < 1:
            raise ValueError(f"worker {worker!r} has capacity for {room} groups; it needs at least 1")
        self._workers[worker] = _Worker(worker, version, room)
        return self._deal(self._workers[worker])

    def loaded(self, order: Load) -> list[Order]:
        """Handle the end of a load. Events of older commands are ignored."""
        worker = self._workers.get(order.worker)
        if worker is None or worker.loading != order:
            return []
        self._since.pop(order, None)
        worker.loading, worker.version = None, order.version
        self._aim(worker, None)
        return self._deal(worker)

    def ended(self, order: Assign) -> list[Order]:
        """Handle the end or the cancellation of a group. Returns `Accept` only for the first copy that ends."""
        worker = self._workers.get(order.worker)
        if worker is None or order not in worker.holds:
            return []  # the worker was lost, and the attempt does not count
        worker.holds.remove(order)
        worker.closed = False
        self._since.pop(order, None)
        before = self._last(order.version)
        if (work := self._work.get(order.group)) is not None and order in work.held:
            self._said.append(Keep(order))
            self._done(work, but=order)
        copies_begin = self._last(order.version) and not before  # now idle workers can take copies
        return self._deal() if copies_begin else self._deal(worker)

    def lost(self, worker: str, why: str, *, blame: bool = True) -> list[Order]:
        """Remove a lost worker. `blame`: its groups may be the cause; False if its machine is lost or the driver ended it."""
        gone = self._workers.pop(worker, None)
        if gone is None:
            return []
        awaited = gone.turning is not None
        self._aim(gone, None)
        if gone.loading is not None:
            self._since.pop(gone.loading, None)
        for order in gone.holds:
            self._since.pop(order, None)
        held = [work for order in gone.holds if (work := self._work.get(order.group)) is not None and order in work.held]
        for work in sorted(held, key=lambda work: work.place):
            work.held = [order for order in work.held if order.worker != worker]
            self._retry(work, why, blame=blame, alone=len(gone.holds) == 1)
        return self._deal() if held or awaited else []  # an idle worker leaves no work to others

    def late(self, now: float) -> list[Order]:
        """Remove workers that exceeded a timeout at this time. The time of a command starts with the first call after it."""
        over = dict[str, str]()
        for name, worker in self._workers.items():
            for order in worker.holds:
                if now - self._since.setdefault(order, now) > self.group_s:
                    over[name] = f"task {order.group} did not end in {self.group_s:g} s (cluster.task_timeout_s)"
            if worker.loading is not None and now - self._since.setdefault(worker.loading, now) > self.load_s:
                over[name] = f"version {worker.loading.version} was not loaded in {self.load_s:g} s (cluster.startup_timeout_s)"
        said: list[Order] = []
        for name in over:
            self._workers[name].closed = True  # none of these workers gets the groups of another one
        for name, why in over.items():
            said += [Drop(name, why), *self.lost(name, why)]
        return said

    # ---- scheduling

    def _done(self, work: _Work, *, but: Assign | None = None) -> None:
        """Remove a group that ended or failed, and cancel its other copies."""
        del self._work[work.name]
        self._left[work.version] -= 1
        if not self._left[work.version]:
            self._asked[work.version] = 0
        self._said += [Cancel(order) for order in work.held if order != but]

    def _retry(self, work: _Work, why: str, *, blame: bool, alone: bool) -> None:
        """Retry a group after the loss of a copy, or let it fail."""
        work.losses += blame
        if blame and alone and work.losses >= self.most_losses:
            self._said.append(GiveUp(work.name, why))
            self._done(work)
        elif not work.held:
            self._said.append(Again(work.name, why))
            queues = self._suspects if work.losses >= self.most_losses else self._waiting
            heapq.heappush(queues[work.version], (work.place, work.name))

    def _deal(self, *workers: _Worker) -> list[Order]:
        """Give work to these workers, or to all; return all commands since the last call."""
        free = [worker for worker in workers or self._workers.values() if worker.free]
        for give in (self._begin, self._turn):  # first without loads: no worker loads weights for a group that another can start now
            turns = [(len(worker.holds), worker.version or 0, number) for number, worker in enumerate(free) if worker.free]
            heapq.heapify(turns)
            while turns:
                *_, number = heapq.heappop(turns)
                if give(free[number]) and (worker := free[number]).free:
                    heapq.heappush(turns, (len(worker.holds), worker.version or 0, number))
        said, self._said = self._said, []
        self._copies.clear()
        return said

    def _begin(self, worker: _Worker) -> bool:
        """Give a worker the next group of its version, unless an earlier group waits for a worker to load another version."""
        version = worker.version
        if version is None or version not in self._versions or worker.turning is not None:
            return False
        if len(worker.holds) * len(self._workers) >= self._asked[version]:
            return False  # it has its share; the rest is for workers that are about to load the version
        if worker.holds and self._suspects.get(version) and worker is self._least(version):
            return False  # keep it free for a quarantined group
        for queues in (self._suspects, self._waiting):
            if (queue := queues.get(version)) and not (queues is self._suspects and worker.holds):
                earliest, other = self._elsewhere(worker)
                if earliest < min(known[0][0] for each in (self._suspects, self._waiting) if (known := each.get(version))):
                    self._aim(worker, other)
                    return False
                self._assign(worker, self._work[heapq.heappop(queue)[1]])
                worker.closed = queues is self._suspects
                return True
        return False

    def _least(self, version: int) -> _Worker:
        """Return the least busy worker of this version."""
        return min((worker for worker in self._workers.values() if worker.version == version), key=lambda worker: len(worker.holds))

    def _turn(self, worker: _Worker) -> bool:
        """Give a group to an idle worker; else load the next version, copy one of the last groups, or load the newest version."""
        if worker.holds:
            return self._begin(worker)
        self._aim(worker, None)  # another version may come first by now
        if self._begin(worker):
            return True
        if worker.turning is None:
            place, version = self._elsewhere(worker)
            if place == math.inf and self._copy(worker):
                return True
            version = self._newest if place == math.inf else version
            if version in (worker.version, -1):
                return False
            self._aim(worker, version)
        self._loads += 1
        worker.loading = Load(worker.name, worker.turning or 0, self._loads)
        self._said.append(worker.loading)
        return False

    def _elsewhere(self, worker: _Worker) -> tuple[float, int]:
        """Find the first group of another existing version that no worker will take: its order number and its version."""
        found = (math.inf, -1)
        for version in self._versions - {worker.version}:
            queues = [queue for queues in (self._suspects, self._waiting) if (queue := queues.get(version))]
            each = min(worker.room, max(1.0, self._asked[version] / len(self._workers)))
            if sum(map(len, queues)) > self._coming[version] * each:
                found = min(found, (min(queue[0][0] for queue in queues), version))
        return found

    def _aim(self, worker: _Worker, version: int | None) -> None:
        """Keep a worker free to load this version; None: end that."""
        for turning, by in ((worker.turning, -1), (version, 1)):
            if turning is not None:
                self._coming[turning] += by
        worker.turning = version

    def _last(self, version: int) -> bool:
        """Whether so few groups of a version are left that idle workers copy them."""
        return 0 < self._left[version] <= self.backups * self._asked[version]

    def _copy(self, worker: _Worker) -> bool:
        """Give a worker a second copy of the first of the last groups of its version, if there is one."""
        version = worker.version
        if version is None or not self._last(version):
            return False
        if version not in self._copies:
            single = [work for work in self._work.values() if work.version == version and len(work.held) == 1 and not work.losses]
            self._copies[version] = sorted(single, key=lambda work: -work.place)
        if not (last := self._copies[version]):
            return False
        self._assign(worker, last.pop())
        return True

    def _assign(self, worker: _Worker, work: _Work) -> None:
        work.attempts += 1
        order = Assign(worker.name, work.name, work.version, work.attempts)
        work.held.append(order)
        worker.holds.add(order)
        self._said.append(order)
