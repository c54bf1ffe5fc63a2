"""Write a word backwards: `abca>` asks for `acba`. A toy task; with a suitable verifier the reward can be partial, letter by letter."""

from __future__ import annotations

import hashlib
import random

from rlvr.contracts import Environment, Verifier
from rlvr.errors import ConfigError
from rlvr.task import Task, make_user_prompt


class CopyReverse(Environment):
    """Words to write backwards.

    No palindromes are drawn, so the question is never its own answer.

    >>> import rlvr
    >>> rlvr.make_env("copy_reverse", length=4).task("train", 0).question
    'ccbd>'
    """

    needs = {"verifier": "exact"}
    max_prompt_tokens = 12
    max_new_tokens = 10

    def __init__(self, *, verifier: Verifier, length: int = 4, letters: str = "abcd", seed: int = 0, instruction: str = "") -> None:
        """Set the difficulty and the prompt.

        Args:
            verifier: verifies the reversed word.
            length: letters in a word, from 2 to 8.
            letters: the alphabet, at least two different letters.
            seed: another seed gives different tasks.
            instruction: a system message, for models that were not trained on these prompts.
        """
        if not isinstance(length, int) or not 2 <= length <= 8:
            raise ConfigError(f"length is {length!r}; allowed: 2 to 8")
        if not isinstance(letters, str) or len(set(letters)) < 2 or len(set(letters)) != len(letters) or not letters.isalnum():
            raise ConfigError(f"letters is {letters!r}; give at least two different letters, such as 'abcd'")
        self.verifier, self.length, self.letters, self.seed, self.instruction = verifier, length, letters, seed, instruction
        self.max_prompt_tokens += len(instruction.encode())  # the instruction needs at most one token for each byte

    def task(self, split: str, index: int) -> Task:
        """Return the word at `index`; one word in five is held out, for any seed."""
        rng = random.Random(f"copy_reverse/{self.seed}/{split}/{index}")
        for _ in range(10_000):
            word = "".join(rng.choice(self.letters) for _ in range(self.length))
            held_out = hashlib.blake2b(word.encode(), digest_size=4).digest()[0] % 5 == 0
            if word != word[::-1] and split == ("test" if held_out else "train"):
                return Task(
                    make_user_prompt(f"{word}>", system=self.instruction), word[::-1], id=f"copy_reverse/{split}/{self.seed}.{index}"
                )
        raise ConfigError(f"there is no {split!r} word of length {self.length} over {self.letters!r}; raise length or add letters")

    def gold(self, task: Task) -> str:
        """Return the word backwards."""
        return str(task.reference)


make = CopyReverse
