"""The machines of a cluster: check that they have the capacity for a run, and end processes on them.

Ray lets actors that it cannot place wait forever, without a message.
"""

from __future__ import annotations

import importlib
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from signal import SIG_DFL, SIGKILL, SIGTERM, getsignal, signal
from threading import current_thread, main_thread
from typing import Any

from rlvr.config.cluster import ClusterConfig
from rlvr.errors import ConfigError

EPSILON = 1e-9
"""Tolerance for sums of fractions of a processor."""
VITAL_RAY_SERVICES = ("raylet", "gcs_server")
"""The processes of Ray without which no worker can be called."""


def check_capacity(settings: ClusterConfig, machines: Sequence[Mapping[str, float]]) -> None:
    """Raise ConfigError if these machines, when empty, have no capacity for all processes of these settings.

    >>> check_capacity(ClusterConfig(rollout_workers=2), [{"CPU": 4.0}])
    """
    left = [dict(machine) for machine in machines]
    for role, count, needs in list_required_processes(settings):
        placed = sum(_count_fitting_processes(machine, needs, count) for machine in left)
        if placed < count:
            there = "; ".join(_format_machine(machine) for machine in machines) or "none"
            raise ConfigError(
                f"cluster.{role} is {count}, each with {_format_needs(needs)} on one machine, and the cluster has capacity for {placed} of them "
                f"(its machines: {there}); ask for fewer or for smaller ones, or add machines"
            )
        _reserve(left, needs, count)


def explain_unplaced_worker(settings: ClusterConfig, total: Mapping[str, float], free: Mapping[str, float]) -> str:
    """Explain why no machine had capacity for a rollout worker."""
    needs = list_required_processes(settings)[0][2]
    there = " and ".join(f"{free.get(name, 0.0):g} of {total.get(name, 0.0):g} {name}s" for name in needs)
    return (
        f"no machine had capacity for it within {settings.placement_timeout_s:g} s (cluster.placement_timeout_s): it needs {_format_needs(needs)} "
        f"on one machine, and {there} are free; wait until other processes end, or ask for less"
    )


def _format_needs(needs: Mapping[str, float]) -> str:
    return " and ".join(f"{amount:g} {name}s" for name, amount in needs.items()) or "nothing"


def list_required_processes(settings: ClusterConfig) -> list[tuple[str, int, dict[str, float]]]:
    """List the required processes: the setting, their number, and the resources of one."""
    rollout_workers = {
        name: amount for name, amount in (("CPU", settings.cpus_per_rollout_worker), ("GPU", settings.gpus_per_rollout_worker)) if amount
    }
    judges = {"CPU": settings.cpus_per_verifier_worker} if settings.cpus_per_verifier_worker else {}
    return [("rollout_workers", settings.rollout_workers, rollout_workers), ("verifier_workers", settings.verifier_workers, judges)]


def _count_fitting_processes(machine: Mapping[str, float], needs: Mapping[str, float], max_count: int) -> int:
    """Return how many of these processes fit on one machine."""
    return min([max_count, *(int(machine.get(name, 0.0) / amount + EPSILON) for name, amount in needs.items())])


def _reserve(left: list[dict[str, float]], needs: Mapping[str, float], count: int) -> None:
    for machine in left:
        taken = _count_fitting_processes(machine, needs, count)
        count -= taken
        for name, amount in needs.items():
            machine[name] = machine.get(name, 0.0) - taken * amount


def _format_machine(machine: Mapping[str, float]) -> str:
    return ", ".join(f"{machine.get(name, 0.0):g} {name}s" for name in ("CPU", "GPU"))


LOCATION_FIELDS = ("host", "pids", "born", "node", "log")
"""The texts of a location; the last two may be left out."""
MAX_LOCATION_CHARACTERS = 4096
"""The longest text in the location of a worker: a path."""


def check_location(location: object) -> dict[str, Any]:
    """Return the location that a worker says it has; raise ValueError if it cannot be one. Whether it is true is not checked.

    >>> check_location({"pid": 7, "host": "here", "pids": "", "born": "1"})
    {'pid': 7, 'host': 'here', 'pids': '', 'born': '1', 'node': '', 'log': ''}
    """
    if not isinstance(location, dict):
        raise ValueError(f"its location is {type(location).__name__}, not a mapping")
    texts = {name: location.get(name, None if name in LOCATION_FIELDS[:3] else "") for name in LOCATION_FIELDS}
    if type(pid := location.get("pid")) is not int or not 0 < pid < 2**31:
        raise ValueError("its pid is not the number of a process")
    for name, text in texts.items():
        if not isinstance(text, str) or len(text) > MAX_LOCATION_CHARACTERS:
            raise ValueError(f"its {name} is not a text of at most {MAX_LOCATION_CHARACTERS} characters")
    return {"pid": pid, **texts}


