"""Environments, tokenizers and engines for the tests of the adapters."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

from rlvr.contracts import Environment, Session, StepResult, ToolSession, Verifier
from rlvr.contracts.tool import Tool, tool
from rlvr.mdp.token_mdp import TokenMDP
from rlvr.mdp.tokenizers import HFTokenizer
from rlvr.task import Task, Verdict, make_user_prompt
from rlvr.turns import Call
from tests.fixtures.templates import CHATML, tokenizer_for
from tests.fixtures.worlds import Same

END = "<|im_end|>"


class Counter(Tool):
    """Counts, separately for each conversation."""

    def setup(self) -> None:
        self.count = 0

    @tool
    def add(self, number: int, note: str = "") -> str:
        """Add to the count.

        Args:
            number: how much.
            note: anything.
        """
        if number > 900:
            raise RuntimeError("the counter fell over")
        self.count += number
        return f"The count is {self.count}. {note}"


class Watched(ToolSession):
    """A tool session that says which are open."""

    alive: set[int] = set()
    begun: list[int] = []

    def start_tools(self) -> Any:
        self.alive.add(id(self))
        self.begun.append(id(self))
        return super().start_tools()

    def close(self) -> None:
        self.alive.discard(id(self))
        super().close()


class Counts(Environment):
    """Count with a tool, then say the number."""

    max_turns = 3
    max_prompt_tokens = 64
    max_new_tokens = 400

    def __init__(self, *, verifier: Verifier | None = None) -> None:
        self.verifier = Same() if verifier is None else verifier
        self.tools = (Counter(),)

    def task(self, split: str, index: int) -> Task:
        return Task(make_user_prompt(f"Count to {index}."), id=f"counts/{split}/{index}", reference=str(index))

    def new_session(self, task: Task, *, seed: int) -> Session:
        return Watched(task, self.tools, seed=seed)

    def oracle_turns(self, task: Task) -> Sequence[str | Call]:
        return (Call("0.0", "add", {"number": int(task.reference)}), str(task.reference))


class Twice(Environment):
    """The answer is asked for twice."""

    max_turns = 2
    max_prompt_tokens = 64
    max_new_tokens = 60

    def __init__(self, *, verifier: Verifier | None = None) -> None:
        self.verifier = Same() if verifier is None else verifier

    def task(self, split: str, index: int) -> Task:
        return Task(make_user_prompt(f"What is {index}?"), id=f"twice/{split}/{index}", reference=str(index))

    def reply(self, task: Task, completions: Sequence[str]) -> str | None:
        return "Are you sure?" if len(completions) < 2 else None


class Hangs(Counts):
    """A session that does not come back for a second."""

    def new_session(self, task: Task, *, seed: int) -> Session:
        class Slow(Session):
            def step(self, turn: Any) -> StepResult:
                time.sleep(1.0)
                return StepResult(done=True)

        return Slow()


class SlowJudge(Verifier):
    """A verdict that comes too late."""

    def verify(self, task: Task, answer: str) -> Verdict:
        time.sleep(0.8)
        return Verdict(1.0, "at last")


@lru_cache(maxsize=1)
def tokenizer() -> Any:
    """A small real tokenizer with a chat template."""
    return tokenizer_for(CHATML, [END])


def wire(environment: Environment, turns: Sequence[str | Call]) -> list[list[int]]:
    """The tokens of the policy's turns, each with its end."""
    mdp = TokenMDP(environment, HFTokenizer(tokenizer()))
    specs = [spec for one in environment.tools for spec in one.specs()]
    texts = [turn if isinstance(turn, str) else mdp.tool_format.dialect.format_calls([turn], specs) for turn in turns]
    return [[*tokenizer().encode(text, add_special_tokens=False), tokenizer().eos_token_id] for text in texts]


class Engine:
    """What the frameworks' engines are asked for, answered from a script of turns; every question is kept."""

    def __init__(self, turns: Sequence[Sequence[int]], *, fails: bool = False) -> None:
        self.turns, self.fails, self.asked = [list(turn) for turn in turns], fails, list[list[int]]()

    def next(self, prompt: Sequence[int]) -> tuple[list[int], list[float]]:
        if self.fails:
            raise ConnectionError("the engine is gone")
        self.asked.append(list(prompt))
        turn = self.turns[(len(self.asked) - 1) % len(self.turns)]
        return turn, [-0.5 - 0.01 * place for place in range(len(turn))]


def config(prompt: int = 256, response: int = 512) -> Any:
    """verl's settings, as far as they are read."""
    return SimpleNamespace(actor_rollout_ref=SimpleNamespace(rollout=SimpleNamespace(prompt_length=prompt, response_length=response)))
