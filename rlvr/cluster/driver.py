"""The driver: sends the commands of the work scheduler to the rollout workers, and restarts lost workers.

Several rollouts can be pending. Any thread can start a rollout or send weights. Of the threads that wait, one at a time uses the
transport, for all of them.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Any, Self

from rlvr.cluster.checks.comparison import (
    are_comparable,
    choose_audit_tasks,
    describe_first_difference,
    get_compared_fields,
    is_second_sampling_name,
    make_audit_name,
)
from rlvr.cluster.checks.episode_fields import EpisodeLimits
from rlvr.cluster.cluster_metrics import ClusterMetrics
from rlvr.cluster.event_log import EventLog, make_printable
from rlvr.cluster.rollout_tasks import NO_LIMITS, RolloutTask, check_task_episodes, make_failed_episodes, split_into_tasks
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
from rlvr.cluster.transport import Event, TaskEnded, Transport, WeightsLoaded, WorkerLost, WorkerStarted
from rlvr.cluster.weights.weight_updates import WeightUpdate
from rlvr.cluster.work_scheduler import WorkScheduler
from rlvr.config.cluster import ClusterConfig
from rlvr.contracts import SamplingParams
from rlvr.episode import Episode
from rlvr.errors import AllClusterWorkersLost, RlvrError, SamplerError
from rlvr.rollout.episode_encoding import CorruptData, EncodedEpisodes, decode_episodes
from rlvr.rollout.rollout_request import RolloutRequest
from rlvr.rollout.timing import RolloutTiming

logger = logging.getLogger(__name__)
NO_WEIGHTS = WeightUpdate(())
"""Placeholder for the weights of a sampler that loads none."""
MAX_TABLE_VALUES = 4_000_000
"""The most texts, numbers, lists and mappings in what a worker sends for a task. They are read in seconds."""
POLL_INTERVAL_S = 0.05
"""How long to wait for an event before the timeouts and the requests of other threads are checked."""


@dataclass(slots=True, eq=False)
class PendingTasks:
    """Handle to rollout requests that rollout workers are sampling, all with one version of the weights."""

    driver: Driver
    tasks: dict[str, RolloutTask]
    sampling: SamplingParams
    policy_version: int
    """The policy version that is written into the episodes."""
    weights_number: int
    """The driver's number of the weights: counts all weights that were sent."""
    timing: RolloutTiming = field(default_factory=RolloutTiming)
    start_time: float = field(default_factory=time.perf_counter)
    episodes: dict[str, list[Episode]] = field(default_factory=dict)
    is_done: threading.Event = field(default_factory=threading.Event)
    worker_by_task: dict[str, str] = field(default_factory=dict)
    """For each task: the worker that sampled it."""
    limits: EpisodeLimits = NO_LIMITS
    prompts: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """The prompt of each task, by its id, where it is known."""
    audit: PendingTasks | None = None
    """A second sampling of some of the tasks, to compare with the first (`cluster.resample_fraction`)."""

    def result(self) -> list[Episode]:
        """Wait for the episodes, one per request, in order. SamplerError if no worker is left."""
        self.driver.wait_for_any(self)
        if self.audit is not None:
            self.driver.wait_for_any(self.audit)
            self.driver.record_audit_differences(self, self.audit)
            self.audit = None  # compare only once
        return [episode for name in self.tasks for episode in self.episodes[name]]


