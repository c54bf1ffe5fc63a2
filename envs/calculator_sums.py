"""Sums of long numbers, with a calculator: the smallest environment in which a tool decides the score.

A question reads `48213+9907=`. The policy calls the calculator, reads the result and answers with it. A hash of the numbers decides the
split, so no held-out question is ever trained on.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence

from rlvr.contracts import Environment, Sandbox, Verifier
from rlvr.contracts.tool import Tool
from rlvr.errors import ConfigError
from rlvr.task import Task, make_user_prompt
from rlvr.turns import Call

HELD_OUT_EVERY = 10  # one pair of numbers in ten belongs to the test split
MAX_DRAWS = 100_000
MAX_DIGITS = 40


class CalculatorSums(Environment):
    """Sums of two long numbers, with the tool `calculator`; `tools: []` removes the tool.

    >>> import rlvr
    >>> env = rlvr.make_env("calculator_sums", digits=[5, 5])
    >>> task = env.task("train", 0)
    >>> task.question, task.reference
    ('81122+21200=', '102322')
    """

    needs = {"verifier": "numeric", "tools": ["calculator"], "sandbox": "auto"}

    def __init__(
        self,
        *,
        verifier: Verifier,
        tools: Sequence[Tool],
        sandbox: Sandbox | None = None,
        digits: Sequence[int] = (5, 8),
        max_turns: int = 4,
        gold_tool_call_fraction: float = 1.0,
        seed: int = 0,
        instruction: str = "",
    ) -> None:
        """Set the difficulty and the prompt.

        Args:
            verifier: verifies the answer; it must accept a bare number.
            tools: the tools of the policy; without any it must add by itself.
            sandbox: for tools that need a sandbox; the calculator does not.
            digits: the smallest and the largest number of digits of each number.
            max_turns: the most turns of the policy, turns with tool calls included.
            gold_tool_call_fraction: fraction of gold conversations that call the calculator; the others answer at once. With an SFT warm-up on
                a small fraction, the reward must teach when to call.
            seed: another seed gives different tasks; the split of a question does not depend on it.
            instruction: a system message, for models that need one.
        """
        few, most = _parse_digit_range(digits)
        if (
            isinstance(gold_tool_call_fraction, bool)
            or not isinstance(gold_tool_call_fraction, int | float)
            or not 0 <= gold_tool_call_fraction <= 1
        ):
            raise ConfigError(f"gold_tool_call_fraction is {gold_tool_call_fraction!r}; it must be a number from 0 to 1")
        self.verifier, self.tools, self.sandbox = verifier, tools, sandbox
        self.min_digits, self.max_digits, self.gold_tool_call_fraction, self.seed, self.instruction = (
            few,
            most,
            gold_tool_call_fraction,
            seed,
            instruction,
        )
        self.max_turns = max_turns
        self.max_prompt_tokens = 2 * most + 8 + len(instruction.encode())  # at most one token for each byte
        self.max_new_tokens = 64 + max_turns * (3 * most + 16)  # a call with its name, and the result as the answer

    def task(self, split: str, index: int) -> Task:
        """Return the question at `index` of an endless stream."""
        rng = random.Random(f"calculator_sums/{self.seed}/{split}/{index}")
        for _ in range(MAX_DRAWS):
            left, right = (_draw_number(rng, rng.randint(self.min_digits, self.max_digits)) for _ in range(2))
            if choose_data_split(left, right) == split:
                prompt = make_user_prompt(f"{left}+{right}=", system=self.instruction)
                return Task(
                    prompt, str(left + right), id=f"calculator_sums/{split}/{self.seed}.{index}", meta={"left": left, "right": right}
                )
        raise ConfigError(f"calculator_sums has no {split!r} questions with {self.min_digits} to {self.max_digits} digits; use more digits")

    def gold(self, task: Task) -> str:
        """Return the sum."""
        return str(task.reference)

    def oracle_turns(self, task: Task) -> Sequence[str | Call] | None:
        """Return a call of the calculator and then the answer for a fraction of the tasks (`gold_tool_call_fraction`); None for the others."""
        if random.Random(f"shown/{task.id}").random() >= self.gold_tool_call_fraction or not any(
            spec.name == "calculator" for tool in self.tools for spec in tool.specs()
        ):
            return None
        return [Call("", "calculator", {"expression": f"{task.meta['left']}+{task.meta['right']}"}), str(task.reference)]


def choose_data_split(left: int, right: int) -> str:
    """Return the split of a question. a + b and b + a share a split, so no test question is a training question in reverse.

    >>> choose_data_split(48213, 9907) == choose_data_split(9907, 48213)
    True
    """
    digest = hashlib.blake2b(f"{min(left, right)}+{max(left, right)}".encode(), digest_size=8).digest()
    return "test" if int.from_bytes(digest, "big") % HELD_OUT_EVERY == 0 else "train"


def _parse_digit_range(digits: object) -> tuple[int, int]:
    pair = list(digits) if isinstance(digits, Sequence) and not isinstance(digits, str) else []
    whole = len(pair) == 2 and all(type(number) is int for number in pair)
    if not whole or not 2 <= pair[0] <= pair[1] <= MAX_DIGITS:
        raise ConfigError(f"digits is {digits!r}; it must be two whole numbers from 2 to {MAX_DIGITS}, the fewest and the most: [5, 8]")
    return pair[0], pair[1]


def _draw_number(rng: random.Random, digits: int) -> int:
    return rng.randrange(10 ** (digits - 1), 10**digits)


make = CalculatorSums
