# ruff: noqa: E501  (each program is on one line)
"""Test the sessions of a sandbox: state persists, a hanging call is killed alone, and no session sees, disturbs or outlives another.

For authors of sandboxes; part of `rlvr check sandbox NAME`. Every check creates its own sessions and closes them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Literal

from rlvr.conformance.check_runner import CheckSkipped
from rlvr.contracts import ExecutionResult, ExitStatus, Sandbox, SandboxSession, SandboxSpec
from rlvr.contracts.plugin import is_default_implementation
from rlvr.errors import SandboxError

Probe = Callable[[Sandbox], str]
SMALL_SPEC = SandboxSpec(memory_mb=192, disk_mb=32, file_mb=16, processes=24, wall_s=20, output_bytes=200_000)
WHOLE_SESSION_STOPPED = "everything that ran in the session was stopped"


def _create_session(sandbox: Sandbox, place: SandboxSpec = SMALL_SPEC) -> SandboxSession:
    if is_default_implementation(sandbox.create_session):
        raise CheckSkipped("this sandbox has no boxes")
    return sandbox.create_session(place)


def _describe_mismatch(outcome: ExecutionResult, wanted: str, stop: ExitStatus = ExitStatus.OK) -> str:
    said = outcome.stdout_bytes.decode("utf-8", "replace").strip()
    if (outcome.status, said) == (stop, wanted):
        return ""
    tail = outcome.stderr_bytes[-300:].decode("utf-8", "replace").strip()
    return f"{outcome.status.value} {outcome.reason} {outcome.message} {tail}, printed {said[:200]!r} instead of {wanted[:200]!r}"


Language = Literal["bash", "python"]


def _make_sequence_probe(*calls: tuple[Language, str, str]) -> Probe:
    """Make a probe of several calls in one session, in this order: language, source, and expected output."""

    def probe(sandbox: Sandbox) -> str:
        with _create_session(sandbox) as box:
            for language, source, wanted in calls:
                if wrong := _describe_mismatch(box.run(source, language=language), wanted):
                    return f"{source[:80]!r}: {wrong}"
        return ""

    return probe


def _make_harm_probe(language: Language, source: str, *statuses: ExitStatus, timeout: float = 3.0) -> Probe:
    """Make a probe of a harmful call: it must end with one of these statuses, and both this and another session must stay usable."""

    def probe(sandbox: Sandbox) -> str:
        with _create_session(sandbox) as box, _create_session(sandbox) as other:
            other.run("x = 41", language="python")
            harm = box.run(source, language=language, timeout=timeout)
            if harm.status not in statuses:
                return f"{harm.status.value} ({harm.reason}; {harm.stderr_bytes[-200:]!r}) instead of {' or '.join(statuses)}"
            if wrong := _describe_mismatch(other.run("print(x + 1)", language="python"), "42"):
                return f"another box: {wrong}"
            box.run("kill -9 -1", timeout=timeout)  # background processes that are left
            if box.has_failed or (after := box.run("echo well; rm -rf ./* /dev/shm/*", timeout=30)).status is ExitStatus.INTERNAL_ERROR:
                return "the box is lost"
            return "" if after.status is ExitStatus.OK else _describe_mismatch(after, "well")

    return probe


def _probe_hanging_call(sandbox: Sandbox) -> str:
    """Check that a hanging shell is killed with all its children; the session, the files and an earlier background process stay."""
    with _create_session(sandbox) as box:
        box.run("x = 41", language="python")
        box.run("cd /tmp; export KEPT=1; (while :; do date +%s%N > beat; sleep 0.05; done) >/dev/null 2>&1 &")
        began = time.monotonic()
        hang = box.run("(setsid sh -c 'while :; do date +%s%N > ghost; sleep 0.05; done' &) ; sleep 600", timeout=1.0)
        if hang.status is not ExitStatus.TIMEOUT or time.monotonic() - began > 20:
            return f"{hang.status.value} after {time.monotonic() - began:.1f} s instead of TLE"
        ghost = box.run('a=$(cat ghost); sleep 0.4; [ "$a" = "$(cat ghost)" ] && echo dead; echo $KEPT')
        if wrong := _describe_mismatch(ghost, "dead\n1"):
            return f"what the call started, and what the box had exported: {wrong}"
        if WHOLE_SESSION_STOPPED in hang.message:
            raise CheckSkipped("no control groups here: a call that hangs takes its whole box with it, and says so")
        beat = box.run('a=$(cat beat); sleep 0.4; [ "$a" != "$(cat beat)" ] && echo alive')
        return _describe_mismatch(beat, "alive") or _describe_mismatch(box.run("print(x + 1)", language="python"), "42")


def _probe_hanging_python(sandbox: Sandbox) -> str:
    """Check that a hanging Python session is killed, its result says that the variables are gone, and the next call has a new one."""
    with _create_session(sandbox) as box:
        box.run("x = 1\nopen('kept', 'w').write('y')", language="python")
        hang = box.run("print('before')\nwhile True: pass", language="python", timeout=1.0)
        if hang.status is not ExitStatus.TIMEOUT or b"before" not in hang.stdout_bytes:
            return f"{hang.status.value}, printed {hang.stdout_bytes[:100]!r}"
        if "variables are gone" not in hang.message:
            return f"the note is {hang.message!r}; it must say that the variables are gone"
        return _describe_mismatch(box.run("print('x' in globals(), open('kept').read())", language="python"), "False y")


def _probe_isolation(sandbox: Sandbox) -> str:
    """Check that of two parallel sessions neither sees the other's files, processes or sockets, nor may signal its processes."""
    look = """
import os, signal, socket
found = []
for place in ('.', '/tmp', '/dev/shm', '/var/tmp', '/run'):
    try: found += [place + '/' + name for name in os.listdir(place) if name == 'secret']
    except OSError: pass
for pid in filter(str.isdecimal, os.listdir('/proc')):
    try:
        if b'unguessable' in open(f'/proc/{pid}/cmdline', 'rb').read(): found.append('sees ' + pid)
    except OSError: pass
for pid in range(1, 400):
    try:
        if os.getpid() != pid and os.stat(f'/proc/{pid}').st_uid != os.getuid(): os.kill(pid, 0); found.append(f'may kill {pid}')
    except OSError: pass
try: socket.socket(socket.AF_UNIX).connect('\\0unguessable'); found.append('socket')
except OSError: pass
try: os.open('/dev/mqueue/unguessable', os.O_RDONLY); found.append('queue')
except OSError: pass
print(found)
"""
    lay = "import socket\ns = socket.socket(socket.AF_UNIX)\ns.bind('\\0unguessable')\ns.listen()\nopen('secret', 'w').write('s')\ntry: open('/dev/shm/secret', 'w').write('s')\nexcept OSError: pass"
    with _create_session(sandbox) as one, _create_session(sandbox) as two:
        one.run("exec -a unguessable sleep 600 >/dev/null 2>&1 & echo s > /tmp/secret")
        one.run(lay, language="python")
        if wrong := _describe_mismatch(two.run(look, language="python"), "[]"):
            return wrong
        return _describe_mismatch(one.run("print(open('secret').read())", language="python"), "s")


