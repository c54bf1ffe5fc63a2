"""Programs that try to outlive their run, and their effect on the next program: part of `rlvr check sandbox NAME`.

Each leaves a listener on an abstract local socket, which any later program in the same container could reach; so the kernel, and not a
list of processes, shows whether a process is left. All are harmless if nothing is enforced, because they exit by themselves.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal

from rlvr.contracts import CheckerProgram, ExecutionResult, ExitStatus, Limits, Program, Sandbox

PROBE_LIMITS = Limits(cpu_s=5, wall_s=10, memory_mb=128, output_bytes=1_000_000, file_mb=4, processes=12)
SURVIVOR_LIFETIME_S = 15
WALL_SLACK_S = 20.0  # allowed delay beyond the wall limit, on any machine; a program that blocks its supervisor takes a minute or more
BEACON_NAME = "rlvr-survivor"

LISTEN_CODE = f"""
def listen():
    import socket, time
    door = socket.socket(socket.AF_UNIX)
    try:
        door.bind('\\0{BEACON_NAME}')
        door.listen(9)
    except OSError:
        pass
    time.sleep({SURVIVOR_LIFETIME_S})
    os._exit(0)
"""
LOOK_CODE = f"""
import socket
door = socket.socket(socket.AF_UNIX)
try:
    door.connect('\\0{BEACON_NAME}')
    print('somebody')
except OSError:
    print('nobody')
"""
LEAVE_CODE = "ctypes.CDLL(None).syscall({'x86_64': 60, 'aarch64': 93}[os.uname().machine], 0)"  # ends one thread, not the process

SURVIVOR_PROGRAMS: dict[str, str] = {
    "a child whose first thread has ended": (
        f"import ctypes, os, threading, time\n{LISTEN_CODE}\nif os.fork() == 0:\n    threading.Thread(target=listen).start()\n    {LEAVE_CODE}\n"
        "time.sleep(0.3)\n"
    ),
    "a grandchild below one": (
        f"import ctypes, os, threading, time\n{LISTEN_CODE}\ndef below():\n    if os.fork() == 0:\n        os.setsid()\n        listen()\n"
        f"    time.sleep({SURVIVOR_LIFETIME_S})\n    os._exit(0)\nif os.fork() == 0:\n"
        f"    threading.Thread(target=below).start()\n    {LEAVE_CODE}\ntime.sleep(0.3)\n"
    ),
    "a daemon": (
        f"import os, time\n{LISTEN_CODE}\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0: listen()\n    os._exit(0)\n"
        "time.sleep(0.2)\n"
    ),
}
FORK_CHAIN_PROGRAM = """
import ctypes, os, time
libc = ctypes.CDLL(None)
{listen}
read, write = os.pipe()
if os.fork() == 0:
    os.close(write)
    for number in (0, 1, 2):
        os.close(number)
    os.read(read, 1)            # until the main process is gone
    time.sleep({delay})
    for _ in range(12):
        if libc.fork():
            libc._exit(0)
    listen()
time.sleep(0.02)
"""
MEMORY_PROGRAM = """
import ctypes, mmap, os, threading, time
def swell():
    time.sleep(0.5)
    for _ in range(60):
        held = mmap.mmap(-1, 160 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x8000)
        time.sleep(0.05)
        held.close()
        time.sleep(0.05)
    os._exit(0)
if os.fork() == 0:
    try: open('/proc/self/oom_score_adj', 'w').write('0')
    except OSError: pass
    threading.Thread(target=swell).start()
    LEAVE
