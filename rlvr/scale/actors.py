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
from signal import SIGTERM, getsignal
from typing import Any

from rlvr.config.cluster import ClusterConfig
from rlvr.contracts import Sampling
from rlvr.errors import ConfigError, MissingExtra, RlvrError
from rlvr.scale.checks.reach import check_listens, no_cluster
from rlvr.scale.judgehosts import JudgeHosts, asking
from rlvr.scale.machines import check_room, end, end_at_once, end_in_order, here, no_place, pids_of, work_in
from rlvr.scale.orders import Assign, Load
from rlvr.scale.record import ending, last_lines, last_said, log_of
from rlvr.scale.transport import Ended, Event, Loaded, Lost, Started
from rlvr.scale.units import Unit
from rlvr.scale.weights.parcels import Chain, Parcel

MISSED = 3
"""How many heartbeats a worker is asked for within `cluster.heartbeat_timeout_s`; if it misses all, it is lost."""
FETCH_S = 60.0
"""Timeout to fetch a result that a worker has announced."""
SAID_ELSEWHERE = "A worker died or was killed while executing a task"
"""Beginning of the long paragraph that Ray prints on stdout about a process that ended; the driver logs one line instead."""
OBJECTS = 200 << 20
"""Bytes of the object store of a cluster on this machine; objects that do not fit are written to disk."""


class _Actor:
    """Actor in the process of a rollout worker. `begin` imports the large packages, so the driver does not need them."""

    def __init__(self) -> None:
        self.collector: Any = None
        self.log = ""

    def begin(self, config: dict[str, Any], facts: Any, folder: str) -> dict[str, Any]:
        """Build the rollout worker in the driver's working folder; return its location."""
        work_in(folder)
        self.collector = facts.collector(config)
        context = importlib.import_module("ray").get_runtime_context()
        self.log = log_of()
        return here() | {"node": context.get_node_id(), "log": self.log}

    def load(self, version: int, parcels: Sequence[Parcel], limit_s: float) -> None:
        ray: Any = importlib.import_module("ray")  # the buckets are not copied, and only one is here at a time
        gotten = [replace(parcel, buckets=(ray.get(ref, timeout=limit_s) for ref in parcel.buckets)) for parcel in parcels]
        self.collector.load(version, gotten)

    def collect(self, order: Assign, unit: Unit, sampling: Sampling, label: int) -> tuple[bytes, float]:
        from rlvr.scale.collector import Cancelled

        try:
            found: tuple[bytes, float] = self.collector.collect(order.version, unit, sampling, label, order)
        except Cancelled:
            return b"", 0.0
        return found

    def cancel(self, order: Assign) -> None:
        self.collector.cancel(order)

    def name_judges(self, handles: dict[str, Any], number: int) -> None:
        self.collector.desk.name({name: asking(handle) for name, handle in handles.items()}, number)

    def pulse(self) -> list[str]:
        return last_lines(self.log)


