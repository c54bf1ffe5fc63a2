# ruff: noqa: E501  (each program is on one line)
"""Test what a sandbox really enforces, by attacking it: for authors of sandboxes, and for `rlvr check sandbox NAME`.

Every check runs programs through the public `run` method and looks at the result; no setting is taken as proof.
A failed check says which attack succeeded.

A check must be harmless where *nothing* is enforced: every fork or memory bomb is small and stops by itself, and permission to
signal a process is tested with signal 0, which kills nothing.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from rlvr.conformance.check_runner import CheckResult, Steps, run_checks
from rlvr.conformance.sandbox_session_kit import SESSION_PROBES
from rlvr.conformance.survivors import SURVIVOR_PROBES
from rlvr.contracts import CheckerProgram, ExecutionResult, ExitStatus, Limits, Program, Sandbox
from rlvr.registry.plugins import build

SMALL_LIMITS = Limits(cpu_s=5, wall_s=10, memory_mb=128, output_bytes=1_000_000, file_mb=4, processes=12)


def check_sandbox(sandbox: Sandbox) -> list[CheckResult]:
    """Attack a sandbox and return one result for each promised property. The sandbox stays open and can be used again."""
    return list(run_checks((name, partial(probe, sandbox)) for name, probe in PROBES.items()))


def iter_sandbox_checks(name: str, settings: dict[str, Any]) -> Steps:
    """Yield the checks of a sandbox by its name: build it, attack it, close it."""
    sandbox: Sandbox = build("sandbox", name, **settings)
    try:
        sandbox.prepare()  # if something is missing: one message, not one from every check
        for check, probe in PROBES.items():
            yield check, partial(probe, sandbox)
    finally:
        sandbox.close()


Probe = Callable[[Sandbox], str]


def _run_program(
    sandbox: Sandbox, source: str, *, stdin: bytes = b"", limits: Limits = SMALL_LIMITS, files: dict[str, bytes] | None = None
) -> ExecutionResult:
    return sandbox.run(Program(source, stdin, limits=limits, files=files or {}))


def _make_output_probe(source: str, expected_output: str, *, stdin: bytes = b"", files: dict[str, bytes] | None = None) -> Probe:
    """Make a probe whose program must end with OK and print exactly this."""

    def probe(sandbox: Sandbox) -> str:
        outcome = _run_program(sandbox, source, stdin=stdin, files=files)
        said = outcome.stdout_bytes.decode("utf-8", "replace").strip()
        return (
            ""
            if (outcome.status, said) == (ExitStatus.OK, expected_output)
            else f"{_describe_result(outcome)}, printed {said[:200]!r} instead of {expected_output[:200]!r}"
        )

    return probe


def _make_status_probe(source: str, *statuses: ExitStatus, limits: Limits = SMALL_LIMITS) -> Probe:
    """Make a probe whose program must end with one of these statuses, after which the next program must run normally."""

    def probe(sandbox: Sandbox) -> str:
        outcome = _run_program(sandbox, source, limits=limits)
        if outcome.status not in statuses:
            return f"{_describe_result(outcome)} instead of {' or '.join(statuses)}"
        after = _run_program(sandbox, "print('well')")
        return "" if after.stdout_bytes == b"well\n" else f"the next program: {_describe_result(after)}"

    return probe


def _make_error_probe(statements: str, error_names: str = "OSError") -> Probe:
    """Make a probe in which each line of `statements` must raise; its program prints the lines that did not."""
    lines = [line for line in statements.strip().splitlines() if line.strip()]
    body = "".join(f"try:\n    {line}\n    print({line!r})\nexcept ({error_names}):\n    pass\n" for line in lines)
    return _make_output_probe(
        f"import ctypes, os, signal, socket\nlibc = ctypes.CDLL(None, use_errno=True)\n{LIBC_CALL}{body}print('done')", "done"
    )


def _make_eventual_error_probe(statement: str, max_repeats: int, error: str = "OSError") -> Probe:
    """Make a probe whose statement must fail before it has run this many times; the files it created are removed."""
    tidy = "for i in range(n + 1):\n    try: os.unlink(f'f{i}')\n    except OSError: pass"
    loop = f"n = 0\ntry:\n    for i in range({max_repeats}):\n        {statement}\n        n += 1\nexcept {error}:\n    print('stopped')"
    return _make_output_probe(f"import os, sys, threading, time\n{loop}\n{tidy}\nsys.stdout.flush()\nos._exit(0)", "stopped")


BUSY_LOOP = "import time\nend = time.monotonic() + 20\nwhile time.monotonic() < end: pass"
LIBC_CALL = """
def call(name, *arguments):
    if getattr(libc, name)(*arguments) == -1:
        raise OSError(ctypes.get_errno(), name)
