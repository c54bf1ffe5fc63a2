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
import signal
import socket
import sys
import time
from collections.abc import Sequence
from typing import Any

from rlvr.sandbox._inside import capabilities as rights
from rlvr.sandbox._inside import frames, meter, namespaces, probe, seccomp, sockets, streams, toolchains, zygote
from rlvr.sandbox._inside import pid_namespace as nest
from rlvr.sandbox._inside import process_killer as ends
from rlvr.sandbox._inside import workdirs as places
from rlvr.sandbox._inside.box import cgroups, processes, session_server
from rlvr.sandbox._inside.pid_namespace import NamespaceHelperClient, PeerExited
from rlvr.sandbox._inside.program_io import ProgramIO
from rlvr.sandbox._inside.streams import read_exactly
from rlvr.sandbox._inside.toolchains import Toolchain
from rlvr.sandbox._inside.zygote_client import ChildProcess, ZygoteClient

POLL_INTERVAL_S = 0.005  # interval between measurements of a running program
WAITS_INTERVAL_S = 0.05  # at most this between measurements of how long its processes waited for a processor
MAX_WAIT_S = 1.0  # the kernel counts a wait when it ends, so it may have been before the last measurement, but not longer ago than this
MAX_WALL_FACTOR = 10.0  # multiple of the wall limit: the hard timeout on a machine that is too busy to run the program
KILL_TIMEOUT_S = 10.0  # timeout for the kernel to end killed processes; after it, the container counts as broken
PR_SET_CHILD_SUBREAPER = 36
MEGABYTE = 1 << 20
MAX_TERMINALS = 32  # pseudo terminals of a container; the machine has some thousands for everybody
OWN_PROCESSES = 8
"""Processes of ours that the kernel counts with a program's, where both have the one user id of a user namespace: the first process,
the supervisor, the zygote, the namespace helper, the inits of two used namespaces and of those created in advance."""


