"""The work scheduler: decides which worker samples which group next. It has no transport, no clock and no thread.

The driver calls a method for each event, and executes the commands that it returns:

    enqueue, add_version, add_worker, handle_weights_loaded, handle_task_ended, remove_worker, kill_late_workers
        ->  DispatchTask, LoadWeights, AcceptResult, CountRetry, AbandonTask, CancelCopy, KillWorker

The unit of work is a group (a rollout task of the driver). Its tasks and seeds follow from its name, so a retry on another worker gives
the same group, and the first of two copies that ends can be accepted. Every group has one version of the weights, and only workers that
have loaded this version get it. So neither the number of workers nor their losses change the samples.

    order        groups are dispatched in the order of `enqueue`, to the least busy worker; no worker gets more than its share
    overlap      an idle worker without groups of its version loads the next version that is needed, while others still work
    speculation  idle workers get a second copy of the last groups of a version; when one copy ends, the other is cancelled
    losses       a group whose worker is lost is retried before all others. After `max_lost_workers_per_task` losses it is abandoned if it
                 ran alone on the last worker; else it is quarantined: it runs alone on a worker, and is abandoned if that one is lost too
"""

from __future__ import annotations

import heapq
import math
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field

from rlvr.cluster.scheduler_commands import (
    AbandonTask,
    AcceptResult,
    CancelCopy,
    Command,
    CountRetry,
    DispatchTask,
    KillWorker,
    LoadWeights,
)

WaitingQueues = defaultdict[int, list[tuple[int, Hashable]]]
"""For each version: a heap of the order number and the name of each waiting group."""


@dataclass(slots=True, eq=False)
class _WorkItem:
    """A rollout task that has not ended, with the copies of it that run."""

    name: Hashable
    order_number: int
    """Its order number in `enqueue`."""
    version: int
    attempts: int = 0
    num_lost_workers: int = 0
    copies: list[DispatchTask] = field(default_factory=list)
    """The copies that run."""


@dataclass(slots=True, eq=False)
class _Worker:
    """A worker, and its current commands."""

    name: str
    version: int | None
    capacity: int
    orders: set[DispatchTask] = field(default_factory=set)
    target_version: int | None = None
    """The version that it loads, or will load when it is idle."""
    load_order: LoadWeights | None = None
    is_exclusive: bool = False
    """Whether it gets no further group beside the present one."""

    @property
    def is_free(self) -> bool:
        return self.load_order is None and not self.is_exclusive and len(self.orders) < self.capacity


