"""Detect which isolation is in force; the supervisor reads it from the kernel. Runs inside the container: standard library only."""

from __future__ import annotations

import contextlib
import os
import stat
from typing import Any

from rlvr.sandbox._inside import meter as meters

MAX_FILES = 1 << 16  # more is the machine's own disk, or no limit


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
    if has_cgroup_process_limit():
        found.append("process count limited")
    most = settings.get("memory_bytes") or 1 << 50
    by_cgroup = any(_has_limit(f"{meters.CGROUP_ROOT}/{name}", most) for name in ("memory/memory.limit_in_bytes", "memory.max"))
    if by_cgroup or meters.has_own_kernel(settings.get("memory_bytes", 0)):
        found.append("memory limited")
    with contextlib.suppress(OSError):
        if all(0 < os.statvfs(place).f_files <= MAX_FILES for place in settings["places"]):
            found.append("number of files limited")
    return found


def has_cgroup_process_limit() -> bool:
    """Return whether a limit on the number of processes is set on this container's control group."""
    return any(_has_limit(f"{meters.CGROUP_ROOT}/{name}", 1 << 22) for name in ("pids/pids.max", "pids.max"))


def find_writable_folders(work_folders: list[str]) -> list[str]:
    """Return the places, besides their own folders, where something is mounted that every program may write to."""
    found = []
    for line in _read_text("/proc/self/mounts").splitlines():
        place, kind, options = line.split()[1:4]
        if place in work_folders or kind in ("proc", "sysfs", "devpts", "mqueue") or "ro" in options.split(","):
            continue
        with contextlib.suppress(OSError):
            if stat.S_ISDIR(mode := os.stat(place).st_mode) and mode & stat.S_IWOTH:
                found.append(place)
    return found


def _read_text(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError:
        return ""


def _has_limit(path: str, most: int) -> bool:
    text = _read_text(path).strip()
    return text.isdecimal() and int(text) <= most
