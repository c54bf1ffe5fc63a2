# ruff: noqa: E501  (programs stand in one line each)
"""Ways in which a policy breaks its own box. Each must cost its own score, and never the verdict."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlvr.contracts import Sandbox, SandboxFilesSession, Transcript
from rlvr.contracts.tool import Tool
from rlvr.mdp.sessions import verify_transcript_safely
from rlvr.task import Task, Verdict, make_user_prompt
from rlvr.turns import Call, Turn
from rlvr.verifiers.final_state import FinalState

BEHIND = "import os\nif os.fork() == 0:\n    os.setsid()\n"
"""The rest runs in the background, after the call."""


@dataclass(frozen=True)
class Breakage:
    """Calls that one box makes, each a tool with its only argument."""

    name: str
    calls: tuple[tuple[str, str], ...]
    pause: float = 0.0
    """Seconds until the next call: time for what runs in the background."""


def py(name: str, *sources: str, pause: float = 0.0) -> Breakage:
    return Breakage(name, tuple(("python", source) for source in sources), pause)


def sh(name: str, *sources: str, pause: float = 0.0) -> Breakage:
    return Breakage(name, tuple(("bash", source) for source in sources), pause)


STOPS = BEHIND + (
    "    import signal, time\n    spared, end = (os.getpid(), os.getppid()), time.monotonic() + 60\n    while time.monotonic() < end:\n"
    "        for pid in map(int, filter(str.isdecimal, os.listdir('/proc'))):\n            if pid not in spared:\n"
    "                try: os.kill(pid, SIGNAL)\n                except OSError: pass\n    os._exit(0)"
)
MANY = (
    "for f in a b /dev/shm/a /dev/shm/b; do head -c 15000000 /dev/zero > $f; done\n"
    "mkfifo p; exec 9<>p; one() { echo 0 > /proc/self/oom_score_adj; read -t 1.5 -u 9 y; x=$(printf '%05500000d' 0); read -t 30 -u 9 y; }\n"
    "for i in $(seq 45); do one >/dev/null 2>&1 & done; sleep 0.1"
)
PROCESSES = [
    sh("kills everything", "kill -9 -1"),
    py("kills everything again and again", STOPS.replace("SIGNAL", "signal.SIGKILL")),
    py("stops everything again and again", STOPS.replace("SIGNAL", "signal.SIGSTOP")),
    sh("stops its own shell", "kill -STOP $$"),
    sh("a fork bomb in the call", "b() { b | b & }; b; sleep 60"),
    sh("a fork bomb that goes on behind", "setsid bash -c 'b() { b | b & }; b; sleep 60' >/dev/null 2>&1 & sleep 0.3"),
    sh("as many processes as may be, behind", "for i in $(seq 60); do setsid sleep 60 >/dev/null 2>&1 & done; true"),
    py("as many threads as may be, behind", BEHIND + "    import threading, time\n    while True:\n        try: threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n        except RuntimeError: time.sleep(60)"),
    sh("zombies without end", "python3 -c 'import os, time\nfor _ in range(60):\n    try: os.fork() or os._exit(0)\n    except OSError: break\ntime.sleep(60)' >/dev/null 2>&1 & sleep 0.3"),
    Breakage("kills its session from the shell", (("python", "x = 1"), ("bash", "kill -9 -1"), ("python", "print(x)"))),
    py("lowers the limits of the waiting shell", "import os, resource\nfor pid in map(int, filter(str.isdecimal, os.listdir('/proc'))):\n    for name in ('CPU', 'NOFILE', 'AS', 'NPROC', 'FSIZE'):\n        try: resource.prlimit(pid, getattr(resource, 'RLIMIT_' + name), (0, 0))\n        except OSError: pass"),
    py("gives everything the lowest priority", BEHIND + "    while True:\n        for pid in map(int, filter(str.isdecimal, os.listdir('/proc'))):\n            try: os.setpriority(os.PRIO_PROCESS, pid, 19)\n            except OSError: pass"),
]  # fmt: skip
MEMORY = [
    py("memory without end", "x = []\nwhile True: x.append(bytearray(10 << 20))"),
    py("memory without end, behind", BEHIND + "    import time; time.sleep(0.5); x = []\n    while True: x.append(bytearray(10 << 20))", pause=1.5),
    sh("memory in many small processes that the kernel spares", MANY, pause=4.0),
    py("memory in messages that nobody reads", BEHIND + "    import socket, time\n    k = []\n    while True:\n        try:\n            a, b = socket.socketpair(); a.setblocking(False); k += [a, b]\n            while True: a.send(b'x' * 65536)\n        except BlockingIOError: pass\n        except OSError: time.sleep(60)"),
    sh("output without end, from behind", "yes & yes >&2 & sleep 0.2"),
]  # fmt: skip
DESCRIPTORS = [
    py("closes every descriptor", "import os\nos.closerange(0, 4096)"),
    sh("closes every descriptor of the shell", "for n in $(seq 0 60); do eval \"exec $n>&-\"; done; ls /proc/self/fd"),
    py("uses up the descriptors", "import os\nk = []\ntry:\n    while True: k.append(os.pipe())\nexcept OSError: pass"),
    py("answers for the session, and floods its channel", "import os\nos.set_blocking(3, False)\ntry:\n    while True: os.write(3, b'7')\nexcept OSError: pass"),
    py("eats the calls of the session", "import os, threading\ndef eat():\n    while True: os.read(3, 100)\nthreading.Thread(target=eat, daemon=True).start()"),
]  # fmt: skip
FILES = [
    sh("removes the working folder", "cd /; rm -rf ~ ~/.* /tmp /dev/shm 2>/dev/null; true"),
    sh("removes the folder that it is in", "mkdir -p a/b/c && cd a/b/c && rm -rf ~/a"),
    sh("takes every permission from every folder", "mkdir -p a/b && touch a/b/f out.txt && chmod -R 0 . ; cd a; true"),
    sh("fills the disk", "head -c 100000000 /dev/zero > full; head -c 100000000 /dev/zero > /dev/shm/full; true"),
    py("uses up the inodes", "i = 0\ntry:\n    while i < 100000: open(f'n{i}', 'w').close(); i += 1\nexcept OSError: pass"),
    sh("puts something else where the files are", "rm -f out.txt data.txt; mkdir out.txt; mkfifo data.txt; sleep 60 > data.txt & true"),
    sh("links the files out of the box", "rm -f out.txt data.txt; ln -s /proc/self/mem out.txt; ln -s /dev/zero data.txt"),
    sh("links in a circle and in a long chain", "rm -f out.txt data.txt; ln -s out.txt out.txt; ln -s data.txt l0; for i in $(seq 1500); do ln -s l$((i-1)) l$i; done; ln -s l1500 data.txt"),
    py("holds leases and locks on the files", BEHIND + "    import fcntl, signal, time\n    signal.signal(signal.SIGIO, signal.SIG_IGN)\n    k = [open(n, 'a+') for n in ('out.txt', 'data.txt')]\n    for f in k: fcntl.flock(f, fcntl.LOCK_EX); fcntl.lockf(f, fcntl.LOCK_EX); fcntl.fcntl(f, fcntl.F_SETLEASE, fcntl.F_WRLCK)\n    time.sleep(60)"),
    py("swaps a folder of the path without end", BEHIND + "    import contextlib\n    os.mkdir('d'); os.symlink('/proc/1', 'e')\n    while True:\n        with contextlib.suppress(OSError): os.rename('d', 'f'); os.rename('e', 'd'); os.rename('d', 'e'); os.rename('f', 'd')"),
]  # fmt: skip
STATE = [
    sh("a PATH that has nothing, and a shell that stops at errors", "export PATH=/nowhere; set -euo pipefail; export SHELLOPTS; readonly HOME"),
    sh("a state that ends the next shell", "printf 'exit 9\\0' >&5; kill -9 $$"),
    sh("a state that never ends", "printf 'while :; do :; done\\0' >&5; kill -9 $$"),
    sh("exits, in each way", "exit 3", "exec true", "kill -9 $$", "ulimit -t 0; while :; do :; done"),
]  # fmt: skip
BREAKAGES = [*PROCESSES, *MEMORY, *DESCRIPTORS, *FILES, *STATE]
TASK = Task(make_user_prompt("Write done to out.txt."), {"files": {"out.txt": "done", "data.txt": "kept"}}, id="own")
LATER: Sequence[tuple[str, Mapping[str, Any]]] = (
    ("bash", {"command": "echo well"}),
    ("python", {"code": "print('well')"}),
    ("write_file", {"path": "d/x.txt", "text": "x"}),
    ("read_file", {"path": "data.txt"}),
)


def judged(sandbox: Sandbox, tools: Sequence[Tool], one: Breakage) -> tuple[Verdict, list[str]]:
    """Break a box of the sandbox, call every tool once more, and judge what is left: the verdict, and what the tools said."""
    session, told = (
        SandboxFilesSession(TASK, tools, sandbox=sandbox, files={"data.txt": b"kept"}, artifact_paths=["out.txt", "data.txt"]),
        list[str](),
    )
    try:
        calls = [(name, {"command" if name == "bash" else "code": text}) for name, text in one.calls]
        for number, (name, arguments) in enumerate([*calls, *LATER]):
            time.sleep(one.pause if number == len(calls) else 0)
            heard = session.step(Turn("", calls=(Call(f"{number}.0", name, arguments),)))
            told += [message["content"] for message in heard.messages] if heard else []
        return verify_transcript_safely(FinalState(), TASK, Transcript("", session.artifacts())), told
    finally:
        session.close()
