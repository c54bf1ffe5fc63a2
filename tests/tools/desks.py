"""A world with tools for tests: a till that is counted by calls, with a box if it is told to have one."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from rlvr.contracts import Environment, Sandbox, Session, ToolSession, Transcript, Verifier
from rlvr.contracts.sandbox import ExecutionResult, Program, SandboxSpec
from rlvr.contracts.tool import FinalAnswer, Tool, tool
from rlvr.errors import ToolError
from rlvr.task import Message, Task, Verdict, make_user_prompt
from rlvr.turns import Call
from tests.tools.fakes import FakeBox


class Till(Tool):
    """A till of this conversation."""

    def setup(self) -> None:
        self.total = self.context.data["start"]
        self.context.data["tills"].append(self)

    @tool
    def add(self, amount: int) -> str:
        """Add an amount, and get the total."""
        if amount > 90:
            raise ToolError("that is too much at once")
        if amount == 13:
            raise RuntimeError("the till is on fire")
        self.total += amount
        return str(self.total)

    @tool
    def close_till(self) -> str:
        """Close the till; what is in it is the answer."""
        return FinalAnswer(str(self.total))


class TillSession(ToolSession):
    """One till; what it holds at the end is judged."""

    def __init__(self, desks: Desks, task: Task, seed: int) -> None:
        super().__init__(task, desks.tools, sandbox=desks.sandbox, seed=seed)
        self.desks, self.tills = desks, list[Till]()

    def initial_files(self) -> Mapping[str, bytes]:
        return {"start.txt": str(self.task.meta["start"]).encode()}

    def get_data_for_tools(self) -> Mapping[str, Any]:
        return {"start": self.task.meta["start"], "tills": self.tills}

    def initial_messages(self) -> Sequence[Message]:
        return ({"role": "user", "content": f"it has {self.task.meta['start']}"},)

    def artifacts(self) -> Mapping[str, Any]:
        return {"total": self.tills[0].total} if self.tills else {}

    def close(self) -> None:
        super().close()
        with self.desks.lock:
            self.desks.closed.append(self)


class Total(Verifier):
    """1.0 where the till holds the reference, and half for saying so without doing it."""

    def verify(self, task: Task, answer: str) -> Verdict:
        return Verdict(0.5 * (answer == task.reference), f"{answer!r} was said")

    def verify_transcript(self, task: Task, transcript: Transcript) -> Verdict:
        if transcript.artifacts.get("total") == int(task.reference):
            return Verdict(1.0, f"the till has {task.reference}")
        return self.verify(task, transcript.answer)


class Desks(Environment):
    """Bring the till to a sum, with calls of `add`."""

    needs = {"tools": ()}
    max_turns = 6
    max_prompt_tokens = 2000
    max_new_tokens = 400

    def __init__(self, *, tools: Sequence[Tool] = (), sandbox: Sandbox | None = None, native: bool = True) -> None:
        self.verifier: Verifier = Total()
        self.tools, self.sandbox = (*((Till(),) if native else ()), *tools), sandbox
        self.lock = threading.Lock()
        self.opened, self.closed = list[Session](), list[Session]()

    def task(self, split: str, index: int) -> Task:
        start = index % 50
        return Task(make_user_prompt(f"make it {start + 7}"), id=f"desks/{split}/{index}", reference=str(start + 7), meta={"start": start})

    def gold(self, task: Task) -> str | None:
        return str(task.reference)

    def oracle_turns(self, task: Task) -> Sequence[str | Call] | None:
        return [Call("", "add", {"amount": 7}), "done"] if self.tools else None

    def new_session(self, task: Task, *, seed: int) -> Session:
        session = TillSession(self, task, seed)
        with self.lock:
            self.opened.append(session)
        return session

    @property
    def settled(self) -> bool:
        """Whether every session that was opened was closed exactly once."""
        with self.lock:
            return sorted(map(id, self.opened)) == sorted(map(id, self.closed))


class CountedBox(FakeBox):
    """A box in memory that counts how often it was closed."""

    closed = 0

    def close(self) -> None:
        self.closed += 1


class FakeBoxes(Sandbox):
    """Opens boxes in memory."""

    def __init__(self) -> None:
        self.boxes = list[CountedBox]()

    def run_program(self, program: Program) -> ExecutionResult:
        raise AssertionError("nothing is run outside a box")

    def create_session(self, spec: SandboxSpec | None = None) -> CountedBox:
        self.boxes.append(CountedBox())
        for path, data in (spec or SandboxSpec()).files.items():
            self.boxes[-1].write_file(path, data)
        return self.boxes[-1]
