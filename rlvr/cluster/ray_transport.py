"""Run rollout workers as Ray actors. Ray only starts processes on machines, calls them, and stores the weights.

Each rollout worker is one actor. Ray must not restart it: a restarted actor would have no weights, and the driver would not notice.
Ray needs a minute to notice that a machine is frozen, so each worker is asked for a heartbeat every few seconds.
"""

from __future__ import annotations

import importlib
import math
import os
import sys
import time
from collections.abc import Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from signal import SIGTERM, getsignal
from typing import Any

from rlvr.cluster.checks.reachability import check_port_open, make_unreachable_error
from rlvr.cluster.event_log import (
    CommonErrorDetector,
    describe_exit,
    describe_raised,
    extract_ray_error,
    find_ray_log_folder,
    find_ray_stderr_file,
    limit_log_lines,
    read_last_lines,
    read_last_log_lines_in,
    read_message,
)
from rlvr.cluster.machines import (
    change_to_driver_folder,
    check_actor_location,
    check_capacity,
    end_actor,
    explain_unplaced_worker,
    find_ended_ray_service,
    get_pid_scope_id,
    get_process_identity,
    install_sigterm_handler,
    restore_default_sigterm_handler,
)
from rlvr.cluster.rollout_tasks import RolloutTask
from rlvr.cluster.scheduler_commands import DispatchTask, LoadWeights
from rlvr.cluster.transport import Event, NumBytes, TaskEnded, WeightsLoaded, WorkerLost, WorkerStarted
from rlvr.cluster.verifier_actors import VerifierActorPool, make_ask_verdict
from rlvr.cluster.weights.weight_updates import WeightUpdate, WeightUpdateHistory
from rlvr.config.cluster import ClusterConfig
from rlvr.contracts import SamplingParams
from rlvr.errors import ConfigError, MissingExtra, RlvrError, SamplerError

MAX_MISSED_HEARTBEATS = 3
"""How many heartbeats a worker is asked for within `cluster.heartbeat_timeout_s`; if it misses all, it is lost."""
MAX_VERIFICATION_S = 1e9
"""The longest total time of verification that a task may report: 30 years, in all its threads together."""
FETCH_TIMEOUT_S = 60.0
"""Timeout to fetch a result that a worker has announced."""
SKIPPED_LOG_PATTERN = "A worker died or was killed while executing a task"
"""Beginning of the long paragraph that Ray prints on stdout about a process that ended; the driver logs one line instead."""
MIN_OBJECT_STORE_BYTES = 200 << 20
"""The least bytes of the object store of a cluster on this machine; objects that do not fit are written to disk."""
MAX_OBJECT_STORE_FRACTION = 0.3
"""The most of this machine's memory for its object store, as Ray's own default."""


class _RolloutActor:
    """Actor in the process of a rollout worker. `build_worker` imports the large packages, so the driver does not need them."""

    def __init__(self) -> None:
        self.worker: Any = None
        self.log = ""

    def build_worker(self, config: dict[str, Any], worker_settings: Any, working_folder: str) -> dict[str, Any]:
        """Build the rollout worker in the driver's working folder; return its location."""
        change_to_driver_folder(working_folder)
        self.worker = worker_settings.build_worker(config)
        context = importlib.import_module("ray").get_runtime_context()
        self.log = find_ray_stderr_file()
        return get_process_identity() | {"node": context.get_node_id(), "log": self.log}

    def load_weights(self, version: int, parcels: Sequence[WeightUpdate], limit_s: float) -> None:
        ray: Any = importlib.import_module("ray")  # the buckets are not copied, and only one is here at a time
        gotten = [replace(parcel, buckets=(ray.get(ref, timeout=limit_s) for ref in parcel.buckets)) for parcel in parcels]
        self.worker.load_weights(version, gotten)

    def run_task(
        self, order: DispatchTask, rollout_task: RolloutTask, sampling: SamplingParams, policy_version: int
    ) -> tuple[bytes, float]:
        from rlvr.cluster.rollout_worker import RolloutCancelled

        try:
            found: tuple[bytes, float] = self.worker.run_task(order.version, rollout_task, sampling, policy_version, order)
        except RolloutCancelled:
            return b"", 0.0
        return found

    def cancel(self, order: DispatchTask) -> None:
        self.worker.cancel(order)

    def set_verifier_workers(self, handles: dict[str, Any], number: int) -> None:
        self.worker.verifier_client.set_workers({name: make_ask_verdict(handle) for name, handle in handles.items()}, number)

    def heartbeat(self) -> list[str]:
        return read_last_lines(self.log)


