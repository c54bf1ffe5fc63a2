"""The trusted process inside a container: takes one program at a time, watches it, kills what is left of it, wipes after it.

It speaks frames over its own standard input and output: two lengths, a JSON header, raw bytes. Nothing a program writes is
ever parsed here. When its input ends (its owner died) it kills everything and ends, and the container goes with it.
Runs inside the container: standard library only.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import fcntl
import json
import os
import resource
import selectors
import shutil
import signal
import socket
import sys
import time
from typing import Any

from rlvr.sandbox._inside import frames, meter, namespaces, places, probe, seccomp, streams, zygote

LOOK_S = 0.005  # how often a running program is measured
HARD = 10.0  # times the wall limit: the end of patience with a machine that is too busy to run the program
SUBREAPER, CHUNK, PIPE_SIZE = 36, 1 << 18, 1 << 20
COMPILERS = {"cpp": ["/usr/bin/g++", "-O2", "-std=c++17", "-pipe", "-o", "answer", "answer.cpp"]}
COMPILING = {"cpu_s": 20, "wall_s": 40, "memory_mb": 768, "file_mb": 32, "processes": 16, "output_bytes": 1 << 20}
RUNNERS = {"cpp": ["./answer"], "javascript": ["/usr/bin/node", "--stack-size=8000", "answer.js"]}
FILES = {"cpp": "answer.cpp", "javascript": "answer.js"}
MEGABYTE = 1 << 20


class Gone(Exception):
    """Our owner or our zygote is gone: there is nothing left to do here."""


class Supervisor:
    """Starts, watches and clears away one program after another."""

    def __init__(self, settings: dict[str, Any], zygote: int, door: socket.socket) -> None:
        self.places: list[str] = settings["places"]
        self.uid: int | None = settings["uid"]
        self.zygote, self.door = zygote, door
        self.ended: dict[int, dict[str, Any]] = {}
        self.meter = meter.meter(os.getpid(), {zygote}, settings["cgroup"])

    def run(self, request: dict[str, Any], parts: dict[str, bytes]) -> tuple[dict[str, Any], dict[str, bytes]]:
        """One program from its first byte to its last trace; the reply's header, and the bytes it goes with."""
        run = streams.Run(request["limits"])
        language = request["language"]
        if self.uid is not None:
            self.uid += 2  # one for the program, one for its judge; nobody had them before
        fatal = ""
        try:
            laid = self._lay_out(language, parts)
            if language in COMPILERS:
                run = self._compile(run, language)
            if not run.stop:
                self._stage(run, parts, argv=RUNNERS.get(language, []))
            fatal = self._strangers(laid)
        except OSError as error:
            if run.pids:
                raise  # it was running: whatever broke us then is its own work
            fatal = f"the program could not be set up: {error}"
        if fatal:
            run.stop, run.reason = "IE", fatal
        try:
            self.clear()
        except OSError as error:
            fatal = f"could not clear up: {error}"
        reply = {"stop": run.stop or "OK", "exit": run.exit, "reason": run.reason, "cut": run.cut, "cpu": run.cpu, "wall": run.wall}
        return reply | {"peak": run.peak, "fatal": fatal}, {name: bytes(data) for name, data in run.said.items()}

    def clear(self) -> None:
        """Empty the folders that programs may write to."""
        places.empty(self.places, self.uid, self.uid)

    def _lay_out(self, language: str, parts: dict[str, bytes]) -> set[str]:
        """Lend the folders and put the program's files there; the names of these."""
        places.lend(self.places, self.uid)
        files = {name[5:]: data for name, data in parts.items() if name.startswith("file:")}
        if language != "python":
            files[FILES[language]] = parts["source"]
        for name, data in files.items():
            self._write(name, data)
        return set(files)

    def _compile(self, run: streams.Run, language: str) -> streams.Run:
        """Compile under limits of its own; what comes back is stopped with CE, or fresh for the program."""
        compiling = streams.Run({**run.limits, **COMPILING})
        self._stage(compiling, {}, argv=COMPILERS[language])
        if not compiling.stop:
            return run
        if compiling.stop != "IE":
            compiling.stop, compiling.reason = "CE", compiling.reason or "it does not compile"
        return compiling

    def _strangers(self, laid: set[str]) -> str:
        """What somebody else than the program left in its folders while it ran; no verdict can be trusted then."""
        if self.uid is None:
            return ""
        found = places.foreign(self.places, {self.uid, self.uid + 1}) - laid
        return f"somebody else wrote into the program's folders: {sorted(found)[:3]}" if found else ""

    def _write(self, name: str, data: bytes) -> None:
        path = os.path.join(self.places[0], os.path.basename(name))
        number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
        with open(number, "wb") as file:
            file.write(data)

    def _stage(self, run: streams.Run, parts: dict[str, bytes], argv: list[str]) -> None:
        """Start the program (and its judge), watch until the end, note what became of it."""
        ours: dict[int, str] = {}  # the reading ends that we keep, by what comes out of them
        settled: list[int] = []
        theirs: list[int] = []
        judged = "judge" in parts

        def out(name: str) -> int:
            read, write = os.pipe2(os.O_CLOEXEC)
            os.set_blocking(read, False)
            ours[read] = name
            theirs.append(write)
            if name != "report":
                os.fchmod(write, 0o222)  # so that /dev/stdout opens for a program that is not our user
                with contextlib.suppress(OSError):
                    fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, PIPE_SIZE)
            return write

        handed = {
            0: streams.memory_file(parts.get("stdin", b"")),
            1: out("stdout"),
            2: out("stderr"),
            9: streams.memory_file(parts.get("source", b"")),
        }
        theirs += [handed[0], handed[9]]
        asked: dict[int, int] = {}
        if judged:
            (from_program, to_judge), (from_judge, to_program) = os.pipe2(os.O_CLOEXEC), os.pipe2(os.O_CLOEXEC)
            handed |= {3: from_judge, 4: to_judge}
            asked = {0: streams.memory_file(parts["brief"]), 3: from_program, 4: to_program, 5: out("report")}
            asked[1] = asked[2] = out("stderr")  # not the program's own: what it does to a pipe must not be felt here
            asked[9] = streams.memory_file(parts["judge"])
            theirs += [from_program, to_judge, from_judge, to_program, asked[0], asked[9]]
        else:
            handed[5] = out("report")
        for ports in (handed, asked):
            if ports:
                read, ports[8] = os.pipe2(os.O_CLOEXEC)
                settled.append(read)
                theirs.append(ports[8])
        base = self.meter.begin()
        cpu, kills = self.meter.cpu(), self.meter.kills()
        try:
            run.pids = [self._start(handed, run.limits, argv, self.uid, self.places[0], 1000)]
            if judged:
                other = None if self.uid is None else self.uid + 1
                run.pids.append(self._start(asked, run.limits, [], other, "/", 500))
            for number in set(theirs):
                os.close(number)
            began = time.monotonic()
            self._watch(run, ours, (base, cpu, began))
            self.kill()
            streams.drain(run, ours)
            run.wall, run.cpu = time.monotonic() - began, max(run.cpu, self.meter.cpu() - cpu)
            self._conclude(run, kills, all(os.read(number, 1) == b"+" for number in settled))
        finally:
            for number in [*ours, *settled]:
                os.close(number)

    def _start(self, ports: dict[int, int], limits: dict[str, float], argv: list[str], uid: int | None, folder: str, oom: int) -> int:
        seconds = int(limits["cpu_s"]) + 2
        rlimits = {
            "CPU": seconds,
            "FSIZE": int(limits["file_mb"] * MEGABYTE),
            "CORE": 1,  # 0 would not keep a core from the machine's crash handler; 1 does
            "NOFILE": 256,
            "MSGQUEUE": 0,
            "STACK": 64 * MEGABYTE,
        }
        if uid is not None:
            rlimits["NPROC"] = int(limits["processes"])
        if isinstance(self.meter, meter.TreeMeter):  # nobody else holds the line then
            rlimits["AS"] = int(limits["memory_mb"]) * MEGABYTE + 512 * MEGABYTE
        order = {"argv": argv, "places": list(ports), "uid": uid, "gid": uid, "folder": folder, "oom": oom, "nice": 5, "rlimits": rlimits}
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", ports.values()))]
        self.door.sendmsg([json.dumps(order).encode()], rights)
        while True:
            message = self._hear()
            if "status" not in message:
                return int(message["pid"])

    def _hear(self) -> dict[str, Any]:
        raw = self.door.recv(65536)
        if not raw:
            raise Gone("the zygote is gone")
        message: dict[str, Any] = json.loads(raw)
        if "status" in message:
            self.ended[message["pid"]] = message
        return message

    def _watch(self, run: streams.Run, ours: dict[int, str], start: tuple[int, float, float]) -> None:
        """Read what it says and measure what it uses, until it ends or breaks a limit."""
        with selectors.DefaultSelector() as selector:
            for number in ours:
                selector.register(number, selectors.EVENT_READ)
            selector.register(self.door, selectors.EVENT_READ)
            selector.register(0, selectors.EVENT_READ)
            looked = start[2]
            while not run.stop and run.pids[-1] not in self.ended:
                for key, _ in selector.select(LOOK_S):
                    if key.fileobj is self.door:
                        self._hear()
                    elif key.fd == 0:
                        raise Gone("the owner is gone")
                    elif streams.read(run, key.fd, ours[key.fd]) == 0:
                        selector.unregister(key.fd)
                now = time.monotonic()
                if now - looked >= LOOK_S and not run.stop:
                    looked = now
                    self._measure(run, *start, now)

    def _measure(self, run: streams.Run, base: int, cpu: float, began: float, now: float) -> None:
        limits, elapsed = run.limits, now - began
        run.peak = max(run.peak, self.meter.memory() - base)
        run.cpu = self.meter.cpu() - cpu
        if self.meter.over(int(limits["memory_mb"] * MEGABYTE)):
            run.halt("MLE", f"it used more than {limits['memory_mb']} MB")
        elif run.cpu > limits["cpu_s"]:
            run.halt("TLE", f"it used more than {limits['cpu_s']} s of processor time")
        elif elapsed > limits["wall_s"] / 2:
            for pid in run.pids:  # a process that is gone tells nothing any more: what it told before stands
                run.waited[pid] = max(run.waited.get(pid, 0.0), meter.waited(pid))
            over = elapsed - sum(run.waited.values()) > limits["wall_s"]
            if (
                run.pids[-1] not in self.ended
                and meter.stat(run.pids[-1])[:1] not in ([], ["Z"])
                and (over or elapsed > HARD * limits["wall_s"])
            ):
                run.halt("TLE", f"it did not end within {limits['wall_s']} s")

    def kill(self) -> None:
        """Kill whatever is left of the program, until nothing is."""
        deadline = time.monotonic() + 20
        while left := meter.descendants(os.getpid(), {self.zygote}):
            if time.monotonic() > deadline:
                raise OSError(f"processes {left[:5]} do not die")
            if self.uid is not None and len(left) > 2:
                for uid in (self.uid, self.uid + 1):  # one call that reaches them all at once: no fork outruns it
                    places.as_user(uid, None, lambda: os.kill(-1, signal.SIGKILL))
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            _reap()
            time.sleep(0.0002)
        _reap()

    def _conclude(self, run: streams.Run, kills: int, settled: bool) -> None:
        while any(pid not in self.ended for pid in run.pids):
            self._hear()
        reports = [self.ended.pop(pid) for pid in run.pids]
        run.peak = max(run.peak, *(int(report["peak_kb"]) * 1024 for report in reports))
        run.exit = os.waitstatus_to_exitcode(reports[-1]["status"])
        if not settled and not run.stop:
            run.halt("IE", f"the program could not be set up: {bytes(run.said['stderr'])[-500:].decode(errors='replace')}")
        elif self.meter.kills() > kills:
            run.stop, run.reason = "MLE", "the kernel killed it for want of memory"
        elif run.exit == -signal.SIGXCPU:
            run.halt("TLE", "it used up its processor time")
        elif run.exit == -signal.SIGSYS:
            run.halt("SV", "it made a forbidden system call")
        elif run.exit != 0:
            run.halt("RE", f"killed by signal {-run.exit}" if run.exit < 0 else f"exit status {run.exit}")


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _exactly(count: int) -> bytes:
    """The next `count` bytes from our owner."""
    data = bytearray()
    while len(data) < count:
        more = os.read(0, min(count - len(data), CHUNK))
        if not more:
            raise Gone("the owner is gone")
        data += more
    return bytes(data)