class WorkScheduler:
    """Decides which worker runs which rollout task next, and with which version of the weights; returns commands for the driver. It has
    no transport, clock or thread.

    >>> scheduler = WorkScheduler()
    >>> scheduler.add_version(0), scheduler.enqueue(["1:0", "1:1"], version=0), scheduler.add_worker("c0", None)
    ([], [], [LoadWeights(worker='c0', version=0, attempt=1)])
    >>> scheduler.handle_weights_loaded(LoadWeights("c0", 0, 1))
    [DispatchTask(worker='c0', task_name='1:0', version=0, attempt=1)]
    >>> for command in scheduler.handle_task_ended(DispatchTask("c0", "1:0", 0, 1)):
    ...     print(command)
    AcceptResult(command=DispatchTask(worker='c0', task_name='1:0', version=0, attempt=1))
    DispatchTask(worker='c0', task_name='1:1', version=0, attempt=1)
    """

    def __init__(
        self,
        *,
        task_timeout_s: float = math.inf,
        load_timeout_s: float = math.inf,
        max_lost_workers_per_task: int = 4,
        backup_task_fraction: float = 0.0,
        num_older_versions: int = 0,
    ) -> None:
        """Set the limits; `max_lost_workers_per_task` and `backup_task_fraction` are the settings of `cluster`, with the same defaults.

        Args:
            task_timeout_s: timeout of a task, on the clock of `kill_late_workers`.
            load_timeout_s: timeout of loading weights.
            max_lost_workers_per_task: a group that has lost this many workers is abandoned if it ran alone on the last one, else quarantined.
            backup_task_fraction: idle workers get second copies when at most this share of the groups of a version is left; 0: never.
            num_older_versions: how many versions before the newest may still be used.
        """
        self.task_timeout_s, self.load_timeout_s, self.max_lost_workers_per_task, self.backup_task_fraction, self.num_older_versions = (
            task_timeout_s,
            load_timeout_s,
            max_lost_workers_per_task,
            backup_task_fraction,
            num_older_versions,
        )
        self._items = dict[Hashable, _WorkItem]()
        self._workers = dict[str, _Worker]()
        self._waiting, self._quarantined = WaitingQueues(list), WaitingQueues(list)
        """The waiting groups; a quarantined group must run alone on a worker."""
        self._num_asked, self._num_unfinished = Counter[int](), Counter[int]()
        """For each version: how many groups were enqueued, and how many have not ended."""
        self._num_targeting = Counter[int]()
        """For each version: how many workers will load it or are loading it."""
        self._versions = set[int]()
        """The existing versions that may still be loaded."""
        self._newest, self._next_order_number, self._num_loads = -1, 0, 0
        self._copy_candidates = dict[int, list[_WorkItem]]()
        """For each version, during `_dispatch`: the last groups with one copy, in reverse order."""
        self._start_times = dict[DispatchTask | LoadWeights, float]()
        self._commands = list[Command]()

    # ---- work

    def enqueue(self, task_names: Iterable[Hashable], version: int) -> list[Command]:
        """Add groups for a version of the weights, after all earlier groups; return the commands that follow.

        That version may not exist yet.
        """
        if version < self._newest and version not in self.needed_versions:
            raise ValueError(f"version {version} of the weights is gone; new groups must have version {self._newest} or a later one")
        task_names = list(task_names)
        for name, times in Counter(task_names).items():
            if times > 1 or name in self._items:
                raise ValueError(f"group {name!r} was already added")
        for name in task_names:
            self._items[name] = _WorkItem(name, self._next_order_number, version)
            heapq.heappush(self._waiting[version], (self._next_order_number, name))
            self._next_order_number += 1
            self._num_asked[version] += 1
            self._num_unfinished[version] += 1
        return self._dispatch()

    def add_version(self, version: int) -> list[Command]:
        """Add a new version of the weights."""
        if version <= self._newest:
            raise ValueError(f"version {version} of the weights is not newer than {self._newest}")
        if skipped := [asked for asked, left in self._num_unfinished.items() if left and self._newest < asked < version]:
            raise ValueError(f"version {version} of the weights came before version {min(skipped)}, which has waiting groups")
        self._newest = version
        self._versions = {old for old in self._versions if self._num_unfinished[old] or old >= version - self.num_older_versions} | {
            version
        }
        for counts in (self._num_asked, self._num_unfinished, self._waiting, self._quarantined):
            for old in [old for old in counts if old < version and old not in self._versions]:
                del counts[old]
        self._num_targeting = +self._num_targeting
        return self._dispatch()

    @property
    def num_unfinished_groups(self) -> int:
        """How many groups have not ended."""
        return len(self._items)

    @property
    def num_workers(self) -> int:
        """How many workers there are."""
        return len(self._workers)

    @property
    def needed_versions(self) -> set[int]:
        """The versions that may still be loaded; all others can be freed."""
        return {version for version in self._versions if self._num_unfinished[version] or version >= self._newest - self.num_older_versions}

    # ---- events

    def add_worker(self, worker: str, version: int | None, *, capacity: int = 1) -> list[Command]:
        """Add a worker with this version of the weights, or none; it runs up to `capacity` groups at once."""
        if worker in self._workers:
            raise ValueError(f"worker {worker!r} was already added")
        if capacity < 1:
            raise ValueError(f"worker {worker!r} has capacity for {capacity} groups; it needs at least 1")
        self._workers[worker] = _Worker(worker, version, capacity)
        return self._dispatch(self._workers[worker])

    def handle_weights_loaded(self, command: LoadWeights) -> list[Command]:
        """Handle the end of a load. Events of older commands are ignored."""
        worker = self._workers.get(command.worker)
        if worker is None or worker.load_order != command:
            return []
        self._start_times.pop(command, None)
        worker.load_order, worker.version = None, command.version
        self._set_target_version(worker, None)
        return self._dispatch(worker)

    def handle_task_ended(self, command: DispatchTask) -> list[Command]:
        """Handle the end or the cancellation of a group. Returns `AcceptResult` only for the first copy that ends."""
        worker = self._workers.get(command.worker)
        if worker is None or command not in worker.orders:
            return []  # the worker was lost, and the attempt does not count
        worker.orders.remove(command)
        worker.is_exclusive = False
        self._start_times.pop(command, None)
        before = self._may_copy_last_groups(command.version)
        if (work := self._items.get(command.task_name)) is not None and command in work.copies:
            self._commands.append(AcceptResult(command))
            self._finish(work, except_for=command)
        copies_begin = self._may_copy_last_groups(command.version) and not before  # now idle workers can take copies
        return self._dispatch() if copies_begin else self._dispatch(worker)

    def remove_worker(self, worker: str, reason: str, *, may_be_cause: bool = True) -> list[Command]:
        """Remove a lost worker. `may_be_cause`: its groups may be the cause of the loss; False if its machine is lost or the driver
        ended it.
        """
        gone = self._workers.pop(worker, None)
        if gone is None:
            return []
        awaited = gone.target_version is not None
        self._set_target_version(gone, None)
        if gone.load_order is not None:
            self._start_times.pop(gone.load_order, None)
        for order in gone.orders:
            self._start_times.pop(order, None)
        held = [work for order in gone.orders if (work := self._items.get(order.task_name)) is not None and order in work.copies]
        for work in sorted(held, key=lambda work: work.order_number):
            work.copies = [order for order in work.copies if order.worker != worker]
            self._retry_or_abandon(work, reason, may_be_cause=may_be_cause, ran_alone=len(gone.orders) == 1)
        return self._dispatch() if held or awaited else []  # an idle worker leaves no work to others

    def kill_late_workers(self, now: float) -> list[Command]:
        """Remove workers that exceeded a timeout at this time. The time of a command starts with the first call after it."""
        over = dict[str, str]()
        for name, worker in self._workers.items():
            for order in worker.orders:
                if now - self._start_times.setdefault(order, now) > self.task_timeout_s:
                    over[name] = f"task {order.task_name} did not end in {self.task_timeout_s:g} s (cluster.task_timeout_s)"
            if worker.load_order is not None and now - self._start_times.setdefault(worker.load_order, now) > self.load_timeout_s:
                over[name] = f"version {worker.load_order.version} was not loaded in {self.load_timeout_s:g} s (cluster.startup_timeout_s)"
        said: list[Command] = []
        for name in over:
            self._workers[name].is_exclusive = True  # none of these workers gets the groups of another one
        for name, why in over.items():
            said += [KillWorker(name, why), *self.remove_worker(name, why)]
        return said

    # ---- scheduling

    def _finish(self, work: _WorkItem, *, except_for: DispatchTask | None = None) -> None:
        """Remove a group that ended or failed, and cancel its other copies."""
        del self._items[work.name]
        self._num_unfinished[work.version] -= 1
        if not self._num_unfinished[work.version]:
            self._num_asked[work.version] = 0
        self._commands += [CancelCopy(order) for order in work.copies if order != except_for]

    def _retry_or_abandon(self, work: _WorkItem, why: str, *, may_be_cause: bool, ran_alone: bool) -> None:
        """Retry a group after the loss of a copy, or let it fail."""
        work.num_lost_workers += may_be_cause
        if may_be_cause and ran_alone and work.num_lost_workers >= self.max_lost_workers_per_task:
            self._commands.append(AbandonTask(work.name, why))
            self._finish(work)
        elif not work.copies:
            self._commands.append(CountRetry(work.name, why))
            queues = self._quarantined if work.num_lost_workers >= self.max_lost_workers_per_task else self._waiting
            heapq.heappush(queues[work.version], (work.order_number, work.name))

    def _dispatch(self, *workers: _Worker) -> list[Command]:
        """Give work to these workers, or to all; return all commands since the last call."""
        free = [worker for worker in workers or self._workers.values() if worker.is_free]
        for give in (
            self._assign_next,
            self._assign_or_load_weights,
        ):  # first without loads: no worker loads weights for a group that another can start now
            turns = [(len(worker.orders), worker.version or 0, number) for number, worker in enumerate(free) if worker.is_free]
            heapq.heapify(turns)
            while turns:
                *_, number = heapq.heappop(turns)
                if give(free[number]) and (worker := free[number]).is_free:
                    heapq.heappush(turns, (len(worker.orders), worker.version or 0, number))
        said, self._commands = self._commands, []
        self._copy_candidates.clear()
        return said

    def _assign_next(self, worker: _Worker) -> bool:
        """Give a worker the next group of its version, unless an earlier group waits for a worker to load another version."""
        version = worker.version
        if version is None or version not in self._versions or worker.target_version is not None:
            return False
        if len(worker.orders) * len(self._workers) >= self._num_asked[version]:
            return False  # it has its share; the rest is for workers that are about to load the version
        if worker.orders and self._quarantined.get(version) and worker is self._find_least_busy(version):
            return False  # keep it free for a quarantined group
        for queues in (self._quarantined, self._waiting):
            if (queue := queues.get(version)) and not (queues is self._quarantined and worker.orders):
                earliest, other = self._find_unserved_version(worker)
                if earliest < min(known[0][0] for each in (self._quarantined, self._waiting) if (known := each.get(version))):
                    self._set_target_version(worker, other)
                    return False
                self._assign(worker, self._items[heapq.heappop(queue)[1]])
                worker.is_exclusive = queues is self._quarantined
                return True
        return False

    def _find_least_busy(self, version: int) -> _Worker:
        """Return the least busy worker of this version."""
        return min((worker for worker in self._workers.values() if worker.version == version), key=lambda worker: len(worker.orders))

    def _assign_or_load_weights(self, worker: _Worker) -> bool:
        """Give a group to an idle worker; else load the next version, copy one of the last groups, or load the newest version."""
        if worker.orders:
            return self._assign_next(worker)
        self._set_target_version(worker, None)  # another version may come first by now
        if self._assign_next(worker):
            return True
        if worker.target_version is None:
            place, version = self._find_unserved_version(worker)
            if place == math.inf and self._assign_speculative_copy(worker):
                return True
            version = self._newest if place == math.inf else version
            if version in (worker.version, -1):
                return False
            self._set_target_version(worker, version)
        self._num_loads += 1
        worker.load_order = LoadWeights(worker.name, worker.target_version or 0, self._num_loads)
        self._commands.append(worker.load_order)
        return False

    def _find_unserved_version(self, worker: _Worker) -> tuple[float, int]:
        """Find the first group of another existing version that no worker will take: its order number and its version."""
        found = (math.inf, -1)
        for version in self._versions - {worker.version}:
            queues = [queue for queues in (self._quarantined, self._waiting) if (queue := queues.get(version))]
            each = min(worker.capacity, max(1.0, self._num_asked[version] / len(self._workers)))
            if sum(map(len, queues)) > self._num_targeting[version] * each:
                found = min(found, (min(queue[0][0] for queue in queues), version))
        return found

    def _set_target_version(self, worker: _Worker, version: int | None) -> None:
        """Keep a worker free so that it can load this version next; None: no longer."""
        for turning, by in ((worker.target_version, -1), (version, 1)):
            if turning is not None:
                self._num_targeting[turning] += by
        worker.target_version = version

    def _may_copy_last_groups(self, version: int) -> bool:
        """Whether so few groups of a version are left that idle workers copy them."""
        return 0 < self._num_unfinished[version] <= self.backup_task_fraction * self._num_asked[version]

    def _assign_speculative_copy(self, worker: _Worker) -> bool:
        """Give a worker a second copy of the first of the last groups of its version, if there is one."""
        version = worker.version
        if version is None or not self._may_copy_last_groups(version):
            return False
        if version not in self._copy_candidates:
            single = [
                work for work in self._items.values() if work.version == version and len(work.copies) == 1 and not work.num_lost_workers
            ]
            self._copy_candidates[version] = sorted(single, key=lambda work: -work.order_number)
        if not (last := self._copy_candidates[version]):
            return False
        self._assign(worker, last.pop())
        return True

    def _assign(self, worker: _Worker, work: _WorkItem) -> None:
        work.attempts += 1
        order = DispatchTask(worker.name, work.name, work.version, work.attempts)
        work.copies.append(order)
        worker.orders.add(order)
        self._commands.append(order)
