"""Verify a multiple-choice answer: a label, the text of an option, or both, for one or several right options."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

from rlvr.answers import find
from rlvr.contracts import Example, Verifier
from rlvr.errors import ConfigError
from rlvr.task import Fault, Task, Verdict
from rlvr.verifiers._marks import unmarked

LABELS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
LEADS: tuple[tuple[str, str], ...] = (
    (r"\\(?:text|mathrm|mathbf|textbf|boldsymbol)\s*\{([^{}]*)\}", "B inside LaTeX: \\text{B}"),
    (r"(?:the\s+)?(?:correct\s+|right\s+|best\s+)?(?:answer|option|choice)\s*(?:is|:)?\s+(.+)", "words before it: the correct answer is B"),
    (r"(.+?)\s+is\s+(?:correct|right|the\s+(?:correct|right|best)\s+(?:answer|option|choice))", "words after it: B is correct"),
)  # fmt: skip
"""Patterns of text around an answer, with an example; the group is what is kept."""
SEVERAL = re.compile(r"\s*(?:,|;|&|\band\b|\n)\s*", re.IGNORECASE)
LABELLED = re.compile(r"[\[(]?\s*(\w{1,2})\s*(?:[\])]\s*[.:,]?|[.:]|\s[-–—](?=\s))\s*(.*)", re.DOTALL)
"""A label, a mark that ends it, and perhaps the option's text."""


class Choice(Verifier):
    """The answer names the right option, by label (`B`, `(B)`, `B) Paris`) or by its whole text.

    The task's `meta["options"]` has the options as shown: a list (labelled A, B, C, ...) or a mapping from label to text. The reference is
    a label or the text of an option; with a list of them, exactly that set must be named. If the options were permuted, the text is
    the safest reference; for a label of the original order, `meta["order"]` gives the original position of each option shown.
    A label with another option's text is wrong, and so are two different options. Without options only a bare label is read.

    >>> import rlvr
    >>> task = rlvr.Task("t", rlvr.user("The capital of France?"), "Paris", meta={"options": ["Rome", "Paris"]})
    >>> rlvr.make("verifier", "choice").verify(task, "The answer is (B).").score
    1.0
    """

    examples = (
        Example("B", right=("B", "(b)", "Paris", "B) Paris"), wrong=("A", "B) Rome", "A or B", ""), meta={"options": ["Rome", "Paris"]}),
        Example(["A", "C"], right=("A and C", "C, A"), wrong=("A", "A, B, C"), meta={"options": ["2", "4", "3"]}),
    )

    def __init__(self, *, channel: str = "auto") -> None:
        """Set where the answer is declared.

        Args:
            channel: where the answer is declared: auto, whole, boxed, tag, hash, final_line or fence.
        """
        find("", channel)  # raises now for an unknown channel
        self.channel = channel

    def verify(self, task: Task, answer: str) -> Verdict:
        """Compare the named options with the correct ones."""
        try:
            options = _options(task.meta)
            right = _right(task.reference, options, task.meta.get("order"))
        except ConfigError as error:
            return Verdict(None, str(error), fault=Fault.TASK)
        found = find(answer, self.channel)
        text = found.text
        if text is None:
            whole = find(answer, "whole").text or ""
            if len(found.several) < 2 or len(right) < 2 or len(whole) > 200:
                return Verdict(0.0, f"no answer: {found.reason}")
            text = whole
        named = _named(text, options, several=len(right) > 1)
        if named is None:
            return Verdict(0.0, f"{text!r:.80} does not name {'these options' if len(right) > 1 else 'one option'}")
        return Verdict(float(named == right), f"it names {' and '.join(sorted(named))}, right is {' and '.join(sorted(right))}")


def _options(meta: Mapping[str, Any]) -> dict[str, str] | None:
    """Return the options by label; None if the task has no options."""
    given = meta.get("options")
    if given is None:
        return None
    if isinstance(given, Sequence) and not isinstance(given, str) and len(given) <= len(LABELS):
        given = dict(zip(LABELS, given, strict=False))
    if (
        not isinstance(given, Mapping)
        or not given
        or not all(isinstance(part, str) and part.strip() for pair in given.items() for part in pair)
    ):
        raise ConfigError(f"meta['options'] is {given!r:.80}; it must be a list of texts, or a mapping from label to text")
    if len({_plain(label) for label in given}) < len(given) or len({_plain(text) for text in given.values()}) < len(given):
        raise ConfigError(f"two options are the same in {given!r:.120}")
    return {label.strip().upper(): text for label, text in given.items()}


def _right(reference: Any, options: dict[str, str] | None, order: Any) -> set[str]:
    """Return the labels of the correct options, as shown."""
    wanted = reference if isinstance(reference, list | tuple) else [reference]
    if not wanted or not all(isinstance(text, str) and text.strip() for text in wanted):
        raise ConfigError(f"the reference is {reference!r:.80}; it must be a label or the text of an option, or a list of them")
    labels = list(options) if options is not None else list(LABELS)
    shown = {label: label for label in labels}
    if order is not None:
        places = list(order) if isinstance(order, list | tuple) else []
        if options is None or not all(type(n) is int for n in places) or sorted(places) != list(range(len(labels))):
            raise ConfigError(f"meta['order'] is {order!r:.80}; it must have the original position of each option: [2, 0, 1]")
        shown = {labels[original]: labels[at] for at, original in enumerate(places)}
    texts = {_plain(text): label for label, text in (options or {}).items()}
    right = set()
    for text in wanted:
        label = shown.get(text.strip().strip("().").upper()) or texts.get(_plain(text))
        if label is None:
            raise ConfigError(f"the reference {text!r:.80} is not one of the options {' '.join(labels):.80}")
        right.add(label)
    return right


def _plain(text: str) -> str:
    """Normalize the text of an option: Unicode form, markup, whitespace, quotes, case."""
    return " ".join(unicodedata.normalize("NFKC", unmarked(text)).split()).strip("\"'“”‘’ ").removesuffix(".").casefold()


def _named(text: str, options: dict[str, str] | None, *, several: bool) -> set[str] | None:
    """Return the labels that a declared answer names; None if it names none, or contains anything but options."""
    text = unmarked(text)
    for pattern, _example in LEADS:
        whole = re.fullmatch(rf"\s*{pattern}\.?\s*", text, re.IGNORECASE | re.DOTALL)
        text = unmarked(whole[1]) if whole else text
    if (label := _one(text, options)) is not None:
        return {label}
    if not several:
        return None
    compact = text.strip(" ().")
    if 1 < len(compact) <= len(LABELS) and compact.isupper() and compact.isalpha() and set(compact) <= set(options or LABELS):
        return set(compact)
    labels = [_one(part, options) for part in SEVERAL.split(text) if part.strip()]
    return {label for label in labels if label} if all(labels) and labels else None


def _one(text: str, options: dict[str, str] | None) -> str | None:
    """Return the one option that a text names by label, by its text or by both."""
    texts = {_plain(option): label for label, option in (options or {}).items()}
    bare = unicodedata.normalize("NFKC", text).strip().removesuffix(".").strip()
    label = bare.strip("()[]").strip().upper() if len(bare) <= 5 else ""
    if label in (options if options is not None else LABELS) and label:
        return label
    if (known := texts.get(_plain(text))) is not None:
        return known
    both = LABELLED.fullmatch(unicodedata.normalize("NFKC", text).strip())
    if both is None or options is None or both[1].upper() not in options:
        return None
    said = _plain(both[2])
    return both[1].upper() if not said or said == _plain(options[both[1].upper()]) else None


make = Choice
