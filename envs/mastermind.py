"""Break a secret code in several guesses; after each guess the environment says how many symbols are right.

Each conversation is a session with the guesses so far. It has no tools: each turn of the policy is a guess.
"""

from __future__ import annotations

import hashlib
import itertools
import random
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from rlvr.contracts import Environment, Session, StepResult, Verifier
from rlvr.errors import ConfigError
from rlvr.extraction import extract_answer
from rlvr.task import Task, make_user_prompt
from rlvr.turns import Turn

LEAD_PATTERN = (
    r"(?:(?:i|i['’]ll|let me|let['’]s)\s+(?:guess|try|say)|(?:my\s+)?(?:(?:next|last|final)\s+)?(?:guess|answer|code)(?:\s+is)?|is\s+it)"
)
"""Words that may precede a guess."""
EMPHASIS_PATTERN = re.compile(r"[*_`]{1,3}")
MAX_GUESS_CHARS = 200
"""Longest turn in characters that is read as a guess, unless the guess is declared in a box or a tag."""
MAX_CODES = 10_000
"""Most possible codes: the oracle turns of a task enumerate them."""


class Mastermind(Environment):
    """Codes of `length` symbols, to find within `max_turns` guesses; each reply counts exact and misplaced symbols.

    With the default settings there are 1,296 codes; ten random guesses find the code in one of 130 conversations, a player who always
    guesses a code that is consistent with the replies finds it in about five guesses.

    >>> import rlvr
    >>> env = rlvr.make_env("mastermind")
    >>> task = env.task("train", 0)
    >>> session = env.new_session(task, seed=0)
    >>> task.reference, session.step(Turn("AABB")).messages[0]["content"], session.step(Turn(task.reference))
    ('FCAA', '0 exact, 2 misplaced', None)
    """

    needs = {"verifier": "exact"}
    max_prompt_tokens = 256
    max_new_tokens = 256

    def __init__(
        self, *, verifier: Verifier, length: int = 4, symbols: str = "ABCDEF", max_turns: int = 10, seed: int = 0, instruction: str = ""
    ) -> None:
        """Set the difficulty and the prompt.

        Args:
            verifier: compares the last guess with the code.
            length: number of symbols of the code.
            symbols: the alphabet: letters or digits, each once. At most 10,000 codes are possible.
            max_turns: the most guesses.
            seed: another seed gives different codes.
            instruction: a system message, for models that were not trained on these prompts.
        """
        if not isinstance(symbols, str) or not re.fullmatch(r"[A-Za-z0-9]{2,}", symbols) or len(set(symbols.upper())) != len(symbols):
            raise ConfigError(f"symbols is {symbols!r}; allowed: two or more letters or digits, each once, such as ABCDEF or 123456")
        if not isinstance(length, int) or length < 2 or len(symbols) ** length > MAX_CODES:
            raise ConfigError(f"length is {length!r} with {len(symbols)} symbols; allowed: from 2, with at most {MAX_CODES:,} codes in all")
        if not isinstance(max_turns, int) or max_turns < 1:
            raise ConfigError(f"max_turns is {max_turns!r}; at least 1 guess must be allowed")
        self.verifier, self.length, self.symbols, self.max_turns = verifier, length, symbols.upper(), max_turns
        self.seed, self.instruction = seed, instruction
        self.max_prompt_tokens += len(instruction.encode())  # the instruction needs at most one token for each byte
        code = rf"[{self.symbols}](?:[\s,-]?[{self.symbols}]){{{length - 1}}}"
        self._guess_pattern = re.compile(rf"(?:{LEAD_PATTERN}:?\s+)?({code})\s*[.?!]*", re.IGNORECASE)

    def task(self, split: str, index: int) -> Task:
        """Return the code at `index`; one code in five is held out, for any seed."""
        rng = random.Random(f"mastermind/{self.seed}/{split}/{index}")
        for _ in range(10_000):
            code = "".join(rng.choices(self.symbols, k=self.length))
            held_out = hashlib.blake2b(code.encode(), digest_size=4).digest()[0] % 5 == 0
            if split == ("test" if held_out else "train"):
                return Task(
                    make_user_prompt(self._format_question(), system=self.instruction), code, id=f"mastermind/{split}/{self.seed}.{index}"
                )
        raise ConfigError(f"there is no {split!r} code of {self.length} symbols from {self.symbols}; allow more symbols")

    def gold(self, task: Task) -> str:
        """Return the code itself, as the first guess."""
        return str(task.reference)

    def oracle_turns(self, task: Task) -> list[str]:
        """Return the guesses of a player who always guesses a code that is consistent with all replies so far."""
        left = ["".join(code) for code in itertools.product(self.symbols, repeat=self.length)]
        random.Random(task.id).shuffle(left)
        said: list[str] = []
        while len(said) < self.max_turns - 1 and left[0] != task.reference:
            said.append(left[0])
            counts = count_matches(left[0], str(task.reference))
            left = [code for code in left if count_matches(said[-1], code) == counts]
        return [*said, str(task.reference)]

    def new_session(self, task: Task, *, seed: int) -> Session:
        """Open a game without guesses. The code is part of the task, so `seed` is ignored."""
        return MastermindSession(self, task)

    def select_answer(self, task: Task, completions: Sequence[str]) -> str:
        """Return the code of the last guess, or the whole last turn if it is not a guess."""
        return (self.parse_single_guess(completions[-1]) or completions[-1]) if completions else ""

    def parse_single_guess(self, text: str) -> str | None:
        """Parse the code that a turn guesses; None if it is not a guess, or has more than one."""
        found = extract_answer(text)
        said = found.text if found.text is not None else text
        form = self._guess_pattern.fullmatch(EMPHASIS_PATTERN.sub("", said).strip(" \n$")) if len(said) <= MAX_GUESS_CHARS else None
        return re.sub(r"[\s,-]", "", form[1]).upper() if form else None

    def _format_question(self) -> str:
        return (
            f"Find my code: {self.length} symbols out of {', '.join(self.symbols)}, each as often as I like. Guess one code a turn, "
            f"{self.max_turns} at most. I tell you how many symbols are exact, and how many are misplaced."
        )


