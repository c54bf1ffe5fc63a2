"""While the Docker Engine is away, programs and sessions wait for it; if it stays away, the run stops."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from rlvr.contracts import ExecutionResult, ExitStatus, Program, Verifier
from rlvr.errors import SandboxError, SandboxOutage
from rlvr.rollout.rollout import Rollout
from rlvr.sandbox import docker
from rlvr.sandbox._inside.frames import ConnectionBroken
from rlvr.sandbox._outside import engine
from rlvr.sandbox._outside.engine import OutageGuard
from rlvr.sandbox._outside.supervisor_connection import SupervisorConnection
from rlvr.task import Task, Verdict
from tests.fixtures.worlds import Sums


class Engine:
    """An engine that can go away, with its containers."""

    def __init__(self) -> None:
        self.is_away, self.starts, self.generation = False, 0, 0

    def connect(self, timeout_s: float = 60.0) -> Any:
        if self.is_away:
            raise SandboxError("no Docker Engine replies here") from ConnectionRefusedError("refused")

        class Client:
            def close(self) -> None: ...

        return Client()

    def leave(self, seconds: float) -> None:
        self.is_away, self.generation = True, self.generation + 1
        threading.Timer(seconds, lambda: setattr(self, "is_away", False)).start()


class FakeContainer(SupervisorConnection):
    """A container of that engine."""

    handshake: Mapping[str, Any] = {"isolation": (), "languages": ("python",)}

    def __init__(self, home: Engine) -> None:
        super().__init__()
        home.connect()
        home.starts += 1
        self.home, self.generation, self.id = home, home.generation, "c"

    def run_program(self, program: Program) -> tuple[ExecutionResult, bool]:
        time.sleep(0.02)
        if self.generation != self.home.generation:
            raise ConnectionBroken("the stream ended")
        return ExecutionResult(ExitStatus.OK), True

    def send(self, data: bytes, deadline: float) -> None: ...

    def receive(self, buffer: memoryview, deadline: float) -> int:
        return 0

    def is_alive(self) -> bool:
        return self.generation == self.home.generation

    def explain_program_caused_exit(self) -> str:
        return ""

    def shut_down(self) -> None: ...

    def close(self) -> None: ...


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Engine:
    made = Engine()
    monkeypatch.setattr(engine, "connect", made.connect)
    monkeypatch.setattr(engine, "ensure_image", lambda client, image: None)
    monkeypatch.setattr(engine, "remove_orphaned_containers", lambda client: 0)
    monkeypatch.setattr(docker, "Container", lambda image, settings, loopback: FakeContainer(made))
    monkeypatch.setattr(engine, "OUTAGE_POLL_INTERVAL_S", 0.05, raising=False)
    return made


class Runs(Verifier):
    """Runs a program for each answer."""

    def __init__(self, sandbox: docker.DockerSandbox) -> None:
        self.sandbox = sandbox

    def verify(self, task: Task, answer: str) -> Verdict:
        outcome = self.sandbox.run(Program("1"))
        return Verdict(None if outcome.status is ExitStatus.INTERNAL_ERROR else 1.0, outcome.reason)


def collect(sandbox: docker.DockerSandbox, count: int) -> list[float | None]:
    environment = Sums()
    environment.verifier = Runs(sandbox)
    with Rollout(environment, "bytes", {"name": "scripted", "answer": "gold"}, max_concurrent_calls=4) as rollout:
        groups = rollout.sample([environment.task("train", i) for i in range(count)])
    return [episode.verdict.score if episode.verdict is not None else None for [episode] in groups]


def test_no_answer_loses_its_score_while_the_engine_is_away_for_a_while(home: Engine, caplog: pytest.LogCaptureFixture) -> None:
    with docker.DockerSandbox(containers=2) as sandbox, caplog.at_level(logging.WARNING):
        assert collect(sandbox, 3) == [1.0] * 3
        threading.Timer(0.1, lambda: home.leave(1.0)).start()
        assert collect(sandbox, 60) == [1.0] * 60
    said = [record.message for record in caplog.records if "Docker Engine" in record.message]
    assert len(said) == 2 and "waiting up to 60 s for it" in said[0] and "replies again" in said[1]


def test_a_run_stops_where_the_engine_stays_away(home: Engine) -> None:
    with docker.DockerSandbox(containers=2) as sandbox:
        sandbox._outage = OutageGuard(0.4)
        assert collect(sandbox, 3) == [1.0] * 3
        home.leave(60)
        began = time.monotonic()
        with pytest.raises(SandboxOutage, match=r"for 0.4 s. The run stops, .* continue: rlvr train with --resume"):
            collect(sandbox, 60)
        assert time.monotonic() - began < 10


def test_a_machine_without_an_engine_is_told_at_once(home: Engine) -> None:
    home.is_away = True
    began = time.monotonic()
    with docker.DockerSandbox() as sandbox, pytest.raises(SandboxError, match="no Docker Engine replies"):
        sandbox.prepare()
    assert time.monotonic() - began < 5


def test_without_an_engine_the_message_says_what_else_there_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nothing.sock")
    with pytest.raises(
        SandboxError, match=r"nothing.sock.*start Docker.*code that you trust.*sandbox=\{'name': 'process', 'trusted': True\}"
    ):
        engine.connect(1)
    ((what, how),) = docker.DockerSandbox.find_problems()
    assert "nothing.sock" in what and "process" not in what and "start Docker" in how


def test_a_program_that_breaks_its_container_is_still_to_blame(home: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    def break_container(self: FakeContainer, program: Program) -> tuple[ExecutionResult, bool]:
        raise ConnectionBroken("the stream ended")

    monkeypatch.setattr(FakeContainer, "run_program", break_container)
    monkeypatch.setattr(FakeContainer, "explain_program_caused_exit", lambda self: "its memory ran out")
    with docker.DockerSandbox() as sandbox:
        outcome = sandbox.run(Program("1"))
    assert outcome.status is ExitStatus.SANDBOX_VIOLATION and "twice: its memory ran out" in outcome.reason and home.starts == 2
