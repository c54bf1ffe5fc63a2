"""Boxes beyond what the kit checks: capacity, reuse, loss, what a killed run leaves, and what makes no sense."""

from __future__ import annotations

import errno
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rlvr.contracts import ExitStatus, Sandbox, SandboxSession, SandboxSpec
from rlvr.contracts.tool import ToolContext, run_tool_call
from rlvr.errors import ConfigError, SandboxError, ToolInfrastructureError
from rlvr.registry.plugins import build
from rlvr.runs.folder_owner import get_owner_label
from rlvr.sandbox._inside.box import cgroups as groups
from rlvr.sandbox._inside.box.session_server import SessionServer
from rlvr.sandbox._outside.sessions import PooledSandboxSession
from rlvr.sandbox._outside.supervisor_connection import SupervisorConnection, wait_readable
from rlvr.sandbox.process import FOLDER_PREFIX
from rlvr.tools.python import Python
from rlvr.turns import Call

TRUSTED: dict[str, Any] = {"trusted": True}
KINDS = [
    pytest.param("docker", {}, marks=pytest.mark.docker, id="docker"),
    pytest.param("bubblewrap", {}, marks=pytest.mark.bubblewrap, id="bubblewrap"),
    pytest.param("process", TRUSTED, id="process"),
]


def test_a_place_says_what_is_wrong_with_it() -> None:
    with pytest.raises(ValueError, match="network is True; a session has no network"):
        SandboxSpec(network=True)
    with pytest.raises(ValueError, match="processes is 0; it must be a whole number above 0"):
        SandboxSpec(processes=0)
    with pytest.raises(ValueError, match="at least 2 \\* disk_mb \\+ 64 = 264 MB are needed"):
        SandboxSpec(memory_mb=100, disk_mb=100)


def test_a_sandbox_without_boxes_says_so() -> None:
    class Plain(Sandbox):
        def run_program(self, program: Any) -> Any: ...

    with pytest.raises(ConfigError, match="Plain has no sessions"):
        Plain().create_session()


@pytest.mark.parametrize(("kind", "settings"), KINDS)
def test_boxes_are_bounded_and_their_supervisors_reused(kind: str, settings: dict[str, Any]) -> None:
    with build("sandbox", kind, max_sessions=1, queue_timeout_s=0.5, **settings) as sandbox:
        one = sandbox.create_session()
        with pytest.raises(
            SandboxError, match="no session became free within 0 s; all 1 are open: close some, or raise the sandbox's setting"
        ):
            sandbox.create_session()
        one.close()
        with sandbox.create_session() as two, pytest.raises(ValueError, match="timeout is 0; it must be a number of seconds above 0"):
            assert one.id.rpartition(".")[0] == two.id.rpartition(".")[0] and one.id != two.id
            two.run("true", timeout=0)
        with sandbox.create_session(SandboxSpec(disk_mb=8)) as other:  # another shape takes the room of the one that waits
            assert other.id.rpartition(".")[0] != one.id.rpartition(".")[0]


@pytest.mark.skipif(os.geteuid() != 0, reason="control groups need root")
def test_the_end_of_a_group_is_seen_at_once() -> None:
    group = groups.create_parent_cgroup(f"{FOLDER_PREFIX}end").create()
    assert group
    try:
        child = subprocess.Popen(["sleep", "3334"])
        os.write(group.join_fd, str(child.pid).encode())
        assert not group.is_empty
        child.kill()
        child.wait()
        assert group.is_empty  # a descriptor that was read before would repeat the old list for a second
    finally:
        group.remove()
        groups.remove_parent_cgroup(f"{FOLDER_PREFIX}end")


