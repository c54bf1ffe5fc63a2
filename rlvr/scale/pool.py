"""Which worker samples which group next, whatever happens to the workers. It has no transport, no clock and no thread.

A driver tells the pool what happened, and carries out the orders that it gets back:

    ask, made, joined, loaded, ended, lost, late   ->   Assign, Load, Keep, Again, GiveUp, Cancel, Drop

The unit of work is one group in one call of an engine. Its tasks and seeds are functions of its name, so a group that is sampled again
elsewhere is the same group, and of two copies the first that ends can be taken. Every group has one version of the weights, and only a
worker that has said that it has loaded this version gets it. So neither the number of workers nor their deaths change what is sampled.

    order      groups are given out as they were asked, to the worker that has the least to do, and none has more than its share
    overlap    a worker with nothing left to take at its version loads the version of what was asked next, as soon as that exists, although
               others still work on what was asked first
    backups    of the last groups of a version a worker without work takes a second copy; when one ends, the other is cancelled
    losses     a group whose worker is lost is given out again, before all others. After `most_losses` losses it gets a worker to itself,
               and is given up if it loses that one too, or if it had its workers to itself already
"""

from __future__ import annotations

import heapq
import math
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field

from rlvr.scale.orders import Again, Assign, Cancel, Drop, GiveUp, Keep, Load, Order

Queues = defaultdict[int, list[tuple[int, Hashable]]]
"""By version: when each waiting group was asked, and its name."""


@dataclass(slots=True, eq=False)
class _Work:
    """A group that has not ended."""

    name: Hashable
    place: int
    """When it was asked: the smaller, the earlier."""
    version: int
    attempts: int = 0
    losses: int = 0
    held: list[Assign] = field(default_factory=list)
    """The copies that are being sampled."""


@dataclass(slots=True, eq=False)
class _Worker:
    """A worker that is there, and what it was told."""

    name: str
    version: int | None
    room: int
    holds: set[Assign] = field(default_factory=set)
    turning: int | None = None
    """The version that it will load when it has nothing left to do, or is loading."""
    loading: Load | None = None
    closed: bool = False
    """Whether it gets nothing beside the group that it has."""

    @property
    def free(self) -> bool:
        return self.loading is None and not self.closed and len(self.holds) < self.room


