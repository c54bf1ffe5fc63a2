"""Detect which isolation is in force; the supervisor reads it from the kernel. Runs inside the container: standard library only."""

from __future__ import annotations

import os
from typing import Any


def detect_isolation(settings: dict[str, Any], has_filter: bool, meter: str, kill_mechanism: str, namespaces: list[str]) -> list[str]:
    """Return short names of the isolation in force; isolation that cannot be observed is not listed."""
    status = dict(line.split(":\t", 1) for line in _read_text("/proc/self/status").splitlines() if ":\t" in line)
    found = [f"memory and processor time by {meter}", f"every program ended by {kill_mechanism}"]
    if namespaces:
        found.append(f"namespaces: {', '.join(namespaces)}")
    if settings["uid"] is not None:
        found.append("a user id of its own")
    if has_filter and status.get("Seccomp") == "2":
        found.append("system-call filter")
    if status.get("NoNewPrivs") == "1":
        found.append("no new privileges")
    if int(status.get("CapEff", "ffffffffff"), 16) & ~0xE0 == 0:
        found.append("no capabilities but kill, setuid, setgid (the supervisor's)")
    if int(status.get("CapBnd", "ffffffffff"), 16) == 0:
        found.append("no capability can be gained")
    if os.getpid() == 1:
        found.append("a process space of its own")
    names = [line.split(":")[0].strip() for line in _read_text("/proc/net/dev").splitlines()[2:]]
    if set(names) <= {"lo"}:
        found.append("no network")
    root = [line.split()[3].split(",") for line in _read_text("/proc/self/mounts").splitlines() if line.split()[1] == "/"]
    if root and "ro" in root[-1]:
        found.append("read-only root")
    if _has_limit("/sys/fs/cgroup/pids/pids.max") or _has_limit("/sys/fs/cgroup/pids.max"):
        found.append("process count limited")
    if _has_limit("/sys/fs/cgroup/memory/memory.limit_in_bytes") or _has_limit("/sys/fs/cgroup/memory.max"):
        found.append("memory limited")
    return found


def _read_text(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError:
        return ""


def _has_limit(path: str) -> bool:
    text = _read_text(path).strip()
    return text.isdecimal() and int(text) < 1 << 50
