"""Add a few digits and answer with the last digit of the sum: the answer is one token of a small vocabulary.

Small enough for general RL libraries: with `tokenizer="chars:0123456789="` and `obs="onehot_ids"` a stock PPO or DQN learns it on a CPU.
"""

from __future__ import annotations

import hashlib
import random

from rlvr.contracts import Environment, Verifier
from rlvr.errors import ConfigError
from rlvr.task import Task, make_user_prompt


class DigitSum(Environment):
    """Questions for the last digit of a sum of digits: `314=` is 8.

    >>> import rlvr
    >>> rlvr.make_env("digit_sum", digits=3).task("train", 0).question
    '925='
    """

    needs = {"verifier": "exact"}
    max_prompt_tokens = 12
    max_new_tokens = 3

    def __init__(self, *, verifier: Verifier, digits: int = 2, max_digit: int = 9, seed: int = 0, instruction: str = "") -> None:
        """Set the difficulty and the prompt.

        Args:
            verifier: verifies the digit.
            digits: number of digits that are added, from 2 to 8.
            max_digit: the largest digit that occurs, from 1 to 9.
            seed: another seed gives different tasks.
            instruction: a system message, for models that were not trained on these prompts.
        """
        if not isinstance(digits, int) or not 2 <= digits <= 8:
            raise ConfigError(f"digits is {digits!r}; allowed: 2 to 8")
        if not isinstance(max_digit, int) or not 1 <= max_digit <= 9:
            raise ConfigError(f"max_digit is {max_digit!r}; allowed: 1 to 9")
        self.verifier, self.digits, self.max_digit, self.seed, self.instruction = verifier, digits, max_digit, seed, instruction
        self.max_prompt_tokens += len(instruction.encode())  # the instruction needs at most one token for each byte

    def task(self, split: str, index: int) -> Task:
        """Return the question at `index`; one question in five is held out, for any seed."""
        rng = random.Random(f"digit_sum/{self.seed}/{split}/{index}")
        for _ in range(10_000):
            drawn = [rng.randint(0, self.max_digit) for _ in range(self.digits)]
            question = "".join(map(str, drawn)) + "="
            held_out = hashlib.blake2b(question.encode(), digest_size=4).digest()[0] % 5 == 0
            if split == ("test" if held_out else "train"):
                return Task(
                    make_user_prompt(question, system=self.instruction), str(sum(drawn) % 10), id=f"digit_sum/{split}/{self.seed}.{index}"
                )
        raise ConfigError(f"there is no {split!r} question with digits={self.digits} and max_digit={self.max_digit}; raise one of them")

    def gold(self, task: Task) -> str:
        """Return the digit."""
        return str(task.reference)


make = DigitSum