class Driver:
    """Runs rollouts on rollout workers: sends them tasks and weights, and replaces lost workers without changing the result."""

    def __init__(
        self,
        transport: Transport,
        settings: ClusterConfig,
        *,
        log: Callable[[str], None] = logger.warning,
        record: EventLog | None = None,
        limits: EpisodeLimits = NO_LIMITS,
    ) -> None:
        """`limits`: the limits of all episodes, if they are known here."""
        self.transport, self.settings, self.log, self.limits = transport, settings, log, limits
        self.metrics, self.event_log = ClusterMetrics(settings.rollout_workers), record or EventLog(None)
        self.scheduler = WorkScheduler(
            task_timeout_s=settings.task_timeout_s,
            load_timeout_s=settings.startup_timeout_s,
            max_lost_workers_per_task=settings.max_lost_workers_per_task,
            backup_task_fraction=settings.backup_task_fraction,
        )
        self.num_retries, self.num_lost, self.num_abandoned = 0, 0, 0
        """In the whole run: retried tasks, lost workers, and failed tasks."""
        self.is_closed = False
        """Whether all waiting threads must stop."""
        self._weights_number, self._num_calls = -1, 0
        self._transport_lock, self._deferred = threading.Lock(), deque[Callable[[], None]]()
        """The thread with the lock uses the transport and runs the deferred functions of other threads."""
        self._num_starts = dict.fromkeys(range(settings.rollout_workers), 0)
        self._start_deadlines = dict[str, float]()
        """For each starting worker: when it must be ready."""
        self._current_groups = dict[str, str | None]()
        """For each worker: the first group of its current or last task."""
        self._pending, self._last_loss = dict[str, PendingTasks](), ""
        """For each task: the rollout that waits for it; and the reason of the last loss."""
        for slot in self._num_starts:
            self._start_worker(slot)

    def send_weights(self, update: WeightUpdate = NO_WEIGHTS) -> None:
        """Send new weights for all later rollouts. Does not block: no worker gets a task before it has loaded them."""
        self._weights_number += 1
        self.transport.store_weights(self._weights_number, update)  # in this thread: after the return the trainer may change the weights
        self._run_in_transport_thread(partial(self._announce_weights, self._weights_number))

    def start_rollout(
        self,
        requests: Sequence[RolloutRequest],
        sampling: SamplingParams,
        *,
        version: int = 0,
        as_one_task: bool = False,
        limits: EpisodeLimits | None = None,
    ) -> PendingTasks:
        """Start to sample one episode per request, with the weights that were sent last and after all earlier rollouts. Does not block.

        Some thread must wait for a rollout: only waiting threads handle events. `version` is the policy version that is written into the
        episodes; `as_one_task` samples all requests in one task; `limits`: the limits of these episodes, if not those of all.
        """
        if self._weights_number < 0:
            self.send_weights()
        self._num_calls += 1
        cut = [list(requests)] if as_one_task else split_into_tasks(requests, self.settings.groups_per_task)
        units = {f"{self._num_calls}:{place}": unit for place, unit in enumerate(cut)}
        limits = limits or self.limits
        prompts = limits.render_prompts([request.task for request in requests])  # in the thread that also samples where there is no cluster
        batch = PendingTasks(self, units, sampling, version, self._weights_number, limits=limits, prompts=prompts)
        self._run_in_transport_thread(partial(self._enqueue, batch))
        if chosen := choose_audit_tasks(units, self.settings.resample_fraction):
            batch.audit = PendingTasks(self, chosen, sampling, version, self._weights_number, limits=limits, prompts=prompts)
            self._run_in_transport_thread(partial(self._enqueue, batch.audit))
        return batch

    def collect(self, requests: Sequence[RolloutRequest], sampling: SamplingParams, *, version: int = 0) -> list[Episode]:
        """Sample one episode per request, in order. SamplerError if no worker is left."""
        return self.start_rollout(requests, sampling, version=version).result()

    def wait_for_worker(self) -> None:
        """Wait until a worker has started. RlvrError if none can start."""
        with self._transport_lock:
            while not self.scheduler.num_workers:
                self._run_deferred()
                self._poll()

    def wait_for_any(self, *batches: PendingTasks) -> PendingTasks:
        """Wait until one of these rollouts is complete, and return it. All others go on."""
        while (found := next((batch for batch in batches if batch.is_done.is_set()), None)) is None:
            if not self._transport_lock.acquire(blocking=False):  # another thread uses the transport
                batches[0].is_done.wait(POLL_INTERVAL_S)
                continue
            try:
                while not any(batch.is_done.is_set() for batch in batches):
                    self._run_deferred()
                    self._poll()
            finally:
                self._transport_lock.release()
        return found

    def record_audit_differences(self, batch: PendingTasks, audit: PendingTasks) -> None:
        """Count and log the completions that differ between two workers."""
        self._run_in_transport_thread(partial(self._record_differences, batch, audit))

    def close(self) -> None:
        """End all workers."""
        self.event_log.flush()
        self.transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    # ---- requests of other threads

    def _run_in_transport_thread(self, work: Callable[[], None]) -> None:
        """Run a function now, or defer it to the thread that uses the transport."""
        self._deferred.append(work)
        if self._transport_lock.acquire(blocking=False):
            try:
                self._run_deferred()
            finally:
                self._transport_lock.release()

    def _run_deferred(self) -> None:
        while self._deferred:
            self._deferred.popleft()()

    def _announce_weights(self, version: int) -> None:
        orders = self.scheduler.add_version(version)
        self.transport.free_unneeded_weights(self.scheduler.needed_versions)
        self._execute(orders)

    def _enqueue(self, batch: PendingTasks) -> None:
        self._pending |= dict.fromkeys(batch.tasks, batch)
        self._execute(self.scheduler.enqueue(batch.tasks, batch.weights_number))
        self._finish_if_complete(batch)

    def _store_episodes(self, task_name: str, episodes: list[Episode], verify_s: float = 0.0, *, worker: str | None = None) -> None:
        """Store the episodes of a task; `worker`: the worker that sampled them."""
        batch = self._pending.pop(task_name)
        if worker is not None:
            batch.worker_by_task[task_name] = worker
        batch.episodes[task_name] = episodes
        batch.timing.verification_spans.append((0.0, verify_s))
        self._finish_if_complete(batch)

    def _finish_if_complete(self, batch: PendingTasks) -> None:
        if len(batch.episodes) == len(batch.tasks):
            batch.timing.sampling_s = time.perf_counter() - batch.start_time
            batch.is_done.set()

    def _record_differences(self, batch: PendingTasks, audit: PendingTasks) -> None:
        for name, first in batch.worker_by_task.items():
            second = audit.worker_by_task.get(make_audit_name(name), first)
            if second == first:
                continue  # the same worker sampled both, or one of the two failed
            both = batch.episodes[name], audit.episodes[make_audit_name(name)]
            pairs = {at: pair for at, pair in enumerate(zip(*both, strict=True)) if are_comparable(*pair)}
            if not pairs:
                continue
            self.metrics.add_count("audited_tasks")
            unlike = {at: what for at, pair in pairs.items() if (what := describe_first_difference(*map(get_compared_fields, pair)))}
            if not unlike:
                continue
            self.metrics.add_count("differing_tasks")
            group, count, what = both[0][min(unlike)].group, f"{len(unlike)} of {len(both[0])} completions", unlike[min(unlike)]
            evidence = [[get_compared_fields(episodes[at])._asdict() for at in unlike] for episodes in both]
            self.event_log.add(
                "differs", group=group, version=batch.policy_version, workers=[first, second], answers=unlike, sampled=evidence
            )
            self.log(
                f"rollout workers {first} and {second} sample group {group} differently: in {count}, first {what}; one of them computes "
                "wrongly, or their machines have different hardware; both completions are in rollout_workers.jsonl"
            )

    # ---- events

    def _poll(self) -> None:
        """Wait for events, execute the commands that follow from them, and check the timeouts."""
        for event in self.transport.poll(POLL_INTERVAL_S):
            self._handle_event(event)
        if self.is_closed:
            raise SamplerError("the rollout workers were closed while they sampled")
        now = time.monotonic()
        self._execute(self.scheduler.kill_late_workers(now))
        for worker in [worker for worker, until in self._start_deadlines.items() if now > until]:
            self._handle_worker_loss(
                WorkerLost(worker, f"it was not ready after {self.settings.startup_timeout_s:g} s (cluster.startup_timeout_s)")
            )
        if not self.scheduler.num_workers and not self._start_deadlines:
            raise AllClusterWorkersLost(
                f"no rollout worker is left: each was started {self.settings.max_restarts_per_worker + 1} times; the last one was lost: {self._last_loss}; "
                "fix the cause, then continue with --resume (an evaluation: with the same command)"
            )

    def _handle_event(self, event: Event) -> None:
        match event:
            case WorkerStarted(worker):
                self.metrics.set_state(worker, "idle")
                if self._start_deadlines.pop(worker, None) is not None:
                    self._execute(self.scheduler.add_worker(worker, None))
            case WeightsLoaded(order):
                self.metrics.set_state(order.worker, "idle")
                self._execute(self.scheduler.handle_weights_loaded(order))
            case TaskEnded(order, data, seconds):
                self.metrics.set_state(order.worker, "idle")
                self._handle_task_ended(order, data, seconds)
            case WorkerLost():
                self._handle_worker_loss(event)

    def _handle_task_ended(self, command: DispatchTask, encoded_episodes: bytes, verify_s: float) -> None:
        """Handle the end of a rollout task: store its episodes. If they cannot be read, the worker is replaced and the task is retried."""
        name = str(command.task_name)
        unit = self._pending[name].tasks[name] if name in self._pending else None
        try:
            has_nothing = isinstance(encoded_episodes, bytes) and not encoded_episodes
            if unit is not None and has_nothing:
                raise CorruptData(f"task {command.task_name} came back without episodes, although it was not cancelled")
            limits = self._pending[name].limits if unit is not None else self.limits
            max_tokens = math.inf if unit is None or limits.may_count_own_tokens else len(unit) * limits.max_length
            found = [] if has_nothing else _decode_task(name, encoded_episodes, max_tokens)
            if unit is not None:
                batch = self._pending[name]
                check_task_episodes(name, unit, found, policy_version=batch.policy_version, limits=batch.limits, prompts=batch.prompts)
        except CorruptData as error:
            self._handle_worker_loss(WorkerLost(command.worker, str(error)))
            return
        orders = self.scheduler.handle_task_ended(command)
        self._execute(orders)
        if AcceptResult(command) in orders:
            self._store_episodes(name, found, verify_s, worker=command.worker)

    def _handle_worker_loss(self, event: WorkerLost) -> None:
        """Handle the loss of a worker: end its process, sample its task elsewhere, and restart it."""
        if event.worker not in self._current_groups:
            return  # already handled, for another reason
        self._start_deadlines.pop(event.worker, None)
        orders = [] if event.is_permanent else self.scheduler.remove_worker(event.worker, event.reason, may_be_cause=event.may_be_cause)
        self._replace_worker(event.worker, event.reason, is_permanent=event.is_permanent)
        self._execute(orders)

    def _replace_worker(self, worker: str, why: str, *, is_permanent: bool = False) -> None:
        """End the process of a lost worker, log what is known of it, and restart it if restarts are left."""
        why, slot = make_printable(why), int(worker[1:].split(".")[0])
        left = 0 if is_permanent else self.settings.max_restarts_per_worker + 1 - self._num_starts[slot]
        about = self.transport.get_worker_location_and_log(worker)
        unit = self._current_groups.pop(worker)
        self.event_log.add("lost", collector=worker, why=why, unit=unit, again=left > 0, **about)
        self.transport.kill_worker(worker)
        self.metrics.set_state(worker, None)
        if is_permanent:
            raise RlvrError(f"rollout worker {worker} cannot {'start' if unit is None else 'sample'}: {why}")
        self.metrics.add_count("workers_lost")
        self.num_lost += 1
        self._last_loss = why
        what = f"it is restarted (at most {left} more times)" if left > 0 else "it is not restarted, the run continues with fewer workers"
        self.log(f"rollout worker {worker} is lost: {why}; {what}")
        if left > 0:
            self._start_worker(slot)

    def _start_worker(self, slot: int) -> None:
        worker = f"c{slot}.{self._num_starts[slot]}"
        self._num_starts[slot] += 1
        self._start_deadlines[worker] = time.monotonic() + self.settings.startup_timeout_s
        self._current_groups[worker] = None
        self.metrics.set_state(worker, "starting")
        self.transport.start_worker(worker)

    # ---- commands of the scheduler

    def _execute(self, orders: Sequence[Command]) -> None:
        for order in orders:
            match order:
                case DispatchTask():
                    batch = self._pending[str(order.task_name)]
                    unit = batch.tasks[str(order.task_name)]
                    self.metrics.set_state(order.worker, "sampling")
                    self._current_groups[order.worker] = unit[0].group
                    self.transport.start_task(order, unit, batch.sampling, batch.policy_version)
                case LoadWeights():
                    self.metrics.set_state(order.worker, "loading")
                    self.metrics.add_count("weights_bytes", self.transport.send_weight_update(order))
                case CancelCopy(stopped):
                    self.transport.cancel_task(stopped)
                case CountRetry():
                    self.num_retries += 1
                    self.metrics.add_count("retried_tasks")
                case AbandonTask(group) if is_second_sampling_name(str(group)):
                    self._store_episodes(str(group), [])  # without a second sampling nothing is compared
                case AbandonTask(group, why):
                    self.num_abandoned += 1
                    self.metrics.add_count("abandoned_tasks")
                    batch = self._pending[str(group)]
                    unit = batch.tasks[str(group)]
                    self.event_log.add(
                        "given_up", groups=list(dict.fromkeys(request.group for request in unit)), answers=len(unit), why=why
                    )
                    self._store_episodes(str(group), make_failed_episodes(unit, batch.policy_version, why))
                    self.log(f"{len(unit)} completions from group {unit[0].group} on are left out: {why}")
                case KillWorker(worker, why):
                    self._replace_worker(worker, why)
                case AcceptResult():
                    pass


def _decode_task(task_name: str, data: Any, max_tokens: float = math.inf) -> list[Episode]:
    """Decode the episodes of one task, of at most so many tokens together; raise CorruptData for anything else."""
    if not isinstance(data, bytes | memoryview):
        raise CorruptData(f"task {task_name} came back as {type(data).__name__}, not as bytes")
    encoded = EncodedEpisodes.from_bytes(data, max_values=MAX_TABLE_VALUES)
    if len(encoded.group_sizes) != 1:
        raise CorruptData(f"task {task_name} came back as {len(encoded.group_sizes)} tasks")
    if len(encoded.tokens) > max_tokens:  # decoded, a token takes sixteen times as much memory
        raise CorruptData(f"task {task_name} came back with {len(encoded.tokens):,} tokens, and {max_tokens:,} are allowed")
    return decode_episodes(encoded)[0]
