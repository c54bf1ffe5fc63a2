"""The folders that a program may write to: opened to it before the run, emptied afterwards.

A folder belongs to the supervisor and is opened through its *group*, so that the program can fill it but never lock us out. Subfolders
that the program created belong to the program's user; a helper empties them under that user id, and moves each subfolder up before
emptying it, so that neither permissions nor depth matter. Runs inside the container: standard library only.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Callable

from rlvr.sandbox._inside import capabilities as rights

libc = ctypes.CDLL(None, use_errno=True)
HELPER_TIMEOUT_S = 30.0
FileTask = Callable[[], int | None]


def grant_access(folders: list[str], gid: int | None) -> None:
    """Let a program's group `gid` write into every folder."""
    if gid is not None:
        os.setgroups([gid])
    for place in folders:
        if gid is not None:
            os.chown(place, -1, gid)
        os.chmod(place, 0o770 if gid is not None else 0o700)


def empty_folders(folders: list[str], uid: int | None, gid: int | None) -> None:
    """Remove everything that a program left in the folders. Raises OSError if something remains."""
    for place in folders:
        if uid is None:
            os.chmod(place, 0o700)  # a program that runs under our user id may have changed the mode
        for name in os.listxattr(place):
            os.removexattr(place, name)
        with os.scandir(place) as entries:
            listed = [(entry.path, entry.is_dir(follow_symlinks=False)) for entry in entries]
        if any(is_dir for _, is_dir in listed):
            run_as_user(uid, gid, lambda place=place: _remove_subfolders(place))  # type: ignore[misc]
        for path, is_dir in listed:
            if not is_dir:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)
        if os.listdir(place):
            raise OSError(f"{place} could not be emptied: {os.listdir(place)[:3]}")


def find_files_of_other_users(folders: list[str], uids: set[int], known_inodes: set[tuple[int, int]]) -> set[str]:
    """Return the top-level names in the folders that belong to none of these users and were not written by us.

    Our own files are recognized by device and inode number, because the program may rename them.
    """
    found = set()
    for place in folders:
        with os.scandir(place) as entries:
            for entry in entries:
                about = entry.stat(follow_symlinks=False)
                if about.st_uid not in uids and (about.st_dev, about.st_ino) not in known_inodes:
                    found.add(entry.name)
    return found


def run_as_user(uid: int | None, gid: int | None, task: FileTask) -> int:
    """Run a small function in a separate process that accesses files as another user (if `uid` is given), with a timeout.

    Returns the exit status: the function's result (None: 0), 1 if it raised, below 0 if it was killed.
    """
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.closerange(0, 2)  # our owner's channel
            if uid is not None:
                _set_filesystem_user(uid, uid if gid is None else gid)
            else:  # programs are our own user; without capabilities they have all that this process may reach
                rights.drop_all_capabilities()
            status = task() or 0
        finally:
            os._exit(status)
    deadline = time.monotonic() + HELPER_TIMEOUT_S
    while time.monotonic() < deadline:
        done, ended = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(ended)
        time.sleep(0.0005)
    os.kill(pid, signal.SIGKILL)  # it is reaped with the other orphans
    raise OSError(f"the helper for user {os.getuid() if uid is None else uid} did not end within {HELPER_TIMEOUT_S:.0f} s")


def _set_filesystem_user(uid: int, gid: int) -> None:
    """Change only the user and group ids that file access is checked with, and drop every capability.

    The real, effective and saved user ids stay ours, so the kernel refuses all signals from processes of that user.
    """
    os.setgroups([])
    libc.setfsgid(gid)
    libc.setfsuid(uid)
    if libc.setfsuid(-1) == -1:  # gVisor has neither: a program that signals this process then harms its own session only
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
    elif libc.setfsuid(-1) != uid or libc.setfsgid(-1) != gid:  # they return the present id, and report no error
        raise PermissionError(f"files cannot be accessed as user {uid}")
    rights.drop_all_capabilities()


def _list_subfolders(folder: str) -> list[str]:
    with os.scandir(folder) as entries:
        return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]


def _remove_subfolders(parent_folder: str) -> None:
    """Remove every subfolder of a folder; nested ones are moved up first, under names that no program can guess."""
    os.chdir(parent_folder)
    while folders := _list_subfolders("."):
        for folder in folders:
            os.chmod(folder, 0o700)
            with os.scandir(folder) as entries:
                inside = list(entries)
            for entry in inside:
                if entry.is_dir(follow_symlinks=False):
                    os.chmod(entry.path, 0o700)
                    os.rename(entry.path, f".up{os.urandom(12).hex()}")
                else:
                    os.unlink(entry.path)
            os.rmdir(folder)
