"""Run verifier workers as Ray actors, and restart lost ones.

Rollout workers call them directly; the driver only sends the actor handles.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rlvr.config.cluster import ClusterConfig
from rlvr.contracts import Transcript
from rlvr.errors import CollectorsLost, RlvrError
from rlvr.scale.judges import Ask, HostLost, NeverBegun
from rlvr.scale.machines import end, here, work_in
from rlvr.scale.record import ending
from rlvr.task import Task, Verdict

QUESTIONS = 100_000
"""Calls that an actor accepts at once. With the default of Ray a heartbeat would wait behind a thousand pending verifications."""


class HostActor:
    """Actor in the process of a verifier worker. Verification runs in other threads, so that heartbeats are answered."""

    def __init__(self) -> None:
        self.host: Any = None

    async def begin(self, config: dict[str, Any], folder: str) -> dict[str, Any]:
        """Build environment and verifier in the driver's working folder; return the location."""
        from rlvr.config.config import check
        from rlvr.scale.judges import JudgeHost

        work_in(folder)
        self.host = await asyncio.to_thread(lambda: JudgeHost(check(config, "the run")))
        return here()

    async def judge(self, task: Task, transcript: Transcript, alone: bool = False) -> Verdict:
        """Return one verdict."""
        found: Verdict = await self.host.judge(task, transcript, alone)
        return found

    async def reserve(self) -> None:
        """Reserve the worker for a completion that must be verified alone."""
        self.host.reserve()

    async def pulse(self) -> float:
        """Return the share of its threads that were busy since the last heartbeat; RuntimeError if all of them hang."""
        if self.host is not None and self.host.judges.spent:
            raise RuntimeError("hanging verifications occupy all its threads")
        return self.host.busy() if self.host is not None else 0.0


@dataclass(slots=True)
class _Slot:
    """A place for one verifier worker, and the worker in it."""

    number: int
    starts: int = 0
    actor: Any = None
    begin: Any = None
    """The call that starts the worker, until it is ready."""
    place: Mapping[str, Any] | None = None
    pulse: Any = None
    """The pending heartbeat call; None: the last one has been answered."""
    busy: float = 0.0
    """The share of its threads that were busy before the last heartbeat."""
    since: float = 0.0
    """When the last heartbeat came; for a starting worker, when the start began."""

    @property
    def name(self) -> str:
        return f"j{self.number}.{self.starts - 1}"


