"""Serve one session at a time: open it, run calls in it, read and write its files, end it and wipe its files.

A call that hangs is killed without affecting other processes. Background processes of a call stay until the session ends; their later
output is read and dropped, so that they never block. The shell of the next call is started in advance, because joining a control group
takes the kernel about 20 ms. Runs inside the container: standard library only.
"""

from __future__ import annotations

import array
import contextlib
import os
import selectors
import socket
import time
from dataclasses import dataclass, field
from typing import Any

from rlvr.sandbox._inside import places, streams
from rlvr.sandbox._inside.box import calls, files
from rlvr.sandbox._inside.box.groups import Group
from rlvr.sandbox._inside.box.processes import Processes, Tools, exit_status, reap
from rlvr.sandbox._inside.nest import Gone
from rlvr.sandbox._inside.zygotes import Born

LOOK_S, IDLE_S = 0.005, 1.0
SPARE = 8  # processes that a shell may have beyond the limit, until it lowers its own limit
MOST_BACKGROUND = 64  # streams of background processes that are read; beyond that, the oldest are closed
GONE = "the Python session was stopped, and its variables are gone"
ENDED = "the Python session ended, and its variables are gone"
ALL_STOPPED = "everything that ran in the session was stopped, including background processes"
Reply = tuple[dict[str, Any], dict[str, bytes]]


@dataclass
class Session:
    """The Python interpreter of a session: its process, our end of its socket, its control group.

    >>> Session(Born(1), None, socket.socket()).born.over
    False
    """

    born: Born
    group: Group | None
    channel: socket.socket


@dataclass
class Shell:
    """A shell that waits for its call: its process, its control group, its descriptors, and where its source is written.

    >>> Shell(Born(1), None, calls.Ports(), -1, -1).born.over
    False
    """

    born: Born
    group: Group | None
    ports: calls.Ports
    source: int
    go: int

    def close(self) -> None:
        """Close our descriptors of the shell."""
        for number in (self.source, self.go, *self.ports.ours):
            os.close(number)


