"""Reach a target number with given numbers and + - * /: a task with many correct answers, all of which can be verified."""

from __future__ import annotations

import hashlib
import random

from rlvr.contracts import Environment, Verifier
from rlvr.errors import ConfigError
from rlvr.task import Task, make_user_prompt


class Countdown(Environment):
    """Puzzles to make a target with every number used once: `Make 14 from 2, 3, 4.`

    >>> import rlvr
    >>> env = rlvr.make_env("countdown", numbers=3)
    >>> env.verifier.verify(env.task("test", 0), env.gold(env.task("test", 0))).score
    1.0
    """

    needs = {"verifier": "countdown"}
    max_new_tokens = 64

    def __init__(self, *, verifier: Verifier, numbers: int = 3, max_number: int = 20, seed: int = 0, instruction: str = "") -> None:
        """Set the difficulty and the prompt.

        Args:
            verifier: verifies the expression.
            numbers: number of given numbers, from 2 to 8.
            max_number: the largest number, at least 5.
            seed: another seed gives different tasks.
            instruction: a system message, for models that need one.
        """
        if not isinstance(numbers, int) or not 2 <= numbers <= 8:
            raise ConfigError(f"numbers is {numbers!r}; allowed: 2 to 8")
        if not isinstance(max_number, int) or not 5 <= max_number <= 1000:
            raise ConfigError(f"max_number is {max_number!r}; allowed: 5 to 1000")
        self.verifier, self.numbers, self.max_number, self.seed, self.instruction = verifier, numbers, max_number, seed, instruction

    def task(self, split: str, index: int) -> Task:
        """Return the puzzle at `index`, built from a solution, so it has one; one puzzle in ten is held out."""
        rng = random.Random(f"countdown/{self.seed}/{split}/{index}")
        for _ in range(10_000):
            expression, target = self._draw_expression(rng)
            numbers = sorted(int(part) for part in expression.replace("(", " ").replace(")", " ").translate(OPERATORS_TO_SPACES).split())
            question = f"Make {target} from {', '.join(map(str, numbers))}."
            held_out = hashlib.blake2b(question.encode(), digest_size=8).digest()[0] % 10 == 0
            if target > 0 and target not in numbers and split == ("test" if held_out else "train"):
                meta = {"solution": expression}
                prompt = make_user_prompt(question, system=self.instruction)
                return Task(prompt, {"numbers": numbers, "target": target}, id=f"countdown/{split}/{self.seed}.{index}", meta=meta)
        raise ConfigError(f"there is no {split!r} puzzle with numbers={self.numbers} and max_number={self.max_number}; raise max_number")

    def gold(self, task: Task) -> str:
        """Return the expression that the puzzle was built from."""
        return str(task.meta["solution"])

    def _draw_expression(self, rng: random.Random) -> tuple[str, int]:
        """Draw a random expression and its value, always a whole number: only divisions without a remainder are drawn."""
        value = rng.randint(1, self.max_number)
        expression = str(value)
        for _ in range(self.numbers - 1):
            number = rng.randint(1, self.max_number)
            signs = "+-*" + ("/" if value % number == 0 and number > 1 else "")
            sign = rng.choice(signs)
            if sign in "*/" and not expression.isdigit():
                expression = f"({expression})"
            expression = f"{expression}{sign}{number}"
            value = value + number if sign == "+" else value - number if sign == "-" else value * number if sign == "*" else value // number
        return expression, value


OPERATORS_TO_SPACES = str.maketrans("+-*/", "    ")
make = Countdown
