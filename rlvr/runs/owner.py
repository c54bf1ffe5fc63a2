"""Record which process owns a temporary folder, and remove the folders of processes that no longer run."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

NOTE = "owner"
"""The file in a folder that records its owner."""


def own_folder(prefix: str, within: str | None = None) -> Path:
    """Create a folder owned by this process, in `within` or in the folder for temporary files."""
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=within))
    (folder / NOTE).write_text(owner(os.getpid()), "utf-8")
    return folder


@contextlib.contextmanager
def temporary(prefix: str) -> Iterator[Path]:
    """Provide a temporary folder for a block. Folders that killed processes left behind are removed first.

    >>> with temporary("rlvr-example-") as folder:
    ...     (folder / NOTE).exists()
    True
    """
    sweep(prefix)
    folder = own_folder(prefix)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def sweep(prefix: str, within: str | None = None) -> int:
    """Remove the folders with that prefix whose owners no longer run; return their number."""
    removed = 0
    for folder in Path(within or tempfile.gettempdir()).glob(f"{prefix}*"):
        with contextlib.suppress(OSError):
            if dead((folder / NOTE).read_text("utf-8")):
                clear_away(folder)
                removed += 1
    return removed


def clear_away(folder: Path) -> None:
    """Remove a folder, whatever permissions a program set in it. The owner file is removed last, in case something fails."""
    if os.geteuid() != 0:  # permissions do not restrict root
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
    """Return a label by which other processes can check that a process still runs: host, boot, PID namespace, PID, start time."""
    return "|".join((*place(), str(pid), _birth(pid)))


def dead(label: str) -> bool:
    """Return whether the owner with a label is known to have exited. False for other hosts and PID namespaces."""
    host, boot, space, pid, birth = (label.split("|") + [""] * 5)[:5]
    here = place()
    if host == here[0] and boot and boot != here[1]:
        return True
    return (host, boot, space) == here and pid.isdecimal() and _birth(int(pid)) != birth


@lru_cache(maxsize=1)
def place() -> tuple[str, str, str]:
    """Return the scope in which PIDs are valid: host, boot, PID namespace."""
    boot = _read("/proc/sys/kernel/random/boot_id").strip()
    try:
        space = str(os.stat("/proc/self/ns/pid").st_ino)
    except OSError:
        space = ""
    return socket.gethostname(), boot, space


def _birth(pid: int) -> str:
    """Return the start time of a process, in clock ticks; empty if it does not run."""
    fields = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return fields[19] if len(fields) > 19 and fields[0] != "Z" else ""


def _read(path: str) -> str:
    try:
        return Path(path).read_text("utf-8", "replace")
    except OSError:
        return ""
