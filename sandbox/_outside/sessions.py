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
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, Literal, TypeVar

from rlvr.contracts import ExecutionResult, ExitStatus, SandboxSession, SandboxSpec
from rlvr.contracts.admission import CapacityLimiter
from rlvr.contracts.sandbox import MAX_FILE_BYTES
from rlvr.errors import ConfigError, SandboxError
from rlvr.sandbox._inside.frames import ConnectionBroken
from rlvr.sandbox._outside.supervisor_connection import BYTES_LIKE, REPLY_TIMEOUT_S, SupervisorConnection

C = TypeVar("C", bound=SupervisorConnection)
CLOSE_TIMEOUT_S = 20.0  # timeout for a running call to notice that its session is closed
BROKEN_MESSAGE = "the session is broken: nothing more can run in it, and its files are gone"
CLOSED_MESSAGE = "the sandbox is closed"
NULL_CHARACTER_MESSAGE = b"bash: the script has a null character, which bash cannot read; nothing was run\n"
PoolKey = tuple[Any, ...]


class SessionBrokenByProgram(OSError):
    """Raised when a program broke its session: not a failure of the sandbox."""


class PooledSandboxSession(SandboxSession):
    """A session in use: it holds a supervisor until it is closed or has failed."""

    def __init__(self, channel: SupervisorConnection, spec: SandboxSpec, id: str, release: Callable[[bool], None]) -> None:
        self.id, self._spec, self._channel, self._release = id, spec, channel, release
        self._request_lock, self._state_lock = threading.Lock(), threading.Lock()
        self._end_reason = ""
        self._lost = self._broken = self._closed = False

    @property
    def has_failed(self) -> bool:
        """Whether the sandbox failed under this session."""
        return self._lost

    def run(
        self, source: str | Sequence[str], *, language: Literal["bash", "python"] = "bash", timeout: float | None = None
    ) -> ExecutionResult:
        """Run a script, or a program with its arguments."""
        wall_s = _check_timeout(self._spec.wall_s if timeout is None else timeout)
        data, listed = _encode_source(source)
        if listed and language != "bash":
            raise ValueError(f"a list of arguments is a command, and language is {language!r}; give a source, or leave language at 'bash'")
        if language not in ("bash", "python"):
            raise ValueError(f"language is {language!r}; a session runs 'bash' and 'python'")
        if language == "bash" and not listed and b"\0" in data and not self._end_reason:  # it would run up to there, without a word
            return ExecutionResult(ExitStatus.RUNTIME_ERROR, exit_code=126, stderr_bytes=NULL_CHARACTER_MESSAGE, reason="exit status 126")
        header: dict[str, Any] = {"box": "run", "language": language, "listed": listed, "wall_s": wall_s}
        try:
            reply, said = self._request(header, {"source": data}, wall_s + REPLY_TIMEOUT_S)
        except SessionBrokenByProgram:
            return ExecutionResult(ExitStatus.SANDBOX_VIOLATION, reason=self._end_reason, message=BROKEN_MESSAGE)
        except SandboxError as error:
            return ExecutionResult(ExitStatus.INTERNAL_ERROR, reason=str(error))
        try:
            return self._parse_result(reply, said)
        except (KeyError, TypeError, ValueError) as error:
            self._mark_failed(f"its reply makes no sense ({type(error).__name__}: {error})", broken=False)
            return ExecutionResult(ExitStatus.INTERNAL_ERROR, reason=self._end_reason)

    def _parse_result(self, reply: dict[str, Any], said: dict[str, bytes]) -> ExecutionResult:
        return ExecutionResult(
            status=ExitStatus(reply["stop"]),
            exit_code=reply["exit"],
            stdout_bytes=said["stdout"],
            stderr_bytes=said["stderr"],
            truncated=reply["cut"],
            cpu_s=reply["cpu"],
            wall_s=reply["wall"],
            peak_mb=reply["peak"] / (1 << 20),
            isolation=tuple(self._channel.handshake["isolation"]),
            reason=reply["reason"],
            message=reply["note"],
        )

    def write_file(self, path: str, data: bytes | str) -> None:
        """Write a file in the working folder; a text is written as UTF-8."""
        data = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data
        _check_file_argument(path, data)
        self._request_file({"box": "put", "path": path}, {"data": data})

    def read_file(self, path: str, max_bytes: int = MAX_FILE_BYTES) -> bytes:
        """Read the first `max_bytes` bytes of a file in the working folder."""
        if isinstance(max_bytes, bool) or not isinstance(max_bytes, int) or not 0 <= max_bytes <= MAX_FILE_BYTES:
            raise ValueError(f"limit is {max_bytes!r}; a whole number from 0 to {MAX_FILE_BYTES} is needed")
        _check_file_argument(path, b"")
        return self._request_file({"box": "get", "path": path, "limit": max_bytes}, {})["data"][:max_bytes]

    def _request_file(self, header: dict[str, Any], parts: dict[str, bytes]) -> dict[str, bytes]:
        try:
            reply, said = self._request(header, parts, REPLY_TIMEOUT_S)
        except SessionBrokenByProgram as error:
            raise OSError(errno.EIO, BROKEN_MESSAGE, header["path"]) from error
        if code := reply["errno"]:
            raise OSError(code, os.strerror(code), header["path"])
        return said

    def _request(self, header: dict[str, Any], parts: dict[str, bytes], seconds: float) -> tuple[dict[str, Any], dict[str, bytes]]:
        """Send one request and return the reply. Raises SessionBrokenByProgram if a program broke the session, SandboxError if it failed."""
        with self._request_lock:
            if self._end_reason:
                raise self._make_error()
            try:
                reply, said = self._channel.request(header, parts, time.monotonic() + seconds)
            except (ConnectionBroken, OSError, ValueError, KeyError) as error:  # an unreadable reply counts as no reply
                blamed = "" if self._end_reason else self._channel.explain_program_caused_exit()
                self._mark_failed(f"{blamed or error}", broken=bool(blamed))
                raise self._make_error() from error
            except BaseException:  # the caller was interrupted: the next call would get this call's reply
                self._mark_failed("a call was interrupted", broken=False)
                raise
            if reply.get("fatal"):
                self._mark_failed(reply["fatal"], broken=header["box"] in ("run", "kill") and not reply.get("unprovoked"))
                if not {"stop", "errno"} & reply.keys():
                    raise self._make_error()
            return reply, said

    def _make_error(self) -> Exception:
        return (SessionBrokenByProgram if self._broken else SandboxError)(self._end_reason)

    def _mark_failed(self, reason: str, *, broken: bool) -> None:
        """Mark the session as failed and release its supervisor; `broken` says that a program in the session is the cause."""
        with self._state_lock:
            if self._end_reason:
                return  # closed by another thread meanwhile
            self._end_reason = f"the session {self.id} {'broke' if broken else 'failed'}: {reason}"
            self._broken, self._lost = broken, not broken
        self._channel.shut_down()
        self._release(False)

    def stop_call(self) -> None:
        """Kill the call that runs in another thread; the session stays usable."""
        if self._request_lock.acquire(blocking=False):
            self._request_lock.release()  # nothing runs
            return
        with self._state_lock, contextlib.suppress(ConnectionBroken, OSError, ValueError):  # then the call fails by itself
            if not self._end_reason:  # a supervisor that was given back may run a call of the next session
                self._channel.send_stop(time.monotonic() + REPLY_TIMEOUT_S)

    def kill_processes(self) -> None:
        """Kill everything that runs in the session; its files stay."""
        try:
            self._request({"box": "kill"}, {}, REPLY_TIMEOUT_S)
        except SessionBrokenByProgram as error:
            raise SandboxError(str(error)) from error

    def close(self) -> None:
        """End the session; a call that runs in another thread ends with INTERNAL_ERROR."""
        idle = self._request_lock.acquire(blocking=False)
        try:
            with self._state_lock:
                if self._closed:
                    return
                self._closed = True
                if self._lost or self._broken:
                    return
                self._end_reason = f"the session {self.id} is closed"
            sound = False
            if idle:
                with contextlib.suppress(ConnectionBroken, OSError, ValueError):
                    reply, _ = self._channel.request({"box": "end"}, {}, time.monotonic() + REPLY_TIMEOUT_S)
                    sound = not reply.get("fatal")
            else:
                self._channel.shut_down()
                if self._request_lock.acquire(timeout=CLOSE_TIMEOUT_S):
                    self._request_lock.release()
            self._release(sound)
        finally:
            if idle:
                self._request_lock.release()