class Supervisor:
    """Runs, watches and cleans up one program at a time."""

    def __init__(
        self, settings: dict[str, Any], spared_pids: set[int], zygote_socket: socket.socket, namespace_helper: NamespaceHelperClient | None
    ) -> None:
        self.folders: list[str] = settings["places"]
        users: namespaces.UserIds | None = settings["users"]
        self.uid = None if users is None else users.first
        self.last_uid = None if users is None else users.last
        self.num_own_processes = 0 if self.uid is not None else OWN_PROCESSES if settings.get("has_own_users") else None
        self.zygote, self.namespace_helper, self.has_filter = (
            ZygoteClient(zygote_socket),
            namespace_helper,
            seccomp.is_architecture_supported(),
        )
        self.meter = meter.make_meter(
            os.getpid(),
            spared_pids,
            settings["cgroup"],
            settings.get("memory_bytes", 0),
            settings["sockets"],
            namespace_helper.pid if namespace_helper else 0,
        )
        self.killer = ends.ProcessKiller(
            namespace_helper, use_cgroup=settings["cgroup"], spared_pids=spared_pids, unused_uid=None if users is None else users.unused
        )
        self.binary_cache = toolchains.BinaryCache()

    def handle_request(self, request: dict[str, Any], parts: dict[str, bytes]) -> tuple[dict[str, Any], dict[str, bytes]]:
        """Run one program from start to cleanup; return the reply's header and its raw parts.

        `fatal_error` in the reply says why this supervisor cannot continue; it is our failure (IE) only if it happened before the program
        ran.
        """
        run = streams.RunState(request["limits"])
        language, toolchain = request["language"], toolchains.TOOLCHAINS.get(request["language"])
        if self.uid is not None:
            self.uid += 2  # one for the program, one for its checker; neither was used before
        fatal = ""
        if self.killer.mechanism == ends.BY_USER_ID_AND_TABLE:
            self.killer.kill_listed()  # what the last program forked unseen must not meet the next one
        try:
            laid = self._write_program_files(run, parts, toolchain)
            if toolchain and toolchain.compiler and not run.exit_status:
                run = self._compile(run, language, toolchain, parts["source"], laid)
            if not run.exit_status:
                self._run_program(run, parts, toolchain.runner if toolchain else (), toolchain)
            if fatal := self._find_foreign_files(laid):
                run.exit_status, run.reason = "INTERNAL_ERROR", fatal
        except OSError as error:
            if run.children:
                raise PeerExited(f"the supervisor failed while a program ran: {error}") from error  # the program may have caused it
            fatal = f"the program could not be set up: {error}"
            run.exit_status, run.reason = "INTERNAL_ERROR", fatal
        try:
            self.clear_folders()
        except OSError as error:
            fatal = f"could not clean up: {error}"  # the result is valid: this concerns the next program only
        if self.uid is not None and self.last_uid is not None and self.uid + 3 > self.last_uid:
            fatal = fatal or processes.NO_USER_IDS_MESSAGE
        reply = {
            "stop": run.exit_status or "OK",
            "exit": run.exit_code,
            "reason": run.reason,
            "cut": run.truncated,
            "cpu": run.cpu_s,
            "wall": run.wall_s,
        }
        return reply | {"peak": run.peak_bytes, "fatal": fatal or run.fatal_error}, {name: bytes(data) for name, data in run.output.items()}

    def clear_folders(self) -> None:
        """Empty the folders that programs may write to, for the next program."""
        places.empty_folders(self.folders, self.uid, self.uid)

    def _write_program_files(self, run: streams.RunState, parts: dict[str, bytes], toolchain: Toolchain | None) -> set[tuple[int, int]]:
        """Open the folders to the program and write its files; return them by inode, since the program may rename them."""
        places.grant_access(self.folders, self.uid)
        laid = {self._write_file(name[5:], data) for name, data in parts.items() if name.startswith("file:")}
        if toolchain:
            disk, size = os.statvfs(self.folders[0]), len(parts["source"])
            # a megabyte is a program's right: a disk that the files beside it fill is not the program's fault
            room = max(MEGABYTE, min(int(run.limits["file_mb"] * MEGABYTE), disk.f_bavail * disk.f_frsize))
            if size > room:
                run.record_stop("COMPILE_ERROR", f"the program has {size} bytes, and there is room for a file of {room}")
            else:
                laid.add(self._write_file(toolchain.source, parts["source"]))
        return laid

    def _compile(
        self, run: streams.RunState, language: str, toolchain: Toolchain, source: bytes, known_inodes: set[tuple[int, int]]
    ) -> streams.RunState:
        """Compile under separate limits. Returns a fresh run state for the program, or the compiler's with status CE if it failed."""
        binary = self.binary_cache.get(language, source)
        if binary is not None:
            known_inodes.add(self._write_file(toolchains.BINARY_NAME, binary, 0o755))
            return run
        compiling = streams.RunState(toolchains.compute_compiler_limits(run.limits))
        self._run_program(compiling, {}, toolchain.compiler, toolchain)
        if not compiling.exit_status and (binary := toolchains.read_binary(self.folders[0])):
            self.binary_cache.put(language, source, binary)
            run.fatal_error = compiling.fatal_error
            return run
        if not compiling.exit_status:
            compiling.reason = f"the compiler wrote no program of at most {toolchains.MAX_BINARY_MB} MB"
        if compiling.exit_status != "INTERNAL_ERROR":
            compiling.exit_status, compiling.reason = "COMPILE_ERROR", compiling.reason or "it does not compile"
        return compiling

    def _find_foreign_files(self, known_inodes: set[tuple[int, int]]) -> str:
        """Describe files that another user wrote into the program's folders while it ran; the result cannot be trusted then."""
        if self.uid is None:
            return ""
        found = places.find_files_of_other_users(self.folders, {self.uid, self.uid + 1}, known_inodes)
        return f"another user wrote into the program's folders: {sorted(found)[:3]}" if found else ""

    def _write_file(self, name: str, data: bytes, mode: int = 0o644) -> tuple[int, int]:
        path = os.path.join(self.folders[0], os.path.basename(name))
        number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
        with open(number, "wb") as file:
            file.write(data)
            about = os.fstat(number)
        return about.st_dev, about.st_ino

    def _run_program(self, run: streams.RunState, parts: dict[str, bytes], command: Sequence[str], toolchain: Toolchain | None) -> None:
        """Start the program (and its checker), watch it until the end, and record the result. Without a command it is Python."""
        argv = [word.replace("{memory_mb}", str(int(run.limits["memory_mb"]))) for word in command]
        stage = ProgramIO(parts)
        try:
            base = self.meter.record_memory_baseline()
            cpu, kills = self.meter.get_total_cpu_s(), self.meter.count_oom_kills()
            if stage.checker_fds:  # first, so that the program cannot keep its checker from starting
                other = None if self.uid is None else self.uid + 1
                # under one user id the kernel counts the program's processes, too: they must not keep the checker from its own
                shared = run.limits if other is not None else {**run.limits, "processes": 2 * run.limits["processes"]}
                run.children.append(self._start_process(stage.checker_fds, shared, [], other, "/", 500, None))
                if not stage.wait_until_checker_is_ready(KILL_TIMEOUT_S):
                    run.record_stop("INTERNAL_ERROR", "the checker could not be set up")
            if not run.exit_status:
                run.children.insert(0, self._start_process(stage.program_fds, run.limits, argv, self.uid, self.folders[0], 1000, toolchain))
            stage.close_child_ends()
            began = time.monotonic()
            if self.namespace_helper:
                self.namespace_helper.request_namespaces(len(run.children))  # in advance for the next program
            self._watch_until_end(run, stage.read_ends, (base, cpu, began))
            self._kill_program(run)
            streams.drain_output(run, stage.read_ends)
            run.wall_s, run.cpu_s = time.monotonic() - began, max(run.cpu_s, self.meter.get_total_cpu_s() - cpu)
            self._set_exit_status(run, kills, stage.is_program_set_up())
        finally:
            stage.close()

    def _start_process(
        self,
        fds: dict[int, int],
        limits: dict[str, float],
        argv: list[str],
        uid: int | None,
        folder: str,
        oom_score: int,
        toolchain: Toolchain | None,
    ) -> ChildProcess:
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
        if self.num_own_processes is not None:
            spare = toolchain.spare_processes if toolchain else 0
            rlimits["NPROC"] = int(limits["processes"]) + spare + self.num_own_processes
        if isinstance(self.meter, meter.ProcessTableMeter):  # nothing else enforces the limit then
            spare = toolchain.spare_address_mb if toolchain else toolchains.SPARE_ADDRESS_MB
            rlimits["AS"] = (int(limits["memory_mb"]) + spare) * MEGABYTE
        request = {
            "argv": argv,
            "uid": uid,
            "gid": uid,
            "folder": folder,
            "oom": oom_score,
            "nice": 5,
            "rlimits": rlimits,
            "filter": self.has_filter and self.namespace_helper is not None,
        }
        request["nest"] = self.namespace_helper.take_namespace_init() if self.namespace_helper else 0
        return self.zygote.fork_child(fds, request)

    def _watch_until_end(self, run: streams.RunState, read_ends: dict[int, str], start: tuple[int, float, float]) -> None:
        """Read the program's output and measure its resource use, until it ends or exceeds a limit."""
        with selectors.DefaultSelector() as selector:
            for number in read_ends:
                selector.register(number, selectors.EVENT_READ)
            selector.register(self.zygote.connection, selectors.EVENT_READ)
            selector.register(0, selectors.EVENT_READ)
            looked = start[2]
            while not run.exit_status and not run.children[-1].has_exited:
                for key, _ in selector.select(POLL_INTERVAL_S):
                    if key.fileobj is self.zygote.connection:
                        self.zygote.receive_message(0)
                    elif key.fd == 0:
                        raise PeerExited("the owner exited")
                    elif streams.read_output(run, key.fd, read_ends[key.fd]) == 0:
                        selector.unregister(key.fd)
                now = time.monotonic()
                if now - looked >= POLL_INTERVAL_S and not run.exit_status:
                    looked = now
                    self._check_limits(run, *start, now)

    def _check_limits(self, run: streams.RunState, base: int, cpu: float, began: float, now: float) -> None:
        limits, elapsed = run.limits, now - began
        run.peak_bytes = max(run.peak_bytes, self.meter.get_memory_bytes() - base)
        run.cpu_s = self.meter.get_total_cpu_s() - cpu
        if self.meter.exceeds_memory(int(limits["memory_mb"] * MEGABYTE)):
            run.record_stop("MEMORY_LIMIT", f"the program used more than {limits['memory_mb']} MB")
        elif run.cpu_s > limits["cpu_s"]:
            run.record_stop("TIMEOUT", f"the program used more than {limits['cpu_s']} s of processor time")
        elif elapsed > min(limits["wall_s"] / 2, run.waits_read_s + WAITS_INTERVAL_S):
            self._enforce_wall_limit(run, elapsed)

    def _enforce_wall_limit(self, run: streams.RunState, elapsed: float) -> None:
        """Stop the program at its wall limit, excluding time spent waiting for a processor, and in any case at MAX_WALL_FACTOR times
        the limit.
        """
        limit = run.limits["wall_s"]
        own = [born.pid for born in run.children if not born.has_exited]
        # With what the program started, too: a compiler sleeps while its child compiles. A program cannot pretend to wait, since only
        # processes that want to compute wait, and its processor time is limited. Many that wait at once wait no longer than one.
        waited = 0.0
        for pid in {*own, *self.killer.list_program_pids()}:  # a process that exited reports nothing: its last value is kept
            known = run.cpu_wait_s.get(pid, 0.0)
            run.cpu_wait_s[pid] = max(known, meter.read_cpu_wait_s(pid))
            waited += run.cpu_wait_s[pid] - known
        since = elapsed - run.waits_read_s
        run.unwaited_s = min(run.unwaited_s + since, max(since, MAX_WAIT_S))
        waited = min(waited, run.unwaited_s)
        run.waited_s, run.unwaited_s, run.waits_read_s = run.waited_s + waited, run.unwaited_s - waited, elapsed
        judged = run.children[-1]
        ended = meter.read_process_stat(judged.pid)
        late = elapsed - run.waited_s > limit and not judged.has_exited
        if elapsed > MAX_WALL_FACTOR * limit or (late and not (ended and meter.is_process_dead(ended))):
            run.record_stop("TIMEOUT", f"the program did not end within {limit} s")

    def _kill_program(self, run: streams.RunState) -> None:
        """Kill the program's processes until the kernel confirms that none is left, or mark the container as broken."""
        uids = [] if self.uid is None else [self.uid, self.uid + 1]
        deadline = time.monotonic() + KILL_TIMEOUT_S
        while time.monotonic() < deadline:
            self.killer.kill_all(uids)
            while self.zygote.receive_message(0.0 if all(born.has_exited for born in run.children) else 0.002):
                pass
            processes.reap_orphans()
            if all(born.has_exited for born in run.children) and self.killer.wait_until_empty(0.05):
                return
        run.fatal_error = f"processes are left {KILL_TIMEOUT_S:.0f} s after they were killed"
        if not all(born.has_exited for born in run.children) or self.killer.list_remaining_pids():
            run.record_stop(
                "SANDBOX_VIOLATION", "the program could not be killed"
            )  # otherwise the processes are not the program's, and the result is valid

    def shut_down(self) -> None:
        """Kill everything that runs and wipe its files, after the owner has exited."""
        uids = [] if self.uid is None else [self.uid, self.uid + 1]
        deadline = time.monotonic() + KILL_TIMEOUT_S
        while time.monotonic() < deadline:
            self.killer.kill_all(uids)
            processes.reap_orphans()
            if self.killer.wait_until_empty(0.05):
                break
        with contextlib.suppress(OSError):
            self.clear_folders()

    def make_session_server(
        self, cgroup_factory: cgroups.CgroupFactory, session_source: bytes, has_filter: bool
    ) -> session_server.SessionServer:
        """Return the server for sandbox sessions, which replaces running single programs."""
        tools = (
            self.folders,
            self.uid,
            self.zygote,
            self.namespace_helper,
            has_filter,
            self.meter,
            self.killer,
            cgroup_factory,
            session_source,
            self.num_own_processes,
            self.last_uid,
        )
        return session_server.SessionServer(processes.SupervisorResources(*tools))

    def _set_exit_status(self, run: streams.RunState, oom_kills_before: int, was_ready: bool) -> None:
        own_peak = max((int(born.exit_report["peak_kb"]) * 1024 for born in run.children if born.exit_report), default=0)
        run.peak_bytes = max(run.peak_bytes, own_peak)
        last = run.children[-1].exit_report
        run.exit_code = os.waitstatus_to_exitcode(last["status"]) if last else None
        if not was_ready and not run.exit_status:
            run.record_stop(
                "INTERNAL_ERROR", f"the program could not be set up: {bytes(run.output['stderr'])[-500:].decode(errors='replace')}"
            )
        elif self.meter.count_oom_kills() > oom_kills_before and run.exit_status != "INTERNAL_ERROR":
            run.exit_status, run.reason = "MEMORY_LIMIT", "the kernel killed the program because memory ran out"
        elif self.meter.has_exceeded_memory(own_peak, int(run.limits["memory_mb"] * MEGABYTE)):
            run.record_stop("MEMORY_LIMIT", f"the program used more than {run.limits['memory_mb']} MB")
        elif run.exit_code == -signal.SIGXCPU:
            run.record_stop("TIMEOUT", "the program used up its processor time")
        elif run.exit_code == -signal.SIGSYS:
            run.record_stop("SANDBOX_VIOLATION", "the program made a forbidden system call")
        elif run.exit_code:
            run.record_stop("RUNTIME_ERROR", f"killed by signal {-run.exit_code}" if run.exit_code < 0 else f"exit status {run.exit_code}")