@pytest.mark.parametrize(("kind", "settings"), KINDS)
def test_a_box_whose_supervisor_dies_is_lost_and_nothing_is_repeated(kind: str, settings: dict[str, Any]) -> None:
    with build("sandbox", kind, max_sessions=2, **settings) as sandbox, sandbox.create_session() as box, sandbox.create_session() as other:
        box.run("x = 1", language="python")
        kill_supervisor(sandbox, box)
        first, second = box.run("echo once"), box.run("echo twice")
        assert (first.status, second.status, box.has_failed) == (ExitStatus.INTERNAL_ERROR, ExitStatus.INTERNAL_ERROR, True)
        assert " failed: " in first.reason and second.reason == first.reason
        with pytest.raises(SandboxError, match=" failed: "):
            box.write_file("a", b"")
        with Python().session(ToolContext(sandbox_session=box)) as python, pytest.raises(ToolInfrastructureError, match=" failed: "):
            run_tool_call(python, Call("0.0", "python", {"code": "print(1)"}))
        assert other.run("echo well").stdout == "well\n"
        box.close()
        with sandbox.create_session() as fresh:  # its room is free again
            assert fresh.run("echo well").stdout == "well\n"


@pytest.mark.parametrize(("kind", "settings"), KINDS)
def test_a_supervisor_that_died_while_it_waited_costs_no_box(kind: str, settings: dict[str, Any]) -> None:
    with build("sandbox", kind, max_sessions=1, **settings) as sandbox:
        with sandbox.create_session() as first:
            kept = first
        kill_supervisor(sandbox, kept)
        with sandbox.create_session() as second:
            assert second.run("echo well").stdout == "well\n"


def test_a_sandbox_leaves_the_control_groups_of_a_run_with_another_temporary_folder_alone() -> None:
    """Their folder is not in ours, and between two calls nothing runs in them: only their owner says whether they are in use."""
    alive, label = f"{FOLDER_PREFIX}alive={get_owner_label(os.getpid())}", get_owner_label(os.getpid())
    dead = f"{FOLDER_PREFIX}dead={label.rpartition('|')[0]}|1"
    if not all(groups.create_parent_cgroup(name).is_available for name in (alive, dead)):
        pytest.skip("no control group can be created here")
    try:
        build("sandbox", "process", trusted=True).close()
        left = groups.list_parent_cgroup_names(FOLDER_PREFIX)
        assert alive in left and dead not in left
    finally:
        groups.remove_parent_cgroup(alive)
        groups.remove_parent_cgroup(dead)


def kill_supervisor(sandbox: Any, box: SandboxSession) -> None:
    channel = next(channel for channel in sandbox._sessions.list_supervisors() if channel.id.startswith(box.id.rpartition(".")[0]))
    if hasattr(channel, "client"):
        channel.client.api.kill(channel.id)
    else:
        channel._process.kill()
        channel._process.wait(10)
        assert wait_readable(channel._process.stdout.fileno(), 10)  # all that it was the parent of has ended, too


def test_the_tools_say_what_happened_to_a_session(process_sandbox: Sandbox) -> None:
    with process_sandbox.create_session() as box, Python(call_timeout_s=0.5).session(ToolContext(sandbox_session=box)) as python:
        assert run_tool_call(python, Call("0.0", "python", {"code": "x = 6 * 7; print(x)"})).text == "42"
        told = run_tool_call(python, Call("0.1", "python", {"code": "print('on'); import time; time.sleep(60)"})).text
        shown = "on\n[stopped: it ran longer than 0.5 s]\n[the Python session was stopped, and its variables are gone"
    without_groups = "; everything that ran in the session was stopped, including background processes"  # as an ordinary user
    assert told in (f"{shown}]", f"{shown}{without_groups}]")


@pytest.mark.parametrize("wrong", [[], ["a", "b\0"], ["a", 1]])
def test_a_command_that_makes_no_sense_is_refused(process_sandbox: Sandbox, wrong: Any) -> None:
    with process_sandbox.create_session() as box:
        with pytest.raises(ValueError, match="a program and its arguments are needed"):
            box.run(wrong)
        assert box.run(["printf", "%s|", "a b", "*", ""]).stdout_bytes == b"a b|*||"