class SessionPool(Generic[C]):
    """Pool of at most `size` open sessions, with idle supervisors that serve the next ones.

    A session holds a unit of `limiter` from before it has a supervisor until that is idle again or closed.
    """

    def __init__(self, start: Callable[[SandboxSpec], C], size: int, queue_timeout_s: float) -> None:
        self._start, self.size, self._queue_timeout_s = start, size, queue_timeout_s
        self._reset()

    def _reset(self) -> None:
        self._pid, self._closed, self._num_unstarted = os.getpid(), False, self.size
        self._lock = threading.Lock()
        hint = "close some, or raise the sandbox's setting `max_sessions`"
        self._limiter = CapacityLimiter(self.size, "session", timeout_s=self._queue_timeout_s, hint=hint)
        self._idle: list[tuple[PoolKey, C]] = []
        self._busy: dict[C, PooledSandboxSession] = {}
        self._count = 0

    @property
    def limiter(self) -> CapacityLimiter:
        """The limiter of open sessions."""
        if os.getpid() != self._pid:
            self._reset()  # a forked child does not own its parent's sessions
        return self._limiter

    def open_session(self, spec: SandboxSpec) -> SandboxSession:
        """Open a session in an idle supervisor with the same limits, or in a new one.

        Raises SandboxError if none is free in time.
        """
        if not isinstance(spec.files, Mapping):
            raise ValueError(f"files is {spec.files!r:.80}; a mapping of paths to bytes is needed")
        for name, data in spec.files.items():
            _check_file_argument(name, data)
        shape = (spec.image, spec.memory_mb, spec.processes, spec.disk_mb, spec.loopback, *sorted(spec.mounts.items()))
        limits = {name: getattr(spec, name) for name in ("memory_mb", "processes", "file_mb", "output_bytes", "limit_addresses")}
        self.limiter.acquire()
        channel, used = self._get_supervisor(spec, shape)
        request = {"box": "open", "limits": limits}
        while True:
            try:
                reply, _ = channel.request(request, spec.files, time.monotonic() + REPLY_TIMEOUT_S)
                break
            except (ConnectionBroken, OSError, ValueError) as error:
                if not used:
                    self._release(channel, shape, is_healthy=False)
                    raise SandboxError(f"a session could not be opened: {error}") from error
            except BaseException:  # the caller was interrupted
                self._release(channel, shape, is_healthy=False)
                raise
            with contextlib.suppress(OSError):
                channel.close()  # it died while idle: nothing of this session has run yet
            channel, used = self._start_supervisor(spec), False
        if wrong := reply["fatal"] or reply["error"]:
            self._release(channel, shape, is_healthy=not reply["fatal"] and self._end_session(channel))
            raise (SandboxError if reply["fatal"] else ConfigError)(f"a session could not be opened: {wrong}")
        with self._lock:
            self._count += 1
            id = f"{getattr(channel, 'id', '')[:24]}.{self._count}"
            box = PooledSandboxSession(channel, spec, id, lambda sound: self._release(channel, shape, is_healthy=sound))
            self._busy[channel] = box
            closed = self._closed
        if closed:  # by another thread, while this session was being opened
            box.close()
            raise SandboxError(CLOSED_MESSAGE)
        return box

    def _start_supervisor(self, spec: SandboxSpec) -> C:
        try:
            return self._start(spec)
        except BaseException:
            self._free_unit()
            raise

    @staticmethod
    def _end_session(channel: C) -> bool:
        with contextlib.suppress(ConnectionBroken, OSError, ValueError):
            return not channel.request({"box": "end"}, {}, time.monotonic() + REPLY_TIMEOUT_S)[0].get("fatal")
        return False

    def _get_supervisor(self, spec: SandboxSpec, key: PoolKey) -> tuple[C, bool]:
        """Return a supervisor, and whether it has served a session before. The caller holds a unit, so there is one or room for one."""
        spare: C | None = None
        with self._lock:
            if (found := next((pair for pair in reversed(self._idle) if pair[0] == key), None)) is not None:
                self._idle.remove(found)
                return found[1], True
            if self._num_unstarted:
                self._num_unstarted -= 1
            else:
                spare = self._idle.pop(0)[1]  # it has other limits: close it to make room
        if spare is not None:
            with contextlib.suppress(OSError):
                spare.close()
        return self._start_supervisor(spec), False

    def _release(self, channel: C, key: PoolKey, *, is_healthy: bool) -> None:
        with self._lock:
            self._busy.pop(channel, None)
            is_kept = is_healthy and not self._closed
            if is_kept:
                self._idle.append((key, channel))
        if is_kept:
            self.limiter.release()
            return
        try:
            channel.close()
        finally:
            self._free_unit()

    def _free_unit(self) -> None:
        """Give up the room of a supervisor that is closed, or did not start."""
        with self._lock:
            self._num_unstarted += 1
        self.limiter.release()

    def list_session_ids(self) -> list[str]:
        """Return the ids of the open sessions."""
        with self._lock:
            return [box.id for box in self._busy.values()]

    def list_supervisors(self) -> list[C]:
        """Return every running supervisor."""
        with self._lock:
            return [*self._busy, *(channel for _, channel in self._idle)]

    def close(self) -> None:
        """Close every session and every idle supervisor."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            self._closed = True
            boxes, idle = list(self._busy.values()), [channel for _, channel in self._idle]
            self._idle = []
        self.limiter.close(CLOSED_MESSAGE)
        for box in boxes:
            with contextlib.suppress(Exception):
                box.close()
        for channel in idle:
            with contextlib.suppress(Exception):
                channel.close()


def _check_file_argument(path: str, data: bytes) -> None:
    """Raise ValueError for a path that cannot name a file, or data that is too large."""
    if not isinstance(path, str) or not path or "\0" in path:
        raise ValueError(f"path is {path!r}; a path without a null character is needed")
    if not isinstance(data, BYTES_LIKE):
        raise ValueError(f"the file {path!r} has the content {data!r:.80}; bytes are needed")
    if len(data) > MAX_FILE_BYTES:
        raise ValueError(f"the file {path!r} has {len(data)} bytes; at most {MAX_FILE_BYTES} are possible")


def _check_timeout(timeout: float) -> float:
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 < timeout < float("inf"):
        raise ValueError(f"timeout is {timeout!r}; it must be a number of seconds above 0")
    return float(timeout)


def _encode_source(source: str | Sequence[str]) -> tuple[bytes, bool]:
    if isinstance(source, str):
        return source.encode("utf-8", "surrogatepass"), False
    if not isinstance(source, Sequence) or isinstance(source, BYTES_LIKE):
        raise ValueError(f"the source is {source!r:.200}; a script as a text, or a list of a program and its arguments, is needed")
    words = list(source)
    if not words or any(not isinstance(word, str) or "\0" in word for word in words):
        raise ValueError(f"the command is {words!r:.200}; a program and its arguments are needed, as texts without null characters")
    return b"".join(word.encode("utf-8", "surrogateescape") + b"\0" for word in words), True