class MastermindSession(Session):
    """Session of one game: the guesses so far and their counts."""

    def __init__(self, environment: Mastermind, task: Task) -> None:
        self.environment, self.task = environment, task
        self.guesses: list[list[Any]] = []
        """Each guess with its two counts."""

    def step(self, turn: Turn) -> StepResult | None:
        """Record a guess and reply with its counts; None once the code is found."""
        guess = self.environment.parse_single_guess(turn.text)
        if guess is None:
            form = f"write one code of {self.environment.length} symbols out of {', '.join(self.environment.symbols)}"
            return StepResult(({"role": "user", "content": form},))
        exact, misplaced = count_matches(guess, str(self.task.reference))
        self.guesses.append([guess, exact, misplaced])
        if exact == self.environment.length:
            return None
        return StepResult(({"role": "user", "content": f"{exact} exact, {misplaced} misplaced"},))

    def select_answer(self, turns: Sequence[Turn]) -> str:
        """Return the last guess."""
        return self.environment.select_answer(self.task, [turn.text for turn in turns])

    def artifacts(self) -> Mapping[str, Any]:
        """Return all guesses with their counts, for the record."""
        return {"guesses": self.guesses}


def count_matches(guess: str, code: str) -> tuple[int, int]:
    """Count the symbols of a guess that are exact, and the others that are in the code at another position.

    >>> count_matches("AABB", "ABBC"), count_matches("AAAA", "ABBC")
    ((2, 1), (1, 0))
    """
    exact = sum(a == b for a, b in zip(guess, code, strict=True))
    return exact, (Counter(guess) & Counter(code)).total() - exact


make = Mastermind