class RayTransport:
    """Start and call rollout workers on the machines of a Ray cluster."""

    def __init__(self, settings: ClusterConfig, config: Mapping[str, Any], facts: Any) -> None:
        self.settings, self.start_arguments, self.heartbeat_interval_s = (
            settings,
            (dict(config), facts, os.getcwd()),
            settings.heartbeat_timeout_s / MAX_MISSED_HEARTBEATS,
        )
        self._actors = dict[str, Any]()
        self._locations = dict[str, dict[str, Any]]()
        self.verifier_workers: VerifierActorPool | None = None
        self._has_started, self._has_sampled, self._num_announcements = False, False, 0
        """Whether any worker ever started, whether any ended a task, and how often the list of verifier workers was sent."""
        self.ray, self._owns_cluster = connect_ray(settings, facts.weight_bytes)
        try:
            check_capacity(settings, [node["Resources"] for node in self.ray.nodes() if node["Alive"]])
        except ConfigError:
            self.close()
            raise
        self._actor_class = self.ray.remote(concurrency_groups={"control": 2}, max_restarts=0, max_task_retries=0)(_RolloutActor)
        self._pending_placements = dict[str, tuple[Any, float]]()
        """For each worker that Ray has not placed yet: the call of its first heartbeat, and when it was made."""
        self._calls = dict[Any, WorkerStarted | WeightsLoaded | TaskEnded]()
        """The calls that run, and the event that each one causes when it ends."""
        self._heartbeats = dict[str, tuple[Any, float]]()
        """For each worker: the pending heartbeat call and its start time, or None and the time of the last heartbeat."""
        self._errors = CommonErrorDetector(settings.rollout_workers)
        self._last_listened = time.monotonic()
        """When heartbeats were last checked."""
        self._last_output = dict[str, list[str]]()
        """For each worker: the last lines of its log, which come with each heartbeat."""
        self._weight_history, self._loaded_versions = WeightUpdateHistory(), dict[str, int]()
        """The weights in the object store, and the version that each worker has loaded."""
        if settings.verifier_workers:
            self.verifier_workers = VerifierActorPool(
                self.ray, settings, config, heartbeat_interval_s=self.heartbeat_interval_s, max_missed=MAX_MISSED_HEARTBEATS
            )

    # ---- orders

    def start_worker(self, worker: str) -> None:
        """Begin to start a worker; Ray chooses the machine."""
        asked = {
            "num_cpus": self.settings.cpus_per_rollout_worker,
            "num_gpus": self.settings.gpus_per_rollout_worker,
            "scheduling_strategy": "SPREAD",
        }
        actor = self._actor_class.options(**asked).remote()
        self._actors[worker] = actor
        self._pending_placements[worker] = (actor.heartbeat.options(concurrency_group="control").remote(), time.monotonic())
        self._calls[actor.build_worker.remote(*self.start_arguments)] = WorkerStarted(worker)

    def kill_worker(self, worker: str) -> None:
        """End the process of a worker."""
        actor, place = self._actors.pop(worker, None), self._locations.pop(worker, None)
        self._heartbeats.pop(worker, None)
        self._loaded_versions.pop(worker, None)
        self._pending_placements.pop(worker, None)
        self._last_output.pop(worker, None)
        self._calls = {call: meant for call, meant in self._calls.items() if _get_worker(meant) != worker}
        end_actor(self.ray, actor, place)

    def store_weights(self, version: int, update: WeightUpdate) -> None:
        """Put weights into the object store, one bucket after the other, once for all workers."""
        try:
            self._weight_history.add(version, replace(update, buckets=[self.ray.put(bucket) for bucket in update.buckets]))
        except self.ray.exceptions.RayError as error:
            raise RlvrError(
                f"version {version} of the weights has no room in Ray's object store and on its disk: {extract_ray_error(str(error))}; "
                "free some of the disk, then continue with --resume"
            ) from error

    def free_unneeded_weights(self, needed_versions: Set[int]) -> None:
        """Free the weights that none of these versions needs."""
        self._weight_history.free_unneeded_weights(needed_versions)

    def send_weight_update(self, command: LoadWeights) -> NumBytes:
        """Let a worker load a stored version of the weights, whole or as deltas from the version that it has; return the bytes to send."""
        parcels = self._weight_history.get_updates(command.version, self._loaded_versions.get(command.worker))
        self._calls[self._actors[command.worker].load_weights.remote(command.version, parcels, self.settings.startup_timeout_s)] = (
            WeightsLoaded(command)
        )
        return sum(parcel.num_bytes for parcel in parcels)

    def start_task(self, command: DispatchTask, rollout_task: RolloutTask, sampling: SamplingParams, policy_version: int) -> None:
        """Let a worker run a rollout task."""
        try:
            call = self._actors[command.worker].run_task.remote(command, rollout_task, sampling, policy_version)
        except Exception as error:  # Ray cannot serialize a task
            raise RlvrError(
                f"the tasks from group {rollout_task[0].group} on cannot be sent to a rollout worker: {extract_ray_error(str(error))}; "
                "reference and meta of a task must be values that pickle can write"
            ) from error
        self._calls[call] = TaskEnded(command, b"")

    def cancel_task(self, command: DispatchTask) -> None:
        """Let a worker cancel its rollout task."""
        if (actor := self._actors.get(command.worker)) is not None:
            actor.cancel.options(concurrency_group="control").remote(command)

    # ---- what happens

    def poll(self, timeout_s: float) -> list[Event]:
        """Return the events since the last call. A worker that misses too many heartbeats is lost.

        SamplerError if the head of a cluster that this run has started is lost.
        """
        if self._owns_cluster and (ended := find_ended_ray_service()):
            raise SamplerError(
                f"{ended}, and no rollout worker can be called without it; continue with --resume (an evaluation: with the same command)"
            )
        if self.verifier_workers is not None and self.verifier_workers.restart_lost_workers():
            self._announce_verifier_workers()
        events = self._check_heartbeats(time.monotonic())
        if not self._calls:
            time.sleep(0 if events else min(timeout_s, 0.1))
            return events
        calls = list(self._calls)
        ready, rest = self.ray.wait(calls, num_returns=1, timeout=0 if events else timeout_s)
        more, _ = self.ray.wait(rest, num_returns=len(rest), timeout=0) if ready and rest else ([], [])
        return events + [self._make_event(call, self._calls.pop(call)) for call in [*ready, *more]]

    def _make_event(self, finished_call: Any, expected_event: WorkerStarted | WeightsLoaded | TaskEnded) -> Event:
        """Turn a finished or failed call into an event."""
        worker = _get_worker(expected_event)
        try:
            value = self.ray.get(finished_call, timeout=FETCH_TIMEOUT_S)
        except self.ray.exceptions.RayTaskError as error:
            cause = error.cause if isinstance(getattr(error, "cause", None), Exception) else error
            said = describe_raised(cause)
            hopeless = self._may_be_permanent(expected_event, cause) and self._errors.record_and_check_shared(worker.split(".")[0], said)
            return WorkerLost(worker, said, is_permanent=hopeless)
        except Exception as error:  # the process, the machine or the result is gone, or the result cannot be read
            return WorkerLost(worker, self._describe_loss(worker, error), may_be_cause=self._is_machine_alive(worker))
        if isinstance(expected_event, WorkerStarted):
            try:
                self._locations[worker] = check_actor_location(self._actors[worker], value)
            except ValueError as error:
                return WorkerLost(worker, f"what it said at its start is damaged: {error}")
            self._has_started = True
            self._announce_verifier_workers(worker)
            self._heartbeats[worker] = (None, time.monotonic())
        elif isinstance(expected_event, TaskEnded):
            try:
                data, seconds = _check_task_result(value)
            except ValueError as error:
                return WorkerLost(worker, f"the result of its task is damaged: {error}")
            self._has_sampled = True
            return TaskEnded(expected_event.command, data, seconds)
        else:
            self._loaded_versions[worker] = expected_event.command.version
        return expected_event

    def _may_be_permanent(self, expected_event: WorkerStarted | WeightsLoaded | TaskEnded, cause: Exception) -> bool:
        """Whether every worker might fail in this way: no worker has succeeded yet, and the cause is an error of rlvr."""
        if isinstance(expected_event, TaskEnded):
            return isinstance(cause, ConfigError) and not self._has_sampled
        return isinstance(expected_event, WorkerStarted) and isinstance(cause, RlvrError) and not self._has_started

    def _check_heartbeats(self, now: float) -> list[Event]:
        """Ask for heartbeats; return the workers that miss them as lost."""
        lost = list[Event]()
        if (
            now - self._last_listened > (MAX_MISSED_HEARTBEATS - 1) * self.heartbeat_interval_s
        ):  # this process was suspended and could not receive heartbeats
            self._heartbeats = {worker: (pulse, since if pulse is None else now) for worker, (pulse, since) in self._heartbeats.items()}
        self._last_listened = now
        asked = [pulse for pulse, _ in [*self._heartbeats.values(), *self._pending_placements.values()] if pulse is not None]
        heard = set(self.ray.wait(asked, num_returns=len(asked), timeout=0)[0]) if asked else set[Any]()
        for worker, (pulse, since) in list(self._heartbeats.items()):
            if pulse in heard:
                self._heartbeats[worker] = (None, now)
                with suppress(Exception):  # the heartbeat failed; the other calls give the reason
                    self._last_output[worker] = limit_log_lines(self.ray.get(pulse, timeout=FETCH_TIMEOUT_S))
            elif pulse is None and now - since >= self.heartbeat_interval_s:
                self._heartbeats[worker] = (self._actors[worker].heartbeat.options(concurrency_group="control").remote(), now)
            elif pulse is not None and now - since > (MAX_MISSED_HEARTBEATS - 1) * self.heartbeat_interval_s:
                lost.append(WorkerLost(worker, f"no heartbeat in {self.settings.heartbeat_timeout_s:g} s (cluster.heartbeat_timeout_s)"))
        for worker, (pulse, since) in list(self._pending_placements.items()):
            if pulse in heard:
                del self._pending_placements[worker]
            elif now - since > self.settings.placement_timeout_s:
                lost.append(
                    WorkerLost(
                        worker,
                        explain_unplaced_worker(self.settings, self.ray.cluster_resources(), self.ray.available_resources()),
                        may_be_cause=False,
                        is_permanent=not self._has_started,
                    )
                )
        return lost

    def _announce_verifier_workers(self, *workers: str) -> None:
        """Send the list of verifier workers to these rollout workers, or to all that have started."""
        if self.verifier_workers is not None:
            self._num_announcements += 1  # two threads of a worker receive these messages, in any order
            for worker in workers or self._locations:
                self._actors[worker].set_verifier_workers.options(concurrency_group="control").remote(
                    self.verifier_workers.ready_actors, self._num_announcements
                )

    def _is_machine_alive(self, worker: str) -> bool:
        """Whether the machine of a worker is alive; if not, the task of the worker cannot be the cause of the loss."""
        node = self._locations.get(worker, {}).get("node")
        return not node or any(found["NodeID"] == node and found["Alive"] for found in self.ray.nodes())

    def _describe_loss(self, worker: str, error: Exception) -> str:
        about = self.get_worker_location_and_log(worker)
        where = f" (process {about['pid']} on {about['host']})" if "pid" in about else ""
        return f"{type(error).__name__}{where}: {describe_exit(read_message(error), about['words'])}"

    def get_worker_location_and_log(self, worker: str) -> dict[str, Any]:
        """Return where a worker runs and its last log lines, which for another machine are those of the last heartbeat."""
        place = self._locations.get(worker)
        if place is None:
            return {"words": []}
        near = bool(place["pids"]) and place["pids"] == get_pid_scope_id()
        words = read_last_log_lines_in(find_ray_log_folder(), place["log"]) if near else []
        words = words or self._last_output.get(worker, [])
        return {"host": place["host"], "pid": place["pid"], "node": place["node"], "words": words}

    def close(self) -> None:
        """End all workers, and the cluster if this run has started it."""
        for worker in list(self._actors):
            self.kill_worker(worker)
        if self.verifier_workers is not None:
            self.verifier_workers.close()
        self._weight_history = WeightUpdateHistory()
        if self._owns_cluster:
            self.ray.shutdown()
            restore_default_sigterm_handler()


