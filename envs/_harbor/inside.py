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

WHERE, TESTS = "/tmp/logs/verifier", "/tmp/tests"
REWARDS = ("reward.json", "reward.txt")
DUMPABLE, SUBREAPER = 4, 36
MOST = 100
"""Most names in the report."""
MODIFIED, CHANGED_RIGHTS, CLOSED_AFTER_WRITING, OPENED, MOVED_FROM, MOVED_TO, CREATED, DELETED = (
    1 << bit for bit in (1, 2, 3, 5, 6, 7, 8, 9)
)
DELETED_ITSELF, MOVED_ITSELF, LOST, FOLDER = 0x400, 0x800, 0x4000, 0x40000000
REPLACED = MOVED_FROM | MOVED_TO | DELETED
COUNTED, OF_THE_FOLDER = CHANGED_RIGHTS | CLOSED_AFTER_WRITING | REPLACED, DELETED_ITSELF | MOVED_ITSELF
SEPARATING = MODIFIED | OPENED
"""The kernel merges equal consecutive events: these events separate two writes."""
WATCHED = COUNTED | OF_THE_FOLDER | SEPARATING | CREATED
RUN = (".py", ".pyc", ".so", ".sh", ".pth")
"""Suffixes of files that would be run or imported if placed beside the tests."""
EVENT = struct.Struct("iIII")


def main(log: str, command: list[str]) -> None:
    """Run the command with its output in the file `log` (empty: our own output), and print the report."""
    if os.getuid() == 0:
        raise OSError(1, "as root, ending every process would end those of the machine")
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(SUBREAPER, 1, 0, 0, 0) or libc.prctl(DUMPABLE, 0, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "the processes of the tests cannot be watched")
    places, before = [WHERE] + [folder for folder, _, _ in os.walk(TESTS)], versions()
    seen, watches = watched(libc, places)
    folder = os.stat(WHERE).st_ino
    with open(log or os.devnull, "wb") as file:
        run = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file if log else None, stderr=subprocess.STDOUT)
    status, strays = ended(run.pid)
    found = [(watches.get(watch, ""), kind, os.fsdecode(name)) for watch, kind, name in events(seen)]
    after = versions()
    names = {path for path in before if after.get(path) != before[path]} | laid(found)
    said = {"exit": status, "strays": strays, "changes": writes(found) + misplaced(folder)}
    print(json.dumps({**said, "touched": sorted(path[len(TESTS) + 1 :] for path in names)[:MOST]}), file=sys.stderr)


def versions() -> dict[str, tuple[int, int]]:
    """Return the test files with inode and change time, which every modification alters."""
    paths = [os.path.join(folder, name) for folder, _, names in os.walk(TESTS) for name in names]
    return {path: (found.st_ino, found.st_ctime_ns) for path, found in ((path, os.lstat(path)) for path in paths)}


def watched(libc: ctypes.CDLL, places: list[str]) -> tuple[int, dict[int, str]]:
    """Watch folders with inotify; return the descriptor for events, and the folder of each watch."""
    seen = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    found = {libc.inotify_add_watch(seen, os.fsencode(place), WATCHED): place for place in places}
    if seen < 0 or min(found) < 0:
        raise OSError(ctypes.get_errno(), "the tests and their reward cannot be watched")
    return seen, found


def ended(tests: int) -> tuple[int, int]:
    """Wait for the tests, and kill remaining processes; return the exit status, and how many processes outlived their parents."""
    strays, status, running = 0, 0, True
    while running:
        pid, ending = os.waitpid(-1, 0)
        running = pid != tests
        strays += running
        status = status if running else ending
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, 0):
            strays += 1
    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else -os.WTERMSIG(status), strays


def events(seen: int) -> Iterator[tuple[int, int, bytes]]:
    """Yield the events: the watch, the kind of event, and the name in the folder."""
    data = b""
    with contextlib.suppress(BlockingIOError):
        while True:
            data += os.read(seen, 1 << 16)
    while data:
        watch, kind, _, size = EVENT.unpack_from(data)
        yield watch, kind, data[EVENT.size : EVENT.size + size].rstrip(b"\0")
        data = data[EVENT.size + size :]


def writes(found: list[tuple[str, int, str]]) -> int:
    """Count how often a reward was written, replaced, removed or made read-only."""
    count = 0
    for place, kind, name in found:
        of_folder = OF_THE_FOLDER if name else OF_THE_FOLDER | CHANGED_RIGHTS
        count += bool(kind & LOST or (place == WHERE and ((name in REWARDS and kind & COUNTED) or kind & of_folder)))
    return count


def laid(found: list[tuple[str, int, str]]) -> set[str]:
    """Return the paths added beside the tests that could be run there: programs, modules, and folders."""
    new = [(os.path.join(place, name), kind) for place, kind, name in found if place.startswith(TESTS) and kind & (CREATED | MOVED_TO)]
    return {path for path, kind in new if path.endswith(RUN) or kind & FOLDER}


def misplaced(folder: int) -> int:
    """Count problems of the reward folder: replaced, not writable, or a reward that is not a regular file."""
    wrong = 0
    try:
        wrong += os.stat(WHERE).st_ino != folder
        with open(os.path.join(WHERE, ".room"), "wb") as file:
            file.write(b"1")
        for name in REWARDS:
            with contextlib.suppress(FileNotFoundError):
                found = os.lstat(os.path.join(WHERE, name))
                wrong += not stat.S_ISREG(found.st_mode) or found.st_nlink != 1
    except OSError:
        wrong += 1
    return wrong


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