"""


def _describe_result(outcome: ExecutionResult) -> str:
    tail = outcome.stderr_bytes[-200:].decode("utf-8", "replace").strip().rpartition("\n")[2]
    return f"{outcome.status.value} ({outcome.reason or 'no reason'}{'; ' + tail if tail else ''})"


def _probe_cleanup(sandbox: Sandbox) -> str:
    """Check that the next program finds no daemons, files, locked folders or attributes, in whichever container it runs."""
    dirt = """
import os, subprocess, time
os.makedirs('a/' + '/'.join('d' * 1 for _ in range(200)))
os.chmod('a', 0)
open('plain', 'w').write('poison')
os.symlink('/etc/passwd', 'link')
for name in ('sitecustomize.py', 'usercustomize.py', 'random.py'):
    open(name, 'w').write('raise SystemExit(99)')
for place in ('/dev/shm', '/tmp', '/var/tmp', '/run', '.'):
    try:
        open(place + '/left', 'w').write('poison')
        os.setxattr(place, 'user.left', b'poison')
    except OSError:
        pass
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(20)
"""
    look = """
import os
found = [name for name in os.listdir('.')]
for place in ('/dev/shm', '/tmp', '/var/tmp', '/run', '.'):
    if os.path.exists(place + '/left'):
        found.append(place + '/left')
    try:
        found += os.listxattr(place)
    except OSError:
        pass
for pid in filter(str.isdecimal, os.listdir('/proc')):
    try:
        if int(pid) != os.getpid() and b'python' in open(f'/proc/{pid}/cmdline', 'rb').read() and os.stat(f'/proc/{pid}').st_uid == os.getuid():
            found.append('process ' + pid)
    except OSError:
        pass
print(found)
"""
    for _ in range(4):
        _run_program(sandbox, dirt)
        outcome = _run_program(sandbox, look)
        if outcome.stdout_bytes.strip() != b"[]":
            return f"the next program found {outcome.stdout_bytes.decode(errors='replace')[:200]} ({_describe_result(outcome)})"
    return ""


def _probe_isolation(sandbox: Sandbox) -> str:
    """Check that two programs that run at the same time do not see, signal or reach each other."""
    rounds = 4
    victim = "import time\nopen('mine', 'w').write('secret')\ntime.sleep(1)\nprint(open('mine').read())"
    spy = """
import os, signal, socket, time
found = []
end = time.monotonic() + 0.8
while time.monotonic() < end:
    for pid in filter(str.isdecimal, os.listdir('/proc')):
        if int(pid) != os.getpid():
            try:
                os.kill(int(pid), 0)
                found.append('may kill ' + pid)
            except OSError:
                pass
    for place in ('/tmp', '/dev/shm'):
        try:
            found += [name for name in os.listdir(place) if name == 'mine']
        except OSError:
            pass
    time.sleep(0.01)
