"""Run the tests of a task folder, and end all their processes before the reward is read.

The tests may run programs of the answer, and such a program may leave a process behind that writes its own reward. This process is a
subreaper: it adopts every process that outlives its parent, even after setsid or a double fork, so none goes unnoticed. When the tests have
ended, everything that still runs is killed. inotify counts the writes of the reward, and the test files that change while they run. The
report goes to our standard error, which no other process of the sandbox can open.

Runs in the sandbox, with the python3 of the image: standard library only, and nothing newer than Python 3.7.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import stat
import struct
import subprocess
import sys
from typing import Iterator  # noqa: UP035 -- Python 3.7

REWARD_FOLDER, TESTS_FOLDER = "/tmp/logs/verifier", "/tmp/tests"
REWARD_FILES = ("reward.json", "reward.txt")
PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER = 4, 36
MAX_REPORTED_NAMES = 100
"""Most names in the report."""
MODIFIED, CHANGED_RIGHTS, CLOSED_AFTER_WRITING, OPENED, MOVED_FROM, MOVED_TO, CREATED, DELETED = (
    1 << bit for bit in (1, 2, 3, 5, 6, 7, 8, 9)
)
DELETED_ITSELF, MOVED_ITSELF, EVENTS_LOST, FOLDER = 0x400, 0x800, 0x4000, 0x40000000
REPLACED_EVENTS = MOVED_FROM | MOVED_TO | DELETED
COUNTED_EVENTS, FOLDER_EVENTS = CHANGED_RIGHTS | CLOSED_AFTER_WRITING | REPLACED_EVENTS, DELETED_ITSELF | MOVED_ITSELF
SEPARATING_EVENTS = MODIFIED | OPENED
"""The kernel merges equal consecutive events: these events separate two writes."""
WATCHED_EVENTS = COUNTED_EVENTS | FOLDER_EVENTS | SEPARATING_EVENTS | CREATED
RUNNABLE_SUFFIXES = (".py", ".pyc", ".so", ".sh", ".pth")
"""Suffixes of files that would be run or imported if placed beside the tests."""
EVENT_STRUCT = struct.Struct("iIII")


def main(log_file: str, command: list[str]) -> None:
    """Run the tests with their output in `log_file` (empty: our own output), and print a JSON report on standard error."""
    if os.getuid() == 0:
        raise OSError(1, "as root, ending every process would end those of the machine")
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) or libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "the processes of the tests cannot be watched")
    places, before = [REWARD_FOLDER] + [folder for folder, _, _ in os.walk(TESTS_FOLDER)], _snapshot_tests()
    seen, watches = _watch_folders(libc, places)
    folder = os.stat(REWARD_FOLDER).st_ino
    with open(log_file or os.devnull, "wb") as file:
        run = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file if log_file else None, stderr=subprocess.STDOUT)
    status, strays = _wait_and_kill(run.pid)
    found = [(watches.get(watch, ""), kind, os.fsdecode(name)) for watch, kind, name in _read_events(seen)]
    after = _snapshot_tests()
    names = {path for path in before if after.get(path) != before[path]} | _find_added_runnable_paths(found)
    said = {"exit": status, "strays": strays, "changes": _count_reward_writes(found) + _count_reward_problems(folder)}
    print(json.dumps({**said, "touched": sorted(path[len(TESTS_FOLDER) + 1 :] for path in names)[:MAX_REPORTED_NAMES]}), file=sys.stderr)


def _snapshot_tests() -> dict[str, tuple[int, int]]:
    """Return the test files with inode and change time, which every modification alters."""
    paths = [os.path.join(folder, name) for folder, _, names in os.walk(TESTS_FOLDER) for name in names]
    return {path: (found.st_ino, found.st_ctime_ns) for path, found in ((path, os.lstat(path)) for path in paths)}


def _watch_folders(libc: ctypes.CDLL, folders: list[str]) -> tuple[int, dict[int, str]]:
    """Watch folders with inotify; return the descriptor for events, and the folder of each watch."""
    seen = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    found = {libc.inotify_add_watch(seen, os.fsencode(place), WATCHED_EVENTS): place for place in folders}
    if seen < 0 or min(found) < 0:
        raise OSError(ctypes.get_errno(), "the tests and their reward cannot be watched")
    return seen, found


def _wait_and_kill(test_pid: int) -> tuple[int, int]:
    """Wait for the process of the tests, then kill all that still run; return its exit status, and how many processes outlived their
    parents.
    """
    strays, status, running = 0, 0, True
    while running:
        pid, ending = os.waitpid(-1, 0)
        running = pid != test_pid
        strays += running
        status = status if running else ending
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, 0):
            strays += 1
    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else -os.WTERMSIG(status), strays


def _read_events(inotify_fd: int) -> Iterator[tuple[int, int, bytes]]:
    """Yield the events: the watch, the kind of event, and the name in the folder."""
    data = b""
    with contextlib.suppress(BlockingIOError):
        while True:
            data += os.read(inotify_fd, 1 << 16)
    while data:
        watch, kind, _, size = EVENT_STRUCT.unpack_from(data)
        yield watch, kind, data[EVENT_STRUCT.size : EVENT_STRUCT.size + size].rstrip(b"\0")
        data = data[EVENT_STRUCT.size + size :]


def _count_reward_writes(events: list[tuple[str, int, str]]) -> int:
    """Count how often a reward was written, replaced, removed or made read-only."""
    count = 0
    for place, kind, name in events:
        of_folder = FOLDER_EVENTS if name else FOLDER_EVENTS | CHANGED_RIGHTS
        count += bool(
            kind & EVENTS_LOST or (place == REWARD_FOLDER and ((name in REWARD_FILES and kind & COUNTED_EVENTS) or kind & of_folder))
        )
    return count


def _find_added_runnable_paths(events: list[tuple[str, int, str]]) -> set[str]:
    """Return the paths added beside the tests that could be run there: programs, modules, and folders."""
    new = [
        (os.path.join(place, name), kind) for place, kind, name in events if place.startswith(TESTS_FOLDER) and kind & (CREATED | MOVED_TO)
    ]
    return {path for path, kind in new if path.endswith(RUNNABLE_SUFFIXES) or kind & FOLDER}


def _count_reward_problems(folder_inode: int) -> int:
    """Count problems of the reward folder: replaced, not writable, or a reward that is not a regular file."""
    wrong = 0
    try:
        wrong += os.stat(REWARD_FOLDER).st_ino != folder_inode
        with open(os.path.join(REWARD_FOLDER, ".room"), "wb") as file:
            file.write(b"1")
        for name in REWARD_FILES:
            with contextlib.suppress(FileNotFoundError):
                found = os.lstat(os.path.join(REWARD_FOLDER, name))
                wrong += not stat.S_ISREG(found.st_mode) or found.st_nlink != 1
    except OSError:
        wrong += 1
    return wrong


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
