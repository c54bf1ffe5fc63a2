"""Small worlds for tests: environments and verifiers that need nothing else of the project's plugins."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

from rlvr.contracts import Environment, Verifier
from rlvr.task import Fault, Task, Verdict, user

DIGITS = "0123456789+="
TOKENS = f"chars:{DIGITS}"
"""A tokenizer with 16 ids: <eos>, <user>, <policy>, <unk> and twelve characters."""


class Match(Verifier):
    """1.0 for the reference itself, part of it for each character in its place."""

    def verify(self, task: Task, answer: str) -> Verdict:
        want = str(task.reference)
        hits = sum(a == b for a, b in zip(answer, want, strict=False))
        score = hits / max(len(answer), len(want), 1)
        return Verdict(score, f"{hits} of {len(want)} characters in place", parts={"place": score})


class Sums(Environment):
    """One turn: add two numbers."""

    max_prompt_tokens = 16
    max_new_tokens = 4

    def __init__(self, *, below: int = 50, verifier: Verifier | None = None) -> None:
        self.below = below
        self.verifier = Match() if verifier is None else verifier
        self.closed = 0

    def task(self, split: str, index: int) -> Task:
        a, b = index % self.below, index // self.below % self.below
        return Task(f"sums/{split}/{index}", user(f"{a}+{b}="), reference=str(a + b), meta={"carries": a % 10 + b % 10 > 9})

    def size(self, split: str) -> int | None:
        return self.below**2 if split == "test" else None

    def gold(self, task: Task) -> str | None:
        return str(task.reference)

    def close(self) -> None:
        self.closed += 1


class Talk(Environment):
    """Up to three turns: the environment answers the sum of the digits so far until a turn holds a 7 or says nothing."""

    max_turns = 3
    max_prompt_tokens = 12
    max_new_tokens = 9

    def __init__(self, *, chatter: int = 1, verifier: Verifier | None = None) -> None:
        self.chatter = chatter
        self.verifier = Match() if verifier is None else verifier

    def task(self, split: str, index: int) -> Task:
        return Task(f"talk/{split}/{index}", user(f"{index % 97}="), reference=str(index % 97))

    def reply(self, task: Task, said: Sequence[str]) -> str | None:
        if not said[-1] or "7" in said[-1]:
            return None
        return str(sum(int(c) for turn in said for c in turn if c.isdigit())) * self.chatter

    def answer(self, task: Task, said: Sequence[str]) -> str:
        return "".join(said)


class Raises(Verifier):
    """A verifier that is broken."""

    def verify(self, task: Task, answer: str) -> Verdict:
        raise RuntimeError("the judge fell over")


class Nonsense(Verifier):
    """A verifier that hands back what is no verdict."""

    def __init__(self, *, value: Any = 2.0) -> None:
        self.value = value

    def verify(self, task: Task, answer: str) -> Verdict:
        value: Any = self.value
        return value if not isinstance(value, float) else Verdict(value, "impossible")


class Unable(Verifier):
    """A verifier whose machinery is down: no score."""

    def verify(self, task: Task, answer: str) -> Verdict:
        return Verdict(None, "the engine does not answer", fault=Fault.INFRA)


class Together(Verifier):
    """Counts how many verifications go on at the same time; each waits for `party` others, so that only concurrency passes."""

    def __init__(self, party: int = 1, *, patience_s: float = 20.0, hold_s: float = 0.0) -> None:
        self.hold_s = hold_s
        self.most = self.now = self.calls = 0
        self._lock = threading.Lock()
        self._gate = threading.Barrier(party, timeout=patience_s)

    def verify(self, task: Task, answer: str) -> Verdict:
        with self._lock:
            self.now += 1
            self.calls += 1
            self.most = max(self.most, self.now)
        try:
            self._gate.wait()
            time.sleep(self.hold_s)
        finally:
            with self._lock:
                self.now -= 1
        return Verdict(1.0, "all were here")

    def release(self) -> None:
        """Let everybody who still waits go, with an error."""
        self._gate.abort()


class First(Environment):
    """Say the first of three digits. Even numbers are for training, odd ones are held out; right is 1, all else 0."""

    max_prompt_tokens = 8
    max_new_tokens = 3

    def __init__(self, *, verifier: Verifier | None = None) -> None:
        self.verifier = Same() if verifier is None else verifier

    def task(self, split: str, index: int) -> Task:
        number = f"{2 * (index * 37 % 500) + (split == 'test'):03}"
        return Task(f"first/{split}/{index}", user(f"{number}="), reference=number[0])

    def size(self, split: str) -> int | None:
        return 500

    def gold(self, task: Task) -> str | None:
        return str(task.reference)


class Same(Verifier):
    """1.0 for the reference itself, 0.0 for everything else."""

    def verify(self, task: Task, answer: str) -> Verdict:
        return Verdict(float(answer == task.reference), f"{answer!r} for {task.reference!r}")


class Judged(First):
    """`First`, judged by whatever verifier the configuration names."""

    needs = {"verifier": "exact"}

    def __init__(self, *, verifier: Verifier) -> None:
        super().__init__(verifier=verifier)


class LongTest(Sums):
    """`Sums`, with a held-out question that is far too long."""

    def task(self, split: str, index: int) -> Task:
        task = super().task(split, index)
        return Task(task.id, user("1+" * 40 + "1="), reference="41", meta=task.meta) if (split, index) == ("test", 3) else task
