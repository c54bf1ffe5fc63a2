"""Guess a secret number in several turns; after each wrong guess the environment says `higher` or `lower`.

The smallest true conversation: what the environment says is part of the trajectory and is never trained on.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Sequence

from rlvr.contracts import Environment, Verifier
from rlvr.errors import ConfigError
from rlvr.task import Task, user

GUESS = re.compile(r"\s*([0-9]{1,9})\s*\.?\s*")


class GuessNumber(Environment):
    """Find a number from 1 to `largest` within `turns` guesses; halving the range always gets there.

    >>> import rlvr
    >>> env = rlvr.make("env", "guess_number", largest=10)
    >>> task = env.task("train", 0)
    >>> env.reply(task, ["0"]), env.reply(task, [str(task.reference)])
    ('higher', None)
    """

    needs = {"verifier": "numeric"}
    max_prompt_tokens = 160
    max_new_tokens = 32

    def __init__(self, *, verifier: Verifier, largest: int = 100, turns: int = 7, seed: int = 0) -> None:
        """Choose how hard it is.

        Args:
            verifier: judges the last guess; it also decides when the conversation is over, so the two cannot disagree.
            largest: the largest number that may be the secret, from 10 up.
            turns: how many guesses are allowed.
            seed: another seed is another stream of secrets.
        """
        if not isinstance(largest, int) or not 10 <= largest <= 10**8:
            raise ConfigError(f"largest is {largest!r}; allowed: 10 to 100000000")
        if not isinstance(turns, int) or turns < 1:
            raise ConfigError(f"turns is {turns!r}; at least 1 guess must be allowed")
        self.verifier, self.largest, self.max_turns, self.seed = verifier, largest, turns, seed

    def task(self, split: str, index: int) -> Task:
        """The secret at `index`; one number in five is held out, whatever the seed."""
        draw = random.Random(f"guess_number/{self.seed}/{split}/{index}")
        for _ in range(10_000):
            secret = draw.randint(1, self.largest)
            held_out = hashlib.blake2b(str(secret).encode(), digest_size=4).digest()[0] % 5 == 0
            if split == ("test" if held_out else "train"):
                return Task(f"guess_number/{split}/{self.seed}.{index}", user(f"Guess my number from 1 to {self.largest}."), str(secret))
        raise ConfigError(f"there is no {split!r} number up to {self.largest}; raise largest")

    def gold(self, task: Task) -> str:
        """The secret at the first guess: what a mind reader would say."""
        return str(task.reference)

    def reply(self, task: Task, said: Sequence[str]) -> str | None:
        """`higher`, `lower`, or nothing more to say."""
        if self.verifier.verify(task, said[-1]).passed:
            return None
        guess = GUESS.fullmatch(said[-1])
        if guess is None:
            return "say one number"
        return "higher" if int(guess[1]) < int(task.reference) else "lower"


make = GuessNumber
