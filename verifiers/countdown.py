"""Judge an expression that has to reach a target with given numbers. The expression is parsed here, and never evaluated by Python."""

from __future__ import annotations

import re
from collections import Counter
from fractions import Fraction

from rlvr.answers import find
from rlvr.contracts import Example, Verifier
from rlvr.task import Fault, Task, Verdict

TOKEN = re.compile(r"\s*([0-9]{1,9}|[-+*/()×÷−])")
SIGNS = str.maketrans("×÷−", "*/-")
LONGEST = 400


class Countdown(Verifier):
    """The declared answer is an expression of + - * / and brackets that uses the numbers and equals the target.

    >>> import rlvr
    >>> verify = rlvr.make("verifier", "countdown").verify
    >>> task = rlvr.Task("t", rlvr.user("Make 14 from 2, 3, 4."), reference={"numbers": [2, 3, 4], "target": 14})
    >>> verify(task, "2+3*4").score, verify(task, "14").score, verify(task, "2*(3+4)").score
    (1.0, 0.0, 1.0)
    """

    examples = (
        Example(
            {"numbers": [2, 3, 4], "target": 14},
            right=("2+3*4", "(3 + 4) * 2", "3*4+2 = 14", "4×3+2", r"\boxed{2+3*4}"),
            wrong=("14", "2+3*4 or 2*3+4", "2+3*4*1", "2+12", "2+3*4=15", "(2+3*4", "2**3+4", "__import__('os')", "2*7", "+2+3*4"),
        ),
        Example({"numbers": [2, 3, 50], "target": 6}, right=(), wrong=("2*3",)),
        Example({"numbers": [1, 3, 4, 6], "target": 24}, right=("6/(1-3/4)",), wrong=("6*4", "6/(1-1)", "4*6*1")),
    )

    def __init__(self, *, use_all: bool = True, channel: str = "auto") -> None:
        """Choose the rules.

        Args:
            use_all: whether every number must be used; each may be used once in any case.
            channel: where the answer is declared: auto, boxed, tag, hash, final_line or whole.
        """
        find("", channel)  # an unknown channel is refused now, not at the first answer
        self.use_all, self.channel = use_all, channel

    def verify(self, task: Task, answer: str) -> Verdict:
        """Parse, count the numbers, compute."""
        read = _reference(task.reference)
        if read is None:
            return Verdict(None, f"the reference {task.reference!r:.80} is not {{numbers: [...], target: ...}}", fault=Fault.TASK)
        numbers, target = read
        found = find(answer, self.channel)
        if found.text is None:
            return Verdict(0.0, f"no answer: {found.reason}")
        left, equals, right = found.text.strip().strip("$").partition("=")
        if equals and right.strip() != str(target):
            return Verdict(0.0, f"{found.text!r:.80} does not claim {target}")
        try:
            value, used = compute(left)
        except ValueError as error:
            return Verdict(0.0, f"{left!r:.80} is no expression: {error}")
        surplus, missing = Counter(used) - Counter(numbers), Counter(numbers) - Counter(used)
        if surplus:
            return Verdict(0.0, f"{next(iter(surplus))} is used more often than it is given")
        if missing and self.use_all:
            return Verdict(0.0, f"{next(iter(missing))} is not used")
        return Verdict(float(value == target), f"{left.strip():.80} makes {value}, the target is {target}")


def compute(text: str) -> tuple[Fraction, list[int]]:
    """The value of an expression and the numbers in it; ValueError says what is wrong with it.

    >>> compute("2*(3+4)")
    (Fraction(14, 1), [2, 3, 4])
    """
    if len(text) > LONGEST:
        raise ValueError(f"it is longer than {LONGEST} characters")
    tokens: list[str] = []
    end, text = 0, text.strip()
    while end < len(text):
        mark = TOKEN.match(text, end)
        if mark is None:
            raise ValueError(f"{text[end : end + 10]!r} has no place in it")
        tokens.append(mark[1].translate(SIGNS))
        end = mark.end()
    reader = _Reader(tokens)
    value = reader.sum()
    if reader.here:
        raise ValueError(f"{reader.here!r} stands where it should end")
    return value, reader.used


class _Reader:
    """Recursive descent: a sum of products of numbers and brackets."""

    def __init__(self, tokens: list[str]) -> None:
        self.tokens, self.at, self.depth = tokens, 0, 0
        self.used: list[int] = []

    @property
    def here(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def take(self) -> str:
        self.at += 1
        return self.tokens[self.at - 1]

    def sum(self) -> Fraction:
        value = self.product()
        while self.here in ("+", "-"):
            value = value + self.product() if self.take() == "+" else value - self.product()
        return value

    def product(self) -> Fraction:
        value = self.atom()
        while self.here in ("*", "/"):
            if self.take() == "*":
                value *= self.atom()
            elif divisor := self.atom():
                value /= divisor
            else:
                raise ValueError("it divides by zero")
        return value

    def atom(self) -> Fraction:
        if self.here.isdigit():
            self.used.append(int(self.take()))
            return Fraction(self.used[-1])
        if self.here != "(":
            raise ValueError(f"a number or a bracket is missing {'before ' + repr(self.here) if self.here else 'at its end'}")
        self.take()
        self.depth += 1
        if self.depth > 50:
            raise ValueError("its brackets are nested too deep")
        value = self.sum()
        if self.here != ")":
            raise ValueError("a bracket does not close")
        self.take()
        self.depth -= 1
        return value


def _reference(reference: object) -> tuple[list[int], int] | None:
    if not isinstance(reference, dict):
        return None
    numbers, target = reference.get("numbers"), reference.get("target")
    if not isinstance(numbers, list | tuple) or not numbers or type(target) is not int or any(type(n) is not int for n in numbers):
        return None
    return list(numbers), target


make = Countdown
