"""The machines of a cluster: whether they have room for what a run asks, and how processes on them are ended.

Ray lets what it cannot place wait for ever, without a word.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from signal import SIG_DFL, SIGKILL, SIGTERM, getsignal, signal
from threading import current_thread, main_thread
from typing import Any

from rlvr.config.cluster import ClusterConfig
from rlvr.errors import ConfigError

EPSILON = 1e-9
"""Sums of fractions of a processor are not exact."""


def check_room(settings: ClusterConfig, machines: Sequence[Mapping[str, float]]) -> None:
    """ConfigError if these machines, with nothing else on them, cannot hold all processes of these settings.

    >>> check_room(ClusterConfig(collectors=2), [{"CPU": 4.0}])
    """
    left = [dict(machine) for machine in machines]
    for role, count, needs in asked_of(settings):
        placed = sum(_placed(machine, needs, count) for machine in left)
        if placed < count:
            there = "; ".join(_size(machine) for machine in machines) or "none"
            raise ConfigError(
                f"cluster.{role} is {count}, each with {_words(needs)} on one machine, and the cluster has room for {placed} of them "
                f"(its machines: {there}); ask for fewer or for smaller ones, or add machines"
            )
        _take(left, needs, count)


def no_place(settings: ClusterConfig, total: Mapping[str, float], free: Mapping[str, float]) -> str:
    """Why a collector is given up that has no process: something else is on the machines, or they are too slow.

    >>> no_place(ClusterConfig(), {"CPU": 4.0}, {})                                         # doctest: +SKIP
    'no machine had room for it within 120 s (cluster.place_s): it needs 1 CPUs on one machine, and 0 of 4 CPUs are free; ...'
    """
    needs = asked_of(settings)[0][2]
    there = " and ".join(f"{free.get(name, 0.0):g} of {total.get(name, 0.0):g} {name}s" for name in needs)
    return (
        f"no machine had room for it within {settings.place_s:g} s (cluster.place_s): it needs {_words(needs)} on one machine, "
        f"and {there} are free; wait for what else runs there, or ask for less"
    )


def _words(needs: Mapping[str, float]) -> str:
    return " and ".join(f"{amount:g} {name}s" for name, amount in needs.items()) or "nothing"


def asked_of(settings: ClusterConfig) -> list[tuple[str, int, dict[str, float]]]:
    """What is asked for: a setting, how many, and what one of them needs."""
    collectors = {name: amount for name, amount in (("CPU", settings.cpus), ("GPU", settings.gpus)) if amount}
    judges = {"CPU": settings.judge_cpus} if settings.judge_cpus else {}
    return [("collectors", settings.collectors, collectors), ("judges", settings.judges, judges)]


def _placed(machine: Mapping[str, float], needs: Mapping[str, float], most: int) -> int:
    """How many of them one machine holds."""
    return min([most, *(int(machine.get(name, 0.0) / amount + EPSILON) for name, amount in needs.items())])


def _take(left: list[dict[str, float]], needs: Mapping[str, float], count: int) -> None:
    for machine in left:
        taken = _placed(machine, needs, count)
        count -= taken
        for name, amount in needs.items():
            machine[name] = machine.get(name, 0.0) - taken * amount


def _size(machine: Mapping[str, float]) -> str:
    return ", ".join(f"{machine.get(name, 0.0):g} {name}s" for name in ("CPU", "GPU"))


def end(ray: Any, actor: Any, place: Mapping[str, Any] | None) -> None:
    """End an actor's process. A frozen one does not hear Ray, so on this machine it is ended directly."""
    if actor is not None:
        with suppress(Exception):
            ray.kill(actor, no_restart=True)
    if place is not None and place["pids"] and place["pids"] == pids_of() and place["born"] == born(place["pid"]):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(place["pid"], SIGKILL)


def end_in_order(before: Any) -> None:
    """Let SIGTERM end this process as Ctrl-C does, with its collectors; or do what it did `before`, if that was anything.

    Ray sets two handlers of its own: one exits, and the other one, below it, prints a stack and aborts.
    """
    if current_thread() is main_thread():
        signal(SIGTERM, _leave if before in (SIG_DFL, None) else before)


def end_at_once() -> None:
    """Let SIGTERM do again what it did before."""
    if current_thread() is main_thread() and getsignal(SIGTERM) is _leave:
        signal(SIGTERM, SIG_DFL)


def _leave(number: int, frame: object) -> None:
    signal(SIGTERM, SIG_DFL)  # a second one ends it at once
    raise SystemExit(128 + number)


def pids_of() -> str:
    """Where the number of a process of ours means the same: the machine since its start, and the namespace. Empty if that is unknown."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("utf-8").strip() + os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def born(pid: int) -> str:
    """When a process was started, as the kernel counts; empty if it is gone. Numbers of processes are used again after a while."""
    try:
        return Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def work_in(folder: str) -> None:
    """Work in the driver's folder, if this machine has one of that name: there relative paths mean what they mean to the driver."""
    with suppress(OSError):
        os.chdir(folder)


def here() -> dict[str, Any]:
    """Where this process runs, for whoever has to end it.

    >>> here()["pid"] == os.getpid()
    True
    """
    return {"pid": os.getpid(), "host": socket.gethostname(), "pids": pids_of(), "born": born(os.getpid())}