def _check_task_result(value: object) -> tuple[bytes, float]:
    """Return the bytes and the seconds of verification that a worker gives for a task; raise ValueError for anything else.

    >>> _check_task_result((b"data", 0.5))
    (b'data', 0.5)
    """
    if not isinstance(value, tuple) or len(value) != 2:
        raise ValueError(f"it is {type(value).__name__}, not two values: bytes and a number of seconds")
    data, seconds = value
    if not isinstance(data, bytes):
        raise ValueError(f"it has {type(data).__name__} where the bytes of the episodes belong")
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds <= MAX_VERIFICATION_S:
        raise ValueError("its seconds of verification are not a number from 0 on")
    return data, float(seconds)


def _get_worker(meant: WorkerStarted | WeightsLoaded | TaskEnded) -> str:
    return meant.worker if isinstance(meant, WorkerStarted) else meant.command.worker


def _choose_object_store_bytes(weight_bytes: int, memory_bytes: int) -> int:
    """Choose the bytes of the object store: two versions of the weights, one that is loaded and the next one.

    >>> _choose_object_store_bytes(16 << 30, 512 << 30) >> 30, _choose_object_store_bytes(16 << 30, 64 << 30) >> 30
    (32, 19)
    """
    return max(MIN_OBJECT_STORE_BYTES, min(2 * weight_bytes, int(MAX_OBJECT_STORE_FRACTION * memory_bytes)))