def _send_reply(header: dict[str, Any], parts: dict[str, bytes]) -> None:
    for piece in frames.pack_frame(header, parts):
        view = memoryview(piece)
        while view:
            view = view[os.write(1, view) :]


def main(settings: dict[str, Any]) -> None:
    """Set up, fork the zygote, then handle requests until the owner exits. A forked child returns as the program."""
    resource.setrlimit(resource.RLIMIT_CORE, (1, 1))
    spaces = namespaces.enter_namespaces(settings["disk_mb"]) if settings.get("namespaces") else []
    has_cgroup_process_limit = False
    if outer := settings.get("outer_namespaces"):  # whoever started this process has put it into namespaces
        spaces = namespaces.list_own_namespaces(outer)
        namespaces.mount_work_folders(settings["disk_mb"])
        namespaces.protect_devices()
        has_cgroup_process_limit = settings["uid"] is not None or namespaces.is_process_count_limited()
        spaces += [namespaces.OWN_DISK_LABEL, *(["no new user namespaces"] if namespaces.forbid_new_user_namespaces() else [])]
    if own_disks_mb := settings.get("own_disks_mb"):  # the engine cannot limit how many files they hold
        namespaces.mount_work_folders(own_disks_mb)
    if settings["cgroup"]:
        namespaces.limit_terminals(MAX_TERMINALS)
    if namespaces.OWN_DISK_LABEL in spaces:
        settings["places"] = list(namespaces.WRITABLE_FOLDERS)
    settings["users"] = None if settings["uid"] is None else namespaces.choose_user_ids(settings["uid"])
    if (
        settings["cgroup"] and settings["users"] and not probe.has_cgroup_process_limit()
    ):  # in a container: a kernel of its own has no control group
        has_cgroup_process_limit = namespaces.is_process_count_limited(settings["users"].first)
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    rights.clear_bounding_set()
    boxed = cgroups.create_parent_cgroup(settings["boxes"]) if settings.get("boxes") else None
    namespace_helper = nest.start_namespace_helper() if settings.get("nests") and nest.has_namespace_support() else None
    zygote.preload_modules()
    door, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    child = os.fork()
    if child == 0:
        door.close()
        strictness = seccomp.FOR_PROGRAM if settings["cgroup"] else seccomp.FOR_UNCOUNTED_PROGRAM
        strictness |= seccomp.WITH_LOOPBACK if settings.get("loopback") else 0
        request = zygote.serve_forks(other, namespace_helper is not None, strictness)
        if request is None:
            os._exit(0)
        zygote.run_as_program(request)
        return
    other.close()
    # reading the memory of other users' processes needs the one, and of what they share the other
    measuring = 0 if settings["cgroup"] else rights.CAP_SYS_PTRACE | rights.CAP_CHECKPOINT_RESTORE
    rights.keep_only_capabilities(rights.CAP_KILL | rights.CAP_SETUID | rights.CAP_SETGID | measuring)
    # before the filter, which allows no such socket; without a network namespace of its own it would list those of the machine
    has_own_network = settings["cgroup"] or namespaces.KINDS["net"] in spaces
    has_unix, has_tcp = not settings["cgroup"], bool(settings.get("loopback"))
    settings["sockets"] = sockets.open_meter(has_unix=has_unix, has_tcp=has_tcp) if has_own_network and (has_unix or has_tcp) else None
    filtered = seccomp.install_filter(seccomp.FOR_SUPERVISOR)
    supervisor = Supervisor(settings, {child, namespace_helper.pid} if namespace_helper else {child}, door, namespace_helper)
    languages = ["python", *(name for name, toolchain in toolchains.TOOLCHAINS.items() if toolchain.is_installed())]
    applied = probe.detect_isolation(settings, filtered, supervisor.meter.name, supervisor.killer.mechanism, spaces)
    if has_cgroup_process_limit:
        applied.append("process count limited by the kernel")
    if boxed is not None:
        applied.append("each call ended by its control group" if boxed.is_available else "a call that hangs ends everything in its session")
    box = None if boxed is None else supervisor.make_session_server(boxed, settings["session"].encode(), filtered)
    try:
        writable = probe.find_writable_folders(settings["places"])
        _send_reply({"hello": 1, "isolation": applied, "writable": writable, "languages": languages, "python": sys.version.split()[0]}, {})
        fatal = ""
        while not fatal:
            if box:
                box.wait_for_request()
            request, parts = frames.unpack_frame(read_exactly)
            if request.get("box") == session_server.STOP:
                continue  # the call that it was meant for has just ended
            reply, said = (box or supervisor).handle_request(request, parts)
            fatal = reply["fatal"]
            _send_reply(reply, said)
    except PeerExited as error:
        with contextlib.suppress(OSError):  # nobody may read it any more
            os.write(2, f"{error}\n".encode())  # reported from inside, so that it is not mistaken for a failure from outside
    except OSError:
        pass
    (box or supervisor).shut_down()
    os._exit(0)