def _probe_cleanup(sandbox: Sandbox) -> str:
    """Check that processes and files of a session are removed with it, however they are hidden: the next sessions find nothing."""
    dirt = "(setsid nohup sh -c 'while :; do date +%s%N > /tmp/beat; sleep 0.05; done' >/dev/null 2>&1 &); mkdir -p a/b; touch a/b/c .hid; chmod 0 a/b a; echo x > /dev/shm/left; export LEFT=1; true"
    look = "sleep 0.3; ls -A . /dev/shm | grep -v '^[./]' | tr -d '\\n'; echo \"$LEFT\""
    others = """
import os
found = []
for pid in filter(str.isdecimal, os.listdir('/proc')):
    try: owner = os.stat(f'/proc/{pid}').st_uid
    except OSError: continue
    if owner not in (0, os.getuid()): found.append(f'process {pid} of user {owner}')
print(found, 'dirt' in globals())
"""
    for _ in range(2):
        with _create_session(sandbox) as box:
            box.run(dirt)
            box.run("import os\ndirt = 1\nfor _ in range(3):\n    if os.fork() == 0:\n        os.setsid()", language="python")
        with _create_session(sandbox) as box:
            if wrong := _describe_mismatch(box.run(look), ""):
                return f"the next box: {wrong}"
            if wrong := _describe_mismatch(box.run(others, language="python"), "[] False"):
                return f"the next session: {wrong}"
    return ""


def _probe_close_during_call(sandbox: Sandbox) -> str:
    """Check closing during a call: the call ends soon with IE; closing again does nothing; later calls report the closed session."""
    box = _create_session(sandbox)
    said: list[ExecutionResult] = []
    caller = threading.Thread(target=lambda: said.append(box.run("sleep 600", timeout=600)), daemon=True)
    caller.start()
    time.sleep(0.3)
    began = time.monotonic()
    box.close()
    caller.join(30)
    if caller.is_alive() or not said:
        return f"the call still runs {time.monotonic() - began:.0f} s after its box was closed"
    if said[0].status is not ExitStatus.INTERNAL_ERROR:
        return f"the call ended with {said[0].status.value} instead of IE"
    box.close()
    after = box.run("true")
    if after.status is not ExitStatus.INTERNAL_ERROR or "closed" not in after.reason:
        return f"a later call: {after.status.value} {after.reason!r}"
    try:
        box.read_file("x", 1)
    except SandboxError:
        pass
    else:
        return "a later get raised nothing"
    with _create_session(sandbox) as next_one:
        return _describe_mismatch(next_one.run("echo well"), "well")


