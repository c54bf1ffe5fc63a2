"""Run verifier workers as Ray actors, and restart lost ones.

Rollout workers call them directly; the driver only sends the actor handles.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rlvr.cluster.event_log import CommonErrorDetector, describe_exit, describe_raised, make_printable, read_message
from rlvr.cluster.machines import change_to_driver_folder, check_actor_location, end_actor, get_process_identity
from rlvr.cluster.verifier_workers import AskVerdict, VerifierLost, VerifierLostBeforeVerification
from rlvr.config.cluster import ClusterConfig
from rlvr.contracts import Transcript
from rlvr.errors import AllClusterWorkersLost, RlvrError
from rlvr.task import Task, Verdict

logger = logging.getLogger(__name__)
MAX_BUSY_FRACTION = 2.0
MAX_CONCURRENT_CALLS = 100_000
"""Calls that an actor accepts at once. With the default of Ray a heartbeat would wait behind a thousand pending verifications."""


class VerifierActor:
    """Actor in the process of a verifier worker. Verification runs in other threads, so that heartbeats are answered."""

    def __init__(self) -> None:
        self.host: Any = None

    async def build_worker(self, config: dict[str, Any], working_folder: str) -> dict[str, Any]:
        """Build environment and verifier in the driver's working folder; return where this process runs (machine and pid)."""
        from rlvr.cluster.verifier_workers import VerifierWorker
        from rlvr.config.config import validate_config

        change_to_driver_folder(working_folder)
        self.host = await asyncio.to_thread(lambda: VerifierWorker(validate_config(config, "the run")))
        return get_process_identity()

    async def verify(self, task: Task, transcript: Transcript, is_exclusive: bool = False) -> Verdict:
        """Verify one completion; `is_exclusive`: while nothing else runs in this worker.

        For an exclusive verification the worker must have been reserved.
        """
        found: Verdict = await self.host.verify(task, transcript, is_exclusive)
        return found

    async def reserve_exclusively(self) -> None:
        """Reserve the worker for a completion that must be verified alone."""
        self.host.reserve_exclusively()

    async def report_busy_thread_fraction(self) -> float:
        """Answer a heartbeat with the fraction of the threads that were busy since the last one; RuntimeError if all of them hang."""
        if self.host is not None and self.host.executor.has_too_many_hung_threads:
            raise RuntimeError("hanging verifications occupy all its threads")
        return self.host.take_busy_fraction() if self.host is not None else 0.0


@dataclass(slots=True)
class _WorkerSlot:
    """A place for one verifier worker, and the worker in it."""

    number: int
    num_starts: int = 0
    actor: Any = None
    start_call: Any = None
    """The call that starts the worker, until it is ready."""
    location: Mapping[str, Any] | None = None
    heartbeat_call: Any = None
    """The pending heartbeat call; None: the last one has been answered."""
    busy_fraction: float = 0.0
    """The share of its threads that were busy before the last heartbeat."""
    last_change: float = 0.0
    """When the last heartbeat came; for a starting worker, when the start began."""

    @property
    def name(self) -> str:
        return f"j{self.number}.{self.num_starts - 1}"