def check_actor_location(actor: Any, location: object) -> dict[str, Any]:
    """Return the location of an actor, which it has said itself; raise ValueError if it cannot be one, or if Ray has started another process.

    `is_known_to_ray` says whether Ray's own table has this pid for the actor. It may only be killed then.
    """
    found, pid = check_location(location), _read_actor_pid(actor)
    if pid not in (0, found["pid"]):
        raise ValueError(f"it says that its pid is {found['pid']}, and Ray has started it as {pid}")
    return found | {"is_known_to_ray": pid != 0}


def _read_actor_pid(actor: Any) -> int:
    """Return the pid of an actor's process from the table of Ray; 0 if that is unknown."""
    with suppress(Exception):  # not a public function of Ray
        return int(importlib.import_module("ray._private.state").actors(actor._actor_id.hex())["Pid"])
    return 0


def end_actor(ray: Any, actor: Any, location: Mapping[str, Any] | None) -> None:
    """End the process of an actor. A frozen one does not react to Ray, so on this machine it is killed by its pid.

    The worker itself has said where it runs, so nothing is killed but a process of Ray that Ray has started for this actor.
    """
    if actor is not None:
        with suppress(Exception):
            ray.kill(actor, no_restart=True)
    if (
        location is not None
        and location["is_known_to_ray"]
        and location["pids"]
        and location["pids"] == get_pid_scope_id()
        and location["born"] == get_process_start_time(location["pid"])
        and _is_ray_worker_process(location["pid"])
    ):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(location["pid"], SIGKILL)


def find_ended_ray_service() -> str:
    """Return which process of the Ray cluster that this process has started has ended, and how; '' if all run or it has started none.

    Without a raylet Ray ends this process after seconds, and without a gcs_server after a minute, both without a message.
    """
    node: Any = getattr(sys.modules.get("ray._private.worker"), "_global_node", None)
    with suppress(AttributeError, TypeError):  # not a public function of Ray
        for name, process in node.dead_processes():
            if name in VITAL_RAY_SERVICES:
                return f"Ray's process {name} ({process.pid}) has ended with {process.returncode}"
    return ""


def install_sigterm_handler(previous_handler: Any) -> None:
    """Let SIGTERM end this process and its workers in order, as Ctrl-C does.

    A handler from before Ray was started is restored instead. Ray installs two handlers: a Python one that exits, and a native one that
    prints a stack and aborts.
    """
    if current_thread() is main_thread():
        signal(SIGTERM, _exit_on_sigterm if previous_handler in (SIG_DFL, None) else previous_handler)


def restore_default_sigterm_handler() -> None:
    """Restore the default handler of SIGTERM."""
    if current_thread() is main_thread() and getsignal(SIGTERM) is _exit_on_sigterm:
        signal(SIGTERM, SIG_DFL)


def _exit_on_sigterm(number: int, frame: object) -> None:
    signal(SIGTERM, SIG_DFL)  # a second signal ends the process at once
    raise SystemExit(128 + number)


def get_pid_scope_id() -> str:
    """Return an identifier of the scope of pids: the boot of the machine and the PID namespace. Empty if unknown."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("utf-8").strip() + os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def get_process_start_time(pid: int) -> str:
    """Return the start time of a process in kernel ticks; empty if it is gone. It distinguishes processes that reuse a pid."""
    numbers = _read_process_stat(pid)[1]
    return numbers[19] if len(numbers) > 19 else ""


def _is_ray_worker_process(pid: int) -> bool:
    """Whether a process of this machine is one that Ray's node has started for an actor; never this process or one that it runs in.

    >>> _is_ray_worker_process(os.getpid())
    False
    """
    above, seen = os.getpid(), set[int]()
    while above > 0 and above not in seen:
        seen.add(above)
        above = _get_parent_pid(above)
    return pid not in seen and _get_process_name(pid).startswith("ray::") and _get_process_name(_get_parent_pid(pid)) == "raylet"


def _get_process_name(pid: int) -> str:
    """Return the name of a process, as the kernel has it; empty if it is gone."""
    return _read_process_stat(pid)[0]


def _get_parent_pid(pid: int) -> int:
    """Return the pid of the process that started this one; 0 if there is none."""
    numbers = _read_process_stat(pid)[1]
    return int(numbers[1]) if len(numbers) > 1 else 0


def _read_process_stat(pid: int) -> tuple[str, list[str]]:
    """Return the name of a process, and the fields of its kernel record after the name."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
    except OSError:
        return "", []
    before, _, after = text.rpartition(")")
    return before.partition("(")[2], after.split()


def change_to_driver_folder(folder: str) -> None:
    """Change to the working folder of the driver if it exists on this machine, so that relative paths agree."""
    with suppress(OSError):
        os.chdir(folder)


def get_process_identity() -> dict[str, Any]:
    """Describe this process, so that another process can end it.

    >>> get_process_identity()["pid"] == os.getpid()
    True
    """
    return {"pid": os.getpid(), "host": socket.gethostname(), "pids": get_pid_scope_id(), "born": get_process_start_time(os.getpid())}