def _probe_files(sandbox: Sandbox) -> str:
    """Check that files are written and read as bytes, and that a path or link out of the working folder is rejected."""
    data = bytes(range(256)) * 1000
    with _create_session(sandbox, SandboxSpec(files={"in/laid": b"laid"}, memory_mb=192, disk_mb=32)) as box:
        if wrong := _describe_mismatch(box.run("cat in/laid"), "laid"):
            return wrong
        box.write_file("a/b/c.bin", data)
        if box.read_file("a/b/c.bin", 1 << 20) != data or box.read_file("a/b/c.bin", 7) != data[:7]:
            return "what was put is not what was got"
        box.run(
            "ln -s /etc/shadow s; ln -s /etc/hostname h; ln -s / root; ln -s .. up; ln -s /proc/1/environ e; mkfifo f; mkdir d; ln -s a/b/c.bin fine"
        )
        for path in (
            "s",
            "h",
            "root/etc/passwd",
            "up/etc/passwd",
            "e",
            "f",
            "d",
            "missing",
            "../etc/passwd",
            "/etc/passwd",
            "/proc/self/environ",
            "a/../../etc/passwd",
        ):
            try:
                got = box.read_file(path, 100)
            except OSError:
                continue
            return f"get({path!r}) gave {got[:40]!r}"
        for path in ("../x", "/x", "root/x", "up/x", "h", "f", "d", "/etc/x", "a/b/c.bin/x"):
            try:
                box.write_file(path, b"x")
            except OSError:
                continue
            return f"put({path!r}) raised nothing"
        return "" if box.read_file("fine", 3) == data[:3] else "a link inside of the working folder was not followed"


SESSION_PROBES: dict[str, Probe] = {
    "a box keeps files, folder and exported variables": _make_sequence_probe(
        ("bash", "mkdir -p d; cd d; echo one > f; export A='x y'", ""), ("bash", 'pwd | tail -c 3; cat f; echo "$A"', "/d\none\nx y")
    ),
    "a box keeps the variables of its Python session": _make_sequence_probe(
        ("python", "import math\nx = [1]", ""),
        ("bash", "echo between", "between"),
        ("python", "x.append(math.floor(2.5)); print(x)", "[1, 2]"),
    ),
    "an exit or an error does not end a Python session": _make_sequence_probe(
        ("python", "x = 1", ""), ("python", "try: exit(0)\nfinally: x = 2", ""), ("python", "print(x)", "2")
    ),
    "a background process lasts until the box ends": _make_sequence_probe(
        ("bash", "sleep 600 & echo $! > pid", ""),
        ("bash", "kill -0 $(cat pid) && echo alive", "alive"),
        ("bash", "kill $(cat pid); sleep 0.2; kill -0 $(cat pid) 2>/dev/null || echo ended", "ended"),
    ),
    "a call that hangs is killed alone": _probe_hanging_call,
    "a Python session that is killed says so": _probe_hanging_python,
    "two boxes do not see each other": _probe_isolation,
    "nothing outlives a box": _probe_cleanup,
    "a box can be closed during a call": _probe_close_during_call,
    "put and get stay in the working folder": _probe_files,
    "a fork bomb stays in its box": _make_harm_probe(
        "bash", "b() { b | b & }; b; sleep 600", ExitStatus.TIMEOUT, ExitStatus.RUNTIME_ERROR, ExitStatus.OK
    ),
    "a fork bomb of a session stays in its box": _make_harm_probe(
        "python", "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass", ExitStatus.TIMEOUT
    ),
    "a memory bomb stays in its box": _make_harm_probe(
        "python", "x = bytearray(1 << 30)\nwhile True: pass", ExitStatus.MEMORY_LIMIT, ExitStatus.RUNTIME_ERROR
    ),
    "memory counts all processes of a box": _make_harm_probe(
        "bash",
        "for i in 1 2 3 4 5 6 7 8; do python3 -c 'x = bytearray(60 << 20); import time; time.sleep(60)' & done; wait",
        ExitStatus.MEMORY_LIMIT,
        ExitStatus.RUNTIME_ERROR,
        timeout=20,
    ),
    "a full disk stays in its box": _make_harm_probe(
        "bash",
        "i=0; while dd if=/dev/zero of=f$((i=i+1)) bs=1M count=8 2>/dev/null; do [ $i -gt 40 ] && exit 0; done; exit 7",
        ExitStatus.RUNTIME_ERROR,
        timeout=20,
    ),
    "a flood of output is stopped": _make_harm_probe("bash", "yes", ExitStatus.OUTPUT_LIMIT),
    "a flood from the background does not block": _make_harm_probe("bash", "yes & sleep 0.1", ExitStatus.OK, ExitStatus.OUTPUT_LIMIT),
}
