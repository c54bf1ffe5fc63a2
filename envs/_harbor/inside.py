"""Run the tests of a task folder, and end all that they left running before their reward is read.

The tests may run programs of the answer, and such a program may leave a process behind that writes a reward of its own. The kernel hands
every process that outlives its parent to this one, also one that has called setsid or forked twice, and keeps it until we have waited for
it: none goes unseen. When the tests have ended, everything that still runs is killed. How often the reward was written is counted by the
kernel, too. The report goes to our standard error, which no other process of the box can open.

Runs in the box, with the python3 of the image: standard library only, and nothing newer than Python 3.7.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import struct
import subprocess
import sys

WHERE = "/tmp/logs/verifier"
REWARDS = (b"reward.json", b"reward.txt")
DUMPABLE, SUBREAPER = 4, 36
MODIFIED, CLOSED_AFTER_WRITING, OPENED, MOVED_FROM, MOVED_TO, DELETED = 0x2, 0x8, 0x20, 0x40, 0x80, 0x200
DELETED_ITSELF, MOVED_ITSELF, LOST = 0x400, 0x800, 0x4000
COUNTED, OF_THE_FOLDER = CLOSED_AFTER_WRITING | MOVED_FROM | MOVED_TO | DELETED, DELETED_ITSELF | MOVED_ITSELF
SEPARATING = MODIFIED | OPENED
"""The kernel reports equal events that follow each other as one: these stand between two writes."""
EVENT = struct.Struct("iIII")


def main(log: str, command: list[str]) -> None:
    """Run the command, with its output in the file `log` (empty: where ours goes), and print the report."""
    if os.getuid() == 0:
        raise OSError(1, "as root, ending every process would end those of the machine")
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(SUBREAPER, 1, 0, 0, 0) or libc.prctl(DUMPABLE, 0, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "the processes of the tests cannot be watched")
    seen = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    if seen < 0 or libc.inotify_add_watch(seen, WHERE.encode(), COUNTED | OF_THE_FOLDER | SEPARATING) < 0:
        raise OSError(ctypes.get_errno(), "the reward cannot be watched")
    folder = os.stat(WHERE).st_ino
    with open(log or os.devnull, "wb") as file:
        tests = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file if log else None, stderr=subprocess.STDOUT)
    status, strays = ended(tests.pid)
    changes = writes(seen)
    with contextlib.suppress(OSError):
        changes += 0 if os.stat(WHERE).st_ino == folder else 1
    print(json.dumps({"exit": status, "strays": strays, "changes": changes}), file=sys.stderr)


def ended(tests: int) -> tuple[int, int]:
    """Wait for the tests, and end what they left; their exit status, and how many processes outlived their parents."""
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


def writes(seen: int) -> int:
    """How often a reward was written, replaced or removed."""
    count, data = 0, b""
    with contextlib.suppress(BlockingIOError):
        while True:
            data += os.read(seen, 1 << 16)
    while data:
        _, kind, _, size = EVENT.unpack_from(data)
        name, data = data[EVENT.size : EVENT.size + size].rstrip(b"\0"), data[EVENT.size + size :]
        count += bool((name in REWARDS and kind & COUNTED) or kind & (OF_THE_FOLDER | LOST))
    return count


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
