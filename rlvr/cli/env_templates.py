"""The templates of environments that take part in a conversation, for `rlvr new env NAME --kind conversation|tools|box`."""

from __future__ import annotations

CONVERSATION = '''\
"""$title: guess a number from hints. A template: change the game, keep the structure."""

from __future__ import annotations

import random
import re

from rlvr import Environment, Session, StepResult, Task, Turn, Verifier

NUMBER = re.compile(r"-?[0-9]{1,9}")


class $cls(Environment):
    """Guess a number; after each wrong guess the environment says `higher` or `lower`.

    >>> import rlvr
    >>> rlvr.make_env("$name").task("train", 0).question  # doctest: +SKIP
    'Guess my number from 34 to 53.'
    """

    contract_version = $contract  # of rlvr.contracts, for which this is written
    needs = {"verifier": "numeric"}  # built by name; `rlvr list verifiers` shows all
    max_turns = 6
    max_prompt_tokens = 160
    max_new_tokens = 48

    def __init__(self, *, verifier: Verifier, width: int = 20, seed: int = 0) -> None:
        """Keyword arguments are the settings.

        Args:
            verifier: verifies the last turn.
            width: how many numbers it may be.
            seed: another seed gives other tasks.
        """
        if width < 2:
            raise ValueError(f"width is {width}; it must be at least 2")
        self.verifier, self.width, self.seed = verifier, width, seed

    def task(self, split: str, index: int) -> Task:
        """Generate the task at `index`: always the same task for the same settings, split and index, in every process."""
        rng = random.Random(f"$name/{self.seed}/{split}/{index}")
        low = 2 * rng.randrange(1, 500) + (split == "test")  # so no held-out question is ever trained on
        number = rng.randrange(low, low + self.width)
        question = f"Guess my number from {low} to {low + self.width - 1}."
        return Task(question, reference=str(number), id=f"$name/{split}/{self.seed}.{index}", meta={"low": low})

    def gold(self, task: Task) -> str:
        """Return a first turn with full score."""
        return str(task.reference)

    def oracle_turns(self, task: Task) -> list[str]:
        """Return the turns of a conversation with full score."""
        return [str(task.reference)]

    def list_legal_turns(self, task: Task, completions: object) -> list[str]:
        """Return what a random player may say."""
        return [str(task.meta["low"] + place) for place in range(self.width)]

    def new_session(self, task: Task, *, seed: int) -> Session:
        """Return a session for one conversation; its attributes are the state."""
        return ${cls}Session(int(str(task.reference)))


class ${cls}Session(Session):
    """One game. Nothing here may be shared with another conversation."""

    def __init__(self, number: int) -> None:
        self.number = number

    def step(self, turn: Turn) -> StepResult:
        """Reply to a turn of the policy, whatever is in it."""
        guess = NUMBER.fullmatch(turn.content.strip())
        if guess is None:
            return StepResult(({"role": "user", "content": "say one number"},))
        if int(guess[0]) == self.number:
            return StepResult(done=True)
        return StepResult(({"role": "user", "content": "higher" if int(guess[0]) < self.number else "lower"},))
'''