time.sleep(0.3)
""".replace("LEAVE", LEAVE_CODE)
HEADLESS_PROGRAM = (
    f"import ctypes, os, threading, time\nthreading.Thread(target=lambda: (time.sleep({2 * SURVIVOR_LIFETIME_S}), os._exit(0))).start()\n"
    f"{LEAVE_CODE}\n"
)
RENAMING_PROGRAMS: dict[Literal["cpp", "javascript"], str] = {
    "javascript": "require('fs').renameSync('answer.js', 'x.js')\nconsole.log(1)",
    "cpp": '#include <cstdio>\nint main() { rename("answer.cpp", "x.cpp"); rename("answer", "x"); puts("1"); }',
}

Probe = Callable[[Sandbox], str]


def _check_next_program(sandbox: Sandbox) -> str:
    """Check that the next program finds no surviving process."""
    outcome = sandbox.run(Program(LOOK_CODE, limits=PROBE_LIMITS))
    return "" if outcome.stdout_bytes == b"nobody\n" else f"the next program found {_describe_result(outcome)}"


def _describe_result(outcome: ExecutionResult) -> str:
    return f"{outcome.status.value} {outcome.stdout_bytes[:80]!r} {outcome.reason[:120]}"


def _probe_survivors(sandbox: Sandbox) -> str:
    """Check that no process outlives its program, however it hides."""
    for name, source in SURVIVOR_PROGRAMS.items():
        sandbox.run(Program(source, limits=PROBE_LIMITS))
        if wrong := _check_next_program(sandbox):
            return f"{name}: {wrong}"
    return ""


def _probe_fork_chain(sandbox: Sandbox) -> str:
    """Check that a chain of processes that each fork and exit cannot outrun the kill."""
    for delay in (0, 0.0001, 0.0003, 0.0006, 0.001, 0.002) * 2:
        sandbox.run(Program(FORK_CHAIN_PROGRAM.format(listen=LISTEN_CODE, delay=delay), limits=PROBE_LIMITS))
        if wrong := _check_next_program(sandbox):
            return wrong
    return ""


def _probe_memory_charge(sandbox: Sandbox) -> str:
    """Check that memory of an earlier program is not charged to the next one."""
    sandbox.run(Program(MEMORY_PROGRAM, limits=PROBE_LIMITS))
    for _ in range(3):
        outcome = sandbox.run(Program("import time\ntime.sleep(0.4)\nprint('well')", limits=PROBE_LIMITS))
        if outcome.stdout_bytes != b"well\n" or outcome.peak_mb > PROBE_LIMITS.memory_mb:
            return f"the next program: {_describe_result(outcome)}, {outcome.peak_mb:.0f} MB"
    return ""


def _probe_wall_limit(sandbox: Sandbox) -> str:
    """Check that the wall limit is enforced for a main process whose first thread has exited, with a status for that program."""
    limits = Limits(wall_s=1, cpu_s=1, memory_mb=128)
    judge = CheckerProgram("import os\nwhile os.read(3, 100): pass")
    for program in (Program(HEADLESS_PROGRAM, limits=limits), Program(HEADLESS_PROGRAM, limits=limits, checker=judge)):
        began = time.monotonic()
        outcome = sandbox.run(program)
        spent = time.monotonic() - began
        if outcome.status not in (ExitStatus.TIMEOUT, ExitStatus.SANDBOX_VIOLATION) or spent > limits.wall_s + WALL_SLACK_S:
            return f"{_describe_result(outcome)} after {spent:.1f} s, with a wall limit of {limits.wall_s} s"
    return _check_next_program(sandbox)


def _probe_renamed_source(sandbox: Sandbox) -> str:
    """Check that a program that renames its own source gets a status, because only the program itself is broken."""
    for language, source in RENAMING_PROGRAMS.items():
        outcome = sandbox.run(Program(source, language=language, limits=Limits(memory_mb=256, processes=16)))
        if outcome.status is ExitStatus.INTERNAL_ERROR and "no toolchain" not in outcome.reason:
            return f"{language}: {_describe_result(outcome)}"
    return ""


SURVIVOR_PROBES: dict[str, Probe] = {
    "no process outlives the run": _probe_survivors,
    "no chain of forks outruns the kill": _probe_fork_chain,
    "no program is charged for another's memory": _probe_memory_charge,
    "the wall limit cannot be avoided": _probe_wall_limit,
    "a renamed source gets a verdict": _probe_renamed_source,
}