class JudgeHosts:
    """The verifier workers of a run. The driver must call `check_workers` regularly, which never blocks."""

    def __init__(
        self, ray: Any, settings: ClusterConfig, config: Mapping[str, Any], *, pulse_s: float, missed: int,
        tell: Callable[[str], None] = lambda line: print(f"note: {line}", file=sys.stderr, flush=True),
    ) -> None:  # fmt: skip
        self.ray, self.settings, self.config, self.tell = ray, settings, dict(config), tell
        self.pulse_s, self.missed, self.lost = pulse_s, missed, 0
        self._started, self._looked = False, time.monotonic()
        """Whether any worker ever started, and when heartbeats were last checked."""
        self._kind = ray.remote(max_restarts=0, max_task_retries=0)(HostActor)
        self.slots = [_Slot(number) for number in range(settings.judges)]
        for slot in self.slots:
            self._start(slot)

    @property
    def ready(self) -> dict[str, Any]:
        """The actors that are ready, by worker name."""
        return {slot.name: slot.actor for slot in self.slots if slot.place is not None}

    @property
    def busy(self) -> float:
        """The share of the threads of all workers that were busy before the last heartbeats."""
        return sum(slot.busy for slot in self.slots if slot.place is not None) / max(len(self.slots), 1)

    def look(self) -> bool:
        """Check all workers, restart lost ones, and return whether the ready ones changed. CollectorsLost if none is left."""
        before, now = set(self.ready), time.monotonic()
        if now - self._looked > (self.missed - 1) * self.pulse_s:  # this process was suspended and could not receive heartbeats
            for slot in self.slots:
                slot.since = slot.since if slot.pulse is None else now
        self._looked = now
        calls = [call for slot in self.slots for call in (slot.begin, slot.pulse) if call is not None]
        heard = set(self.ray.wait(calls, num_returns=len(calls), timeout=0)[0]) if calls else set[Any]()
        for slot in self.slots:
            if slot.begin in heard or slot.pulse in heard:
                self._heard(slot, now)
            elif slot.begin is not None and now - slot.since > self.settings.start_s:
                self._gone(slot, f"it was not ready after {self.settings.start_s:g} s (cluster.startup_timeout_s)")
            elif slot.pulse is not None and now - slot.since > (self.missed - 1) * self.pulse_s:
                self._gone(slot, f"no heartbeat in {self.missed * self.pulse_s:g} s (cluster.heartbeat_timeout_s)")
            elif slot.place is not None and slot.pulse is None and now - slot.since >= self.pulse_s:
                slot.pulse, slot.since = slot.actor.pulse.remote(), now
        if self.slots and all(slot.actor is None for slot in self.slots):
            raise CollectorsLost(
                f"no verifier worker is left: each was started {self.settings.restarts + 1} times; "
                "fix the cause, then continue with --resume"
            )
        return set(self.ready) != before

    def close(self) -> None:
        """End all workers."""
        for slot in self.slots:
            self._end(slot)

    def _heard(self, slot: _Slot, now: float) -> None:
        """Handle the answer or the loss of a worker."""
        try:
            value = self.ray.get(slot.begin or slot.pulse, timeout=self.pulse_s)
        except self.ray.exceptions.RayTaskError as error:
            cause = error.cause if isinstance(getattr(error, "cause", None), Exception) else error
            said = f"{type(cause).__name__}: {' '.join(str(cause).split())[-300:]}"
            if isinstance(cause, RlvrError) and not self._started:
                raise RlvrError(f"verifier worker {slot.name} cannot start: {said}") from error
            self._gone(slot, said)
            return
        except self.ray.exceptions.RayError as error:
            self._gone(slot, f"{type(error).__name__}: {ending(str(error), [])}")
            return
        slot.place, slot.busy = (value, 0.0) if slot.begin is not None else (slot.place, value)
        slot.begin, slot.pulse, slot.since, self._started = None, None, now, True

    def _gone(self, slot: _Slot, why: str) -> None:
        left = self.settings.restarts + 1 - slot.starts
        what = f"it is restarted (at most {left} more times)" if left > 0 else "it is not restarted, the run continues with fewer workers"
        self.tell(f"verifier worker {slot.name} is lost: {why}; {what}")
        self.lost += 1
        self._end(slot)
        if left > 0:
            self._start(slot)

    def _start(self, slot: _Slot) -> None:
        slot.starts += 1
        asked = {"num_cpus": self.settings.judge_cpus, "num_gpus": 0, "scheduling_strategy": "SPREAD", "max_concurrency": QUESTIONS}
        slot.actor = self._kind.options(**asked).remote()
        slot.begin, slot.since = slot.actor.begin.remote(self.config, os.getcwd()), time.monotonic()

    def _end(self, slot: _Slot) -> None:
        actor, place = slot.actor, slot.place
        slot.actor = slot.begin = slot.place = slot.pulse = None
        end(self.ray, actor, place)


def asking(actor: Any) -> Ask:
    """Make the function with which a rollout worker asks the verifier worker behind this handle."""
    errors = importlib.import_module("ray").exceptions

    async def reserved() -> None:
        try:
            await actor.reserve.remote()
        except errors.RayTaskError as error:
            raise error.cause if isinstance(error.cause, Exception) else error from error
        except (errors.RayError, asyncio.CancelledError) as error:
            raise NeverBegun(f"{type(error).__name__}: {ending(str(error), [])}") from error

    async def ask(task: Task, transcript: Transcript, alone: bool) -> Verdict:
        if alone:
            await reserved()
        try:
            found: Verdict = await actor.judge.remote(task, transcript, alone)
        except errors.RayTaskError as error:
            raise error.cause if isinstance(error.cause, Exception) else error from error
        except errors.RayError as error:
            raise HostLost(f"{type(error).__name__}: {ending(str(error), [])}") from error
        return found

    return ask
