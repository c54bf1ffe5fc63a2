"""Who made a thing that may outlive us, and whether whoever made it still lives. What the dead left is swept away at the next start."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import tempfile
from functools import lru_cache
from pathlib import Path

NOTE = "owner"
"""The file in a folder of ours that says whose it is."""


def own_folder(prefix: str, within: str | None = None) -> Path:
    """A new folder with our name in it, in the place for temporary files or in another one."""
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=within))
    (folder / NOTE).write_text(owner(os.getpid()), "utf-8")
    return folder


def sweep(prefix: str, within: str | None = None) -> int:
    """Remove the folders of that kind whose owners are dead. How many there were."""
    removed = 0
    for folder in Path(within or tempfile.gettempdir()).glob(f"{prefix}*"):
        with contextlib.suppress(OSError):
            if dead((folder / NOTE).read_text("utf-8")):
                clear_away(folder)
                removed += 1
    return removed


def clear_away(folder: Path) -> None:
    """Remove a folder of ours, whatever rights a program left in it. The note goes last: of what cannot go, the owner stays known."""
    if os.geteuid() != 0:  # whom no rights keep out
        for above, inside, _ in os.walk(folder):
            for shut in (Path(above, name) for name in inside):
                if not shut.is_symlink():
                    shut.chmod(0o700)
    for path in folder.iterdir():
        if path.name != NOTE:
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    shutil.rmtree(folder)


@lru_cache(maxsize=4)
def owner(pid: int) -> str:
    """Who we are, so that another process can tell whether we still live: machine, boot, process space, pid, time of birth."""
    return "|".join((*place(), str(pid), _birth(pid)))


def dead(label: str) -> bool:
    """Whether the owner of that name is known to be gone. Of another machine, or another process space, nothing is known."""
    host, boot, space, pid, birth = (label.split("|") + [""] * 5)[:5]
    here = place()
    if host == here[0] and boot and boot != here[1]:
        return True
    return (host, boot, space) == here and pid.isdecimal() and _birth(int(pid)) != birth


@lru_cache(maxsize=1)
def place() -> tuple[str, str, str]:
    """Where process ids mean what they mean to us: machine, boot, process space."""
    boot = _read("/proc/sys/kernel/random/boot_id").strip()
    try:
        space = str(os.stat("/proc/self/ns/pid").st_ino)
    except OSError:
        space = ""
    return socket.gethostname(), boot, space


def _birth(pid: int) -> str:
    """When a process began, in the kernel's ticks; empty when there is none."""
    fields = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return fields[19] if len(fields) > 19 and fields[0] != "Z" else ""


def _read(path: str) -> str:
    try:
        return Path(path).read_text("utf-8", "replace")
    except OSError:
        return ""