def _say(header: dict[str, Any], parts: dict[str, bytes]) -> None:
    for piece in frames.pack(header, parts):
        view = memoryview(piece)
        while view:
            view = view[os.write(1, view) :]


def main(settings: dict[str, Any]) -> None:
    """Settle in, fork the zygote, then serve until the owner goes away. In a child: become the program."""
    resource.setrlimit(resource.RLIMIT_CORE, (1, 1))
    spaces = namespaces.enter(settings["disk_mb"]) if settings.get("namespaces") else []
    if namespaces.OWN_DISK in spaces:
        settings["places"] = list(namespaces.LENT)
    filtered = seccomp.apply()
    ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)
    zygote.warm()
    door, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    child = os.fork()
    if child == 0:
        door.close()
        order = zygote.serve(other)
        if order is None:
            os._exit(0)
        zygote.become(order)
        return
    other.close()
    supervisor = Supervisor(settings, child, door)
    languages = ["python"] + [name for name, argv in (COMPILERS | {"javascript": RUNNERS["javascript"]}).items() if shutil.which(argv[0])]
    applied = probe.isolation(settings, filtered, supervisor.meter.name, spaces)
    with contextlib.suppress(Gone, OSError):
        _say({"hello": 1, "isolation": applied, "languages": languages, "python": sys.version.split()[0]}, {})
        fatal = ""
        while not fatal:
            reply, said = supervisor.run(*frames.unpack(_exactly))
            fatal = reply["fatal"]
            _say(reply, said)
    with contextlib.suppress(OSError):
        supervisor.kill()
    with contextlib.suppress(OSError):
        supervisor.clear()
    os._exit(0)
