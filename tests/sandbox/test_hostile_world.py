"""A world in a sandbox, written without care, whose policy breaks the files that it reads at the end: each is the answer's own 0."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

from rlvr.conformance.hostile_player import FILE_ATTACKS, play_hostile_conversations
from rlvr.contracts import Environment, Sandbox, Session, ToolSession, Transcript, Verifier
from rlvr.mdp.token_mdp import TokenMDP
from rlvr.mdp.tokenizers import load_tokenizer
from rlvr.registry.plugins import build
from rlvr.task import Fault, Task, Verdict
from rlvr.turns import Call

TOK = load_tokenizer("bytes")


class Holds(Verifier):
    """1 for the right text in the file."""

    def verify(self, task: Task, answer: str) -> Verdict:
        return Verdict(0.0, "no file")

    def verify_transcript(self, task: Task, transcript: Transcript) -> Verdict:
        return Verdict(float(transcript.artifacts["main.py"].decode() == task.reference), "compared")


class Folder(ToolSession):
    def initial_files(self) -> Mapping[str, bytes]:
        return {"main.py": b"print(1)"}

    def artifacts(self) -> Mapping[str, Any]:
        assert self.sandbox_session is not None
        return {"main.py": self.sandbox_session.read_file("main.py", 10_000)}  # raises for a folder, a pipe, a link, ...


class Careless(Environment):
    """Write into main.py."""

    max_turns, max_prompt_tokens, max_new_tokens = 3, 800, 300

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox, self.tools, self.verifier = sandbox, [build("tool", "bash")], Holds()

    def task(self, split: str, index: int) -> Task:
        return Task("print 2", "print(2)", id="careless")

    def oracle_turns(self, task: Task) -> Sequence[str | Call]:
        return [Call("", "bash", {"command": f"printf '{task.reference}' > main.py"}), "done"]

    def new_session(self, task: Task, *, seed: int) -> Session:
        return Folder(task, self.tools, sandbox=self.sandbox, seed=seed)


@pytest.fixture(scope="module")
def careless() -> Iterator[Careless]:
    with build("sandbox", "process", trusted=True) as sandbox:
        yield Careless(sandbox)


@pytest.mark.parametrize("attack", FILE_ATTACKS)
def test_a_broken_file_is_an_own_0(attack: str, careless: Careless) -> None:
    mdp = TokenMDP(careless, TOK)
    specs = [spec for tool in careless.tools for spec in tool.specs()]
    state = mdp.start_conversation(careless.task("train", 0))
    for text in (mdp.tool_format.dialect.format_calls([Call("", "bash", {"command": attack.format("main.py")})], specs), "done"):
        mdp.step_turn(state, [*TOK.encode(text), TOK.eos_id])
    verdict = mdp.verify(state)
    assert verdict.score == 0.0, verdict
    assert verdict.fault in (Fault.ANSWER, Fault.NONE)


@pytest.mark.slow
def test_the_kit_says_what_breaks_it(careless: Careless) -> None:
    problems = [play.problem for play in play_hostile_conversations(careless, careless.task("train", 0)) if play.problem]
    assert any("mkdir main.py" in text and "artifacts" in text for text in problems), problems
    assert not any("gets no score" in text for text in problems), problems