class Pool:
    """What is asked, who is there, and who has what.

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
            group_s: how long a worker may have a group, in the time that `late` is told.
            load_s: how long a worker may take to load weights.
            most_losses: after so many losses of its worker a group is given up.
            backups: the share of a version's groups that is left when workers without work take second copies; 0: they never do.
            older: so many versions before the newest may still be asked for.
        """
        self.group_s, self.load_s, self.most_losses, self.backups, self.older = group_s, load_s, most_losses, backups, older
        self._work = dict[Hashable, _Work]()
        self._workers = dict[str, _Worker]()
        self._waiting, self._suspects = Queues(list), Queues(list)
        """What nobody samples yet; the suspects get a worker to themselves."""
        self._asked, self._left = Counter[int](), Counter[int]()
        """How many groups of a version were asked, and have not ended."""
        self._coming = Counter[int]()
        """How many workers are about to have a version."""
        self._versions = set[int]()
        """The versions that exist and may still be loaded."""
        self._newest, self._places, self._loads = -1, 0, 0
        self._copies = dict[int, list[_Work]]()
        """By version, while work is dealt: the last groups that have one copy, the first of them at the end."""
        self._since = dict[Assign | Load, float]()
        self._said = list[Order]()

    # ---- what is to be done

    def ask(self, groups: Iterable[Hashable], version: int) -> list[Order]:
        """Ask for groups by a version of the weights, which may not exist yet. They come after all that was asked before."""
        if version < self._newest and version not in self.needed:
            raise ValueError(
                f"version {version} of the weights is gone; what is asked now must be of version {self._newest} or a later one"
            )
        groups = list(groups)
        for name, times in Counter(groups).items():
            if times > 1 or name in self._work:
                raise ValueError(f"group {name!r} is asked already")
        for name in groups:
            self._work[name] = _Work(name, self._places, version)
            heapq.heappush(self._waiting[version], (self._places, name))
            self._places += 1
            self._asked[version] += 1
            self._left[version] += 1
        return self._deal()

    def made(self, version: int) -> list[Order]:
        """A new version of the weights exists."""
        if version <= self._newest:
            raise ValueError(f"version {version} of the weights is not newer than {self._newest}")
        if skipped := [asked for asked, left in self._left.items() if left and self._newest < asked < version]:
            raise ValueError(f"version {version} of the weights was made before version {min(skipped)}, of which groups are asked")
        self._newest = version
        self._versions = {old for old in self._versions if self._left[old] or old >= version - self.older} | {version}
        for counts in (self._asked, self._left, self._waiting, self._suspects):
            for old in [old for old in counts if old < version and old not in self._versions]:
                del counts[old]
        self._coming = +self._coming
        return self._deal()

    @property
    def left(self) -> int:
        """How many groups are asked and have not ended."""
        return len(self._work)

    @property
    def workers(self) -> int:
        """How many workers are there."""
        return len(self._workers)

    @property
    def needed(self) -> set[int]:
        """The versions that may still have to be loaded; all others can be freed."""
        return {version for version in self._versions if self._left[version] or version >= self._newest - self.older}

    # ---- what happens

    def joined(self, worker: str, version: int | None, *, room: int = 1) -> list[Order]:
        """A worker is there, with this version of the weights or none; it takes `room` groups at once."""
        if worker in self._workers:
            raise ValueError(f"worker {worker!r} is there already")
        if room < 1:
            raise ValueError(f"worker {worker!r} has room for {room} groups; it needs room for at least 1")
        self._workers[worker] = _Worker(worker, version, room)
        return self._deal(self._workers[worker])

    def loaded(self, order: Load) -> list[Order]:
        """A worker has loaded what it was told to. Words about an older order are dropped."""
        worker = self._workers.get(order.worker)
        if worker is None or worker.loading != order:
            return []
        self._since.pop(order, None)
        worker.loading, worker.version = None, order.version
        self._aim(worker, None)
        return self._deal(worker)

    def ended(self, order: Assign) -> list[Order]:
        """A worker is done with a group, or has stopped after `Cancel`. `Keep` comes back for the first copy alone."""
        worker = self._workers.get(order.worker)
        if worker is None or order not in worker.holds:
            return []  # it was lost, and what it says now is about an attempt that does not count
        worker.holds.remove(order)
        worker.closed = False
        self._since.pop(order, None)
        before = self._last(order.version)
        if (work := self._work.get(order.group)) is not None and order in work.held:
            self._said.append(Keep(order))
            self._done(work, but=order)
        copies_begin = self._last(order.version) and not before  # from here on those without work take them, each when it has none
        return self._deal() if copies_begin else self._deal(worker)

    def lost(self, worker: str, why: str, *, blame: bool = True) -> list[Order]:
        """A worker is gone. `blame`: its groups may be the cause, so not if its whole machine is gone, or if the driver ended it."""
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
        return self._deal() if held or awaited else []  # of a worker without work nothing is left to others

    def late(self, now: float) -> list[Order]:
        """The driver's time. The time of an order begins with the first call after it. A worker that has had its time is dropped."""
        over = dict[str, str]()
        for name, worker in self._workers.items():
            for order in worker.holds:
                if now - self._since.setdefault(order, now) > self.group_s:
                    over[name] = f"group {order.group} did not end in {self.group_s:g} s (cluster.group_s)"
            if worker.loading is not None and now - self._since.setdefault(worker.loading, now) > self.load_s:
                over[name] = f"version {worker.loading.version} was not loaded in {self.load_s:g} s (cluster.start_s)"
        said: list[Order] = []
        for name in over:
            self._workers[name].closed = True  # none of them gets what another one loses
        for name, why in over.items():
            said += [Drop(name, why), *self.lost(name, why)]
        return said

    # ---- what follows from it

    def _done(self, work: _Work, *, but: Assign | None = None) -> None:
        """A group has ended, or was given up: its other copies are stopped."""
        del self._work[work.name]
        self._left[work.version] -= 1
        if not self._left[work.version]:
            self._asked[work.version] = 0
        self._said += [Cancel(order) for order in work.held if order != but]

    def _retry(self, work: _Work, why: str, *, blame: bool, alone: bool) -> None:
        """A copy of a group was lost."""
        work.losses += blame
        if blame and alone and work.losses >= self.most_losses:
            self._said.append(GiveUp(work.name, why))
            self._done(work)
        elif not work.held:
            self._said.append(Again(work.name, why))
            queues = self._suspects if work.losses >= self.most_losses else self._waiting
            heapq.heappush(queues[work.version], (work.place, work.name))

    def _deal(self, *workers: _Worker) -> list[Order]:
        """Give work to these workers, or to all; return all orders since the last time."""
        free = [worker for worker in workers or self._workers.values() if worker.free]
        for give in (self._begin, self._turn):  # what one can begin now, no other loads weights for
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
        """Give a worker the next group of its version, unless an earlier one of another version waits for somebody to load that."""
        version = worker.version
        if version is None or version not in self._versions or worker.turning is not None:
            return False
        if len(worker.holds) * len(self._workers) >= self._asked[version]:
            return False  # it has its share; the rest is for those who are about to come
        if worker.holds and self._suspects.get(version) and worker is self._least(version):
            return False  # it is to have nothing, so that a suspect can have it
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
        """The worker of this version that has the least to do."""
        return min((worker for worker in self._workers.values() if worker.version == version), key=lambda worker: len(worker.holds))

    def _turn(self, worker: _Worker) -> bool:
        """A worker without work loads what is to be done next, or copies one of the last groups, or prepares for what will be asked."""
        if worker.holds:
            return self._begin(worker)
        self._aim(worker, None)  # if it was kept free for a version, something else may come first now
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
        """The first group of another version that exists, if nobody is about to take it: when it was asked, and its version."""
        found = (math.inf, -1)
        for version in self._versions - {worker.version}:
            queues = [queue for queues in (self._suspects, self._waiting) if (queue := queues.get(version))]
            each = min(worker.room, max(1.0, self._asked[version] / len(self._workers)))
            if sum(map(len, queues)) > self._coming[version] * each:
                found = min(found, (min(queue[0][0] for queue in queues), version))
        return found

    def _aim(self, worker: _Worker, version: int | None) -> None:
        """Keep a worker free until it can load this version; None: no more."""
        for turning, by in ((worker.turning, -1), (version, 1)):
            if turning is not None:
                self._coming[turning] += by
        worker.turning = version

    def _last(self, version: int) -> bool:
        """Whether so few groups of a version are left that they are copied."""
        return 0 < self._left[version] <= self.backups * self._asked[version]

    def _copy(self, worker: _Worker) -> bool:
        """Give a worker a second copy of the first of the last groups of its version."""
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
