"""Serve one session at a time: open it, run calls in it, read and write its files, end it and wipe its files.

A call that hangs, or that its owner stops, is killed without affecting other processes. Background processes of a call stay until the session ends; their later
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

from rlvr.sandbox._inside import frames, streams
from rlvr.sandbox._inside import workdirs as places
from rlvr.sandbox._inside.box import calls, files
from rlvr.sandbox._inside.box.cgroups import CallCgroup
from rlvr.sandbox._inside.box.processes import NO_USER_IDS_MESSAGE, SessionProcesses, SupervisorResources, get_exit_code, reap_orphans
from rlvr.sandbox._inside.pid_namespace import PeerExited
from rlvr.sandbox._inside.zygote_client import ChildProcess

POLL_INTERVAL_S, IDLE_POLL_INTERVAL_S = 0.005, 1.0
EXTRA_SHELL_PROCESSES = 8  # processes that a shell may have beyond the limit, until it lowers its own limit
MAX_BACKGROUND_STREAMS = 64  # streams of background processes that are read; beyond that, the oldest are closed
PYTHON_STOPPED_MESSAGE = "the Python session was stopped, and its variables are gone"
PYTHON_ENDED_MESSAGE = "the Python session ended, and its variables are gone"
ALL_STOPPED_MESSAGE = "everything that ran in the session was stopped, including background processes"
STOP = "stop"
"""The request that ends the running call, which alone is replied to."""
Reply = tuple[dict[str, Any], dict[str, bytes]]


@dataclass
class PythonSession:
    """The Python interpreter of a session: its process, our end of its socket, its control group.

    >>> with socket.socket() as channel:
    ...     PythonSession(ChildProcess(1), None, channel).process.has_exited
    False
    """

    process: ChildProcess
    cgroup: CallCgroup | None
    channel: socket.socket


@dataclass
class PreparedShell:
    """A shell that waits for its call: its process, its control group, its descriptors, and where its source is written.

    >>> PreparedShell(ChildProcess(1), None, calls.CallDescriptors(), -1, -1).process.has_exited
    False
    """

    process: ChildProcess
    cgroup: CallCgroup | None
    descriptors: calls.CallDescriptors
    source_fd: int
    go_fd: int

    def close_descriptors(self) -> None:
        """Close our descriptors of the shell."""
        for number in (self.source_fd, self.go_fd, *self.descriptors.read_ends):
            os.close(number)


@dataclass
class RunningCall:
    """A running call: its state so far, the descriptors that we read from it, and messages for the policy.

    >>> RunningCall(streams.RunState({"wall_s": 1})).messages
    []
    """

    state: streams.RunState
    read_ends: dict[int, str] = field(default_factory=dict)
    messages: list[str] = field(default_factory=list)


class SessionServer:
    """Serves one session after another, and wipes everything in between."""

    def __init__(self, resources: SupervisorResources) -> None:
        self.resources, self.processes = resources, SessionProcesses(resources)
        self.limits: dict[str, Any] = {}
        self.python_session: PythonSession | None = None
        self.next_shell: PreparedShell | None = None
        self.is_open, self.shell_state, self.pending_message, self.fatal_error = False, b"", "", ""
        self.background_fds: list[int] = []
        self.has_run = False  # whether any code of this session has run

    def handle_request(self, request: dict[str, Any], parts: dict[str, bytes]) -> Reply:
        """Handle one request; `fatal_error` in the reply says why this supervisor cannot continue."""
        self.fatal_error = ""
        act = {
            "open": self._open_session,
            "run": self._run_call,
            "put": self._write_file,
            "get": self._read_file,
            "kill": self._kill_processes,
            "end": self._end_session,
        }[request["box"]]
        try:
            header, said = act(request, parts)
        except OSError as error:
            # before any of its code ran, a session cannot have provoked a failure of ours
            self.fatal_error, header, said = f"{type(error).__name__}: {error}", {"unprovoked": not self.has_run}, {}
        return header | {"fatal": self.fatal_error}, said

    # ---- open and end

    def _open_session(self, request: dict[str, Any], parts: dict[str, bytes]) -> Reply:
        self.limits, self.shell_state, self.pending_message, self.is_open = request["limits"], b"", "", True
        self.has_run = False
        self.processes.prepare_session(self.limits)
        places.grant_access(self.resources.folders, self.processes.uid)
        code, name = files.write_files(self.processes.home, self.processes.uid, parts) if parts else (0, "")
        return {"error": f"the file {name!r} cannot be written: {os.strerror(code)}" if code else ""}, {}

    def _end_session(self, request: dict[str, Any], parts: dict[str, bytes]) -> Reply:
        self.is_open = False
        self._kill_everything()
        for number in self.background_fds:
            os.close(number)
        self.background_fds = []
        if not self.fatal_error:
            places.empty_folders(self.resources.folders, self.processes.uid, self.processes.uid)
            self.fatal_error = NO_USER_IDS_MESSAGE if self.processes.has_used_all_user_ids else ""
        return {}, {}

    def shut_down(self) -> None:
        """End everything and wipe the files, after our owner has exited."""
        with contextlib.suppress(OSError, PeerExited):
            self._end_session({}, {})

    # ---- files

    def _write_file(self, request: dict[str, Any], parts: dict[str, bytes]) -> Reply:
        return {"errno": files.write_files(self.processes.home, self.processes.uid, {request["path"]: parts["data"]})[0]}, {}

    def _read_file(self, request: dict[str, Any], parts: dict[str, bytes]) -> Reply:
        code, data = files.try_read_file(self.processes.home, self.processes.uid, request["path"], request["limit"])
        return {"errno": code}, {"data": data}

    # ---- calls

    def _run_call(self, request: dict[str, Any], parts: dict[str, bytes]) -> Reply:
        run = streams.RunState({"wall_s": request["wall_s"], "output_bytes": self.limits["output_bytes"]})
        call = RunningCall(run, messages=[self.pending_message] if self.pending_message else [])
        self.pending_message = ""
        kills, cpu, began = self.resources.meter.count_oom_kills(), self.resources.meter.get_total_cpu_s(), time.monotonic()
        try:
            if request["language"] == "python":
                self._run_python(call, parts["source"], began)
            else:
                self._run_bash(call, parts["source"], calls.ARGV_CALL if request["listed"] else calls.SCRIPT_CALL, began)
        finally:
            self.background_fds += call.read_ends
        while len(self.background_fds) > MAX_BACKGROUND_STREAMS:
            os.close(self.background_fds.pop(0))
        run.wall_s, run.cpu_s = time.monotonic() - began, self.resources.meter.get_total_cpu_s() - cpu
        if self.fatal_error:
            run.exit_status, run.reason = "SANDBOX_VIOLATION", self.fatal_error
        elif self.resources.meter.count_oom_kills() > kills:
            run.record_stop("MEMORY_LIMIT", "the kernel killed a process of the session because memory ran out")
        elif run.exit_code:
            run.record_stop("RUNTIME_ERROR", f"killed by signal {-run.exit_code}" if run.exit_code < 0 else f"exit status {run.exit_code}")
        reply = {
            "stop": run.exit_status or "OK",
            "exit": run.exit_code,
            "reason": run.reason,
            "cut": run.truncated,
            "cpu": run.cpu_s,
            "wall": run.wall_s,
        }
        said = {name: bytes(run.output[name]) for name in ("stdout", "stderr")}
        return reply | {"peak": run.peak_bytes, "note": "; ".join(call.messages)}, said

    def _run_bash(self, call: RunningCall, source: bytes, call_kind: bytes, began: float) -> None:
        if self.next_shell and self.next_shell.process.has_exited:  # a process of the session killed the shell; nothing had run in it
            self._forget_shell()
        shell, self.next_shell = self.next_shell or self._start_shell(), None
        call.read_ends, self.has_run = shell.descriptors.read_ends, True
        try:
            streams.write_all(shell.source_fd, source if call_kind == calls.ARGV_CALL else source + b"\0")
            with contextlib.suppress(BrokenPipeError):
                os.write(shell.go_fd, call_kind)
        finally:
            os.close(shell.source_fd)
            os.close(shell.go_fd)
        ended = self._watch_call(call, began, shell.process, None)
        if call.state.exit_status:
            self._kill_call(call, shell.process, shell.cgroup)
        self._read_available_output(call)
        if (kept := calls.parse_last_bash_state(bytes(call.state.output["report"]))) is not None:
            self.shell_state = kept
        call.state.exit_code = get_exit_code(shell.process) if ended is None else ended

    def _start_shell(self) -> PreparedShell:
        ports = calls.CallDescriptors()
        ports.add_input(0, b"")
        ports.add_input(calls.STATE_IN_FD, self.shell_state + b"\0")
        source = ports.add_deferred_input(calls.SOURCE_FD)
        ports.child_fds[calls.GO_FD], go = os.pipe2(os.O_CLOEXEC)
        for place, name in ((1, "stdout"), (2, "stderr"), (calls.STATE_OUT_FD, "report")):
            ports.add_output(place, name)
        command = calls.build_stateful_shell_command(self.processes.max_processes)
        born, group = self.processes.start_process(ports, command, EXTRA_SHELL_PROCESSES)
        return PreparedShell(born, group, ports, source, go)

    def _run_python(self, call: RunningCall, source: bytes, began: float) -> None:
        if self.python_session and self.python_session.process.has_exited:  # ended by another process of the session
            call.messages.append(PYTHON_ENDED_MESSAGE)
            self._forget_session()
        session, ports = self.python_session or self._start_python_session(), calls.CallDescriptors()
        self.python_session = session
        ports.add_input(calls.SOURCE_FD, source)
        for place, name in ((1, "stdout"), (2, "stderr")):
            ports.add_output(place, name)
        call.read_ends, self.has_run = ports.read_ends, True
        given = array.array("i", [ports.child_fds[place] for place in (calls.SOURCE_FD, 1, 2)])
        try:
            session.channel.sendmsg([b"run"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, given)], socket.MSG_DONTWAIT)
        except OSError:
            call.state.record_stop("RUNTIME_ERROR", "the Python session did not take the call")
        ports.close_child_ends()
        call.state.exit_code = self._watch_call(call, began, session.process, session.channel)
        if call.state.exit_status or call.state.exit_code is None:
            call.messages.append(PYTHON_STOPPED_MESSAGE if call.state.exit_status else PYTHON_ENDED_MESSAGE)
            self._kill_call(call, session.process, session.cgroup)
            call.state.exit_code = get_exit_code(session.process)
            self._forget_session()
        self._read_available_output(call)

    def _start_python_session(self) -> PythonSession:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ports = calls.CallDescriptors()
        for place in (0, 1, 2):
            ports.child_fds[place] = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        ports.add_input(calls.SOURCE_FD, self.resources.session_source)
        ports.child_fds[calls.GO_FD] = theirs.detach()
        return PythonSession(*self.processes.start_process(ports, []), ours)

    def _watch_call(self, call: RunningCall, start_time: float, process: ChildProcess, channel: socket.socket | None) -> int | None:
        """Read the call's output and measure it, until it ends or exceeds a limit; return its exit status if that is known early."""
        run, door, looked = call.state, self.resources.zygote, start_time
        with selectors.DefaultSelector() as selector:
            for number in (*call.read_ends, *self.background_fds, 0):
                selector.register(number, selectors.EVENT_READ)
            for stream in (door.connection, *([channel] if channel else [])):
                selector.register(stream, selectors.EVENT_READ)
            while not run.exit_status and not process.has_exited:
                for key, _ in selector.select(POLL_INTERVAL_S):
                    if key.fileobj is door.connection:
                        door.receive_message(0)
                    elif channel and key.fileobj is channel:
                        if (status := _receive_exit_status(channel)) is not None:
                            return status
                        selector.unregister(channel)  # it closed the channel or wrote nonsense: wait for its process to end
                    elif key.fd == 0:
                        if frames.unpack_frame(streams.read_exactly)[0].get("box") != STOP:
                            raise PeerExited("the owner sent a request while a call was running")
                        run.record_stop("TIMEOUT", "the call was stopped")
                    elif key.fd in self.background_fds:
                        self._discard_output(key.fd, selector)
                    elif streams.read_output(run, key.fd, call.read_ends[key.fd]) == 0:
                        selector.unregister(key.fd)
                        if (
                            call.read_ends[key.fd] == "report"
                            and (status := self.processes.find_exit_code_before_unmount(process)) is not None
                            and not run.exit_status
                        ):
                            return status
                now = time.monotonic()
                if now - looked >= POLL_INTERVAL_S and not run.exit_status:
                    looked = now
                    reap_orphans()  # dead processes count as processes of the session until they are reaped
                    run.peak_bytes = max(run.peak_bytes, self.resources.meter.get_memory_bytes())
                    if not self.processes.has_cgroup_meter:
                        self.resources.meter.get_total_cpu_s()  # it counts what it has seen: what ends between two looks would be missing
                    if self.processes.exceeds_memory():
                        run.record_stop("MEMORY_LIMIT", f"the session used more than {self.limits['memory_mb']} MB")
                    elif now - start_time > run.limits["wall_s"]:
                        run.record_stop("TIMEOUT", f"the call did not end within {run.limits['wall_s']:g} s")
        return None

    def _kill_call(self, call: RunningCall, process: ChildProcess, cgroup: CallCgroup | None) -> None:
        """End a call with all its processes; end everything in the session if they cannot be told apart, or if memory is still used up."""
        if self.processes.kill_call(process, cgroup) and not (call.state.exit_status == "MEMORY_LIMIT" and self.processes.exceeds_memory()):
            return
        call.messages.append(ALL_STOPPED_MESSAGE)
        if self.python_session and self.python_session.process is not process:
            call.messages.append(PYTHON_STOPPED_MESSAGE)
        self._kill_everything()

    def _kill_everything(self) -> None:
        """End every process of the session; set `fatal_error` if one is left."""
        self.fatal_error = self.processes.kill_all()
        self._forget_session()
        self._forget_shell()

    def _forget_session(self) -> None:
        if self.python_session:
            self.python_session.channel.close()
            self.python_session = None

    def _forget_shell(self) -> None:
        if self.next_shell:
            self.next_shell.close_descriptors()
            self.next_shell = None

    def _kill_processes(self, request: dict[str, Any], parts: dict[str, bytes]) -> Reply:
        self._kill_everything()
        return {}, {}

    # ---- output, and the time between calls

    def _read_available_output(self, call: RunningCall) -> None:
        """Read the available output once: the call has ended, and later output of background processes is not part of it."""
        for number, name in list(call.read_ends.items()):
            if streams.read_output(call.state, number, name) == 0 or name == "report":
                os.close(number)
                del call.read_ends[number]

    def _discard_output(self, number: int, selector: selectors.BaseSelector) -> None:
        with contextlib.suppress(BlockingIOError):
            if not os.read(number, streams.CHUNK_BYTES):
                selector.unregister(number)
                self.background_fds.remove(number)
                os.close(number)

    def wait_for_request(self) -> None:
        """Wait for the next request; meanwhile start the next shell, reap processes, and drop output of background processes."""
        if self.is_open and not self.fatal_error and not self.next_shell:
            with contextlib.suppress(OSError):  # then the call tries again, and reports the error
                self.next_shell = self._start_shell()
        with selectors.DefaultSelector() as selector:
            for number in (*self.background_fds, 0):
                selector.register(number, selectors.EVENT_READ)
            selector.register(self.resources.zygote.connection, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select(IDLE_POLL_INTERVAL_S if self.is_open else None):
                    if key.fd == 0:
                        return
                    if key.fileobj is self.resources.zygote.connection:
                        self.resources.zygote.receive_message(0)
                    else:
                        self._discard_output(key.fd, selector)
                reap_orphans()
                self._check_idle_session()

    def _check_idle_session(self) -> None:
        if self.python_session and self.python_session.process.has_exited:
            self.pending_message = PYTHON_ENDED_MESSAGE
            self._forget_session()
        waiting = self.next_shell.process if self.next_shell else None
        if (
            self.is_open
            and not self.processes.has_cgroup_meter
            and self.processes.has_running_calls(waiting)
            and self.processes.exceeds_memory()
        ):
            self.pending_message = f"between the calls the session used more than {self.limits['memory_mb']} MB, and {ALL_STOPPED_MESSAGE}"
            self._kill_everything()


def _receive_exit_status(channel: socket.socket) -> int | None:
    """Receive the exit status that the Python session reports; None if it sends anything else."""
    try:
        data = channel.recv(16)
    except OSError:
        return None
    return int(data) & 0xFF if data.isdigit() and len(data) <= 3 else None
