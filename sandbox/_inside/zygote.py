"""The warm interpreter that every program is forked from. Runs inside the container: standard library only.

It is forked from the supervisor before the first program is read, and never sees one: a program's source and input reach the
forked child as descriptors, so that no child's memory holds data of an earlier program, of a test or of a result.
The child gives up root for an unused user id, sets its limits, and becomes `python3 -I -B answer.py`.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import fcntl
import gc
import io
import json
import os
import resource
import select
import signal
import socket
import sys
import threading
import traceback
import types
from typing import Any, NoReturn

from rlvr.sandbox._inside import capabilities as rights
from rlvr.sandbox._inside import pid_namespace as nest
from rlvr.sandbox._inside import seccomp

PRELOADED_MODULES = """
    abc argparse array base64 bisect calendar cmath collections contextlib copy csv dataclasses datetime decimal enum fractions functools
    hashlib heapq inspect io itertools json math numbers operator pprint queue random re statistics string struct sys textwrap threading
    time traceback typing
"""
PROGRAM_ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin:/rlvr/bin", "HOME": "/tmp", "TMPDIR": "/tmp", "LANG": "C.UTF-8"}
libc = nest.libc
FIRST_PARKED_FD = 100  # descriptors are moved here while 0 to 9 are set up
PR_SET_DUMPABLE = 4
QUEUE_LIMITS = ("MSGQUEUE", "SIGPENDING")
CGROUP_FD = 7  # the descriptor through which a session's call joins its control group


def preload_modules() -> None:
    """Import the modules that most programs import, and exclude them from garbage collection."""
    for name in PRELOADED_MODULES.split():
        __import__(name)
    if sys.version_info >= (3, 14):
        choose_fork()
    gc.collect()
    gc.freeze()


def choose_fork() -> None:
    """Make `fork` the start method of multiprocessing, unless a program chooses another: that of Python 3.14, forkserver, passes
    descriptors, which the filter refuses, and reads the file of the program, which there is not.
    """
    import multiprocessing.context as context

    with contextlib.suppress(AttributeError, KeyError):  # they are not public
        context._default_context._default_context = context._concrete_contexts["fork"]  # type: ignore[attr-defined]


def serve_forks(connection: socket.socket, uses_namespaces: bool, filter_strictness: int) -> dict[str, Any] | None:
    """Fork a child for every request received from `connection`. Returns the request in the child, and None in the parent at the end.

    `filter_strictness` is that of the system-call filter of every program; see `seccomp.build_filter`.
    """
    if uses_namespaces:
        nest.unshare_zygote_namespaces()
    rights.keep_only_capabilities(rights.CAP_SETUID | rights.CAP_SETGID | (rights.CAP_SYS_ADMIN if uses_namespaces else 0))
    if not uses_namespaces:  # with namespaces every program installs the filter itself: entering one needs calls that the filter refuses
        seccomp.install_filter(filter_strictness)
    home = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
    read, write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    living: dict[int, int] = {}
    while True:
        ready, _, _ = select.select([connection.fileno(), read], [], [])
        if read in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(read, 4096)
            _report_exits(connection, living)
        if connection.fileno() in ready:
            request, descriptors = _receive_request(connection)
            if request is None:
                return None
            init = request["nest"]
            pid = nest.retry_fork(lambda init=init: nest.fork_into_namespace(init, home) if init else os.fork())  # type: ignore[misc]
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                request["descriptors"] = descriptors
                request["filter"] = filter_strictness if request["filter"] else 0
                return request
            living[pid] = request["serial"]
            for number in descriptors:
                os.close(number)
            connection.send(json.dumps({"serial": request["serial"], "pid": pid}).encode())


def _receive_request(connection: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    numbers = array.array("i")
    message, ancillary, _, _ = connection.recvmsg(65536, socket.CMSG_LEN(16 * numbers.itemsize))
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            numbers.frombytes(data[: len(data) - len(data) % numbers.itemsize])
    return (json.loads(message) if message else None), list(numbers)


def _report_exits(connection: socket.socket, serial_by_pid: dict[int, int]) -> None:
    for pid in list(serial_by_pid):
        done, status, used = os.wait4(pid, os.WNOHANG)
        if done:
            spent = used.ru_utime + used.ru_stime
            message = {"serial": serial_by_pid.pop(pid), "status": status, "peak_kb": used.ru_maxrss, "cpu": spent}
            connection.send(json.dumps(message).encode())


def run_as_program(request: dict[str, Any]) -> None:
    """Turn this forked child into the ordered program, and run it to its end."""
    try:
        source = _set_up_process(request)
    except BaseException:
        os.write(2, b"the child could not be set up: " + traceback.format_exc().encode())
        os._exit(213)
    if request["argv"]:
        _exec_program(request["argv"])
    del request
    run_python(source)


def _set_up_process(request: dict[str, Any]) -> bytes:
    """Set up descriptors, limits, user, folder and environment of the program; return its Python source (empty if it is a command)."""
    if request["nest"]:
        nest.mount_own_proc(request["oom"])
    os.setsid()
    parked = [fcntl.fcntl(number, fcntl.F_DUPFD, FIRST_PARKED_FD) for number in request["descriptors"]]
    for number, place in zip(parked, request["places"], strict=True):
        os.dup2(number, place, inheritable=True)
    if request.get("group"):  # a session's call: join its cgroup before any of its code runs
        os.write(CGROUP_FD, b"0")
        os.close(CGROUP_FD)
    kept = set(request["places"])
    for number in range(10):
        if number not in kept:
            with contextlib.suppress(OSError):
                os.close(number)
    os.closerange(10, 4096)
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write(str(request["oom"]))
    with contextlib.suppress(OSError):
        os.nice(request["nice"])
    for name, value in request["rlimits"].items():
        number = getattr(resource, f"RLIMIT_{name}")
        hard = resource.getrlimit(number)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        # gVisor refuses to set limits of queues, which it does not have
        with contextlib.suppress(*(ValueError,) if name in QUEUE_LIMITS else ()):
            resource.setrlimit(number, (value, value))
    if request["uid"] is not None:
        os.setgroups([])
        os.setresgid(request["gid"], request["gid"], request["gid"])
        os.setresuid(request["uid"], request["uid"], request["uid"])
    rights.drop_all_capabilities()
    if request["filter"]:
        seccomp.install_filter(request["filter"])
    libc.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)  # so that /dev/stdin opens; tracing is refused by the filter
    os.chdir(request["folder"])
    os.umask(0o022)
    os.environ.clear()
    os.environ.update(PROGRAM_ENVIRONMENT | {"HOME": request["folder"], "TMPDIR": request["folder"]})
    source = b""
    if not request["argv"]:
        with open(9, "rb") as file:
            source = file.read()
    os.write(8, b"+")  # from here on, any failure is caused by the program
    os.close(8)
    return source


def _exec_program(argv: list[str]) -> NoReturn:
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        os.execve(argv[0], argv, dict(os.environ))
    except OSError as error:
        os.write(2, f"{argv[0]}: {error}\n".encode())
        os._exit(127)


def run_python(source: bytes) -> None:
    """Run `source` as the main module, like `python3 -I -B answer.py`. Tracebacks are shown without our frames."""
    for name in [name for name in sys.modules if name.split(".")[0] == "rlvr"]:
        del sys.modules[name]
    sys.stdin = sys.__stdin__ = io.TextIOWrapper(io.BufferedReader(io.FileIO(0)), "utf-8", "surrogateescape")  # type: ignore[misc]
    sys.stdout = sys.__stdout__ = io.TextIOWrapper(io.BufferedWriter(io.FileIO(1, "w")), "utf-8", "surrogateescape")  # type: ignore[misc]
    stderr = io.TextIOWrapper(io.BufferedWriter(io.FileIO(2, "w")), "utf-8", "backslashreplace", line_buffering=True)
    sys.stderr = sys.__stderr__ = stderr  # type: ignore[misc]
    sys.argv = ["answer.py"]
    sys.orig_argv = ["python3", "-I", "-B", "answer.py"]
    sys.path = [entry for entry in sys.path if entry]
    main = types.ModuleType("__main__")
    main.__dict__.update(__file__="answer.py", __builtins__=__builtins__)
    sys.modules["__main__"] = main
    leave = os._exit  # works whatever the program did to our modules
    status = 1
    try:
        code = compile(source, "answer.py", "exec", dont_inherit=True)
        del source
        exec(code, main.__dict__)
        status = 0
    except SystemExit as error:
        status = _get_exit_status(error.code)
    except BaseException as error:
        frame = error.__traceback__.tb_next if error.__traceback__ else None
        error.__traceback__ = frame
        with contextlib.suppress(BaseException):
            sys.excepthook(type(error), error, frame)
    leave(_run_exit_hooks(main, status))


def _get_exit_status(exit_argument: object) -> int:
    """Return the exit status for the argument of SystemExit."""
    if exit_argument is None:
        return 0
    if isinstance(exit_argument, int):
        return exit_argument & 0xFF
    with contextlib.suppress(BaseException):
        print(exit_argument, file=sys.stderr)
    return 1


def _run_exit_hooks(main: types.ModuleType, status: int) -> int:
    """Run what the interpreter runs on exit, but without tearing the interpreter down, which would dominate the cost."""

    def let_go() -> None:
        """Delete the program's objects while modules, functions and classes, which their finalizers may need, still exist."""
        kept = (types.ModuleType, types.FunctionType, type)
        for name in [name for name, value in main.__dict__.items() if not isinstance(value, kept) and name != "__builtins__"]:
            main.__dict__.pop(name, None)

    for step in (threading._shutdown, atexit._run_exitfuncs, let_go):  # type: ignore[attr-defined]
        with contextlib.suppress(BaseException):
            step()
    for stream in (sys.stdout, sys.__stdout__):  # the program may have replaced it
        try:
            if stream is not None and not stream.closed:
                stream.flush()
        except BaseException:
            status = 120
    with contextlib.suppress(BaseException):
        sys.stderr.flush()
    return status
