"""The sandbox that takes what works on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import rlvr
from rlvr.contracts import ExecutionResult, ExitStatus, Program, SandboxSpec
from rlvr.errors import ConfigError, SandboxError
from rlvr.registry.plugins import build
from rlvr.sandbox import auto
from rlvr.sandbox._outside import engine
from rlvr.sandbox.bubblewrap import BubblewrapSandbox
from rlvr.sandbox.docker import DockerSandbox


class Client:
    def close(self) -> None:
        pass


@pytest.fixture
def no_engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")


def test_an_engine_that_replies_is_used_and_the_choice_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = ExecutionResult(ExitStatus.OK, stdout_bytes=b"there")
    monkeypatch.setattr(engine, "connect", lambda timeout_s: Client())
    monkeypatch.setattr(DockerSandbox, "run_program", lambda self, program: ran)
    with build("sandbox", "auto", processes=2, memory_mb=300) as sandbox:
        assert sandbox.run_program(Program("print(1)")) is ran and isinstance(sandbox.choose(), DockerSandbox)
        assert sandbox.choose().memory_mb == 300 and sandbox.session_limiter is sandbox.choose().session_limiter

        def gone(timeout_s: float) -> Any:
            raise SandboxError("no Docker Engine replies")

        monkeypatch.setattr(engine, "connect", gone)
        assert isinstance(sandbox.choose(), DockerSandbox)


def test_nothing_is_asked_before_the_first_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "connect", lambda timeout_s: pytest.fail("an engine was asked"))
    build("verifier", "unit_tests").close()
    rlvr.make_sandbox().close()


def test_without_either_one_sentence_says_what_to_install(no_engine: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BubblewrapSandbox, "find_problems", staticmethod(lambda: [("bwrap was not found", "install bubblewrap")]))
    with build("sandbox", "auto") as sandbox:
        outcome = sandbox.run("print(1)")
        assert outcome.status is ExitStatus.INTERNAL_ERROR and sandbox.session_limiter is None
        assert (
            "no Docker Engine replies" in outcome.reason
            and "and bwrap was not found; start Docker, or install bubblewrap" in outcome.reason
        )
        with pytest.raises(SandboxError, match="nothing on this machine isolates programs"):
            sandbox.create_session(SandboxSpec())
    [(what, how)] = auto.AutoSandbox.find_problems()
    assert what.startswith("nothing on this machine") and how == "start Docker, or install bubblewrap"


def test_a_setting_of_containers_names_the_sandbox_that_has_it() -> None:
    with pytest.raises(ConfigError, match=r"it is a setting of docker: sandbox=\{'name': 'docker', 'containers': \.\.\.\}"):
        build("sandbox", "auto", containers=2)


@pytest.mark.bubblewrap
def test_without_an_engine_answers_are_judged_in_bubblewrap(no_engine: None) -> None:
    paid = rlvr.verify("unit_tests", "```python\ndef f(): return 1\n```", reference=["assert f() == 1"])
    unpaid = rlvr.verify("unit_tests", "```python\ndef f(): return 2\n```", reference=["assert f() == 1"])
    assert (paid.score, unpaid.score) == (1.0, 0.0)
    with rlvr.make_sandbox() as sandbox, sandbox.create_session() as session:
        assert session.run("echo here").stdout == "here\n" and isinstance(sandbox.choose(), BubblewrapSandbox)
        assert "no network" in sandbox.run("print(1)").isolation
