"""The life of the docker sandbox: what it leaves behind (nothing), what it does when its ground is taken away (say so, and heal)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rlvr.contracts import Limits, Program, Sandbox, Stop
from rlvr.errors import SandboxError
from rlvr.registry import build
from rlvr.sandbox import _engine
from rlvr.sandbox._container import hardening
from rlvr.sandbox._pool import Pool
from rlvr.sandbox.docker import DockerSandbox

LONG = Program("import time\ntime.sleep(600)", limits=Limits(wall_s=600))
HERE = Path(__file__).resolve().parents[1]


def until(true: Callable[[], bool], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it did not come true in time"
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
        assert sandbox.run(Program("print(1)")).stdout == b"1\n"
        (name,) = sandbox.containers()
        assert there(engine, name)
    until(lambda: not there(engine, name))
    assert sandbox.run(Program("print(1)")).stop is Stop.IE


@pytest.mark.docker
def test_a_killed_run_leaves_no_container(engine: Any) -> None:
    script = (
        "from rlvr.registry import build\nfrom rlvr.contracts import *\ns = build('sandbox', 'docker', containers=1)\n"
        "s.run(Program('1'))\nprint(s.containers()[0], flush=True)\n"
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
    (mine,) = one.containers()
    dead = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True, check=True
    ).stdout.strip()
    label = "|".join((*_engine._place(), dead, "1"))
    elsewhere = "|".join(("another-machine", "boot", "space", dead, "1"))
    made = []
    for owner in (label, elsewhere):
        config = engine.api.create_host_config(network_mode="none")
        made.append(engine.api.create_container(_engine.IMAGE, ["true"], labels={_engine.LABEL: owner}, host_config=config)["Id"])
    try:
        assert _engine.sweep(engine) >= 1
        assert not there(engine, made[0]) and there(engine, made[1]) and there(engine, mine)
    finally:
        _engine.remove(engine.containers.get(made[1]))


@pytest.mark.docker
@pytest.mark.parametrize("how", ["the container", "its supervisor"])
def test_a_container_killed_from_outside_is_nobodys_fault_and_is_replaced(engine: Any, one: Any, how: str) -> None:
    one.run(Program("print(1)"))
    (name,) = one.containers()
    outcomes = []
    thread = threading.Thread(target=lambda: outcomes.append(one.run(LONG)))
    thread.start()
    container = engine.containers.get(name)
    until(lambda: len(container.top()["Processes"]) >= 3)
    if how == "the container":
        container.kill()
    else:
        pids = [int(row[1]) for row in container.top()["Processes"]]
        os.kill(min(pids), signal.SIGKILL)
    thread.join(120)
    assert [outcome.stop for outcome in outcomes] == [Stop.IE], outcomes
    assert one.run(Program("print(2)")).stdout == b"2\n"
    assert one.containers() != [name]


@pytest.mark.docker
def test_an_engine_that_is_not_there_is_said_and_healed_from(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with build("sandbox", "docker", containers=1) as sandbox, monkeypatch.context() as patch:
        patch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nothing.sock")
        outcome = sandbox.run(Program("print(1)"))
        assert outcome.stop is Stop.IE and "nothing.sock" in outcome.reason and "DOCKER_HOST" in outcome.reason
        ((what, how),) = DockerSandbox.missing()
        assert "nothing.sock" in what and "start" in how
        patch.undo()
        assert sandbox.run(Program("print(1)")).stop is Stop.OK
    assert DockerSandbox.missing() == []


@pytest.mark.docker
def test_an_image_that_is_not_there_is_said() -> None:
    with build("sandbox", "docker", image="rlvr-test/no-such-image:1", containers=1) as sandbox:
        outcome = sandbox.run(Program("print(1)"))
    assert outcome.stop is Stop.IE and "no-such-image" in outcome.reason and "docker pull" in outcome.reason


@pytest.mark.docker
def test_the_container_is_as_hard_as_we_say(engine: Any, one: Any) -> None:
    one.run(Program("print(1)"))
    config = engine.containers.get(one.containers()[0]).attrs
    host = config["HostConfig"]
    assert host["NetworkMode"] == "none" and host["ReadonlyRootfs"] and not host["Privileged"] and not host["Binds"]
    assert host["CapDrop"] == ["ALL"] and sorted(host["CapAdd"]) == ["KILL", "SETGID", "SETUID"]
    assert host["Memory"] == host["MemorySwap"] > 0 and host["PidsLimit"] > 0
    assert "no-new-privileges" in host["SecurityOpt"] and not any("unconfined" in option for option in host["SecurityOpt"])
    assert host["LogConfig"]["Type"] == "none" and host["AutoRemove"]


@pytest.mark.docker
def test_isolation_is_reported_as_applied(docker_sandbox: Sandbox) -> None:
    applied = docker_sandbox.run(Program("")).isolation
    for name in ("no network", "read-only root", "a user id of its own", "system-call filter", "no new privileges", "memory limited"):
        assert name in applied


def test_no_setting_opens_the_container() -> None:
    wanted = hardening(256, 16, 64, None)
    assert wanted["network_mode"] == "none" and wanted["mem_limit"] == wanted["memswap_limit"]
    assert not {"privileged", "volumes", "binds", "devices"} & set(wanted)


class Fake:
    runs = 0

    def __init__(self) -> None:
        self.closed = False

    def close(self) -> None:
        self.closed = True


def pool(size: int, seconds: float = 60) -> Any:
    return Pool(Fake, size, seconds)


def test_a_pool_serves_first_come_first_served() -> None:
    shared = pool(1)
    first = shared.take()
    order: list[int] = []

    def wait(number: int) -> None:
        channel = shared.take()
        order.append(number)
        shared.give(channel, sound=True)

    threads = []
    for number in range(5):
        threads.append(threading.Thread(target=wait, args=(number,)))
        threads[-1].start()
        until(lambda count=number + 1: len(shared._line) == count)  # type: ignore[misc]
    shared.give(first, sound=True)
    for thread in threads:
        thread.join(30)
    assert order == [0, 1, 2, 3, 4]


def test_a_pool_replaces_what_broke_and_says_when_all_are_busy() -> None:
    shared = pool(1, 0.05)
    broken = shared.take()
    with pytest.raises(SandboxError, match="busy"):
        shared.take()
    shared.give(broken, sound=False)
    fresh = shared.take()
    assert broken.closed and fresh is not broken and not fresh.closed
    shared.close()
    shared.give(fresh, sound=True)
    assert fresh.closed
    with pytest.raises(SandboxError, match="closed"):
        shared.take()


def test_a_pool_that_cannot_start_one_keeps_its_room() -> None:
    def fail() -> Fake:
        raise SandboxError("no engine")

    shared: Any = Pool(fail, 1, 1)
    for _ in range(3):
        with pytest.raises(SandboxError, match="no engine"):
            shared.take()