def test_a_script_with_a_null_character_is_not_run_in_part(process_sandbox: Sandbox) -> None:
    with process_sandbox.create_session() as box:
        cut = box.run("touch a\0b; echo ran")
        assert (cut.status, cut.exit_code, cut.stdout) == (ExitStatus.RUNTIME_ERROR, 126, "") and "null character" in cut.stderr
        assert box.run("ls").stdout == ""
        assert "null bytes" in box.run("print(1)\0", language="python").stderr
    assert box.run("echo \0").status is ExitStatus.INTERNAL_ERROR, "a closed session says that it is closed"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda box: box.run(None), "the source is None; a script as a text, or a list"),
        (lambda box: box.run(b"echo"), "the source is b'echo'; a script as a text, or a list"),
        (lambda box: box.write_file("a", None), "the file 'a' has the content None; bytes are needed"),
        (lambda box: box.write_file("a", 5), "the file 'a' has the content 5; bytes are needed"),
    ],
)
def test_an_argument_of_a_wrong_type_is_told_in_one_sentence(process_sandbox: Sandbox, wrong: Any, message: str) -> None:
    with process_sandbox.create_session() as box, pytest.raises(ValueError, match=re.escape(message)):
        wrong(box)


@pytest.mark.parametrize(
    ("files", "message"), [({"a": "text"}, "the file 'a' has the content 'text'; bytes"), ([1], "files is [1]; a mapping")]
)
def test_files_of_a_wrong_type_are_told_in_one_sentence(process_sandbox: Sandbox, files: Any, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        process_sandbox.create_session(SandboxSpec(files=files))


def test_a_timeout_may_be_as_long_as_one_likes(process_sandbox: Sandbox) -> None:
    with process_sandbox.create_session(SandboxSpec(wall_s=1e300)) as box:
        assert box.run("echo well").stdout_bytes == b"well\n"
        assert box.run("echo well", timeout=1e300).stdout_bytes == b"well\n"


class FailingChannel(SupervisorConnection):
    """A supervisor that cannot start a process: it failed before any code of the session ran, or after some did."""

    handshake = {"isolation": []}

    def __init__(self, unprovoked: bool) -> None:
        super().__init__()
        resources = SimpleNamespace(uid=None, folders=["/"], meter=SimpleNamespace(count_oom_kills=lambda: 0, get_total_cpu_s=lambda: 0.0))
        self.server = SessionServer(cast(Any, resources))
        self.server.limits, self.server.has_run = {"output_bytes": 1}, not unprovoked
        self.server._start_shell = self.fail  # type: ignore[method-assign]

    def fail(self) -> Any:
        raise PermissionError(1, "Operation not permitted")

    def request(self, header: Any, parts: Any, deadline: float) -> Any:
        return self.server.handle_request(dict(header), dict(parts))

    def send(self, data: bytes, deadline: float) -> None: ...
    def receive(self, buffer: memoryview, deadline: float) -> int:
        return 0

    def is_alive(self) -> bool:
        return True

    def shut_down(self) -> None: ...
    def close(self) -> None: ...


@pytest.mark.parametrize(("unprovoked", "status"), [(True, ExitStatus.INTERNAL_ERROR), (False, ExitStatus.SANDBOX_VIOLATION)])
def test_a_session_that_fails_before_its_first_call_is_nobodys_fault(unprovoked: bool, status: ExitStatus) -> None:
    box = PooledSandboxSession(FailingChannel(unprovoked), SandboxSpec(), "s", lambda sound: None)
    assert box.run("echo").status is status
    assert box.has_failed is unprovoked


@pytest.mark.parametrize(("kind", "settings"), KINDS)
def test_the_processor_time_of_what_a_call_started_is_counted(kind: str, settings: dict[str, Any]) -> None:
    burn = "python3 -c 'import time\nwhile time.process_time() < 0.4: pass'"
    with build("sandbox", kind, **settings) as sandbox, sandbox.create_session() as box:
        assert box.run(f"{burn}; {burn}").cpu_s > 0.7
        assert box.run(f"{burn} & sleep 0.1; wait").cpu_s > 0.35
        assert box.run("true").cpu_s < 0.2


def test_a_link_that_leads_nowhere_is_no_missing_file(process_sandbox: Sandbox) -> None:
    with process_sandbox.create_session() as box:
        box.run("ln -s nowhere link; ln -s link other")
        for path, code in (("nowhere", errno.ENOENT), ("link", errno.ENOLINK), ("other", errno.ENOLINK), ("link/a", errno.ENOENT)):
            with pytest.raises(OSError) as raised:
                box.read_file(path)
            assert raised.value.errno == code, path
        box.write_file("link", b"now")
        assert box.read_file("other") == b"now"


LINKS = """
import os
def walk(names):
    return "".join(f"{name}/../" for name in names)[:4000].rpartition("/../")[0] + "/../d"
os.mkdir("d")
first, second = [f"a{n}" for n in range(900)], [f"b{n}" for n in range(900)]
for name in first:
    os.symlink(walk(["d"] * 800), name)
for place, name in enumerate(second):
    os.symlink(walk(first[place:] + first[:place]), name)
os.symlink(walk(second), "all")
open("d/end", "w").write("end")
os.symlink("d/end", "0")
for n in range(60):
    os.symlink(str(n), str(n + 1))
"""


@pytest.mark.parametrize(("kind", "settings"), KINDS)
def test_as_many_links_are_followed_as_the_kernel_follows(kind: str, settings: dict[str, Any]) -> None:
    with build("sandbox", kind, **settings) as sandbox, sandbox.create_session() as box:
        assert box.run(LINKS, language="python").status is ExitStatus.OK
        assert box.read_file("39") == b"end"
        box.write_file("39", b"new")
        assert (box.run("cat 39").stdout, box.run("cat 40").status) == ("new", ExitStatus.RUNTIME_ERROR)
        began = time.monotonic()
        for path in ("40", "60", "all", "all/../d/end"):
            for attempt in (box.read_file, lambda name: box.write_file(name, b"")):
                with pytest.raises(OSError) as raised:
                    attempt(path)
                assert raised.value.errno == errno.ELOOP, path
        assert time.monotonic() - began < 5


@pytest.mark.parametrize(("kind", "settings"), KINDS)
def test_thousands_of_files_are_written_at_once(kind: str, settings: dict[str, Any]) -> None:
    with build("sandbox", kind, **settings) as sandbox:
        sandbox.create_session().close()
        began = time.monotonic()
        with sandbox.create_session(SandboxSpec(files={f"a/{number}": b"%d" % number for number in range(3000)})) as box:
            assert time.monotonic() - began < 5
            assert box.run("cat a/* | wc -c; stat -c %a a a/7").stdout == "10890\n755\n644\n"
        with pytest.raises(ConfigError, match="the file 'b/c' cannot be written: File exists"):
            sandbox.create_session(SandboxSpec(files={"a": b"", "b": b"", "b/c": b"", "d": b""}))


OWNER = """
import sys, time, rlvr
sandbox = rlvr.make_sandbox(sys.argv[1], **({"trusted": True} if sys.argv[1] == "process" else {}))
box = sandbox.create_session()
box.run("sleep 3333 >/dev/null 2>&1 &")
print(box.id.rpartition(".")[0], flush=True)
box.run("sleep 600", timeout=600)
"""


def left_over(kind: str, name: str) -> list[str]:
    """What is left of a box after its owner was killed: containers, folders, control groups."""
    if kind == "docker":
        from rlvr.sandbox._outside import engine

        client = engine.connect(10)
        try:
            return [str(one["Id"]) for one in client.api.containers(all=True) if str(one["Id"]).startswith(name)]
        finally:
            client.close()
    return [place for place in (name,) if Path(tempfile.gettempdir(), place).exists()] + [
        g for g in groups.list_parent_cgroup_names(FOLDER_PREFIX) if g.startswith(name)
    ]


@pytest.mark.parametrize(("kind", "settings"), KINDS)
def test_the_next_start_sweeps_what_a_killed_run_left(kind: str, settings: dict[str, Any]) -> None:
    owner = subprocess.Popen([sys.executable, "-c", OWNER, kind], stdout=subprocess.PIPE, text=True, env=dict(os.environ))
    assert owner.stdout
    with owner, owner.stdout:
        name = owner.stdout.readline().strip()
        time.sleep(0.3)
        owner.send_signal(signal.SIGKILL)
        owner.wait(10)
    with build("sandbox", kind, **settings) as sandbox, sandbox.create_session() as box:
        assert box.run("true").status is ExitStatus.OK
        deadline = time.monotonic() + 20
        while left_over(kind, name) and time.monotonic() < deadline:
            time.sleep(0.2)
            build("sandbox", kind, **settings).close()
        assert name and left_over(kind, name) == []
        assert sleepers() == 0


def sleepers() -> int:
    """The background processes of the killed run that still live."""
    found = 0
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found += path.read_bytes() == b"sleep\x003333\x00"
        except OSError:
            continue
    return found


def kill_zygote(sandbox: Any, box: SandboxSession) -> None:
    """Kill the process that programs are forked from: the supervisor then gives up by itself."""
    channel = next(channel for channel in sandbox._sessions.list_supervisors() if channel.id.startswith(box.id.rpartition(".")[0]))
    if hasattr(channel, "client"):
        supervisor = channel.client.api.inspect_container(channel.id)["State"]["Pid"]
    else:
        supervisor = channel._process.pid
        while len(below := children(supervisor)) == 1:  # those above it only wait
            supervisor = below[0]
    os.kill(children(supervisor)[-1], signal.SIGKILL)


def children(process: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


@pytest.mark.parametrize(("kind", "settings"), KINDS)
def test_a_box_that_broke_from_inside_costs_the_score_and_not_the_verdict(kind: str, settings: dict[str, Any]) -> None:
    with build("sandbox", kind, max_sessions=2, **settings) as sandbox, sandbox.create_session(SandboxSpec(files={"a": b"1"})) as box:
        box.run("echo before")  # before the first call there is no program to blame
        kill_zygote(sandbox, box)
        first, second = box.run("echo once"), box.run("echo twice", language="python")
        assert (first.status, second.status, box.has_failed) == (ExitStatus.SANDBOX_VIOLATION, ExitStatus.SANDBOX_VIOLATION, False), (
            first,
            second,
        )
        assert " broke: " in first.reason and second.reason == first.reason
        with Python().session(ToolContext(sandbox_session=box)) as python:
            told = run_tool_call(python, Call("0.0", "python", {"code": "print(1)"}))
            assert (
                told.text == "[stopped: it broke the sandbox]\n[the session is broken: nothing more can run in it, and its files are gone]"
            )
        for ask in (lambda: box.write_file("a", b""), lambda: box.read_file("a", 10)):
            with pytest.raises(OSError, match="the session is broken"):
                ask()
        box.close()
        with sandbox.create_session() as fresh:  # its room is free again
            assert fresh.run("echo well").stdout == "well\n"


SOCKETS = """
import socket
door = socket.create_server(("127.0.0.1", 0))
socket.create_connection(door.getsockname()).close()
print("connected")
TCP, UDP, RAW = socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW
for family, kind, protocol in (
    (socket.AF_INET, UDP, 0), (socket.AF_INET, RAW, 0), (socket.AF_NETLINK, RAW, 0), (socket.AF_INET, TCP, 262), (socket.AF_INET6, TCP, 132)
):
    try:
        socket.socket(family, kind, protocol)
        print("opened", family, kind, protocol)
    except PermissionError:
        print("refused")
try:
    socket.create_connection(("192.0.2.1", 80), 5)
except OSError as error:
    print(error.strerror)
"""


@pytest.mark.parametrize(("kind", "settings"), KINDS[:2])
def test_a_session_with_a_loopback_network_has_no_other_sockets_than_those_of_tcp(kind: str, settings: dict[str, Any]) -> None:
    with build("sandbox", kind, max_sessions=2, **settings) as sandbox:
        with sandbox.create_session(SandboxSpec(loopback=True)) as session:
            said = session.run(["python3", "-c", SOCKETS]).stdout.splitlines()
            assert said == ["connected", *["refused"] * 5, "Network is unreachable"]
        with sandbox.create_session() as session:  # not that supervisor again: its filter would let TCP through
            assert "PermissionError" in session.run(["python3", "-c", SOCKETS]).stderr


@pytest.mark.parametrize(("kind", "settings"), KINDS[:2])
def test_a_mount_of_a_session_is_read_only_and_that_of_no_other(kind: str, settings: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir(0o755)
    (tmp_path / "notes" / "a.txt").write_text("one")
    with build("sandbox", kind, max_sessions=1, **settings) as sandbox:
        with sandbox.create_session(SandboxSpec(mounts={"/opt/some/notes": str(tmp_path / "notes")})) as session:
            assert session.run("cat /opt/some/notes/a.txt").stdout == "one"
            assert not session.run("echo two > /opt/some/notes/a.txt").ok and not session.run("touch /opt/some/notes/b").ok
        with sandbox.create_session() as session:
            assert not session.run("ls /opt/some").ok
    assert (tmp_path / "notes" / "a.txt").read_text() == "one"


def test_a_mount_that_makes_no_sense_is_refused() -> None:
    for place, source in (("opt", "/usr"), ("/opt", "usr"), ("/opt/../tmp", "/usr"), ("/opt/", "/usr")):
        with pytest.raises(ValueError, match="both must be absolute paths"):
            SandboxSpec(mounts={place: source})
    for place in ("/", "/tmp", "/tmp/agent", "/dev/shm/x", "/proc/1", "/sys"):
        with pytest.raises(ValueError, match="belong to the session itself"):
            SandboxSpec(mounts={place: "/usr"})
    with (
        build("sandbox", "process", trusted=True) as sandbox,
        pytest.raises(ConfigError, match="sessions of the process sandbox have no mounts"),
    ):
        sandbox.create_session(SandboxSpec(loopback=True))


@pytest.mark.parametrize(("kind", "settings"), KINDS)
def test_a_running_call_is_stopped_with_all_that_it_started_and_the_session_goes_on(kind: str, settings: dict[str, Any]) -> None:
    with build("sandbox", kind, max_sessions=1, **settings) as sandbox, sandbox.create_session() as session:
        session.stop_call()  # nothing runs
        for end in range(3):
            ended: list[Any] = []
            script = f"(while true; do date +%s%N > beat; sleep 0.01; done) & setsid sleep 300 & echo {end} > made; sleep 300"
            caller = threading.Thread(target=lambda script=script, ended=ended: ended.append(session.run(script, timeout=200)))
            caller.start()
            deadline = time.monotonic() + 60
            while caller.is_alive() and time.monotonic() < deadline:
                time.sleep(0.5)
                session.stop_call()
            caller.join(60)
            assert ended[0].status is ExitStatus.TIMEOUT and ended[0].reason == "the call was stopped"
            last = session.run("cat beat").stdout
            assert session.run("sleep 0.2; cat beat").stdout == last and session.read_file("made") == f"{end}\n".encode()
        session.stop_call()
        assert session.run("echo on").stdout == "on\n"