print(found)
"""
    with ThreadPoolExecutor(2 * rounds) as threads:
        victims = [threads.submit(_run_program, sandbox, victim) for _ in range(rounds)]
        spies = [threads.submit(_run_program, sandbox, spy) for _ in range(rounds)]
        for future in victims:
            if future.result().stdout_bytes != b"secret\n":
                return f"a program was disturbed by another one running at the same time: {_describe_result(future.result())}"
        for future in spies:
            if future.result().stdout_bytes != b"[]\n":
                return (
                    f"a program reached another one running at the same time: {future.result().stdout_bytes.decode(errors='replace')[:200]}"
                )
    return ""


def _probe_network(sandbox: Sandbox) -> str:
    """Check that a program cannot connect to a port opened on this machine for the check."""
    visited = threading.Event()
    with socket.create_server(("0.0.0.0", 0)) as door:
        door.settimeout(0.2)
        stop = threading.Event()

        def wait() -> None:
            while not stop.is_set():
                try:
                    door.accept()[0].close()
                    visited.set()
                except OSError:
                    continue

        thread = threading.Thread(target=wait, daemon=True)
        thread.start()
        port = door.getsockname()[1]
        outcome = _run_program(
            sandbox,
            f"import socket\nfor host in ('127.0.0.1', '172.17.0.1', '169.254.169.254', 'example.com'):\n    try:\n"
            f"        socket.create_connection((host, {port}), 1)\n        print(host)\n    except OSError:\n        pass\nprint('done')",
        )
        stop.set()
        thread.join(5)
    return (
        ""
        if outcome.stdout_bytes == b"done\n" and not visited.is_set()
        else f"a connection was made: {_describe_result(outcome)} {outcome.stdout_bytes[:100]!r}"
    )


def _probe_checker(sandbox: Sandbox) -> str:
    """Check that the checker's output comes from the checker, and that the program cannot change it."""
    hostile = "import os\nfor n in range(3, 64):\n    try:\n        os.write(n, b'forged')\n    except OSError:\n        pass\n"
    hostile += "import signal\nfor pid in filter(str.isdecimal, os.listdir('/proc')):\n    try:\n        int(pid) != os.getpid() and (os.kill(int(pid), 0), os.write(4, b' and may kill me'))\n"
    hostile += "    except OSError:\n        pass\nos._exit(0)"
    judge = "import os\nheard = b''\nwhile (more := os.read(3, 100)):\n    heard += more\nos.write(5, b'heard ' + heard)"
    outcome = sandbox.run(Program(hostile, limits=SMALL_LIMITS, checker=CheckerProgram(judge)))
    return (
        ""
        if (outcome.status, outcome.checker_output) == (ExitStatus.OK, b"heard forged")
        else f"{_describe_result(outcome)}, the report says {outcome.checker_output[:100]!r}"
    )


def _probe_memory_secrets(sandbox: Sandbox) -> str:
    """Check that a program's memory contains nothing of rlvr's environment, and nothing of an earlier program."""
    secret = os.urandom(12).hex()
    first, second = secret[:12], secret[12:]
    search = f"""
first, second, found = {first!r}.encode(), {second!r}.encode(), 0
memory = open('/proc/self/mem', 'rb', 0)
for line in open('/proc/self/maps'):
    span, mode = line.split()[:2]
    low, high = (int(x, 16) for x in span.split('-'))
    if mode[0] != 'r' or '[v' in line:
        continue
    try:
        memory.seek(low)
        text = memory.read(high - low)
    except (OSError, OverflowError, ValueError):
        continue
    at = text.find(first)
    while at >= 0:
        found += text[at + len(first):at + len(first) + len(second)] == second
        at = text.find(first, at + 1)
print(found, text is not None)
"""
    os.environ["RLVR_CANARY"] = secret
    try:
        for _ in range(4):
            _run_program(sandbox, f"x = {secret!r}\nprint(x, input())", stdin=secret.encode())
        outcome = _run_program(sandbox, search)
    finally:
        del os.environ["RLVR_CANARY"]
    return "" if outcome.stdout_bytes == b"0 True\n" else f"{_describe_result(outcome)}: found it {outcome.stdout_bytes[:100]!r} times"


