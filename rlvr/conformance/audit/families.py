"""Generate pairs from golds: right answers in other forms, near misses, and answers that must never be rewarded."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from rlvr.conformance import canaries

FORMS: tuple[tuple[str, str], ...] = (
    ("bare", "{}"),
    ("box", r"\boxed{{{}}}"),
    ("tag", "<answer>{}</answer>"),
    ("hash line", "#### {}"),
    ("sentence", "The answer is {}."),
    ("final line", "Final answer: {}"),
)
"""Ways to declare an answer. Forms in which no gold is accepted are unsupported by the verifier, and are not used."""
NUMERAL = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?")


@dataclass(frozen=True, slots=True)
class Pair:
    """An answer with its reference, and whether it is right.

    >>> Pair("5", "4", right=False, family="near miss: one more").right
    False
    """

    answer: str
    reference: Any
    right: bool
    family: str = "given"
    question: str = ""
    meta: dict[str, Any] = field(default_factory=dict)

    def row(self) -> dict[str, Any]:
        """Convert the pair to a request for a worker."""
        return {"answer": self.answer, "reference": self.reference, "question": self.question, "meta": self.meta}


def _digit(text: str) -> str | None:
    """Replace the last digit by the next one; None without a digit."""
    at = next((n for n in range(len(text) - 1, -1, -1) if text[n] in "0123456789"), None)
    return None if at is None else text[:at] + str((int(text[at]) + 1) % 10) + text[at + 1 :]


def _swapped(text: str) -> str | None:
    """Swap the first two different adjacent digits; None if there are none."""
    found = next((m for m in re.finditer(r"(?=(\d)(\d))", text) if m[1] != m[2]), None)
    return None if found is None else text[: found.start()] + found[2] + found[1] + text[found.start() + 2 :]


def _numeric(change: Callable[[str], str]) -> Callable[[str], str | None]:
    return lambda text: change(text) if NUMERAL.fullmatch(text) else None


AROUND: tuple[tuple[str, str], ...] = (
    ("white space around", "  {}\n"),
    ("a thought before", "<think>Perhaps 7. No.</think>\n{}"),
)
"""Text that may surround a declared answer."""
RIGHT: tuple[tuple[str, Callable[[str], str | None]], ...] = (
    ("decimal zero", _numeric(lambda text: f"{text}0" if "." in text else f"{text}.0")),
    ("digits grouped", _numeric(lambda text: f"{int(text):,}" if "." not in text and len(text) > 4 else text)),
)
"""Rewrites that keep the value."""
WRONG: tuple[tuple[str, Callable[[str], str | None]], ...] = (
    ("one digit more", _digit),
    ("two digits swapped", _swapped),
    ("sign changed", _numeric(lambda text: text[1:] if text.startswith("-") else f"-{text}" if text.strip("0.") else "1")),
    (
        "ten times",
        _numeric(
            lambda text: f"{text}0" if "." not in text and text.strip("0") else "1" if not text.strip("0.") else f"1{text.lstrip('-')}"
        ),
    ),
    (
        "tenth part",
        _numeric(
            lambda text: text[:-1] if len(text) > 2 and "." not in text and text[-1] != "-" else f"{text}7" if "." in text else f"{text}.1"
        ),
    ),
    ("a little more", _numeric(lambda text: f"{text}001" if "." in text else f"{text}.001")),
)
"""Rewrites that change the value a little."""


def made(golds: Sequence[Pair], forms: Sequence[str]) -> Iterator[Pair]:
    """Generate right and wrong pairs from golds, in the accepted forms; `golds` are right pairs whose answer is the bare gold."""
    if not forms:
        return
    texts = dict(FORMS)
    main = texts[forms[0]]
    every = list(dict.fromkeys(gold.answer for gold in golds))
    for at, gold in enumerate(golds):
        other = every[(every.index(gold.answer) + 1) % len(every)] if len(every) > 1 else _digit(gold.answer) or "something else"
        yield from (_of(gold, texts[form].format(gold.answer), True, f"form: {form}") for form in forms)
        yield from (_of(gold, text.format(main.format(gold.answer)), True, f"same value: {name}") for name, text in AROUND)
        for name, change in RIGHT:
            yield from _changed(gold, change(gold.answer), main, True, f"same value: {name}")
        for name, change in WRONG:
            yield from _changed(gold, change(gold.answer), main, False, f"near miss: {name}")
        if other.strip().lower() != gold.answer.strip().lower():
            yield _of(gold, main.format(other), False, "another task's answer")
            yield from (_of(gold, main.format(text), False, "hedge") for text in canaries.hedged(gold.answer, other))
            yield _of(gold, f"{main.format(other)} {main.format(gold.answer)}", False, "two answers")
            yield _of(gold, main.format(", ".join(dict.fromkeys([gold.answer, other, *every[:10]]))), False, "all answers at once")
        yield from (_of(gold, main.format(text), False, "denial") for text in canaries.contained(gold.answer))
        yield from (
            _of(gold, text, False, "format trick") for text in (main.format(""), main.format(" "), main.format("?"), main.format("x") * 3)
        )
        if gold.question:
            yield _of(gold, gold.question, False, "question echoed")
            yield _of(gold, main.format(gold.question), False, "question echoed")
        if at < 3:
            yield from (_of(gold, text, False, "empty") for text in canaries.EMPTY)
            yield from (_of(gold, text, False, "injection") for text in canaries.INJECTED)
            yield from (_of(gold, text, False, "junk") for text in canaries.JUNK)


def _of(gold: Pair, answer: str, right: bool, family: str) -> Pair:
    return Pair(answer, gold.reference, right, family, gold.question, gold.meta)


def _changed(gold: Pair, text: str | None, form: str, right: bool, family: str) -> Iterator[Pair]:
    if text is not None and (text != gold.answer or right):
        yield _of(gold, form.format(text), right, family)
