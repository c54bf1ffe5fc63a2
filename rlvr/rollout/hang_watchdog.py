"""End a run whose interpreter is blocked: a C call that holds Python's lock, such as a slow regular expression in a verifier.

No thread of the process can enforce a timeout then, so a small process does: it gets a beat from a thread of the run, and if none comes
although the run uses processor time, it says so and aborts the run, with a traceback of every thread. A run that is stopped or starved
uses no time, and is left alone. This file is also the program of that process; it imports nothing of rlvr.
"""

from __future__ import annotations

import contextlib
import faulthandler
import math
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

MIN_LIMIT_S = 30.0
"""Nothing that a run does by itself blocks the interpreter for so long."""
BEAT_INTERVAL_S = 1.0
ABORT_GRACE_S = 5.0


@contextlib.contextmanager
def abort_on_blocked_interpreter(timeout_s: float) -> Iterator[None]:
    """Abort this process if its interpreter is blocked for as long as a call may take, but at least 30 s."""
    global _watch
    with _lock:
        if _watch is None or _watch.pid != os.getpid():  # after a fork the watch is that of the parent
            _watch = HangWatchdog()
    limit = max(MIN_LIMIT_S, timeout_s)
    _watch.add_limit(limit)
    try:
        yield
    finally:
        _watch.remove_limit(limit)


class HangWatchdog:
    """Aborts this process, with a traceback of every thread, when a C call blocks its interpreter beyond a limit.

    A thread sends beats to a small process, which lives as long as this one. If no beat comes although this process uses processor time,
    the small one aborts this process.
    """

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._limits: list[float] = []
        self._never, self._send_lock = threading.Event(), threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        if not Path("/proc/self/stat").exists():
            return
        if not faulthandler.is_enabled():
            with contextlib.suppress(OSError, ValueError, AttributeError):  # a notebook's stderr is no file
                faulthandler.enable()
        with contextlib.suppress(OSError):  # a run that can start no process goes on unwatched
            command = [sys.executable, "-I", "-S", __file__, str(self.pid)]
            bare = {name: os.environ[name] for name in ("LD_LIBRARY_PATH", "SYSTEMROOT") if name in os.environ}  # no secrets
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True, env=bare)
            threading.Thread(target=self._send_beats, name="interpreter watch", daemon=True).start()

    def add_limit(self, limit_s: float) -> None:
        """Watch with a limit; the largest of several counts."""
        self._limits.append(limit_s)
        self._send_beat()

    def remove_limit(self, limit_s: float) -> None:
        """End one watch."""
        self._limits.remove(limit_s)
        self._send_beat()

    def _send_beats(self) -> None:
        while self._send_beat():
            self._never.wait(BEAT_INTERVAL_S)

    def _send_beat(self) -> bool:
        if self._process is None or self._process.stdin is None:
            return False
        try:
            with self._send_lock:  # otherwise a beat of one thread with the limit of before could follow that of another
                os.write(self._process.stdin.fileno(), f"{max(self._limits, default=math.inf)}\n".encode())
        except (OSError, ValueError):  # the process was killed, or this one ends
            return False
        return True


_lock = threading.Lock()
_watch: HangWatchdog | None = None


def _run_watchdog(pid: int) -> None:
    """Read beats, each of which is the current limit, until the watched process ends; abort it if they end while it uses processor time."""
    limit_s, last_beat, cpu_at_beat = math.inf, time.monotonic(), 0.0
    while os.getppid() == pid:
        if select.select([0], [], [], BEAT_INTERVAL_S)[0]:
            beats = os.read(0, 65_536).split()
            if not beats:
                return
            limit_s, last_beat, cpu_at_beat = float(beats[-1]), time.monotonic(), _read_cpu_s(pid)
        elif time.monotonic() - last_beat > limit_s and _read_cpu_s(pid) - cpu_at_beat > limit_s / 2:
            break
    else:
        return
    message = (
        f"error: this process is aborted: for {limit_s:g} s one call has held the lock of the Python interpreter, so that no timeout can end it "
        "(a regular expression with much backtracking, or a power of large integers?). The threads below show the call. "
        "Give the code a limit of its own, or run the verifier in processes: {name: isolated, verifier: NAME}. "
        "A training run or an evaluation goes on with --resume\n"
    )
    os.write(2, message.encode())
    os.kill(pid, signal.SIGABRT)
    time.sleep(ABORT_GRACE_S)
    if os.getppid() == pid:
        os.kill(pid, signal.SIGKILL)


def _read_cpu_s(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        sys.exit()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    _run_watchdog(int(sys.argv[1]))
