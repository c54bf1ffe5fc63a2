"""The trusted process inside a container: it runs one program at a time, watches it, kills all its processes, and wipes its files.

It exchanges frames over its own standard input and output: two lengths, a JSON header, raw bytes. Output of a program is
never parsed here. When its input ends (its owner died), it kills everything and exits, which ends the container.
Runs inside the container: standard library only.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import selectors
import shutil
import signal
import socket
import sys
import time
from typing import Any

from rlvr.sandbox._inside import ends, frames, meter, namespaces, nest, places, probe, rights, seccomp, streams, toolchains, zygote
from rlvr.sandbox._inside.box import groups, keeper, processes
from rlvr.sandbox._inside.nest import Gone, Nursery
from rlvr.sandbox._inside.stage import Stage
from rlvr.sandbox._inside.zygotes import Born, Door

LOOK_S = 0.005  # interval between measurements of a running program
HARD = 10.0  # multiple of the wall limit: the hard timeout on a machine that is too busy to run the program
END_S = 10.0  # timeout for the kernel to end killed processes; after it, the container counts as broken
SUBREAPER, CHUNK = 36, 1 << 18
MEGABYTE = 1 << 20


class Supervisor:
    """Runs, watches and cleans up one program at a time."""

    def __init__(self, settings: dict[str, Any], spared: set[int], door: socket.socket, nursery: Nursery | None) -> None:
        self.places: list[str] = settings["places"]
        self.uid: int | None = settings["uid"]
        self.door, self.nursery, self.filter = Door(door), nursery, seccomp.known()
        self.meter = meter.meter(os.getpid(), spared, settings["cgroup"])
        self.ends = ends.Ends(nursery, group=settings["cgroup"], spared=spared, users=self.uid is not None)
        self.compiled = toolchains.Compiled()

    def serve(self, request: dict[str, Any], parts: dict[str, bytes]) -> tuple[dict[str, Any], dict[str, bytes]]:
        """Run one program from start to cleanup; return the reply's header and its raw parts.

        `fatal` in the reply says why this supervisor cannot continue; it is our failure (IE) only if it happened before the program ran.
        """
        run = streams.Run(request["limits"])
        language = request["language"]
        if self.uid is not None:
            self.uid += 2  # one for the program, one for its checker; neither was used before
        fatal = ""
        try:
            laid = self._lay_out(language, parts)
            if language in toolchains.COMPILERS:
                run = self._compile(run, language, parts["source"], laid)
            if not run.stop:
                self._stage(run, parts, argv=toolchains.RUNNERS.get(language, []))
            if fatal := self._strangers(laid):
                run.stop, run.reason = "IE", fatal
        except OSError as error:
            if run.born:
                raise Gone(f"the supervisor failed while a program ran: {error}") from error  # the program may have caused it
            fatal = f"the program could not be set up: {error}"
            run.stop, run.reason = "IE", fatal
        try:
            self.clear()
        except OSError as error:
            fatal = f"could not clean up: {error}"  # the result is valid: this concerns the next program only
        reply = {"stop": run.stop or "OK", "exit": run.exit, "reason": run.reason, "cut": run.cut, "cpu": run.cpu, "wall": run.wall}
        return reply | {"peak": run.peak, "fatal": fatal or run.fatal}, {name: bytes(data) for name, data in run.said.items()}

    def clear(self) -> None:
        """Empty the folders that programs may write to, for the next program."""
        places.empty(self.places, self.uid, self.uid)

    def _lay_out(self, language: str, parts: dict[str, bytes]) -> set[tuple[int, int]]:
        """Open the folders to the program and write its files; return them by inode, since the program may rename them."""
        places.lend(self.places, self.uid)
        laid = {self._write(name[5:], data) for name, data in parts.items() if name.startswith("file:")}
        if language in toolchains.FILES:
            laid.add(self._write(toolchains.FILES[language], parts["source"]))
        return laid

    def _compile(self, run: streams.Run, language: str, source: bytes, laid: set[tuple[int, int]]) -> streams.Run:
        """Compile under separate limits. Returns a fresh run state for the program, or the compiler's with status CE if it failed."""
        binary = self.compiled.get(language, source)
        if binary is not None:
            laid.add(self._write(toolchains.BINARY, binary, 0o755))
            return run
        compiling = streams.Run(toolchains.compiling(run.limits))
        self._stage(compiling, {}, argv=toolchains.COMPILERS[language])
        if not compiling.stop and (binary := toolchains.binary(self.places[0])):
            self.compiled.put(language, source, binary)
            run.fatal = compiling.fatal
            return run
        if not compiling.stop:
            compiling.reason = f"the compiler wrote no program of at most {toolchains.LARGEST_MB} MB"
        if compiling.stop != "IE":
            compiling.stop, compiling.reason = "CE", compiling.reason or "it does not compile"
        return compiling

    def _strangers(self, laid: set[tuple[int, int]]) -> str:
        """Describe files that another user wrote into the program's folders while it ran; the result cannot be trusted then."""
        if self.uid is None:
            return ""
        found = places.foreign(self.places, {self.uid, self.uid + 1}, laid)
        return f"another user wrote into the program's folders: {sorted(found)[:3]}" if found else ""

    def _write(self, name: str, data: bytes, mode: int = 0o644) -> tuple[int, int]:
        path = os.path.join(self.places[0], os.path.basename(name))
        number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
        with open(number, "wb") as file:
            file.write(data)
            about = os.fstat(number)
        return about.st_dev, about.st_ino

    def _stage(self, run: streams.Run, parts: dict[str, bytes], argv: list[str]) -> None:
        """Start the program (and its checker), watch it until the end, and record the result."""
        stage = Stage(parts)
        try:
            base = self.meter.begin()
            cpu, kills = self.meter.cpu(), self.meter.kills()
            if stage.judge:  # first, so that the program cannot keep its checker from starting
                other = None if self.uid is None else self.uid + 1
                run.born.append(self._start(stage.judge, run.limits, [], other, "/", 500))
                if not stage.judge_settled(END_S):
                    run.halt("IE", "the checker could not be set up")
            if not run.stop:
                run.born.insert(0, self._start(stage.program, run.limits, argv, self.uid, self.places[0], 1000))
            stage.hand_over()
            began = time.monotonic()
            if self.nursery:
                self.nursery.ask(len(run.born))  # in advance for the next program
            self._watch(run, stage.ours, (base, cpu, began))
            self._end(run)
            streams.drain(run, stage.ours)
            run.wall, run.cpu = time.monotonic() - began, max(run.cpu, self.meter.cpu() - cpu)
            self._conclude(run, kills, stage.program_settled())
        finally:
            stage.close()

    def _start(self, ports: dict[int, int], limits: dict[str, float], argv: list[str], uid: int | None, folder: str, oom: int) -> Born:
        seconds = int(limits["cpu_s"]) + 2
        rlimits = {
            "CPU": seconds,
            "FSIZE": int(limits["file_mb"] * MEGABYTE),
            "CORE": 1,  # 0 would not keep a core from the machine's crash handler; 1 does
            "NOFILE": 256,
            "MSGQUEUE": 0,
            "MEMLOCK": MEGABYTE,
            "SIGPENDING": 256,
            "STACK": 64 * MEGABYTE,
        }
        if uid is not None:
            rlimits["NPROC"] = int(limits["processes"])
        if isinstance(self.meter, meter.TreeMeter):  # nothing else enforces the limit then
            rlimits["AS"] = int(limits["memory_mb"]) * MEGABYTE + 512 * MEGABYTE
        order = {
            "argv": argv,
            "uid": uid,
            "gid": uid,
            "folder": folder,
            "oom": oom,
            "nice": 5,
            "rlimits": rlimits,
            "filter": self.filter and self.nursery is not None,
        }
        order["nest"] = self.nursery.nest() if self.nursery else 0
        return self.door.order(ports, order)

    def _watch(self, run: streams.Run, ours: dict[int, str], start: tuple[int, float, float]) -> None:
        """Read the program's output and measure its resource use, until it ends or exceeds a limit."""
        with selectors.DefaultSelector() as selector:
            for number in ours:
                selector.register(number, selectors.EVENT_READ)
            selector.register(self.door.connection, selectors.EVENT_READ)
            selector.register(0, selectors.EVENT_READ)
            looked = start[2]
            while not run.stop and not run.born[-1].over:
                for key, _ in selector.select(LOOK_S):
                    if key.fileobj is self.door.connection:
                        self.door.hear(0)
                    elif key.fd == 0:
                        raise Gone("the owner exited")
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
            run.halt("MLE", f"the program used more than {limits['memory_mb']} MB")
        elif run.cpu > limits["cpu_s"]:
            run.halt("TLE", f"the program used more than {limits['cpu_s']} s of processor time")
        elif elapsed > limits["wall_s"] / 2:
            self._look_at_the_clock(run, elapsed)

    def _look_at_the_clock(self, run: streams.Run, elapsed: float) -> None:
        """Stop the program at its wall limit, excluding time spent waiting for a processor, and in any case at HARD times the limit."""
        limit = run.limits["wall_s"]
        for born in run.born:  # a process that exited reports nothing: its last value is kept
            if not born.over:
                run.waited[born.pid] = max(run.waited.get(born.pid, 0.0), meter.waited(born.pid))
        judged = run.born[-1]
        ended = meter.stat(judged.pid)
        late = elapsed - sum(run.waited.values()) > limit and not judged.over
        if elapsed > HARD * limit or (late and not (ended and meter.dead(ended))):
            run.halt("TLE", f"the program did not end within {limit} s")

    def _end(self, run: streams.Run) -> None:
        """Kill the program's processes until the kernel confirms that none is left, or mark the container as broken."""
        uids = [] if self.uid is None else [self.uid, self.uid + 1]
        deadline = time.monotonic() + END_S
        while time.monotonic() < deadline:
            self.ends.kill(uids)
            while self.door.hear(0.0 if all(born.over for born in run.born) else 0.002):
                pass
            processes.reap()
            if all(born.over for born in run.born) and self.ends.none_left(0.05):
                return
        run.fatal = f"processes are left {END_S:.0f} s after they were killed"
        if not all(born.over for born in run.born) or self.ends.left():
            run.halt("SV", "the program could not be killed")  # otherwise the processes are not the program's, and the result is valid

    def abandon(self) -> None:
        """Kill everything that runs and wipe its files, after the owner has exited."""
        uids = [] if self.uid is None else [self.uid, self.uid + 1]
        deadline = time.monotonic() + END_S
        while time.monotonic() < deadline:
            self.ends.kill(uids)
            processes.reap()
            if self.ends.none_left(0.05):
                break
        with contextlib.suppress(OSError):
            self.clear()

    def boxes(self, found: groups.Groups, session: bytes, filtered: bool) -> keeper.Keeper:
        """Return the server for sandbox sessions, which replaces running single programs."""
        tools = (self.places, self.uid, self.door, self.nursery, filtered, self.meter, self.ends, found, session)
        return keeper.Keeper(processes.Tools(*tools))

    def _conclude(self, run: streams.Run, kills: int, settled: bool) -> None:
        reports = [born.ending for born in run.born if born.ending]
        run.peak = max(run.peak, *(int(report["peak_kb"]) * 1024 for report in reports), 0)
        last = run.born[-1].ending
        run.exit = os.waitstatus_to_exitcode(last["status"]) if last else None
        if not settled and not run.stop:
            run.halt("IE", f"the program could not be set up: {bytes(run.said['stderr'])[-500:].decode(errors='replace')}")
        elif self.meter.kills() > kills and run.stop != "IE":
            run.stop, run.reason = "MLE", "the kernel killed the program because memory ran out"
        elif run.exit == -signal.SIGXCPU:
            run.halt("TLE", "the program used up its processor time")
        elif run.exit == -signal.SIGSYS:
            run.halt("SV", "the program made a forbidden system call")
        elif run.exit:
            run.halt("RE", f"killed by signal {-run.exit}" if run.exit < 0 else f"exit status {run.exit}")


