"""Check that a cluster can run a configuration: place one process of each kind, and compare the package versions of the machines."""

from __future__ import annotations

import platform
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import rlvr
from rlvr.cluster.checks.reachability import check_can_join
from rlvr.cluster.machines import check_capacity, list_required_processes
from rlvr.cluster.ray_transport import connect_ray
from rlvr.config.cluster import ClusterConfig
from rlvr.errors import ConfigError

CHECK_TIMEOUT_S = 60.0
"""Timeout of all checks after Ray has connected."""


@dataclass(frozen=True, slots=True)
class ClusterCheck:
    """The result of one check of a cluster: what was checked, what is wrong, details, and what to do.

    >>> ClusterCheck("rollout worker", "", "needs 1 CPUs, placed on n1").problem
    ''
    """

    name: str
    problem: str
    """The problem; empty if there is none."""
    detail: str
    advice: str = ""


class _MachineProbe:
    """Actor that reports its machine and the versions that are installed there."""

    def about(self) -> dict[str, str]:
        return {"machine": platform.node(), **collect_versions()}


def collect_versions() -> dict[str, str]:
    """Return the versions that must be equal on all machines.

    >>> sorted(collect_versions())
    ['Python', 'ray', 'rlvr', 'torch', 'transformers']
    """
    found = {"Python": platform.python_version(), "rlvr": rlvr.__version__}
    for name in ("ray", "torch", "transformers"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def check_cluster_ready(settings: ClusterConfig, timeout_s: float = CHECK_TIMEOUT_S) -> list[ClusterCheck]:
    """Check a cluster by starting one process of each kind, and one on each machine.

    Raises ConfigError if no cluster answers, and MissingExtra without Ray.
    """
    present = sys.modules.get("ray")
    if settings.address != "local" and not (present is not None and present.is_initialized()):
        check_can_join(settings.address)
    ray, ours = connect_ray(settings)
    actors, until = list[Any](), time.monotonic() + timeout_s
    try:
        nodes = [node for node in ray.nodes() if node["Alive"]]
        machines = [node["Resources"] for node in nodes]
        sizes = "; ".join(f"{machine.get('CPU', 0):g} CPUs, {machine.get('GPU', 0):g} GPUs" for machine in machines)
        found = [ClusterCheck("machines", "", f"{len(nodes)}: {sizes}")]
        try:
            check_capacity(settings, machines)
        except ConfigError as error:
            found.append(ClusterCheck("capacity", "too small", str(error), "ask for fewer, or add machines"))
        kind = ray.remote(max_restarts=0, max_task_retries=0)(_MachineProbe)
        for role, needs in [(role, needs) for role, count, needs in list_required_processes(settings) if count]:
            if lacking := [name for name, amount in needs.items() if all(machine.get(name, 0.0) < amount for machine in machines)]:
                lacks = f"needs {_format_resources(needs)} on one machine, and no machine has so many {' and '.join(lacking)}s"
                found.append(ClusterCheck(role, "no machine is large enough", lacks))
                continue
            actors.append(kind.options(num_cpus=needs.get("CPU", 0), num_gpus=needs.get("GPU", 0)).remote())
            found.append(_check_placement(ray, role, needs, actors[-1].about.remote(), until))
            ray.kill(actors[-1], no_restart=True)  # free the resources for the next kind
        affinity = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
        calls = []
        for node in nodes:
            where = affinity(node_id=node["NodeID"], soft=False)
            actors.append(kind.options(num_cpus=0, scheduling_strategy=where).remote())
            calls.append(actors[-1].about.remote())
        return found + _check_versions(ray, [node["NodeID"][:8] for node in nodes], calls, until)
    finally:
        for actor in actors:
            ray.kill(actor, no_restart=True)
        if ours:
            ray.shutdown()


def _format_resources(needs: dict[str, float]) -> str:
    """Format the resources of a process.

    >>> _format_resources({"CPU": 1.0, "GPU": 2.0})
    '1 CPUs and 2 GPUs'
    """
    return " and ".join(f"{amount:g} {name}s" for name, amount in needs.items()) or "nothing"


def _check_placement(ray: Any, role: str, needs: dict[str, float], start_call: Any, deadline: float) -> ClusterCheck:
    """Check that a process of this kind starts."""
    ready, _ = ray.wait([start_call], timeout=max(0.1, deadline - time.monotonic()))
    if ready:
        try:
            return ClusterCheck(role, "", f"needs {_format_resources(needs)}; placed on {ray.get(start_call, timeout=5)['machine']}")
        except ray.exceptions.RayError as error:
            return ClusterCheck(role, "does not start", " ".join(str(error).split())[:200], "see the logs of Ray on that machine")
    free = ray.available_resources()
    busy = [name for name, amount in needs.items() if free.get(name, 0.0) < amount]
    why = f"all {' and '.join(busy)}s are in use" if busy else "no process started in time"
    return ClusterCheck(role, "not placed", f"needs {_format_resources(needs)} on one machine; {why}", "`ray status` shows what else runs")


def _check_versions(ray: Any, names: Sequence[str], calls: Sequence[Any], deadline: float) -> list[ClusterCheck]:
    """Check that each machine answers and has the versions of this one."""
    mine, found = collect_versions(), list[ClusterCheck]()
    ray.wait(list(calls), num_returns=len(calls), timeout=max(0.1, deadline - time.monotonic()))
    for name, call in zip(names, calls, strict=True):
        if not ray.wait([call], timeout=0)[0]:
            found.append(
                ClusterCheck(f"machine {name}", "does not answer", "no process started on it in time", "is it frozen? see `ray status`")
            )
            continue
        try:
            about = ray.get(call, timeout=5)
        except ray.exceptions.RayError as error:
            found.append(ClusterCheck(f"machine {name}", "does not answer", " ".join(str(error).split())[:200], "is rlvr installed there?"))
            continue
        other = [f"{what} {about.get(what)} (here {here})" for what, here in mine.items() if about.get(what) != here]
        fault = "other versions" if other else ""
        detail = ", ".join(other) or ", ".join(f"{what} {here}" for what, here in mine.items())
        found.append(ClusterCheck(f"machine {name}", fault, f"{about['machine']}: {detail}", "install the same versions" if other else ""))
    return found
