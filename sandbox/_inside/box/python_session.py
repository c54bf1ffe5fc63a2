"""The Python interpreter of a sandbox session: it runs one source after another in the same namespace.

It is started like any program, as the session's user, and is no more trusted than the code it runs: its replies affect only its own
session. On descriptor 3 it receives three descriptors for each call (source, output, errors), and replies with the exit status.
Runs inside the container: standard library only, and nothing of rlvr.
"""

from __future__ import annotations

import array
import contextlib
import linecache
import os
import socket
import sys
import types
from typing import Any

CHANNEL_FD = 3


def _serve_calls() -> None:
    """Run sources until the supervisor closes the channel."""
    os.set_inheritable(CHANNEL_FD, False)
    door = socket.socket(fileno=CHANNEL_FD)
    main = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = __builtins__
    sys.modules["__main__"] = main
    sys.argv, sys.orig_argv = [""], ["python3"]
    sys.path.insert(0, "")
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    home, quiet, number = os.getpid(), os.open("/dev/null", os.O_WRONLY | os.O_CLOEXEC), 0
    while given := _receive_descriptors(door):
        number += 1
        with open(given[0], "rb") as file:
            source = file.read()
        os.dup2(given[1], 1)
        os.dup2(given[2], 2)
        os.close(given[1])
        os.close(given[2])
        status = _execute_source(source, main.__dict__, f"<call {number}>")
        _flush_streams()
        if os.getpid() != home:
            os._exit(status)  # a child that the source forked, and that ran to the end of the source
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        door.send(b"%d" % status)
    os._exit(0)


def _execute_source(source: bytes, namespace: dict[str, Any], title: str) -> int:
    """Run one source and return its exit status. Tracebacks are shown without our frames, and with the lines of the source."""
    try:
        text = source.decode("utf-8", "replace")
        linecache.cache[title] = (len(text), None, text.splitlines(keepends=True), title)
        exec(compile(source, title, "exec", dont_inherit=True), namespace)
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            return (error.code or 0) & 0xFF
        with contextlib.suppress(BaseException):
            print(error.code, file=sys.stderr)
        return 1
    except BaseException as error:
        frame = error.__traceback__.tb_next if error.__traceback__ else None
        error.__traceback__ = frame
        with contextlib.suppress(BaseException):
            sys.excepthook(type(error), error, frame)
        return 1
    return 0


def _receive_descriptors(connection: socket.socket) -> list[int]:
    numbers = array.array("i")
    message, ancillary, _, _ = connection.recvmsg(64, socket.CMSG_LEN(3 * numbers.itemsize))
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            numbers.frombytes(data[: len(data) - len(data) % numbers.itemsize])
    return list(numbers) if message and len(numbers) == 3 else []


def _flush_streams() -> None:
    for stream in {sys.stdout, sys.__stdout__, sys.stderr, sys.__stderr__}:
        with contextlib.suppress(BaseException):
            if stream is not None:
                stream.flush()


if __name__ == "__main__":
    _serve_calls()