def _exactly(count: int) -> bytes:
    """Read the next `count` bytes sent by our owner."""
    data = bytearray()
    while len(data) < count:
        more = os.read(0, min(count - len(data), CHUNK))
        if not more:
            raise Gone("the owner exited")
        data += more
    return bytes(data)


def _say(header: dict[str, Any], parts: dict[str, bytes]) -> None:
    for piece in frames.pack(header, parts):
        view = memoryview(piece)
        while view:
            view = view[os.write(1, view) :]


def main(settings: dict[str, Any]) -> None:
    """Set up, fork the zygote, then handle requests until the owner exits. A forked child returns as the program."""
    resource.setrlimit(resource.RLIMIT_CORE, (1, 1))
    spaces = namespaces.enter(settings["disk_mb"]) if settings.get("namespaces") else []
    if namespaces.OWN_DISK in spaces:
        settings["places"] = list(namespaces.LENT)
    ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)
    rights.empty_bounding()
    boxed = groups.find(settings["boxes"]) if settings.get("boxes") else None
    nursery = nest.open_nursery() if settings.get("nests") and nest.possible() else None
    zygote.warm()
    door, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    child = os.fork()
    if child == 0:
        door.close()
        order = zygote.serve(other, nursery is not None)
        if order is None:
            os._exit(0)
        zygote.become(order)
        return
    other.close()
    measuring = 0 if settings["cgroup"] else rights.SYS_PTRACE  # reading the memory of other users' processes needs it
    rights.keep(rights.KILL | rights.SETUID | rights.SETGID | measuring)
    filtered = seccomp.apply(seccomp.SUPERVISOR)
    supervisor = Supervisor(settings, {child, nursery.pid} if nursery else {child}, door, nursery)
    compilers = [(name, argv[0]) for name, argv in (toolchains.RUNNERS | toolchains.COMPILERS).items()]
    languages = ["python", *(name for name, path in compilers if shutil.which(path))]
    applied = probe.isolation(settings, filtered, supervisor.meter.name, supervisor.ends.way, spaces)
    if boxed is not None:
        applied.append("each call ended by its control group" if boxed.possible else "a call that hangs ends everything in its session")
    box = None if boxed is None else supervisor.boxes(boxed, settings["session"].encode(), filtered)
    try:
        _say({"hello": 1, "isolation": applied, "languages": languages, "python": sys.version.split()[0]}, {})
        fatal = ""
        while not fatal:
            if box:
                box.wait()
            reply, said = (box or supervisor).serve(*frames.unpack(_exactly))
            fatal = reply["fatal"]
            _say(reply, said)
    except Gone as error:
        os.write(2, f"{error}\n".encode())  # reported from inside, so that it is not mistaken for a failure from outside
    except OSError:
        pass
    (box or supervisor).abandon()
    os._exit(0)
