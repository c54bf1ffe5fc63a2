"""The life of the docker sandbox: what it leaves behind (nothing), what it does when its ground is taken away (say so, and heal)."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from rlvr.contracts import ExitStatus, Limits, Program, Sandbox
from rlvr.errors import SandboxError
from rlvr.registry.plugins import build
from rlvr.runs.folder_owner import get_pid_scope
from rlvr.sandbox._outside import engine as _engine
from rlvr.sandbox._outside.container import build_host_config
from rlvr.sandbox._outside.pool import SupervisorPool
from rlvr.sandbox.docker import DockerSandbox
from rlvr.task import Task, Verdict, make_user_prompt

LONG = Program("import time\ntime.sleep(600)", limits=Limits(wall_s=600))
HERE = Path(__file__).resolve().parents[2]


def until(true: Callable[[], bool], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "the condition was not met in time"
        time.sleep(0.05)


@pytest.fixture
def engine() -> Iterator[Any]:
    client = _engine.connect()
    yield client
    client.close()


@pytest.fixture
def one() -> Iterator[Any]:
    with build("sandbox", "docker", containers=1) as sandbox:
        yield sandbox


def there(engine: Any, name: str) -> bool:
    return any(name in (container.id, container.name) for container in engine.containers.list(all=True, ignore_removed=True))


@pytest.mark.docker
def test_closing_leaves_no_container(engine: Any) -> None:
    with build("sandbox", "docker", containers=1) as sandbox:
        assert sandbox.run(Program("print(1)")).stdout == "1\n"
        (name,) = sandbox.list_container_ids()
        assert there(engine, name)
    until(lambda: not there(engine, name))
    assert sandbox.run(Program("print(1)")).status is ExitStatus.INTERNAL_ERROR


@pytest.mark.docker
def test_a_killed_run_leaves_no_container(engine: Any) -> None:
    script = (
        "from rlvr.registry.plugins import build\nfrom rlvr.contracts import *\ns = build('sandbox', 'docker', containers=1)\n"
        "s.run(Program('1'))\nprint(s.list_container_ids()[0], flush=True)\n"
        "s.run(Program('import time; time.sleep(600)', limits=Limits(wall_s=600)))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, cwd=HERE, env={**os.environ, "PYTHONPATH": str(HERE)}
    )
    try:
        assert process.stdout
        name = process.stdout.readline().strip()
        assert there(engine, name)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait(30)
        process.stdout.close()  # type: ignore[union-attr]
    until(lambda: not there(engine, name))


@pytest.mark.docker
def test_the_sweep_takes_what_the_dead_left_and_nothing_else(engine: Any, one: Any) -> None:
    one.run(Program("print(1)"))
    (mine,) = one.list_container_ids()
    dead = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True, check=True
    ).stdout.strip()
    label = "|".join((*get_pid_scope(), dead, "1"))
    elsewhere = "|".join(("another-machine", "boot", "space", dead, "1"))
    made = []
    for owner in (label, elsewhere):
        config = engine.api.create_host_config(network_mode="none")
        made.append(engine.api.create_container(_engine.IMAGE, ["true"], labels={_engine.LABEL: owner}, host_config=config)["Id"])
    try:
        assert _engine.remove_orphaned_containers(engine) >= 1
        assert not there(engine, made[0]) and there(engine, made[1]) and there(engine, mine)
    finally:
        _engine.remove_container(engine, made[1])


@pytest.mark.docker
@pytest.mark.parametrize("how", ["the container", "its supervisor"])
def test_a_container_killed_from_outside_is_nobodys_fault_and_is_replaced(engine: Any, one: Any, how: str) -> None:
    one.run(Program("print(1)"))
    (name,) = one.list_container_ids()
    outcomes = []
    thread = threading.Thread(target=lambda: outcomes.append(one.run(LONG)))
    thread.start()
    container = engine.containers.get(name)
    until(lambda: any(row[0] not in ("root", "0") for row in container.top()["Processes"]))  # the program, under its own user id
    if how == "the container":
        container.kill()
    else:
        pids = [int(row[1]) for row in container.top()["Processes"]]
        os.kill(min(pids), signal.SIGKILL)
    thread.join(120)
    assert [outcome.status for outcome in outcomes] == [ExitStatus.INTERNAL_ERROR], outcomes
    assert one.run(Program("print(2)")).stdout == "2\n"
    assert one.list_container_ids() != [name]


HIDES = """
import mmap, os
try:
    open('/proc/self/oom_score_adj', 'w').write('0')  # now it is as likely to be killed as the supervisor
except PermissionError:
    pass
room = mmap.mmap(-1, 900 << 20)
for at in range(0, 900 << 20, 4 << 20):
    if os.fork() == 0:
        room[at : at + (4 << 20)] = b'x' * (4 << 20)  # the memory stays when the child has exited, and is part of no process
        os._exit(0)
    os.wait()