class Actors:
    """Start and call rollout workers on the machines of a Ray cluster."""

    def __init__(self, settings: ClusterConfig, config: Mapping[str, Any], facts: Any) -> None:
        self.settings, self.began, self.pulse_s = settings, (dict(config), facts, os.getcwd()), settings.pulse_s / MISSED
        self._actors = dict[str, Any]()
        self._places = dict[str, dict[str, Any]]()
        self.judges: JudgeHosts | None = None
        self._started, self._sampled, self._namings = False, False, 0
        """Whether any worker ever started, whether any ended a task, and how often the list of verifier workers was sent."""
        self.ray, self._ours = ray_of(settings)
        try:
            check_room(settings, [node["Resources"] for node in self.ray.nodes() if node["Alive"]])
        except ConfigError:
            self.close()
            raise
        self._kind = self.ray.remote(concurrency_groups={"control": 2}, max_restarts=0, max_task_retries=0)(_Actor)
        self._placing = dict[str, tuple[Any, float]]()
        """For each worker that Ray has not placed yet: the call of its first heartbeat, and when it was made."""
        self._calls = dict[Any, Started | Loaded | Ended]()
        """The calls that run, and the event that each one causes when it ends."""
        self._pulses = dict[str, tuple[Any, float]]()
        """For each worker: the pending heartbeat call and its start time, or None and the time of the last heartbeat."""
        self._listened = time.monotonic()
        """When heartbeats were last checked."""
        self._words = dict[str, list[str]]()
        """For each worker: the last lines of its log, which come with each heartbeat."""
        self._weights, self._has = Chain(), dict[str, int]()
        """The weights in the object store, and the version that each worker has loaded."""
        if settings.judges:
            self.judges = JudgeHosts(self.ray, settings, config, pulse_s=self.pulse_s, missed=MISSED)

    # ---- orders

    def start(self, worker: str) -> None:
        """Begin to start a worker; Ray chooses the machine."""
        asked = {"num_cpus": self.settings.cpus, "num_gpus": self.settings.gpus, "scheduling_strategy": "SPREAD"}
        actor = self._kind.options(**asked).remote()
        self._actors[worker] = actor
        self._placing[worker] = (actor.pulse.options(concurrency_group="control").remote(), time.monotonic())
        self._calls[actor.begin.remote(*self.began)] = Started(worker)

    def stop(self, worker: str) -> None:
        """End the process of a worker."""
        actor, place = self._actors.pop(worker, None), self._places.pop(worker, None)
        self._pulses.pop(worker, None)
        self._has.pop(worker, None)
        self._placing.pop(worker, None)
        self._words.pop(worker, None)
        self._calls = {call: meant for call, meant in self._calls.items() if _worker(meant) != worker}
        end(self.ray, actor, place)

    def hold(self, version: int, parcel: Parcel) -> None:
        """Put weights into the object store, one bucket after the other, once for all workers."""
        try:
            self._weights.add(version, replace(parcel, buckets=[self.ray.put(bucket) for bucket in parcel.buckets]))
        except self.ray.exceptions.RayError as error:
            raise RlvrError(
                f"version {version} of the weights has no room in Ray's object store and on its disk: {last_said(str(error))}; "
                "free some of the disk, then continue with --resume"
            ) from error

    def keep(self, versions: Set[int]) -> None:
        """Free the weights that none of these versions needs."""
        self._weights.keep(versions)

    def load(self, order: Load) -> int:
        """Let a worker load stored weights: a full copy, or the deltas since the version that it has."""
        parcels = self._weights.path(order.version, self._has.get(order.worker))
        self._calls[self._actors[order.worker].load.remote(order.version, parcels, self.settings.start_s)] = Loaded(order)
        return sum(parcel.size for parcel in parcels)

    def sample(self, order: Assign, unit: Unit, sampling: Sampling, label: int) -> None:
        """Let a worker run a rollout task."""
        try:
            call = self._actors[order.worker].collect.remote(order, unit, sampling, label)
        except Exception as error:  # Ray cannot serialize a task
            raise RlvrError(
                f"the tasks from group {unit[0].group} on cannot be sent to a rollout worker: {last_said(str(error))}; "
                "reference and meta of a task must be values that pickle can write"
            ) from error
        self._calls[call] = Ended(order, b"")

    def cancel(self, order: Assign) -> None:
        """Let a worker cancel its rollout task."""
        if (actor := self._actors.get(order.worker)) is not None:
            actor.cancel.options(concurrency_group="control").remote(order)

    # ---- what happens

    def poll(self, timeout_s: float) -> list[Event]:
        """Return the events since the last call. A worker that misses too many heartbeats is lost."""
        if self.judges is not None and self.judges.look():
            self._tell_judges()
        events = self._listen(time.monotonic())
        if not self._calls:
            time.sleep(0 if events else min(timeout_s, 0.1))
            return events
        calls = list(self._calls)
        ready, rest = self.ray.wait(calls, num_returns=1, timeout=0 if events else timeout_s)
        more, _ = self.ray.wait(rest, num_returns=len(rest), timeout=0) if ready and rest else ([], [])
        return events + [self._came(call, self._calls.pop(call)) for call in [*ready, *more]]

    def _came(self, call: Any, meant: Started | Loaded | Ended) -> Event:
        """Turn a finished or failed call into an event."""
        worker = _worker(meant)
        try:
            value = self.ray.get(call, timeout=FETCH_S)
        except self.ray.exceptions.RayTaskError as error:
            cause = error.cause if isinstance(getattr(error, "cause", None), Exception) else error
            hopeless = self._hopeless(meant, cause)
            return Lost(worker, f"{type(cause).__name__}: {' '.join(str(cause).split())[-300:]}", hopeless=hopeless)
        except Exception as error:  # the process, the machine or the result is gone, or the result cannot be read
            return Lost(worker, self._why(worker, error), blame=self._alive(worker))
        if isinstance(meant, Started):
            self._places[worker], self._started = value, True
            self._tell_judges(worker)
            self._pulses[worker] = (None, time.monotonic())
        elif isinstance(meant, Ended):
            self._sampled = True
            return Ended(meant.order, *value)
        else:
            self._has[worker] = meant.order.version
        return meant

    def _hopeless(self, meant: Started | Loaded | Ended, cause: Exception) -> bool:
        """Whether every worker would fail in this way: no worker has succeeded yet, and the cause is an error of rlvr."""
        if isinstance(meant, Ended):
            return isinstance(cause, ConfigError) and not self._sampled
        return isinstance(meant, Started) and isinstance(cause, RlvrError) and not self._started

    def _listen(self, now: float) -> list[Event]:
        """Ask for heartbeats; return the workers that miss them as lost."""
        lost = list[Event]()
        if now - self._listened > (MISSED - 1) * self.pulse_s:  # this process was suspended and could not receive heartbeats
            self._pulses = {worker: (pulse, since if pulse is None else now) for worker, (pulse, since) in self._pulses.items()}
        self._listened = now
        asked = [pulse for pulse, _ in [*self._pulses.values(), *self._placing.values()] if pulse is not None]
        heard = set(self.ray.wait(asked, num_returns=len(asked), timeout=0)[0]) if asked else set[Any]()
        for worker, (pulse, since) in list(self._pulses.items()):
            if pulse in heard:
                self._pulses[worker] = (None, now)
                with suppress(Exception):  # the heartbeat failed; the other calls give the reason
                    self._words[worker] = self.ray.get(pulse, timeout=FETCH_S)
            elif pulse is None and now - since >= self.pulse_s:
                self._pulses[worker] = (self._actors[worker].pulse.options(concurrency_group="control").remote(), now)
            elif pulse is not None and now - since > (MISSED - 1) * self.pulse_s:
                lost.append(Lost(worker, f"no heartbeat in {self.settings.pulse_s:g} s (cluster.heartbeat_timeout_s)"))
        for worker, (pulse, since) in list(self._placing.items()):
            if pulse in heard:
                del self._placing[worker]
            elif now - since > self.settings.place_s:
                lost.append(
                    Lost(
                        worker,
                        no_place(self.settings, self.ray.cluster_resources(), self.ray.available_resources()),
                        blame=False,
                        hopeless=not self._started,
                    )
                )
        return lost

    def _tell_judges(self, *workers: str) -> None:
        """Send the list of verifier workers to these rollout workers, or to all that have started."""
        if self.judges is not None:
            self._namings += 1  # two threads of a worker receive these messages, in any order
            for worker in workers or self._places:
                self._actors[worker].name_judges.options(concurrency_group="control").remote(self.judges.ready, self._namings)

    def _alive(self, worker: str) -> bool:
        """Whether the machine of a worker is alive; if not, the task of the worker cannot be the cause of the loss."""
        node = self._places.get(worker, {}).get("node")
        return node is None or any(found["NodeID"] == node and found["Alive"] for found in self.ray.nodes())

    def _why(self, worker: str, error: Exception) -> str:
        about = self.about(worker)
        where = f" (process {about['pid']} on {about['host']})" if "pid" in about else ""
        return f"{type(error).__name__}{where}: {ending(str(error), about['words'])}"

    def about(self, worker: str) -> dict[str, Any]:
        """Return where a worker runs and its last log lines, which for another machine are those of the last heartbeat."""
        place = self._places.get(worker)
        if place is None:
            return {"words": []}
        near = bool(place["pids"]) and place["pids"] == pids_of()
        words = last_lines(place.get("log", "")) if near else self._words.get(worker, [])
        return {"host": place["host"], "pid": place["pid"], "node": place["node"], "words": words}

    def close(self) -> None:
        """End all workers, and the cluster if this run has started it."""
        for worker in list(self._actors):
            self.stop(worker)
        if self.judges is not None:
            self.judges.close()
        self._weights = Chain()
        if self._ours:
            self.ray.shutdown()
            end_at_once()