class VerifierActorPool:
    """Starts the verifier workers of a run as Ray actors, and restarts lost ones.

    The driver must call `restart_lost_workers` regularly, which never blocks.
    """

    def __init__(
        self, ray: Any, settings: ClusterConfig, config: Mapping[str, Any], *, heartbeat_interval_s: float, max_missed: int,
    ) -> None:  # fmt: skip
        self.ray, self.settings, self.config = ray, settings, dict(config)
        self.heartbeat_interval_s, self.max_missed, self.num_lost = heartbeat_interval_s, max_missed, 0
        self._errors = CommonErrorDetector(settings.verifier_workers)
        self._has_started, self._last_checked = False, time.monotonic()
        """Whether any worker ever started, and when heartbeats were last checked."""
        self._actor_class = ray.remote(max_restarts=0, max_task_retries=0)(VerifierActor)
        self.slots = [_WorkerSlot(number) for number in range(settings.verifier_workers)]
        for slot in self.slots:
            self._start_worker(slot)

    @property
    def ready_actors(self) -> dict[str, Any]:
        """The actors that are ready, by worker name."""
        return {slot.name: slot.actor for slot in self.slots if slot.location is not None}

    @property
    def busy_fraction(self) -> float:
        """The share of the threads of all workers that were busy before the last heartbeats."""
        return sum(slot.busy_fraction for slot in self.slots if slot.location is not None) / max(len(self.slots), 1)

    def restart_lost_workers(self) -> bool:
        """Restart lost verifier workers; return whether the set of ready workers has changed.

        Raises AllClusterWorkersLost if none is left.
        """
        before, now = set(self.ready_actors), time.monotonic()
        if (
            now - self._last_checked > (self.max_missed - 1) * self.heartbeat_interval_s
        ):  # this process was suspended and could not receive heartbeats
            for slot in self.slots:
                slot.last_change = slot.last_change if slot.heartbeat_call is None else now
        self._last_checked = now
        calls = [call for slot in self.slots for call in (slot.start_call, slot.heartbeat_call) if call is not None]
        heard = set(self.ray.wait(calls, num_returns=len(calls), timeout=0)[0]) if calls else set[Any]()
        for slot in self.slots:
            if slot.start_call in heard or slot.heartbeat_call in heard:
                self._handle_start_or_heartbeat(slot, now)
            elif slot.start_call is not None and now - slot.last_change > self.settings.startup_timeout_s:
                self._handle_loss(slot, f"it was not ready after {self.settings.startup_timeout_s:g} s (cluster.startup_timeout_s)")
            elif slot.heartbeat_call is not None and now - slot.last_change > (self.max_missed - 1) * self.heartbeat_interval_s:
                self._handle_loss(slot, f"no heartbeat in {self.max_missed * self.heartbeat_interval_s:g} s (cluster.heartbeat_timeout_s)")
            elif slot.location is not None and slot.heartbeat_call is None and now - slot.last_change >= self.heartbeat_interval_s:
                slot.heartbeat_call, slot.last_change = slot.actor.report_busy_thread_fraction.remote(), now
        if self.slots and all(slot.actor is None for slot in self.slots):
            raise AllClusterWorkersLost(
                f"no verifier worker is left: each was started {self.settings.max_restarts_per_worker + 1} times; "
                "fix the cause, then continue with --resume"
            )
        return set(self.ready_actors) != before

    def close(self) -> None:
        """End all workers."""
        for slot in self.slots:
            self._end_worker(slot)

    def _handle_start_or_heartbeat(self, slot: _WorkerSlot, now: float) -> None:
        """Handle the end of a start call or a heartbeat call: the worker is ready, alive or lost."""
        try:
            value = self.ray.get(slot.start_call or slot.heartbeat_call, timeout=self.heartbeat_interval_s)
        except self.ray.exceptions.RayTaskError as error:
            cause = error.cause if isinstance(getattr(error, "cause", None), Exception) else error
            said = describe_raised(cause)
            if isinstance(cause, RlvrError) and not self._has_started and self._errors.record_and_check_shared(str(slot.number), said):
                raise RlvrError(f"verifier worker {slot.name} cannot start: {said}") from error
            self._handle_loss(slot, said)
            return
        except Exception as error:  # the process or its machine is gone, or what it has sent cannot be read
            self._handle_loss(slot, f"{type(error).__name__}: {describe_exit(read_message(error), [])}")
            return
        try:
            slot.location, slot.busy_fraction = (
                (check_actor_location(slot.actor, value), 0.0)
                if slot.start_call is not None
                else (slot.location, _check_busy_fraction(value))
            )
        except ValueError as error:
            self._handle_loss(slot, f"what it said is damaged: {error}")
            return
        slot.start_call, slot.heartbeat_call, slot.last_change, self._has_started = None, None, now, True

    def _handle_loss(self, slot: _WorkerSlot, why: str) -> None:
        why, left = make_printable(why), self.settings.max_restarts_per_worker + 1 - slot.num_starts
        what = f"it is restarted (at most {left} more times)" if left > 0 else "it is not restarted, the run continues with fewer workers"
        logger.warning("verifier worker %s is lost: %s; %s", slot.name, why, what)
        self.num_lost += 1
        self._end_worker(slot)
        if left > 0:
            self._start_worker(slot)

    def _start_worker(self, slot: _WorkerSlot) -> None:
        slot.num_starts += 1
        asked = {
            "num_cpus": self.settings.cpus_per_verifier_worker,
            "num_gpus": 0,
            "scheduling_strategy": "SPREAD",
            "max_concurrency": MAX_CONCURRENT_CALLS,
        }
        slot.actor = self._actor_class.options(**asked).remote()
        slot.start_call, slot.last_change = slot.actor.build_worker.remote(self.config, os.getcwd()), time.monotonic()

    def _end_worker(self, slot: _WorkerSlot) -> None:
        actor, place = slot.actor, slot.location
        slot.actor = slot.start_call = slot.location = slot.heartbeat_call = None
        end_actor(self.ray, actor, place)


def _check_busy_fraction(said: object) -> float:
    """Return the share of busy threads that a heartbeat gives; raise ValueError if it cannot be one. Clocks may make it a little above 1."""
    if isinstance(said, bool) or not isinstance(said, int | float) or not 0 <= said <= MAX_BUSY_FRACTION:
        raise ValueError("the busy share of its threads is not a number from 0 to 1")
    return float(said)


def make_ask_verdict(actor: Any) -> AskVerdict:
    """Make the function with which a rollout worker asks the verifier worker behind this handle."""
    errors = importlib.import_module("ray").exceptions

    async def reserved() -> None:
        try:
            await actor.reserve_exclusively.remote()
        except errors.RayTaskError as error:
            raise error.cause if isinstance(error.cause, Exception) else error from error
        except (errors.RayError, asyncio.CancelledError) as error:
            raise VerifierLostBeforeVerification(f"{type(error).__name__}: {describe_exit(read_message(error), [])}") from error

    async def ask(task: Task, transcript: Transcript, alone: bool) -> Verdict:
        if alone:
            await reserved()
        try:
            found: Verdict = await actor.verify.remote(task, transcript, alone)
        except errors.RayTaskError as error:
            raise error.cause if isinstance(error.cause, Exception) else error from error
        except errors.RayError as error:
            raise VerifierLost(f"{type(error).__name__}: {describe_exit(read_message(error), [])}") from error
        return found

    return ask
