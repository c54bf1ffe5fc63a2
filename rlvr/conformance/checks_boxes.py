# ruff: noqa: E501  (each program is on one line)
"""Test the sessions of a sandbox: state persists, a hanging call is killed alone, and no session sees, disturbs or outlives another.

For authors of sandboxes; part of `rlvr check sandbox NAME`. Every check creates its own sessions and closes them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Literal

from rlvr.conformance.steps import CannotCheck
from rlvr.contracts import Box, Outcome, Place, Sandbox, Stop
from rlvr.errors import SandboxError

Probe = Callable[[Sandbox], str]
SMALL = Place(memory_mb=192, disk_mb=32, file_mb=16, processes=24, wall_s=20, output_bytes=200_000)
WHOLE_BOX = "everything that ran in the box was stopped"


def _open(sandbox: Sandbox, place: Place = SMALL) -> Box:
    if type(sandbox).open is Sandbox.open:
        raise CannotCheck("this sandbox has no boxes")
    return sandbox.open(place)


def _wrong(outcome: Outcome, wanted: str, stop: Stop = Stop.OK) -> str:
    said = outcome.stdout.decode("utf-8", "replace").strip()
    if (outcome.stop, said) == (stop, wanted):
        return ""
    tail = outcome.stderr[-300:].decode("utf-8", "replace").strip()
    return f"{outcome.stop.value} {outcome.reason} {outcome.note} {tail}, printed {said[:200]!r} instead of {wanted[:200]!r}"


Language = Literal["bash", "python"]


def _chain(*calls: tuple[Language, str, str]) -> Probe:
    """Make a probe of several calls in one session, in this order: language, source, and expected output."""

    def probe(sandbox: Sandbox) -> str:
        with _open(sandbox) as box:
            for language, source, wanted in calls:
                if wrong := _wrong(box.run(source, language=language), wanted):
                    return f"{source[:80]!r}: {wrong}"
        return ""

    return probe


def _harm(language: Language, source: str, *stops: Stop, timeout: float = 3.0) -> Probe:
    """Make a probe of a harmful call: it must end with one of these statuses, and both this and another session must stay usable."""

    def probe(sandbox: Sandbox) -> str:
        with _open(sandbox) as box, _open(sandbox) as other:
            other.run("x = 41", language="python")
            harm = box.run(source, language=language, timeout=timeout)
            if harm.stop not in stops:
                return f"{harm.stop.value} ({harm.reason}; {harm.stderr[-200:]!r}) instead of {' or '.join(stops)}"
            if wrong := _wrong(other.run("print(x + 1)", language="python"), "42"):
                return f"another box: {wrong}"
            box.run("kill -9 -1", timeout=timeout)  # background processes that are left
            if box.lost or (after := box.run("echo well; rm -rf ./* /dev/shm/*", timeout=30)).stop is Stop.IE:
                return "the box is lost"
            return "" if after.stop is Stop.OK else _wrong(after, "well")

    return probe


def _hang(sandbox: Sandbox) -> str:
    """Check that a hanging shell is killed with all its children; the session, the files and an earlier background process stay."""
    with _open(sandbox) as box:
        box.run("x = 41", language="python")
        box.run("cd /tmp; export KEPT=1; (while :; do date +%s%N > beat; sleep 0.05; done) >/dev/null 2>&1 &")
        began = time.monotonic()
        hang = box.run("(setsid sh -c 'while :; do date +%s%N > ghost; sleep 0.05; done' &) ; sleep 600", timeout=1.0)
        if hang.stop is not Stop.TLE or time.monotonic() - began > 20:
            return f"{hang.stop.value} after {time.monotonic() - began:.1f} s instead of TLE"
        ghost = box.run('a=$(cat ghost); sleep 0.4; [ "$a" = "$(cat ghost)" ] && echo dead; echo $KEPT')
        if wrong := _wrong(ghost, "dead\n1"):
            return f"what the call started, and what the box had exported: {wrong}"
        if WHOLE_BOX in hang.note:
            raise CannotCheck("no control groups here: a call that hangs takes its whole box with it, and says so")
        beat = box.run('a=$(cat beat); sleep 0.4; [ "$a" != "$(cat beat)" ] && echo alive')
        return _wrong(beat, "alive") or _wrong(box.run("print(x + 1)", language="python"), "42")


def _session_hangs(sandbox: Sandbox) -> str:
    """Check that a hanging Python session is killed, its result says that the variables are gone, and the next call has a new one."""
    with _open(sandbox) as box:
        box.run("x = 1\nopen('kept', 'w').write('y')", language="python")
        hang = box.run("print('before')\nwhile True: pass", language="python", timeout=1.0)
        if hang.stop is not Stop.TLE or b"before" not in hang.stdout:
            return f"{hang.stop.value}, printed {hang.stdout[:100]!r}"
        if "variables are gone" not in hang.note:
            return f"the note is {hang.note!r}; it must say that the variables are gone"
        return _wrong(box.run("print('x' in globals(), open('kept').read())", language="python"), "False y")


def _strangers(sandbox: Sandbox) -> str:
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
    with _open(sandbox) as one, _open(sandbox) as two:
        one.run("exec -a unguessable sleep 600 >/dev/null 2>&1 & echo s > /tmp/secret")
        one.run(lay, language="python")
        if wrong := _wrong(two.run(look, language="python"), "[]"):
            return wrong
        return _wrong(one.run("print(open('secret').read())", language="python"), "s")


def _leaves_nothing(sandbox: Sandbox) -> str:
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
        with _open(sandbox) as box:
            box.run(dirt)
            box.run("import os\ndirt = 1\nfor _ in range(3):\n    if os.fork() == 0:\n        os.setsid()", language="python")
        with _open(sandbox) as box:
            if wrong := _wrong(box.run(look), ""):
                return f"the next box: {wrong}"
            if wrong := _wrong(box.run(others, language="python"), "[] False"):
                return f"the next session: {wrong}"
    return ""


def _closed_meanwhile(sandbox: Sandbox) -> str:
    """Check closing during a call: the call ends soon with IE; closing again does nothing; later calls report the closed session."""
    box = _open(sandbox)
    said: list[Outcome] = []
    caller = threading.Thread(target=lambda: said.append(box.run("sleep 600", timeout=600)), daemon=True)
    caller.start()
    time.sleep(0.3)
    began = time.monotonic()
    box.close()
    caller.join(30)
    if caller.is_alive() or not said:
        return f"the call still runs {time.monotonic() - began:.0f} s after its box was closed"
    if said[0].stop is not Stop.IE:
        return f"the call ended with {said[0].stop.value} instead of IE"
    box.close()
    after = box.run("true")
    if after.stop is not Stop.IE or "closed" not in after.reason:
        return f"a later call: {after.stop.value} {after.reason!r}"
    try:
        box.get("x", 1)
    except SandboxError:
        pass
    else:
        return "a later get raised nothing"
    with _open(sandbox) as next_one:
        return _wrong(next_one.run("echo well"), "well")


def _files(sandbox: Sandbox) -> str:
    """Check that files are written and read as bytes, and that a path or link out of the working folder is rejected."""
    data = bytes(range(256)) * 1000
    with _open(sandbox, Place(files={"in/laid": b"laid"}, memory_mb=192, disk_mb=32)) as box:
        if wrong := _wrong(box.run("cat in/laid"), "laid"):
            return wrong
        box.put("a/b/c.bin", data)
        if box.get("a/b/c.bin", 1 << 20) != data or box.get("a/b/c.bin", 7) != data[:7]:
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
                got = box.get(path, 100)
            except OSError:
                continue
            return f"get({path!r}) gave {got[:40]!r}"
        for path in ("../x", "/x", "root/x", "up/x", "h", "f", "d", "/etc/x", "a/b/c.bin/x"):
            try:
                box.put(path, b"x")
            except OSError:
                continue
            return f"put({path!r}) raised nothing"
        return "" if box.get("fine", 3) == data[:3] else "a link inside of the working folder was not followed"


BOXES: dict[str, Probe] = {
    "a box keeps files, folder and exported variables": _chain(
        ("bash", "mkdir -p d; cd d; echo one > f; export A='x y'", ""), ("bash", 'pwd | tail -c 3; cat f; echo "$A"', "/d\none\nx y")
    ),
    "a box keeps the variables of its Python session": _chain(
        ("python", "import math\nx = [1]", ""),
        ("bash", "echo between", "between"),
        ("python", "x.append(math.floor(2.5)); print(x)", "[1, 2]"),
    ),
    "an exit or an error does not end a Python session": _chain(
        ("python", "x = 1", ""), ("python", "try: exit(0)\nfinally: x = 2", ""), ("python", "print(x)", "2")
    ),
    "a background process lasts until the box ends": _chain(
        ("bash", "sleep 600 & echo $! > pid", ""),
        ("bash", "kill -0 $(cat pid) && echo alive", "alive"),
        ("bash", "kill $(cat pid); sleep 0.2; kill -0 $(cat pid) 2>/dev/null || echo ended", "ended"),
    ),
    "a call that hangs is killed alone": _hang,
    "a Python session that is killed says so": _session_hangs,
    "two boxes do not see each other": _strangers,
    "nothing outlives a box": _leaves_nothing,
    "a box can be closed during a call": _closed_meanwhile,
    "put and get stay in the working folder": _files,
    "a fork bomb stays in its box": _harm("bash", "b() { b | b & }; b; sleep 600", Stop.TLE, Stop.RE, Stop.OK),
    "a fork bomb of a session stays in its box": _harm(
        "python", "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass", Stop.TLE
    ),
    "a memory bomb stays in its box": _harm("python", "x = bytearray(1 << 30)\nwhile True: pass", Stop.MLE, Stop.RE),
    "memory counts all processes of a box": _harm(
        "bash",
        "for i in 1 2 3 4 5 6 7 8; do python3 -c 'x = bytearray(60 << 20); import time; time.sleep(60)' & done; wait",
        Stop.MLE,
        Stop.RE,
        timeout=20,
    ),
    "a full disk stays in its box": _harm(
        "bash",
        "i=0; while dd if=/dev/zero of=f$((i=i+1)) bs=1M count=8 2>/dev/null; do [ $i -gt 40 ] && exit 0; done; exit 7",
        Stop.RE,
        timeout=20,
    ),
    "a flood of output is stopped": _harm("bash", "yes", Stop.OLE),
    "a flood from the background does not block": _harm("bash", "yes & sleep 0.1", Stop.OK, Stop.OLE),
}
