"""Where the processes of actors run, and how they are ended."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from signal import SIGKILL
from typing import Any


def end(ray: Any, actor: Any, place: Mapping[str, Any] | None) -> None:
    """End an actor's process. A frozen one does not hear Ray, so on this machine it is ended directly."""
    if actor is not None:
        with suppress(Exception):
            ray.kill(actor, no_restart=True)
    if place is not None and place["pids"] and place["pids"] == pids_of():
        with suppress(ProcessLookupError, PermissionError):
            os.kill(place["pid"], SIGKILL)


def pids_of() -> str:
    """Where the number of a process of ours means the same: the machine since its start, and the namespace. Empty if that is unknown."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("utf-8").strip() + os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""
