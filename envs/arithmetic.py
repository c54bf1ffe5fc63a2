"""Multi-digit arithmetic, posed as `37+58=`: a small task on which a model visibly learns from verified rewards.

A level reads like a question: `2+2` is a two-digit number plus a two-digit number, `3*1` a three-digit number times a
one-digit number. A hash of the question decides its split, so no held-out question is ever trained on.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Sequence
from typing import ClassVar

from rlvr.contracts import Environment, Verifier
from rlvr.errors import ConfigError
from rlvr.task import Task, make_user_prompt

LEVEL_PATTERN = re.compile(r"([1-9])([+*-])([1-9])")
HELD_OUT_EVERY = 10  # one question in ten belongs to the test split
MAX_DRAWS = 100_000


class Arithmetic(Environment):
    """Addition, subtraction or multiplication of two numbers.

    >>> import rlvr
    >>> env = rlvr.make_env("arithmetic", levels=["2+2"])
    >>> env.task("train", 0).question
    '94+97='
    """

    needs = {"verifier": "numeric"}
    setting_hints: ClassVar = dict.fromkeys(
        ("difficulty", "digits", "max_digits", "min_digits", "num_digits", "operations"),
        "write levels=['1+1', '2*1']: the digits of a number, the operation, the digits of the other",
    )

    def __init__(
        self,
        *,
        verifier: Verifier,
        levels: Sequence[str] = ("1+1", "2+2", "2-2"),
        seed: int = 0,
        show_steps: bool = False,
        instruction: str = "",
    ) -> None:
        """Set the difficulty and the prompt.

        Args:
            verifier: verifies the answer; it must accept a bare number, and with `show_steps` one after `#### `.
            levels: digits of the first number, operation, digits of the second; each task draws one of them.
            seed: another seed gives different tasks; the split of a question does not depend on it.
            show_steps: whether the gold solution shows its steps before the answer.
            instruction: a system message, for models that need one.
        """
        self.verifier = verifier
        if not isinstance(levels, str | list | tuple):
            raise ConfigError(f"levels is {levels!r:.60}; write a list of digits, operation, digits, such as levels=['1+1', '2*1']")
        self.levels = [_parse_level(text) for text in ([levels] if isinstance(levels, str) else levels)]
        if not self.levels:
            raise ConfigError("levels is empty; name at least one, such as levels=['2+2']")
        self.seed, self.show_steps, self.instruction = seed, show_steps, instruction
        self.max_prompt_tokens += len(instruction.encode())  # the instruction needs at most one token for each byte

    def task(self, split: str, index: int) -> Task:
        """Return the question at `index` of an endless stream."""
        rng = random.Random(f"arithmetic/{self.seed}/{split}/{index}")
        for _ in range(MAX_DRAWS):
            left_digits, sign, right_digits = rng.choice(self.levels)
            left, right = _draw_number(rng, left_digits), _draw_number(rng, right_digits)
            if choose_data_split(left, sign, right) == split:
                question = f"{left}{sign}{right}="
                meta = {"level": f"{left_digits}{sign}{right_digits}", "left": left, "sign": sign, "right": right}
                prompt = make_user_prompt(question, system=self.instruction)
                return Task(prompt, str(_compute(left, sign, right)), id=f"arithmetic/{split}/{self.seed}.{index}", meta=meta)
        raise ConfigError(f"arithmetic has no {split!r} questions at these levels; splits are {', '.join(self.splits)}")

    def gold(self, task: Task) -> str:
        """Return the answer, after its steps if `show_steps` is set."""
        if not self.show_steps:
            return str(task.reference)
        return "\n".join([*format_steps(task.meta["left"], task.meta["sign"], task.meta["right"]), f"#### {task.reference}"])


def choose_data_split(left: int, sign: str, right: int) -> str:
    """Return the split of a question. a + b and b + a share a split, so no test question is a training question in reverse."""
    a, b = (left, right) if sign == "-" else (min(left, right), max(left, right))
    digest = hashlib.blake2b(f"{a}{sign}{b}".encode(), digest_size=8).digest()
    return "test" if int.from_bytes(digest, "big") % HELD_OUT_EVERY == 0 else "train"


def format_steps(left: int, sign: str, right: int) -> list[str]:
    """Return the steps to the answer: for a sum column by column, carry first; otherwise digit by digit.

    >>> format_steps(37, "+", 58)
    ['7+8=15', '1+3+5=9']
    >>> format_steps(37, "*", 58)
    ['37*50=1850', '37*8=296', '1850+296=2146']
    """
    if sign == "+":
        return _format_column_sums(left, right)
    places = [int(digit) * 10**place for place, digit in zip(range(len(str(right)) - 1, -1, -1), str(right), strict=True)]
    parts = [part for part in places if part] or [0]
    lines = []
    if sign == "*":
        lines = [f"{left}*{part}={left * part}" for part in parts]
        total = left * parts[0]
        for part in parts[1:]:
            lines.append(f"{total}+{left * part}={total + left * part}")
            total += left * part
        return lines
    for part in parts:
        lines.append(f"{left}-{part}={left - part}")
        left -= part
    return lines


def _format_column_sums(left: int, right: int) -> list[str]:
    """Return the sum of each column from the right, starting with the carry of the previous column."""
    lines, carry = [], 0
    width = max(len(str(left)), len(str(right)))
    for column in range(width):
        a, b = left // 10**column % 10, right // 10**column % 10
        lines.append(f"{a}+{b}={a + b}" if column == 0 else f"{carry}+{a}+{b}={carry + a + b}")
        carry = (carry + a + b) // 10
    return lines


def _parse_level(text: object) -> tuple[int, str, int]:
    found = LEVEL_PATTERN.fullmatch(text) if isinstance(text, str) else None
    if not found:
        raise ConfigError(f"level {text!r} is not digits, an operation (+, -, *), digits; write for example '2+2' or '3*1'")
    return int(found[1]), found[2], int(found[3])


def _draw_number(rng: random.Random, digits: int) -> int:
    return rng.randrange(10 ** (digits - 1) if digits > 1 else 0, 10**digits)


def _compute(left: int, sign: str, right: int) -> int:
    return left + right if sign == "+" else left - right if sign == "-" else left * right


make = Arithmetic