@dataclass
class Call:
    """A running call: its state so far, the descriptors that we read from it, and messages for the policy.

    >>> Call(streams.Run({"wall_s": 1})).notes
    []
    """

    run: streams.Run
    ours: dict[int, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


class Keeper:
    """Serves one session after another, and wipes everything in between."""

    def __init__(self, tools: Tools) -> None:
        self.tools, self.processes = tools, Processes(tools)
        self.limits: dict[str, Any] = {}
        self.session: Session | None = None
        self.shell: Shell | None = None
        self.open, self.state, self.pending, self.fatal = False, b"", "", ""
        self.background: list[int] = []

    def serve(self, request: dict[str, Any], parts: dict[str, bytes]) -> Reply:
        """Handle one request; `fatal` in the reply says why this supervisor cannot continue."""
        self.fatal = ""
        act = {"open": self._open, "run": self._run, "put": self._put, "get": self._get, "end": self._end}[request["box"]]
        try:
            header, said = act(request, parts)
        except OSError as error:
            self.fatal, header, said = f"{type(error).__name__}: {error}", {}, {}
        return header | {"fatal": self.fatal}, said

    # ---- open and end

    def _open(self, request: dict[str, Any], parts: dict[str, bytes]) -> Reply:
        self.limits, self.state, self.pending, self.open = request["limits"], b"", "", True
        self.processes.begin(self.limits)
        places.lend(self.tools.places, self.processes.uid)
        for name, data in parts.items():
            if code := files.put(self.processes.home, self.processes.uid, name, data):
                return {"error": f"the file {name!r} cannot be written: {os.strerror(code)}"}, {}
        return {"error": ""}, {}

    def _end(self, request: dict[str, Any], parts: dict[str, bytes]) -> Reply:
        self.open = False
        self._stop_all()
        for number in self.background:
            os.close(number)
        self.background = []
        if not self.fatal:
            places.empty(self.tools.places, self.processes.uid, self.processes.uid)
        return {}, {}

    def abandon(self) -> None:
        """End everything and wipe the files, after our owner has exited."""
        with contextlib.suppress(OSError, Gone):
            self._end({}, {})

    # ---- files

    def _put(self, request: dict[str, Any], parts: dict[str, bytes]) -> Reply:
        return {"errno": files.put(self.processes.home, self.processes.uid, request["path"], parts["data"])}, {}

    def _get(self, request: dict[str, Any], parts: dict[str, bytes]) -> Reply:
        code, data = files.get(self.processes.home, self.processes.uid, request["path"], request["limit"])
        return {"errno": code}, {"data": data}

    # ---- calls

    def _run(self, request: dict[str, Any], parts: dict[str, bytes]) -> Reply:
        run = streams.Run({"wall_s": request["wall_s"], "output_bytes": self.limits["output_bytes"]})
        call = Call(run, notes=[self.pending] if self.pending else [])
        self.pending = ""
        kills, cpu, began = self.tools.meter.kills(), self.tools.meter.cpu(), time.monotonic()
        try:
            if request["language"] == "python":
                self._python(call, parts["source"], began)
            else:
                self._bash(call, parts["source"], calls.LISTED if request["listed"] else calls.SCRIPT, began)
        finally:
            self.background += call.ours
        while len(self.background) > MOST_BACKGROUND:
            os.close(self.background.pop(0))
        run.wall, run.cpu = time.monotonic() - began, self.tools.meter.cpu() - cpu
        if self.fatal:
            run.stop, run.reason = "SV", self.fatal
        elif self.tools.meter.kills() > kills:
            run.halt("MLE", "the kernel killed a process of the session because memory ran out")
        elif run.exit:
            run.halt("RE", f"killed by signal {-run.exit}" if run.exit < 0 else f"exit status {run.exit}")
        reply = {"stop": run.stop or "OK", "exit": run.exit, "reason": run.reason, "cut": run.cut, "cpu": run.cpu, "wall": run.wall}
        said = {name: bytes(run.said[name]) for name in ("stdout", "stderr")}
        return reply | {"peak": run.peak, "note": "; ".join(call.notes)}, said

    def _bash(self, call: Call, source: bytes, kind: bytes, began: float) -> None:
        if self.shell and self.shell.born.over:  # a process of the session killed the shell; nothing had run in it
            self._forget_shell()
        shell, self.shell = self.shell or self._new_shell(), None
        call.ours = shell.ports.ours
        try:
            streams.write(shell.source, source if kind == calls.LISTED else source + b"\0")
            with contextlib.suppress(BrokenPipeError):
                os.write(shell.go, kind)
        finally:
            os.close(shell.source)
            os.close(shell.go)
        ended = self._watch(call, began, shell.born, None)
        if call.run.stop:
            self._kill(call, shell.born, shell.group)
        self._drain(call)
        if (kept := calls.state(bytes(call.run.said["report"]))) is not None:
            self.state = kept
        call.run.exit = exit_status(shell.born) if ended is None else ended

    def _new_shell(self) -> Shell:
        ports = calls.Ports()
        ports.give(0, b"")
        ports.give(calls.STATE_IN, self.state + b"\0")
        source = ports.later(calls.SOURCE)
        ports.theirs[calls.GO], go = os.pipe2(os.O_CLOEXEC)
        for place, name in ((1, "stdout"), (2, "stderr"), (calls.STATE_OUT, "report")):
            ports.out(place, name)
        limit = None if self.processes.uid is None else int(self.limits["processes"])
        born, group = self.processes.start(ports, calls.bash(limit), SPARE)
        return Shell(born, group, ports, source, go)

    def _python(self, call: Call, source: bytes, began: float) -> None:
        if self.session and self.session.born.over:  # ended by another process of the session
            call.notes.append(ENDED)
            self._forget_session()
        session, ports = self.session or self._new_session(), calls.Ports()
        self.session = session
        ports.give(calls.SOURCE, source)
        for place, name in ((1, "stdout"), (2, "stderr")):
            ports.out(place, name)
        call.ours = ports.ours
        given = array.array("i", [ports.theirs[place] for place in (calls.SOURCE, 1, 2)])
        try:
            session.channel.sendmsg([b"run"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, given)], socket.MSG_DONTWAIT)
        except OSError:
            call.run.halt("RE", "the Python session did not take the call")
        ports.handed_over()
        call.run.exit = self._watch(call, began, session.born, session.channel)
        if call.run.stop or call.run.exit is None:
            call.notes.append(GONE if call.run.stop else ENDED)
            self._kill(call, session.born, session.group)
            call.run.exit = exit_status(session.born)
            self._forget_session()
        self._drain(call)

    def _new_session(self) -> Session:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ports = calls.Ports()
        for place in (0, 1, 2):
            ports.theirs[place] = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        ports.give(calls.SOURCE, self.tools.session)
        ports.theirs[calls.GO] = theirs.detach()
        return Session(*self.processes.start(ports, []), ours)

    def _watch(self, call: Call, began: float, born: Born, channel: socket.socket | None) -> int | None:
        """Read the call's output and measure it, until it ends or exceeds a limit; return its exit status if that is known early."""
        run, door, looked = call.run, self.tools.door, began
        with selectors.DefaultSelector() as selector:
            for number in (*call.ours, *self.background, 0):
                selector.register(number, selectors.EVENT_READ)
            for stream in (door.connection, *([channel] if channel else [])):
                selector.register(stream, selectors.EVENT_READ)
            while not run.stop and not born.over:
                for key, _ in selector.select(LOOK_S):
                    if key.fileobj is door.connection:
                        door.hear(0)
                    elif channel and key.fileobj is channel:
                        if (status := _told(channel)) is not None:
                            return status
                        selector.unregister(channel)  # it closed the channel or wrote nonsense: wait for its process to end
                    elif key.fd == 0:
                        raise Gone("the owner exited")
                    elif key.fd in self.background:
                        self._discard(key.fd, selector)
                    elif streams.read(run, key.fd, call.ours[key.fd]) == 0:
                        selector.unregister(key.fd)
                        if call.ours[key.fd] == "report" and (status := self.processes.ending(born)) is not None and not run.stop:
                            return status
                now = time.monotonic()
                if now - looked >= LOOK_S and not run.stop:
                    looked = now
                    reap()  # dead processes count as processes of the session until they are reaped
                    run.peak = max(run.peak, self.tools.meter.memory())
                    if self.processes.too_large():
                        run.halt("MLE", f"the session used more than {self.limits['memory_mb']} MB")
                    elif now - began > run.limits["wall_s"]:
                        run.halt("TLE", f"the call did not end within {run.limits['wall_s']:g} s")
        return None

    def _kill(self, call: Call, born: Born, group: Group | None) -> None:
        """End a call with all its processes; end everything in the session if they cannot be told apart, or if memory is still used up."""
        if self.processes.kill(born, group) and not (call.run.stop == "MLE" and self.processes.too_large()):
            return
        call.notes.append(ALL_STOPPED)
        if self.session and self.session.born is not born:
            call.notes.append(GONE)
        self._stop_all()

    def _stop_all(self) -> None:
        """End every process of the session; set `fatal` if one is left."""
        self.fatal = self.processes.kill_all()
        self._forget_session()
        self._forget_shell()

    def _forget_session(self) -> None:
        if self.session:
            self.session.channel.close()
            self.session = None

    def _forget_shell(self) -> None:
        if self.shell:
            self.shell.close()
            self.shell = None

    # ---- output, and the time between calls

    def _drain(self, call: Call) -> None:
        """Read the available output once: the call has ended, and later output of background processes is not part of it."""
        for number, name in list(call.ours.items()):
            if streams.read(call.run, number, name) == 0 or name == "report":
                os.close(number)
                del call.ours[number]

    def _discard(self, number: int, selector: selectors.BaseSelector) -> None:
        with contextlib.suppress(BlockingIOError):
            if not os.read(number, streams.CHUNK):
                selector.unregister(number)
                self.background.remove(number)
                os.close(number)

    def wait(self) -> None:
        """Wait for the next request; meanwhile start the next shell, reap processes, and drop output of background processes."""
        if self.open and not self.fatal and not self.shell:
            with contextlib.suppress(OSError):  # then the call tries again, and reports the error
                self.shell = self._new_shell()
        with selectors.DefaultSelector() as selector:
            for number in (*self.background, 0):
                selector.register(number, selectors.EVENT_READ)
            selector.register(self.tools.door.connection, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select(IDLE_S if self.open else None):
                    if key.fd == 0:
                        return
                    if key.fileobj is self.tools.door.connection:
                        self.tools.door.hear(0)
                    else:
                        self._discard(key.fd, selector)
                reap()
                self._look_between()

    def _look_between(self) -> None:
        if self.session and self.session.born.over:
            self.pending = ENDED
            self._forget_session()
        waiting = self.shell.born if self.shell else None
        if self.open and not self.processes.measured and self.processes.busy(waiting) and self.processes.too_large():
            self.pending = f"between the calls the session used more than {self.limits['memory_mb']} MB, and {ALL_STOPPED}"
            self._stop_all()


def _told(channel: socket.socket) -> int | None:
    """Receive the exit status that the Python session reports; None if it sends anything else."""
    try:
        data = channel.recv(16)
    except OSError:
        return None
    return int(data) & 0xFF if data.isdigit() and len(data) <= 3 else None
