"""Pages that are read one after the other; two of them have a mark, and both marks must be known at the end.

The policy says `>` for the next page. The last page has a mark and ends with `?`; one of the pages before it has another mark. The answer is both,
in order. Any turn but `>` is the answer, too. A hash of the marks decides the split, so no held-out pair of marks is ever trained on.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence

from rlvr.contracts import Environment, Session, StepResult, Verifier
from rlvr.errors import ConfigError
from rlvr.task import Message, Task
from rlvr.turns import Turn

MARKS = "123456789"
HELD_OUT_EVERY = 5  # one pair of marks in five belongs to the test split


class Pages(Environment):
    """Pages, two with a mark; the answer is both marks.

    >>> from rlvr.verifiers.exact import make as Exact
    >>> task = Pages(verifier=Exact()).task("train", 0)
    >>> len(task.reference), len(task.meta["pages"])
    (2, 3)
    """

    needs = {"verifier": "exact"}

    def __init__(self, *, verifier: Verifier, pages: int = 3, page_length: int = 20, practice: bool = False) -> None:
        """Set the lengths.

        Args:
            verifier: compares the answer with the marks.
            pages: how many pages there are.
            page_length: how many characters a page has.
            practice: with true, a third of the conversations has the first mark as a note in its prompt, and the last page alone, and a third
                ends before the last page with a request for notes, `#`, whose gold answer is a mark drawn at random: it is of the right form,
                and says nothing.
        """
        if pages < 2:
            raise ConfigError(f"pages is {pages}; it must be at least 2")
        if page_length < 1:
            raise ConfigError(f"page_length is {page_length}; a page with a mark has at least 1 character")
        self.verifier, self.pages, self.page_length, self.practice = verifier, pages, page_length, practice
        self.max_turns = pages + 1
        self.max_prompt_tokens = 16
        self.max_new_tokens = 2 * pages + 6

    def task(self, split: str, index: int) -> Task:
        """Return the pages at `index` of an endless stream."""
        rng = random.Random(f"pages/{split}/{index}")
        while choose_split(marks := "".join(rng.choices(MARKS, k=2))) != split:
            pass
        marked = rng.randrange(self.pages - 1)
        pages = [write_page(rng, marks[0] if place == marked else ".", self.page_length) for place in range(self.pages - 1)]
        pages.append(write_page(rng, marks[1], self.page_length) + "?")
        prompt, question, answer = ">", "", marks
        kind = rng.choice(("plain", "begins with a note", "asks for notes")) if self.practice else "plain"
        if kind == "begins with a note":
            prompt, pages = f">\n\n:\n{marks[0]}", pages[-1:]
        elif kind == "asks for notes":
            pages, question, answer = pages[:-1], "#", rng.choice(MARKS)
        return Task(prompt, answer, id=f"pages/{split}/{index}", meta={"pages": pages, "question": question})

    def oracle_turns(self, task: Task) -> Sequence[str]:
        """Return the turns that read all pages, and the answer."""
        return [*[">"] * len(task.meta["pages"]), str(task.reference)]

    def new_session(self, task: Task, *, seed: int) -> Session:
        """Open the pages of a task."""
        return PageSession(task.meta["pages"], task.meta["question"])


class PageSession(Session):
    """The pages of a conversation, and how many of them have been read."""

    def __init__(self, pages: Sequence[str], question: str) -> None:
        self.pages, self.question, self.num_read = pages, question, 0

    def step(self, turn: Turn) -> StepResult | None:
        """Show the next page; anything but `>` is the answer."""
        if turn.text != ">" or self.num_read == len(self.pages):
            return None
        self.num_read += 1
        messages: list[Message] = [{"role": "user", "content": self.pages[self.num_read - 1]}]
        if self.question and self.num_read == len(self.pages):
            messages.append({"role": "user", "content": self.question})
        return StepResult(tuple(messages))


def choose_split(marks: str) -> str:
    """Return the split of a pair of marks.

    >>> {choose_split(first + second) for first in MARKS for second in MARKS} == {"train", "test"}
    True
    """
    digest = hashlib.blake2b(marks.encode(), digest_size=8).digest()
    return "test" if int.from_bytes(digest, "big") % HELD_OUT_EVERY == 0 else "train"


def write_page(rng: random.Random, mark: str, length: int) -> str:
    """Write a line of dots with a mark among them, which may be another dot.

    >>> write_page(random.Random(0), "3", 20)
    '............3.......'
    """
    place = rng.randrange(length)
    return "." * place + mark + "." * (length - place - 1)


make = Pages