"""


@pytest.mark.docker
def test_a_supervisor_that_the_kernel_kills_for_a_programs_memory_gives_the_program_no_way_out(engine: Any, one: Any) -> None:
    """The container has less memory than the program's limit, as if it had been faster than the measurement."""
    one.run(Program("print(1)"))
    (name,) = one.list_container_ids()
    engine.containers.get(name).update(mem_limit="300m", memswap_limit="300m")
    outcome = one.run(Program(HIDES, limits=Limits(memory_mb=800, wall_s=10, cpu_s=10)))
    assert outcome.status is ExitStatus.MEMORY_LIMIT, outcome  # in the second container
    assert one.list_container_ids() != [name]


@pytest.mark.docker
def test_a_container_that_died_while_idle_costs_no_verdict(engine: Any, one: Any) -> None:
    one.run(Program("print(1)"))
    (name,) = one.list_container_ids()
    engine.containers.get(name).kill()
    until(lambda: not there(engine, name))
    assert one.run(Program("print(2)")).stdout == "2\n"


@pytest.mark.docker
def test_a_disk_filled_from_outside_is_nobodys_fault(engine: Any, one: Any) -> None:
    assert one.run(Program("open('x', 'wb').write(bytes(1 << 20))")).status is ExitStatus.OK
    (name,) = one.list_container_ids()
    engine.containers.get(name).exec_run(["sh", "-c", "cat /dev/zero >/tmp/filled"], user="0:0")
    outcome = one.run(Program("open('x', 'wb').write(bytes(1 << 20))"))
    assert outcome.status is ExitStatus.INTERNAL_ERROR and "filled" in outcome.reason
    assert one.run(Program("open('x', 'wb').write(bytes(1 << 20))")).status is ExitStatus.OK
    assert one.list_container_ids() != [name]


@pytest.mark.docker
def test_files_that_do_not_fit_are_nobodys_fault() -> None:
    with build("sandbox", "docker", containers=1, disk_mb=1) as sandbox:
        outcome = sandbox.run(Program("print(1)", files={"big": bytes(2 << 20)}))
        assert outcome.status is ExitStatus.INTERNAL_ERROR and "space" in outcome.reason
        assert sandbox.run(Program("print(2)")).stdout == "2\n"


