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

OWNER_FILE = "owner"
"""The file in a folder that records its owner."""


def create_owned_folder(prefix: str, parent: str | None = None) -> Path:
    """Create a folder owned by this process, in `parent` or in the folder for temporary files."""
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    (folder / OWNER_FILE).write_text(get_owner_label(os.getpid()), "utf-8")
    return folder


@contextlib.contextmanager
def temporary_folder(prefix: str) -> Iterator[Path]:
    """Provide a temporary folder for a block. Folders that killed processes left behind are removed first.

    >>> with temporary_folder("rlvr-example-") as folder:
    ...     (folder / OWNER_FILE).exists()
    True
    """
    remove_orphaned_folders(prefix)
    folder = create_owned_folder(prefix)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def remove_orphaned_folders(prefix: str, parent: str | None = None) -> int:
    """Remove the folders with that prefix whose owners no longer run; return their number."""
    removed = 0
    for folder in Path(parent or tempfile.gettempdir()).glob(f"{prefix}*"):
        with contextlib.suppress(OSError):
            if is_owner_dead((folder / OWNER_FILE).read_text("utf-8")):
                force_remove_folder(folder)
                removed += 1
    return removed


def force_remove_folder(folder: Path) -> None:
    """Remove a folder, whatever permissions a program has set in it, without a look at its owner.

    The owner file is removed last, in case something fails.
    """
    if os.geteuid() != 0:  # permissions do not restrict root
        for above, inside, _ in os.walk(folder):
            for shut in (Path(above, name) for name in inside):
                if not shut.is_symlink():
                    shut.chmod(0o700)
    for path in folder.iterdir():
        if path.name != OWNER_FILE:
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    shutil.rmtree(folder)


@lru_cache(maxsize=4)
def get_owner_label(pid: int) -> str:
    """Return a label by which other processes can check that a process still runs: host, boot, PID namespace, PID, start time."""
    return "|".join((*get_pid_scope(), str(pid), _get_start_time(pid)))


def is_owner_dead(label: str) -> bool:
    """Return whether the owner with a label is known to have exited. False for other hosts and PID namespaces."""
    host, boot, space, pid, birth = (label.split("|") + [""] * 5)[:5]
    here = get_pid_scope()
    if host == here[0] and boot and boot != here[1]:
        return True
    return (host, boot, space) == here and pid.isdecimal() and _get_start_time(int(pid)) != birth


@lru_cache(maxsize=1)
def get_pid_scope() -> tuple[str, str, str]:
    """Return the scope in which PIDs are valid: host, boot, PID namespace."""
    boot = _read_or_empty("/proc/sys/kernel/random/boot_id").strip()
    try:
        space = str(os.stat("/proc/self/ns/pid").st_ino)
    except OSError:
        space = ""
    return socket.gethostname(), boot, space


def _get_start_time(pid: int) -> str:
    """Return the start time of a process, in clock ticks; empty if it does not run."""
    fields = _read_or_empty(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return fields[19] if len(fields) > 19 and fields[0] != "Z" else ""


def _read_or_empty(path: str) -> str:
    try:
        return Path(path).read_text("utf-8", "replace")
    except OSError:
        return ""