def connect_ray(settings: ClusterConfig, weight_bytes: int = 0) -> tuple[Any, bool]:
    """Connect Ray to the cluster of these settings; return Ray and whether this call made the connection.

    Raises:
        MissingExtra: Ray is not installed.
        ConfigError: no cluster answers.
    """
    present = sys.modules.get("ray")
    if present is not None and present.is_initialized():  # before the environment variables below are set
        return present, False
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # otherwise Ray sends usage statistics to its developers
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", SKIPPED_LOG_PATTERN)
    os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")  # otherwise Ray prints tracebacks of calls to lost workers
    local = settings.address == "local"
    if local:
        os.environ.setdefault("RAY_AUTH_MODE", "token")  # otherwise anyone who reaches the ports of Ray can run code
    try:
        ray: Any = importlib.import_module("ray")
    except ModuleNotFoundError as error:
        raise MissingExtra("ray", "ray", "set cluster.rollout_workers to 0") from error
    mine: dict[str, Any] = {"include_dashboard": False} if local else {}
    if local:
        mine["object_store_memory"] = _choose_object_store_bytes(weight_bytes, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
        if (read := sys.modules.get("ray._raylet")) is not None:
            read.Config.initialize("")  # Ray may already have read the mode, on import
        asked = settings.rollout_workers * settings.cpus_per_rollout_worker + settings.verifier_workers * settings.cpus_per_verifier_worker
        mine["num_cpus"] = max(os.cpu_count() or 1, math.ceil(asked))
    check_port_open(settings.address)
    before = getsignal(SIGTERM)
    try:
        ray.init(address=settings.address, log_to_driver=False, logging_level="error", configure_logging=False, **mine)
    except (OSError, OverflowError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        if local:
            raise ConfigError(f"Ray could not start a cluster on this machine: {' '.join(str(error).split())[:300]}") from error
        raise make_unreachable_error(settings.address, str(error)) from error
    if local:
        protect_ray_token()
    install_sigterm_handler(before)
    _redirect_ray_output_to_stderr()
    return ray, True


def _redirect_ray_output_to_stderr() -> None:
    """Redirect the messages of Ray about its processes from standard output, which is for results, to standard error."""
    worker: Any = sys.modules.get("ray._private.worker")
    if (printed := getattr(worker, "print_worker_logs", None)) is not None:
        worker.print_worker_logs = lambda data, _, *rest, **how: printed(data, sys.stderr, *rest, **how)


def protect_ray_token() -> None:
    """Let only this user read the token with which programs reach Ray: Ray writes the file for everyone, and listens on all interfaces."""
    path = Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token")
    with suppress(OSError):
        if path.stat().st_mode & 0o077:
            path.chmod(0o600)