def _worker(meant: Started | Loaded | Ended) -> str:
    return meant.worker if isinstance(meant, Started) else meant.order.worker


def ray_of(settings: ClusterConfig) -> tuple[Any, bool]:
    """Connect Ray to the cluster of these settings; return Ray and whether this call made the connection.

    Raises:
        MissingExtra: Ray is not installed.
        ConfigError: no cluster answers.
    """
    present = sys.modules.get("ray")
    if present is not None and present.is_initialized():  # before the environment variables below are set
        return present, False
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # otherwise Ray sends usage statistics to its developers
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", SAID_ELSEWHERE)
    os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")  # otherwise Ray prints tracebacks of calls to lost workers
    local = settings.address == "local"
    if local:
        os.environ.setdefault("RAY_AUTH_MODE", "token")  # otherwise anyone who reaches the ports of Ray can run code
    try:
        ray: Any = importlib.import_module("ray")
    except ModuleNotFoundError as error:
        raise MissingExtra("ray", "ray", "set cluster.rollout_workers to 0") from error
    mine: dict[str, Any] = {"include_dashboard": False, "object_store_memory": OBJECTS} if local else {}
    if local:
        if (read := sys.modules.get("ray._raylet")) is not None:
            read.Config.initialize("")  # Ray may already have read the mode, on import
        asked = settings.collectors * settings.cpus + settings.judges * settings.judge_cpus
        mine["num_cpus"] = max(os.cpu_count() or 1, math.ceil(asked))
    check_listens(settings.address)
    before = getsignal(SIGTERM)
    try:
        ray.init(address=settings.address, log_to_driver=False, logging_level="error", configure_logging=False, **mine)
    except (OSError, OverflowError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        if local:
            raise ConfigError(f"Ray could not start a cluster on this machine: {' '.join(str(error).split())[:300]}") from error
        raise no_cluster(settings.address, str(error)) from error
    end_in_order(before)
    _off_stdout()
    return ray, True


def _off_stdout() -> None:
    """Redirect the messages of Ray about its processes from standard output, which is for results, to standard error."""
    worker: Any = sys.modules.get("ray._private.worker")
    if (printed := getattr(worker, "print_worker_logs", None)) is not None:
        worker.print_worker_logs = lambda data, _, *rest, **how: printed(data, sys.stderr, *rest, **how)