TOOLS = '''\
"""$title: a shop whose tools change something, which is verified. A template: change the world, keep the structure."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from rlvr import Environment, Fault, Session, Task, Tool, ToolError, Transcript, Verdict, Verifier, tool
from rlvr.contracts import ToolSession
from rlvr.turns import Call

GOODS = ("apples", "bread", "milk", "tea")


class ${cls}Tools(Tool):
    """The tools of the world; each conversation has its own copy."""

    def setup(self) -> None:
        """Take the state of this conversation."""
        self.stock: dict[str, int] = self.context.data["stock"]

    @tool
    def look(self) -> str:
        """List the goods and how many there are."""
        return ", ".join(f"{count} {name}" for name, count in self.stock.items())

    @tool
    def buy(self, goods: str, number: int) -> str:
        """Buy some goods.

        Args:
            goods: what to buy.
            number: how many.
        """
        if goods not in self.stock:
            raise ToolError(f"there are no {goods!r:.40} here; there are {', '.join(self.stock)}")  # sent to the policy, which continues
        if not 1 <= number <= self.stock[goods]:
            raise ToolError(f"number is {number}; from 1 to {self.stock[goods]} {goods} can be bought")
        self.stock[goods] -= number
        return f"{number} {goods} bought"


class ${cls}Session(ToolSession):
    """One conversation. Its state is what the tools work on."""

    def __init__(self, task: Task, tools: Sequence[Tool], *, seed: int) -> None:
        super().__init__(task, tools, seed=seed)
        self.stock = dict(task.meta["stock"])

    def get_data_for_tools(self) -> Mapping[str, Any]:
        """Return what the tools work on."""
        return {"stock": self.stock}

    def artifacts(self) -> Mapping[str, Any]:
        """Return what the verifier sees at the end: JSON values."""
        return {"stock": self.stock}


class ${cls}Verifier(Verifier):
    """1.0 if at the end there is exactly what should be there."""

    def verify(self, task: Task, answer: str) -> Verdict:
        """Score a text alone: without a conversation nothing was bought."""
        return Verdict(0.0, "nothing was bought")

    def verify_transcript(self, task: Task, transcript: Transcript) -> Verdict:
        """Score the state at the end. It must give a score whatever the policy has done."""
        if not isinstance(task.reference, dict):
            return Verdict(None, f"the reference {task.reference!r:.80} is not a stock", fault=Fault.TASK)
        found = transcript.artifacts.get("stock")
        return Verdict(float(found == task.reference), f"at the end there is {found!r:.200}")


class $cls(Environment):
    """Buy what the task asks for, no more and no less.

    >>> import rlvr
    >>> rlvr.make_env("$name").task("train", 0).question  # doctest: +SKIP
    'Buy 3 milk.'
    """

    contract_version = $contract  # of rlvr.contracts, for which this is written
    max_turns = 5
    max_prompt_tokens = 400
    max_new_tokens = 160
    requires_tool_call = True

    def __init__(self, *, seed: int = 0) -> None:
        """Keyword arguments are the settings.

        Args:
            seed: another seed gives other tasks.
        """
        self.verifier, self.tools, self.seed = ${cls}Verifier(), (${cls}Tools(),), seed

    def task(self, split: str, index: int) -> Task:
        """Generate the task at `index`: always the same task for the same settings, split and index, in every process."""
        rng = random.Random(f"$name/{self.seed}/{split}/{index}")
        stock = {name: rng.randint(5, 99) for name in GOODS}
        goods = rng.choice(GOODS)
        number = rng.randint(1, stock[goods])
        after = {**stock, goods: stock[goods] - number}
        meta = {"stock": stock, "goods": goods, "number": number}
        return Task(f"Buy {number} {goods}.", reference=after, id=f"$name/{split}/{self.seed}.{index}", meta=meta)

    def oracle_turns(self, task: Task) -> list[str | Call]:
        """Return the turns of a conversation with full score: a turn is a text or a call."""
        return [Call("0", "buy", {"goods": task.meta["goods"], "number": task.meta["number"]}), "done"]

    def new_session(self, task: Task, *, seed: int) -> Session:
        """Return a session for one conversation."""
        return ${cls}Session(task, self.tools, seed=seed)
'''

BOX = '''\
"""$title: files in a container, which the policy changes with a shell. A template: change the files, keep the structure."""

from __future__ import annotations

import random
from collections.abc import Sequence

from rlvr import Environment, Sandbox, SandboxFilesSession, Session, Task, Tool, Verifier
from rlvr.turns import Call


class $cls(Environment):
    """Sort the lines of numbers.txt.

    >>> import rlvr
    >>> rlvr.make_env("$name").task("train", 0).question  # doctest: +SKIP
    'Sort the numbers in numbers.txt, smallest first.'
    """

    contract_version = $contract  # of rlvr.contracts, for which this is written
    # `--set 'sandbox={name: process, trusted: true}'` needs no container engine and protects from nothing
    needs = {"verifier": "final_state", "tools": ["bash"], "sandbox": "auto"}
    max_turns = 6
    max_prompt_tokens = 600
    max_new_tokens = 200
    requires_tool_call = True

    def __init__(self, *, verifier: Verifier, tools: Sequence[Tool], sandbox: Sandbox, seed: int = 0) -> None:
        """Keyword arguments are the settings.

        Args:
            verifier: compares the files at the end.
            tools: what the policy may call.
            sandbox: where its programs run.
            seed: another seed gives other tasks.
        """
        self.verifier, self.tools, self.sandbox, self.seed = verifier, tuple(tools), sandbox, seed

    def task(self, split: str, index: int) -> Task:
        """Generate the task at `index`: always the same task for the same settings, split and index, in every process."""
        rng = random.Random(f"$name/{self.seed}/{split}/{index}")
        numbers = [str(rng.randrange(1000)) for _ in range(8)]
        after = {"numbers.txt": "\\n".join(sorted(numbers, key=int))}
        question = "Sort the numbers in numbers.txt, smallest first."
        return Task(question, reference={"files": after}, id=f"$name/{split}/{self.seed}.{index}", meta={"numbers": numbers})

    def oracle_turns(self, task: Task) -> list[str | Call]:
        """Return the turns of a conversation with full score: a turn is a text or a call."""
        return [Call("0", "bash", {"command": "sort -n -o numbers.txt numbers.txt"}), "done"]

    def new_session(self, task: Task, *, seed: int) -> Session:
        """Return a session with a container of its own; the artifacts are read from outside of it at the end."""
        files = {"numbers.txt": "\\n".join(task.meta["numbers"]).encode()}
        return SandboxFilesSession(task, self.tools, sandbox=self.sandbox, seed=seed, files=files, artifact_paths=["numbers.txt"])
'''
