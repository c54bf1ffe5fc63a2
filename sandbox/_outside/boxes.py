"""Sandbox sessions as seen from our process: a pool of supervisors with a limit, and the sessions that use them.

A supervisor serves one session at a time. When a session is closed, its processes are killed and its files wiped, and the supervisor waits
for the next session with the same image and limits, which makes opening fast. No request is ever repeated: a session whose supervisor does
not reply has failed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Generic, Literal, TypeVar

from rlvr.contracts import Box, Outcome, Place, Stop
from rlvr.errors import ConfigError, SandboxError
from rlvr.sandbox._inside.frames import Torn
from rlvr.sandbox._outside.channel import PATIENCE_S, Channel

C = TypeVar("C", bound=Channel)
MOST_BYTES = 16_000_000
"""The largest file that can be written or read at once."""
WAIT_S = 20.0  # timeout for a running call to notice that its session is closed
BROKEN = "the session is broken: nothing more can run in it, and its files are gone"
Shape = tuple[str, int, int, int]


class Broken(OSError):
    """Raised when a program broke its session: not a failure of the sandbox."""


class OpenBox(Box):
    """A session in use: it holds a supervisor until it is closed or has failed."""

    def __init__(self, channel: Channel, place: Place, id: str, release: Callable[[bool], None]) -> None:
        self.id, self._place, self._channel, self._release = id, place, channel, release
        self._line, self._state = threading.Lock(), threading.Lock()
        self._ending = ""
        self._lost = self._broken = self._closed = False

    @property
    def lost(self) -> bool:
        """Whether the sandbox failed under this session."""
        return self._lost

    def run(self, source: str | Sequence[str], *, language: Literal["bash", "python"] = "bash", timeout: float | None = None) -> Outcome:
        """Run a script, or a program with its arguments."""
        wall_s = _seconds(self._place.wall_s if timeout is None else timeout)
        data, listed = _source(source)
        if listed and language != "bash":
            raise ValueError(f"a list of arguments is a command, and language is {language!r}; give a source, or leave language at 'bash'")
        if language not in ("bash", "python"):
            raise ValueError(f"language is {language!r}; a session runs 'bash' and 'python'")
        header: dict[str, Any] = {"box": "run", "language": language, "listed": listed, "wall_s": wall_s}
        try:
            reply, said = self._ask(header, {"source": data}, wall_s + PATIENCE_S)
        except Broken:
            return Outcome(Stop.SV, reason=self._ending, note=BROKEN)
        except SandboxError as error:
            return Outcome(Stop.IE, reason=str(error))
        try:
            return self._outcome(reply, said)
        except (KeyError, TypeError, ValueError) as error:
            self._lose(f"its reply makes no sense ({type(error).__name__}: {error})", broken=False)
            return Outcome(Stop.IE, reason=self._ending)

    def _outcome(self, reply: dict[str, Any], said: dict[str, bytes]) -> Outcome:
        return Outcome(
            stop=Stop(reply["stop"]),
            exit_code=reply["exit"],
            stdout=said["stdout"],
            stderr=said["stderr"],
            cut=reply["cut"],
            cpu_s=reply["cpu"],
            wall_s=reply["wall"],
            peak_mb=reply["peak"] / (1 << 20),
            isolation=tuple(self._channel.hello["isolation"]),
            reason=reply["reason"],
            note=reply["note"],
        )

    def put(self, path: str, data: bytes) -> None:
        """Write a file in the working folder."""
        check_file(path, data)
        self._file({"box": "put", "path": path}, {"data": data})

    def get(self, path: str, limit: int) -> bytes:
        """Read the first `limit` bytes of a file in the working folder."""
        if isinstance(limit, bool) or not isinstance(limit, int) or not 0 <= limit <= MOST_BYTES:
            raise ValueError(f"limit is {limit!r}; a whole number from 0 to {MOST_BYTES} is needed")
        check_file(path, b"")
        return self._file({"box": "get", "path": path, "limit": limit}, {})["data"][:limit]

    def _file(self, header: dict[str, Any], parts: dict[str, bytes]) -> dict[str, bytes]:
        try:
            reply, said = self._ask(header, parts, PATIENCE_S)
        except Broken as error:
            raise OSError(errno.EIO, BROKEN, header["path"]) from error
        if code := reply["errno"]:
            raise OSError(code, os.strerror(code), header["path"])
        return said

    def _ask(self, header: dict[str, Any], parts: dict[str, bytes], seconds: float) -> tuple[dict[str, Any], dict[str, bytes]]:
        """Send one request and return the reply. Raises SessionBroken if a program broke the session, SandboxError if it failed."""
        with self._line:
            if self._ending:
                raise self._error()
            try:
                reply, said = self._channel.ask(header, parts, time.monotonic() + seconds)
            except (Torn, OSError, ValueError, KeyError) as error:  # an unreadable reply counts as no reply
                blamed = "" if self._ending else self._channel.blame()
                self._lose(f"{blamed or error}", broken=bool(blamed))
                raise self._error() from error
            if reply.get("fatal"):
                self._lose(reply["fatal"], broken=header["box"] == "run")
                if not {"stop", "errno"} & reply.keys():
                    raise self._error()
            return reply, said

    def _error(self) -> Exception:
        return (Broken if self._broken else SandboxError)(self._ending)

    def _lose(self, why: str, *, broken: bool) -> None:
        """Mark the session as failed and release its supervisor; `broken` says that a program in the session is the cause."""
        with self._state:
            if self._ending:
                return  # closed by another thread meanwhile
            self._ending = f"the session {self.id} {'broke' if broken else 'failed'}: {why}"
            self._broken, self._lost = broken, not broken
        self._channel.hang_up()
        self._release(False)

    def close(self) -> None:
        """End the session; a call that runs in another thread ends with INTERNAL_ERROR."""
        idle = self._line.acquire(blocking=False)
        try:
            with self._state:
                if self._closed:
                    return
                self._closed = True
                if self._lost or self._broken:
                    return
                self._ending = f"the session {self.id} is closed"
            sound = False
            if idle:
                with contextlib.suppress(Torn, OSError, ValueError):
                    reply, _ = self._channel.ask({"box": "end"}, {}, time.monotonic() + PATIENCE_S)
                    sound = not reply.get("fatal")
            else:
                self._channel.hang_up()
                if self._line.acquire(timeout=WAIT_S):
                    self._line.release()
            self._release(sound)
        finally:
            if idle:
                self._line.release()


class Boxes(Generic[C]):
    """Pool of at most `size` open sessions, with idle supervisors that wait for the next ones."""

    def __init__(self, start: Callable[[Place], C], size: int, queue_s: float) -> None:
        self._start, self.size, self._queue_s = start, size, queue_s
        self._begin()

    def _begin(self) -> None:
        self._pid, self._closed, self._room = os.getpid(), False, self.size
        self._change = threading.Condition()
        self._idle: list[tuple[Shape, C]] = []
        self._busy: dict[C, OpenBox] = {}
        self._count = 0

    def open(self, place: Place) -> Box:
        """Open a session in an idle supervisor with the same limits or in a new one. Raises SandboxError if none is free in time."""
        if os.getpid() != self._pid:
            self._begin()  # a forked child does not own its parent's sessions
        for name, data in place.files.items():
            check_file(name, data)
        shape = (place.image, place.memory_mb, place.processes, place.disk_mb)
        limits = {name: getattr(place, name) for name in ("memory_mb", "processes", "file_mb", "output_bytes")}
        channel, used = self._take(place, shape)
        request = {"box": "open", "limits": limits}
        try:
            try:
                reply, _ = channel.ask(request, place.files, time.monotonic() + PATIENCE_S)
            except (Torn, OSError, ValueError):
                if not used:
                    raise
                with contextlib.suppress(OSError):
                    channel.close()  # it died while idle: nothing of this session has run yet
                channel = self._new(place)
                reply, _ = channel.ask(request, place.files, time.monotonic() + PATIENCE_S)
        except (Torn, OSError, ValueError) as error:
            self._give(channel, shape, sound=False)
            raise SandboxError(f"a session could not be opened: {error}") from error
        if wrong := reply["fatal"] or reply["error"]:
            self._give(channel, shape, sound=not reply["fatal"] and self._ended(channel))
            raise (SandboxError if reply["fatal"] else ConfigError)(f"a session could not be opened: {wrong}")
        with self._change:
            self._count += 1
            id = f"{getattr(channel, 'id', '')[:24]}.{self._count}"
            box = OpenBox(channel, place, id, lambda sound: self._give(channel, shape, sound=sound))
            self._busy[channel] = box
            closed = self._closed
        if closed:  # by another thread, while this session was being opened
            box.close()
            raise SandboxError("the sandbox is closed")
        return box

    def _new(self, place: Place) -> C:
        try:
            return self._start(place)
        except BaseException:
            self._vacate()
            raise

    @staticmethod
    def _ended(channel: C) -> bool:
        with contextlib.suppress(Torn, OSError, ValueError):
            return not channel.ask({"box": "end"}, {}, time.monotonic() + PATIENCE_S)[0].get("fatal")
        return False

    def _take(self, place: Place, shape: Shape) -> tuple[C, bool]:
        """Return a supervisor, and whether it has served a session before."""
        deadline = time.monotonic() + self._queue_s
        spare: C | None = None
        with self._change:
            while True:
                if self._closed:
                    raise SandboxError("the sandbox is closed")
                if (found := next((pair for pair in reversed(self._idle) if pair[0] == shape), None)) is not None:
                    self._idle.remove(found)
                    return found[1], True
                if self._room:
                    self._room -= 1
                    break
                if self._idle:
                    spare = self._idle.pop(0)[1]  # it has other limits: close it to free a slot
                    break
                if not self._change.wait(deadline - time.monotonic()):
                    raise SandboxError(
                        f"no session became free within {self._queue_s:.0f} s; all {self.size} are open: close some, or raise the "
                        "sandbox's setting `max_sessions`"
                    )
        if spare is not None:
            with contextlib.suppress(OSError):
                spare.close()
        return self._new(place), False

    def _give(self, channel: C, shape: Shape, *, sound: bool) -> None:
        with self._change:
            self._busy.pop(channel, None)
            if sound and not self._closed:
                self._idle.append((shape, channel))
                self._change.notify()
                return
        try:
            channel.close()
        finally:
            self._vacate()

    def _vacate(self) -> None:
        with self._change:
            self._room += 1
            self._change.notify()

    def ids(self) -> list[str]:
        """Return the ids of the open sessions."""
        with self._change:
            return [box.id for box in self._busy.values()]

    def living(self) -> list[C]:
        """Return every running supervisor."""
        with self._change:
            return [*self._busy, *(channel for _, channel in self._idle)]

    def close(self) -> None:
        """Close every session and every idle supervisor."""
        if os.getpid() != self._pid:
            return
        with self._change:
            self._closed = True
            boxes, idle = list(self._busy.values()), [channel for _, channel in self._idle]
            self._idle = []
            self._change.notify_all()
        for box in boxes:
            with contextlib.suppress(Exception):
                box.close()
        for channel in idle:
            with contextlib.suppress(Exception):
                channel.close()


def check_file(path: str, data: bytes) -> None:
    """Raise ValueError for a path that cannot name a file, or data that is too large."""
    if not isinstance(path, str) or not path or "\0" in path:
        raise ValueError(f"path is {path!r}; a path without a null character is needed")
    if len(data) > MOST_BYTES:
        raise ValueError(f"the file {path!r} has {len(data)} bytes; at most {MOST_BYTES} are possible")


def _seconds(timeout: float) -> float:
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 < timeout < float("inf"):
        raise ValueError(f"timeout is {timeout!r}; it must be a number of seconds above 0")
    return float(timeout)


def _source(source: str | Sequence[str]) -> tuple[bytes, bool]:
    if isinstance(source, str):
        return source.encode("utf-8", "surrogatepass"), False
    words = list(source)
    if not words or any(not isinstance(word, str) or "\0" in word for word in words):
        raise ValueError(f"the command is {words!r:.200}; a program and its arguments are needed, as texts without null characters")
    return b"".join(word.encode("utf-8", "surrogateescape") + b"\0" for word in words), True
