"""A caller that is interrupted (Ctrl+C) leaves nothing that meets the next call: no old reply, no running program, no lost place."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from rlvr.contracts import ExitStatus, Limits, Program, SandboxSpec
from rlvr.errors import SandboxError
from rlvr.registry.plugins import build
from rlvr.sandbox._outside.container import Container
from rlvr.sandbox._outside.engine import connect

KINDS = [
    pytest.param("docker", {"containers": 1}, marks=pytest.mark.docker, id="docker"),
    pytest.param("bubblewrap", {"processes": 1}, marks=pytest.mark.bubblewrap, id="bubblewrap"),
    pytest.param("process", {"processes": 1, "trusted": True}, id="process"),
]


@contextmanager
def interrupted(after_s: float) -> Iterator[None]:
    """Interrupt this thread after some time; fail if nothing noticed."""
    timer = threading.Timer(after_s, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        yield
        time.sleep(5)
    timer.join()


@pytest.mark.parametrize(("kind", "settings"), KINDS)
@pytest.mark.parametrize(
    "call",
    [
        pytest.param(lambda box: box.run("sleep 3; echo old"), id="run"),
        pytest.param(lambda box: [box.read_file("big") for _ in range(10_000)], id="read"),
    ],
)
def test_no_call_gets_the_reply_of_an_interrupted_one(kind: str, settings: dict[str, Any], call: Callable[[Any], Any]) -> None:
    with build("sandbox", kind, max_sessions=1, **settings) as sandbox, sandbox.create_session() as box:
        box.write_file("big", b"x" * 8_000_000)
        with interrupted(0.5):
            call(box)
        after = box.run("echo new")
        if after.ok:
            assert after.stdout == "new\n"  # the interruption came between two calls
            return
        assert (after.status, box.has_failed) == (ExitStatus.INTERNAL_ERROR, True)
        assert after.reason.endswith(" failed: a call was interrupted")  # by the caller: no program is to blame
        with pytest.raises(SandboxError, match="a call was interrupted"):
            box.read_file("big")
        box.close()
        with sandbox.create_session() as fresh:  # the place of the session is free again
            assert fresh.run("echo new").stdout == "new\n"


@pytest.mark.parametrize(("kind", "settings"), KINDS)
def test_an_interrupted_opening_leaves_its_place_free(kind: str, settings: dict[str, Any]) -> None:
    with build("sandbox", kind, max_sessions=1, queue_timeout_s=30, **settings) as sandbox:
        with sandbox.create_session():
            pass  # a supervisor waits: the interruption meets the opening itself
        large = SandboxSpec(files={f"{number}": b"x" * 1_000_000 for number in range(40)})
        with interrupted(0.02):
            while True:
                sandbox.create_session(large).close()
        with sandbox.create_session() as fresh:
            assert fresh.run("echo new").stdout == "new\n"


@pytest.mark.parametrize(("kind", "settings"), KINDS)
def test_an_interrupted_program_is_ended_and_its_place_is_free(kind: str, settings: dict[str, Any]) -> None:
    with build("sandbox", kind, queue_timeout_s=30, **settings) as sandbox:
        with interrupted(0.5):
            sandbox.run(Program("import time; time.sleep(60)", limits=Limits(wall_s=60)))
        began = time.monotonic()
        assert sandbox.run(Program("print('new')")).text == "new\n"
        assert time.monotonic() - began < 30  # a new container may take seconds on a busy machine


@pytest.mark.parametrize(("kind", "settings"), KINDS)
def test_an_interrupted_wait_for_a_place_takes_none(kind: str, settings: dict[str, Any]) -> None:
    with build("sandbox", kind, queue_timeout_s=30, **settings) as sandbox:
        other = threading.Thread(target=sandbox.run, args=(Program("import time; time.sleep(1.5)"),))
        other.start()
        time.sleep(0.5)
        with interrupted(0.3):
            sandbox.run(Program("print('waited in vain')"))
        other.join()
        assert sandbox.run(Program("print('new')")).text == "new\n"


@pytest.mark.docker
def test_an_interrupted_start_leaves_no_container(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Container] = []

    def interrupt(container: Container, settings: object) -> None:
        started.append(container)
        raise KeyboardInterrupt

    monkeypatch.setattr(Container, "bootstrap_supervisor", interrupt)
    with build("sandbox", "docker", containers=1) as sandbox:
        with pytest.raises(KeyboardInterrupt):
            sandbox.run(Program("print(1)"))
        (container,) = started
        assert container._socket is None
        monkeypatch.undo()
        assert sandbox.run(Program("print(1)")).text == "1\n"
        deadline = time.monotonic() + 20
        client = connect()
        try:
            while any(listed["Id"] == container.id for listed in client.api.containers(all=True)):
                assert time.monotonic() < deadline, "the container is still there"
                time.sleep(0.1)
        finally:
            client.close()
