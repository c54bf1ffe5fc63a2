"""Guess a secret number in several turns; after each wrong guess the environment says `higher` or `lower`.

A minimal multi-turn environment: its replies are part of the trajectory and are never trained on.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Sequence

from rlvr.contracts import Environment, Verifier
from rlvr.errors import ConfigError
from rlvr.extraction import extract_answer
from rlvr.task import Task, make_user_prompt

NUMBER_PATTERN = r"([0-9]{1,9}|[0-9]{1,3}(?:,[0-9]{3}){1,2})"
GUESS_FORMS: tuple[tuple[str, str, str], ...] = (
    (NUMBER_PATTERN, "the number alone", " 500. "),
    (rf"(?:is\s+(?:it|(?:the|your)\s+number)\s+|(?:how|what)\s+about\s+){NUMBER_PATTERN}", "a question", "Is it 500?"),
    (
        rf"(?:(?:my|the)\s+)?(?:(?:first|next|new|last|final)\s+)?(?:guess|answer|number)(?:\s+(?:is|would\s+be))?:?\s*{NUMBER_PATTERN}",
        "a guess by name",
        "My guess: 500",
    ),
    (
        rf"(?:I|I['’]ll|I['’]d|I\s+will|let\s+me|let['’]s)\s+(?:(?:guess|try|say|choose|pick|go\s+with)\s+){NUMBER_PATTERN}",
        "what the player does",
        "I guess 500.",
    ),
    (rf"(?:it['’]s|it\s+is|guess|guessing|try|trying|maybe|perhaps)\s+{NUMBER_PATTERN}", "a short remark", "It's 500!"),
)
"""Accepted forms of a guess: pattern, description, example (each guesses 500). Denials and comparisons match none of them."""
FILLER_PATTERN = re.compile(
    r"(?:(?:ok(?:ay)?|sure|great|thanks|thank you|hmm|got it|alright|then|so|now|next|higher|lower)\b[\s,.!:…]*)+(?=\S)", re.IGNORECASE
)
"""Filler words that may precede a guess."""
EMPHASIS_PATTERN = re.compile(r"(?<![\w*`_])([*_`]{1,3})([^*_`]+)\1(?![\w*`_])")
MAX_GUESS_CHARS = 200
"""Longest turn in characters that is read as a guess, unless the guess is declared in a box or a tag."""


class GuessNumber(Environment):
    """Secret numbers from 1 to `max_number`, to find within `max_turns` guesses; binary search succeeds with the defaults.

    >>> import rlvr
    >>> env = rlvr.make_env("guess_number", max_number=10)
    >>> task = env.task("train", 0)
    >>> env.reply(task, ["0"]), env.reply(task, [str(task.reference)])
    ('higher', None)
    >>> env.reply(task, ["Is it 0?"]), env.reply(task, ["1 or 2"])
    ('higher', 'say one number')
    """

    needs = {"verifier": "numeric"}
    max_prompt_tokens = 160
    max_new_tokens = 32

    def __init__(self, *, verifier: Verifier, max_number: int = 100, max_turns: int = 7, seed: int = 0, instruction: str = "") -> None:
        """Set the difficulty and the prompt.

        Args:
            verifier: verifies the last guess; it also decides when the conversation ends, so score and ending cannot disagree.
            max_number: the largest possible secret, at least 10.
            max_turns: the most guesses.
            seed: another seed gives different secrets.
            instruction: a system message, for models that were not trained on these prompts.
        """
        if not isinstance(max_number, int) or not 10 <= max_number <= 10**8:
            raise ConfigError(f"max_number is {max_number!r}; allowed: 10 to 100000000")
        if not isinstance(max_turns, int) or max_turns < 1:
            raise ConfigError(f"max_turns is {max_turns!r}; at least 1 guess must be allowed")
        self.verifier, self.max_number, self.max_turns, self.seed, self.instruction = verifier, max_number, max_turns, seed, instruction
        self.max_prompt_tokens += len(instruction.encode())  # the instruction needs at most one token for each byte

    def task(self, split: str, index: int) -> Task:
        """Return the secret at `index`; one number in five is held out, for any seed."""
        rng = random.Random(f"guess_number/{self.seed}/{split}/{index}")
        for _ in range(10_000):
            secret = rng.randint(1, self.max_number)
            held_out = hashlib.blake2b(str(secret).encode(), digest_size=4).digest()[0] % 5 == 0
            if split == ("test" if held_out else "train"):
                return Task(
                    make_user_prompt(f"Guess my number from 1 to {self.max_number}.", system=self.instruction),
                    str(secret),
                    id=f"guess_number/{split}/{self.seed}.{index}",
                )
        raise ConfigError(f"there is no {split!r} number up to {self.max_number}; raise max_number")

    def gold(self, task: Task) -> str:
        """Return the secret itself, as the first guess."""
        return str(task.reference)

    def reply(self, task: Task, completions: Sequence[str]) -> str | None:
        """Reply `higher` or `lower`; None if the guess is correct."""
        if self.verifier.verify(task, self.select_answer(task, completions)).passed:
            return None
        guess = parse_single_guess(completions[-1])
        if guess is None:
            return "say one number"
        return "higher" if guess < int(task.reference) else "lower"

    def select_answer(self, task: Task, completions: Sequence[str]) -> str:
        """Return the number of the last guess, or the whole last turn if it is not a guess."""
        guess = parse_single_guess(completions[-1]) if completions else None
        return str(guess) if guess is not None else completions[-1] if completions else ""


def parse_single_guess(text: str) -> int | None:
    r"""Parse the number that a turn guesses; None if it is not a guess, or guesses more than one.

    >>> parse_single_guess("Is it **500**?"), parse_single_guess(r"Between 1 and 1000: \boxed{500}")
    (500, 500)
    >>> parse_single_guess("500 or 501"), parse_single_guess("more than 500?")
    (None, None)
    """
    found = extract_answer(text)
    said = found.text if found.text is not None else text
    if len(said) > MAX_GUESS_CHARS:
        return None
    plain = FILLER_PATTERN.sub("", EMPHASIS_PATTERN.sub(r"\2", said.strip(" \n$")), count=1).strip() if said else ""
    for pattern, _what, _example in GUESS_FORMS:
        if form := re.fullmatch(pattern + r"\s*[.?!]*", plain, re.IGNORECASE):
            return int(form[1].replace(",", ""))
    return None


make = GuessNumber
