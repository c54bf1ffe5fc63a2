"""Cards that refer to each other: the last one has a number, which is the answer, and a tool reads them.

A question is the number of a card. What is on a card is drawn anew for each task, so nothing about it can be learned by heart: it must be read.
A hash of the answer decides the split, so no answer to a held-out task is ever trained on.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping, Sequence
from typing import Any

from rlvr import Call, Environment, Task, Verifier, make_user_prompt
from rlvr.contracts import ToolSession
from rlvr.contracts.tool import Tool, tool
from rlvr.errors import ConfigError

HELD_OUT_EVERY = 5  # one answer in five belongs to the test split
LINK, NO_CARD = ">", "?"


class CardReader(Tool):
    """The cards of a task, for demonstrations. An agent that plays the tasks has a tool of its own with the same name and argument."""

    @tool
    def read(self, card: str) -> str:
        """Read a card."""
        cards: Mapping[str, str] = self.context.data["cards"]
        return cards.get(card, NO_CARD)


class CardSession(ToolSession):
    """A conversation about the cards of one task."""

    def get_data_for_tools(self) -> Mapping[str, Any]:
        """Return the cards."""
        return {"cards": self.task.meta["cards"]}


class Cards(Environment):
    """Follow cards from one to the next, up to the number on the last one.

    >>> from rlvr.verifiers.exact import make as Exact
    >>> task = Cards(verifier=Exact()).task("train", 11)
    >>> task.question, task.meta["cards"], task.reference
    ('21', {'21': '>68', '68': '>54', '54': '179'}, '179')
    """

    needs = {"verifier": "exact"}

    def __init__(self, *, verifier: Verifier, max_cards: int = 3, guesses: float = 0.0) -> None:
        """Set the tasks and the demonstrations.

        Args:
            verifier: compares the answer with the number on the last card.
            max_cards: how many cards must be read at most.
            guesses: the share of the demonstrated calls in whose place stands a guess, which ends the demonstration.
        """
        if max_cards < 1:
            raise ConfigError(f"max_cards is {max_cards}; at least 1 card must be read")
        if not 0 <= guesses <= 1:
            raise ConfigError(f"guesses is {guesses}; it must be a share from 0 to 1")
        self.verifier, self.tools, self.max_cards, self.guesses = verifier, (CardReader(),), max_cards, guesses
        self.max_turns = max_cards + 2
        self.max_prompt_tokens = 32
        self.max_new_tokens = 5 * (max_cards + 2)

    def task(self, split: str, index: int) -> Task:
        """Return the cards at `index` of an endless stream."""
        rng = random.Random(f"cards/{split}/{index}")
        numbers = [str(number) for number in rng.sample(range(10, 100), rng.randint(1, self.max_cards))]
        answer = draw_answer(rng, split)
        cards = dict(zip(numbers, [*(LINK + number for number in numbers[1:]), answer], strict=True))
        return Task(make_user_prompt(numbers[0]), answer, id=f"cards/{split}/{index}", meta={"cards": cards})

    def oracle_turns(self, task: Task) -> Sequence[str | Call]:
        """Return the calls that read all cards, and the answer; or some of the calls, and a guess."""
        rng = random.Random(f"guess/{task.id}")
        turns = list[str | Call]()
        for card in task.meta["cards"]:
            if rng.random() < self.guesses:
                return [*turns, draw_answer(rng, "train")]
            turns.append(Call("", "read", {"card": card}))
        return [*turns, str(task.reference)]

    def new_session(self, task: Task, *, seed: int) -> CardSession:
        """Open the cards of a task."""
        return CardSession(task, self.tools, seed=seed)


def draw_answer(rng: random.Random, split: str) -> str:
    """Draw a number of three digits that belongs to a split.

    >>> draw_answer(random.Random(0), "train")
    '876'
    """
    while choose_split(answer := str(rng.randrange(100, 1000))) != split:
        pass
    return answer


def choose_split(answer: str) -> str:
    """Return the split of an answer.

    >>> {choose_split(str(number)) for number in range(100, 1000)} == {"train", "test"}
    True
    """
    digest = hashlib.blake2b(answer.encode(), digest_size=8).digest()
    return "test" if int.from_bytes(digest, "big") % HELD_OUT_EVERY == 0 else "train"


make = Cards