class Door:
    """A socket before the engine's own. Shut, it breaks every connection and refuses new ones: as if the daemon were gone."""

    def __init__(self, path: Path, engine: str) -> None:
        self.path, self.engine, self.through = path, engine.removeprefix("unix://"), list[socket.socket]()
        self.open()

    def open(self) -> None:
        self.listening = socket.socket(socket.AF_UNIX)
        self.listening.bind(str(self.path))
        self.listening.listen(64)
        threading.Thread(target=self._welcome, args=(self.listening,), daemon=True).start()

    def shut(self) -> None:
        self.path.unlink()
        for end in (self.listening, *self.through):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        self.through.clear()

    def _welcome(self, listening: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                guest, _ = listening.accept()
                host = socket.socket(socket.AF_UNIX)
                host.connect(self.engine)
                self.through += [guest, host]
                for pair in ((guest, host), (host, guest)):
                    threading.Thread(target=self._carry, args=pair, daemon=True).start()

    @staticmethod
    def _carry(here: socket.socket, there: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := here.recv(1 << 16):
                there.sendall(data)
            there.shutdown(socket.SHUT_WR)


@pytest.mark.docker
def test_an_engine_that_goes_away_for_a_moment_costs_no_verdict(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    door = Door(tmp_path / "e.sock", os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock")
    monkeypatch.setenv("DOCKER_HOST", f"unix://{door.path}")
    tests = {"kind": "stdio", "cases": [{"stdin": "7", "stdout": "49"}]}
    answer = "```python\nimport time\ntime.sleep(0.1)\nprint(int(input()) ** {})\n```"
    with build("sandbox", "docker", containers=2) as sandbox, build("verifier", "unit_tests", sandbox=sandbox) as verifier:

        def judge(power: int) -> tuple[int, Verdict]:
            return power, verifier.verify(Task(make_user_prompt("x"), tests, id="t"), answer.format(power))

        def batch() -> list[tuple[int, Verdict]]:
            with ThreadPoolExecutor(4) as threads:
                return list(threads.map(judge, [2, 3] * 15))

        assert judge(2)[1].score == 1.0
        threading.Timer(0.5, door.shut).start()
        threading.Timer(2.5, door.open).start()
        assert [verdict.score for _, verdict in batch()] == [1.0, 0.0] * 15
        assert [verdict.score for _, verdict in batch()] == [1.0, 0.0] * 15
        door.shut()


@pytest.mark.docker
def test_an_engine_that_is_not_there_is_said_and_healed_from(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with build("sandbox", "docker", containers=1) as sandbox, monkeypatch.context() as patch:
        patch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nothing.sock")
        outcome = sandbox.run(Program("print(1)"))
        assert outcome.status is ExitStatus.INTERNAL_ERROR and "nothing.sock" in outcome.reason and "DOCKER_HOST" in outcome.reason
        ((what, how),) = DockerSandbox.find_problems()
        assert "nothing.sock" in what and "start" in how
        patch.undo()
        assert sandbox.run(Program("print(1)")).status is ExitStatus.OK
    assert DockerSandbox.find_problems() == []


@pytest.mark.docker
def test_an_image_that_is_not_there_is_said() -> None:
    with build("sandbox", "docker", image="rlvr-test/no-such-image:1", containers=1) as sandbox:
        outcome = sandbox.run(Program("print(1)"))
    assert outcome.status is ExitStatus.INTERNAL_ERROR and "no-such-image" in outcome.reason and "docker pull" in outcome.reason


@pytest.mark.docker
def test_the_container_is_as_hard_as_we_say(engine: Any, one: Any) -> None:
    one.run(Program("print(1)"))
    config = engine.containers.get(one.list_container_ids()[0]).attrs
    host = config["HostConfig"]
    assert host["NetworkMode"] == "none" and host["ReadonlyRootfs"] and not host["Privileged"] and not host["Binds"]
    assert host["CapDrop"] == ["ALL"] and sorted(host["CapAdd"]) == ["KILL", "SETGID", "SETPCAP", "SETUID"]
    assert host["Memory"] == host["MemorySwap"] > 0 and host["PidsLimit"] > 0
    assert "no-new-privileges" in host["SecurityOpt"] and not any("unconfined" in option for option in host["SecurityOpt"])
    assert host["LogConfig"]["Type"] == "none" and host["AutoRemove"]


@pytest.mark.docker
def test_isolation_is_reported_as_applied(docker_sandbox: Sandbox) -> None:
    applied = docker_sandbox.run(Program("")).isolation
    for name in ("no network", "read-only root", "a user id of its own", "system-call filter", "no new privileges", "memory limited"):
        assert name in applied


def test_no_setting_opens_the_container() -> None:
    wanted = build_host_config(256, 16, 64, None)
    assert "SYS_ADMIN" not in wanted["cap_add"]
    assert wanted["network_mode"] == "none" and wanted["mem_limit"] == wanted["memswap_limit"]
    assert not {"privileged", "volumes", "binds", "devices"} & set(wanted)


class Fake:
    num_requests = 0

    def __init__(self) -> None:
        self.closed, self.living = False, True

    def is_alive(self) -> bool:
        return self.living

    def close(self) -> None:
        self.closed = True


def pool(size: int, seconds: float = 60) -> Any:
    start: Any = Fake
    return SupervisorPool(start, size, seconds)


def test_a_pool_serves_first_come_first_served() -> None:
    shared = pool(1)
    first = shared.acquire()
    order: list[int] = []

    def wait(number: int) -> None:
        channel = shared.acquire()
        order.append(number)
        shared.release(channel, is_healthy=True)

    threads = []
    for number in range(5):
        threads.append(threading.Thread(target=wait, args=(number,)))
        threads[-1].start()
        until(lambda count=number + 1: len(shared._waiters) == count)  # type: ignore[misc]
    shared.release(first, is_healthy=True)
    for thread in threads:
        thread.join(30)
    assert order == [0, 1, 2, 3, 4]


def test_a_pool_replaces_what_broke_and_says_when_all_are_busy() -> None:
    shared = pool(1, 0.05)
    broken = shared.acquire()
    with pytest.raises(SandboxError, match="busy"):
        shared.acquire()
    shared.release(broken, is_healthy=False)
    fresh = shared.acquire()
    assert broken.closed and fresh is not broken and not fresh.closed
    shared.close()
    shared.release(fresh, is_healthy=True)
    assert fresh.closed
    with pytest.raises(SandboxError, match="closed"):
        shared.acquire()


def test_a_pool_lends_nothing_that_died_in_the_meantime() -> None:
    shared = pool(2)
    first, second = shared.acquire(), shared.acquire()
    for channel in (first, second):
        shared.release(channel, is_healthy=True)
        channel.living = False
    third, fourth = shared.acquire(), shared.acquire()
    assert first.closed and second.closed and {third, fourth}.isdisjoint({first, second})
    assert set(shared.list_supervisors()) == {third, fourth}


def test_a_pool_that_cannot_start_one_keeps_its_room() -> None:
    def fail() -> Any:
        raise SandboxError("no engine")

    shared: Any = SupervisorPool(fail, 1, 1)
    for _ in range(3):
        with pytest.raises(SandboxError, match="no engine"):
            shared.acquire()
