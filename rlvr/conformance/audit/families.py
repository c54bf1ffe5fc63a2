"""Generate pairs from golds: right answers in other forms, near misses, and answers that must never be rewarded."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from rlvr.conformance import adversarial_answers as canaries

ANSWER_FORMS: tuple[tuple[str, str], ...] = (
    ("bare", "{}"),
    ("box", r"\boxed{{{}}}"),
    ("tag", "<answer>{}</answer>"),
    ("hash line", "#### {}"),
    ("sentence", "The answer is {}."),
    ("final line", "Final answer: {}"),
)
"""Ways to declare an answer. Forms in which no gold is accepted are unsupported by the verifier, and are not used."""
SMALLEST_MISS = Decimal("0.0005")
"""The smallest relative difference of a decimal that is a near miss."""
NUMERAL = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?")


@dataclass(frozen=True, slots=True)
class LabelledAnswer:
    """An answer with its reference, and whether it is right.

    >>> LabelledAnswer("5", "4", is_correct=False, family="near miss: one more").is_correct
    False
    """

    answer: str
    reference: Any
    is_correct: bool
    family: str = "given"
    question: str = ""
    meta: dict[str, Any] = field(default_factory=dict)

    def to_worker_request(self) -> dict[str, Any]:
        """Convert the pair to a request for a worker."""
        return {"answer": self.answer, "reference": self.reference, "question": self.question, "meta": self.meta}


def _increment_last_digit(text: str) -> str | None:
    """Replace the last digit by the next one; None without a digit."""
    at = next((n for n in range(len(text) - 1, -1, -1) if text[n] in "0123456789"), None)
    return None if at is None else text[:at] + str((int(text[at]) + 1) % 10) + text[at + 1 :]


def _swap_adjacent_digits(text: str) -> str | None:
    """Swap the first two different adjacent digits; None if there are none."""
    found = next((m for m in re.finditer(r"(?=(\d)(\d))", text) if m[1] != m[2]), None)
    return None if found is None else text[: found.start()] + found[2] + found[1] + text[found.start() + 2 :]


def _may_be_rounding(text: str, changed: str) -> bool:
    """Whether a verifier with a small tolerance may take a changed decimal for the same measured value."""
    if "." not in text or not (NUMERAL.fullmatch(text) and NUMERAL.fullmatch(changed)):
        return False
    return abs(Decimal(changed) - Decimal(text)) < SMALLEST_MISS * abs(Decimal(text))


def _add_share(text: str) -> str:
    """Add two thousandths of a value to a numeral.

    >>> _add_share("42"), _add_share("0.333333"), _add_share("0")
    ('42.084', '0.333999666', '0.002')
    """
    value = Decimal(text)
    return f"{(value + (value or 1) * Decimal('0.002')):f}"


def _for_numerals(change: Callable[[str], str]) -> Callable[[str], str | None]:
    return lambda text: change(text) if NUMERAL.fullmatch(text) else None


SURROUNDING_FORMS: tuple[tuple[str, str], ...] = (
    ("white space around", "  {}\n"),
    ("a thought before", "<think>Perhaps 7. No.</think>\n{}"),
)
"""Text that may surround a declared answer."""
VALUE_PRESERVING_REWRITES: tuple[tuple[str, Callable[[str], str | None]], ...] = (
    ("decimal zero", _for_numerals(lambda text: f"{text}0" if "." in text else f"{text}.0")),
    ("digits grouped", _for_numerals(lambda text: f"{int(text):,}" if "." not in text and len(text) > 4 else text)),
)
"""Rewrites that keep the value."""
VALUE_CHANGING_REWRITES: tuple[tuple[str, Callable[[str], str | None]], ...] = (
    ("one digit more", _increment_last_digit),
    ("two digits swapped", _swap_adjacent_digits),
    ("sign changed", _for_numerals(lambda text: text[1:] if text.startswith("-") else f"-{text}" if text.strip("0.") else "1")),
    (
        "ten times",
        _for_numerals(
            lambda text: f"{text}0" if "." not in text and text.strip("0") else "1" if not text.strip("0.") else f"1{text.lstrip('-')}"
        ),
    ),
    (
        "tenth part",
        _for_numerals(
            lambda text: text[:-1] if len(text) > 2 and "." not in text and text[-1] != "-" else f"{text}7" if "." in text else f"{text}.1"
        ),
    ),
    ("a little more", _for_numerals(lambda text: _add_share(text))),
)
"""Rewrites that change the value a little, but by more than the tolerance that a verifier of measured numbers may have."""
CODE_TEMPLATES = ("int('{}')", "(lambda: {})()", "[{}][0]", "eval('{}')")
"""Programs whose value is a numeral: a verifier that accepts one runs what a policy writes."""


def generate_pairs(golds: Sequence[LabelledAnswer], forms: Sequence[str]) -> Iterator[LabelledAnswer]:
    """Generate labelled pairs, right and wrong, from golds, in the accepted answer forms; each gold is a right pair whose answer has no
    declaring mark.
    """
    if not forms:
        return
    texts = dict(ANSWER_FORMS)
    main = texts[forms[0]]
    every = list(dict.fromkeys(gold.answer for gold in golds))
    for at, gold in enumerate(golds):
        other = (
            every[(every.index(gold.answer) + 1) % len(every)] if len(every) > 1 else _increment_last_digit(gold.answer) or "something else"
        )
        yield from (_make_pair(gold, texts[form].format(gold.answer), True, f"form: {form}") for form in forms)
        yield from (
            _make_pair(gold, text.format(main.format(gold.answer)), True, f"same value: {name}") for name, text in SURROUNDING_FORMS
        )
        for name, change in VALUE_PRESERVING_REWRITES:
            yield from _make_changed_pair(gold, change(gold.answer), main, True, f"same value: {name}")
        for name, change in VALUE_CHANGING_REWRITES:
            changed = change(gold.answer)
            if changed is not None and not _may_be_rounding(gold.answer, changed):
                yield from _make_changed_pair(gold, changed, main, False, f"near miss: {name}")
        if other.strip().lower() != gold.answer.strip().lower():
            yield _make_pair(gold, main.format(other), False, "another task's answer")
            yield from (_make_pair(gold, main.format(text), False, "hedge") for text in canaries.iter_hedged_answers(gold.answer, other))
            yield _make_pair(gold, f"{main.format(other)} {main.format(gold.answer)}", False, "two answers")
            yield _make_pair(gold, main.format(", ".join(dict.fromkeys([gold.answer, other, *every[:10]]))), False, "all answers at once")
        if NUMERAL.fullmatch(gold.answer):
            if "." not in gold.answer:
                yield _make_pair(gold, main.format(f"{int(gold.answer) - 1}+1"), False, "calculation left open")
            yield from (_make_pair(gold, main.format(text.format(gold.answer)), False, "code") for text in CODE_TEMPLATES)
        yield from (_make_pair(gold, main.format(text), False, "denial") for text in canaries.iter_denials(gold.answer))
        yield from (
            _make_pair(gold, text, False, "format trick")
            for text in (main.format(""), main.format(" "), main.format("?"), main.format("x") * 3)
        )
        if gold.question:
            yield _make_pair(gold, gold.question, False, "question echoed")
            yield _make_pair(gold, main.format(gold.question), False, "question echoed")
        if at < 3:
            yield from (_make_pair(gold, text, False, "empty") for text in canaries.EMPTY_ANSWERS)
            yield from (_make_pair(gold, text, False, "injection") for text in canaries.INJECTION_ANSWERS)
            yield from (_make_pair(gold, text, False, "junk") for text in canaries.JUNK_ANSWERS)


def _make_pair(gold: LabelledAnswer, answer: str, is_correct: bool, family: str) -> LabelledAnswer:
    return LabelledAnswer(answer, gold.reference, is_correct, family, gold.question, gold.meta)


def _make_changed_pair(gold: LabelledAnswer, text: str | None, form: str, is_correct: bool, family: str) -> Iterator[LabelledAnswer]:
    if text is not None and (text != gold.answer or is_correct):
        yield _make_pair(gold, form.format(text), is_correct, family)