PROBES: dict[str, Probe] = {
    "runs a program": _make_output_probe("print(6 * int(input()))", "42", stdin=b"7"),
    "passes files to the program": _make_output_probe("print(open('data.txt').read())", "here", files={"data.txt": b"here"}),
    "a non-zero exit status is an error": _make_status_probe("raise SystemExit(3)", ExitStatus.RUNTIME_ERROR),
    "a crash is a crash": _make_status_probe("import os\nos.abort()", ExitStatus.RUNTIME_ERROR),
    "exit() exists": _make_output_probe("print('x')\nexit()", "x"),
    "argv is clean": _make_output_probe("import sys\nprint(len(sys.argv))", "1"),
    "5 MB of output arrive": _make_output_probe(
        "import sys\nsys.stdout.write('a' * 500000)\nprint(len('a' * 500000) * 10)", "a" * 500000 + "5000000"
    ),
    "processor time is limited": _make_status_probe(f"{BUSY_LOOP}", ExitStatus.TIMEOUT, limits=Limits(cpu_s=0.5, wall_s=30)),
    "processor time counts children": _make_status_probe(
        f"import os\nfor _ in range(4):\n    if os.fork() == 0:\n        break\n{BUSY_LOOP}",
        ExitStatus.TIMEOUT,
        limits=Limits(cpu_s=1, wall_s=30),
    ),
    "wall time is limited": _make_status_probe("import time\ntime.sleep(30)", ExitStatus.TIMEOUT, limits=Limits(wall_s=0.5)),
    "ignored signals do not extend the limit": _make_status_probe(
        "import signal, time\nfor s in range(1, 65):\n    try: signal.signal(s, signal.SIG_IGN)\n    except (OSError, ValueError): pass\ntime.sleep(30)",
        ExitStatus.TIMEOUT,
        limits=Limits(wall_s=0.5),
    ),
    "memory is limited": _make_status_probe("x = bytearray(400 << 20)\nprint(len(x))", ExitStatus.MEMORY_LIMIT, ExitStatus.RUNTIME_ERROR),
    "memory counts children": _make_status_probe(
        "import os, time\nfor _ in range(6):\n    if os.fork() == 0:\n        x = bytearray(40 << 20)\n        time.sleep(9)\n        break\ntime.sleep(9)",
        ExitStatus.MEMORY_LIMIT,
        ExitStatus.RUNTIME_ERROR,
    ),
    "memory counts shared memory": _make_status_probe(
        "import mmap, time\nm = mmap.mmap(-1, 400 << 20)\nm.write(b'x' * (400 << 20))\ntime.sleep(1)",
        ExitStatus.MEMORY_LIMIT,
        ExitStatus.RUNTIME_ERROR,
    ),
    "output is limited": _make_status_probe("for _ in range(20000): print('x' * 1000)", ExitStatus.OUTPUT_LIMIT),
    "errors are limited": _make_status_probe("import sys\nfor _ in range(20000): sys.stderr.write('x' * 1000)", ExitStatus.OUTPUT_LIMIT),
    "a file is limited": _make_status_probe(
        "import os\ntry:\n    open('big', 'wb').write(b'x' * (8 << 20))\nfinally:\n    os.unlink('big')", ExitStatus.RUNTIME_ERROR
    ),
    "the disk is limited": _make_eventual_error_probe("open(f'f{i}', 'wb').write(b'x' * (2 << 20))", 100),
    "files are counted": _make_eventual_error_probe("open(f'f{i}', 'wb').close()", 9000),
    "processes are counted": _make_eventual_error_probe("os.fork() or (time.sleep(3), os._exit(0))", 40),
    "threads are counted": _make_eventual_error_probe("threading.Thread(target=time.sleep, args=(2,)).start()", 60, "RuntimeError"),
    "leaves nothing for the next program": _probe_cleanup,
    "sees no program that runs at the same time": _probe_isolation,
    "no network": _probe_network,
    "no sockets but local pairs": _make_error_probe(
        "socket.socket(socket.AF_INET)\nsocket.socket(socket.AF_INET6)\nsocket.socket(socket.AF_NETLINK, socket.SOCK_RAW)"
    ),
    "no tracing": _make_error_probe(
        "call('ptrace', 16, os.getppid(), 0, 0)\ncall('ptrace', 0, 0, 0, 0)\nopen(f'/proc/{os.getppid()}/mem', 'rb').read(1)"
    ),
    "no signals to others": _make_error_probe("os.kill(1, 0)\nos.kill(os.getppid() or 1, 0)"),
    "no way back to root": _make_error_probe("os.setuid(0)\nos.setgid(0)\nos.setgroups([0])\ncall('unshare', 0x10000000)\nos.chroot('.')"),
    "no lasting kernel objects": _make_error_probe(
        "call('shmget', 1234, 4096, 0o1666)\ncall('semget', 1234, 1, 0o1666)\ncall('msgget', 1234, 0o1666)"
    ),
    "no queue files": _make_error_probe("open('/dev/mqueue/left', 'w')"),
    "a judge is isolated from the program": _probe_checker,
    "no data of other programs in memory": _probe_memory_secrets,
    **SURVIVOR_PROBES,
    **SESSION_PROBES,
}
