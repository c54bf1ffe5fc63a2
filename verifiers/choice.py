"""Verify a multiple-choice answer: a label, the text of an option, or both, for one or several right options."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rlvr.contracts import Verifier, VerifierExample
from rlvr.errors import ConfigError, require_text_answers
from rlvr.extraction import extract_answer, strip_thinking
from rlvr.task import Fault, Task, Verdict
from rlvr.verifiers._markup import strip_markdown_and_latex
from rlvr.verifiers._unicode import normalize_unicode

OPTION_LABELS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
SURROUNDING_PATTERNS: tuple[tuple[str, str], ...] = (
    (r"\\(?:text|mathrm|mathbf|textbf|boldsymbol)\s*\{([^{}]*)\}", "B inside LaTeX: \\text{B}"),
    (r"(?:the\s+)?(?:correct\s+|right\s+|best\s+)?(?:answer|option|choice)\s*(?:is|:)?\s+(.+)", "words before it: the correct answer is B"),
    (r"(.+?)\s+is\s+(?:correct|right|the\s+(?:correct|right|best)\s+(?:answer|option|choice))", "words after it: B is correct"),
    (r'["“]([^"“”]+)["”]', 'quotes: "B"'),
)  # fmt: skip
"""Patterns of text around an answer, with an example; the group is what is kept."""
LABEL_SEPARATOR = re.compile(r"\s*(?:,|;|&|\band\b|\n)\s*", re.IGNORECASE)
CORRECTION = re.compile(
    r"[\s.?!*)\]}$]{0,8}(?:no\b|hmm+|wait|actually|oops|sorry|rather|scratch\s+that|correction|on\s+second\s+thought|better)\b(?P<rest>[^\n]{0,160})",
    re.IGNORECASE,
)
"""A sentence directly after an answer that takes it back."""
LABELLED_OPTION = re.compile(r"[\[(]?\s*(\w{1,2})\s*(?:[\])]\s*[.:,]?|[.:]|\s[-–—](?=\s))\s*(.*)", re.DOTALL)
"""A label, a mark that ends it, and perhaps the option's text."""


class Choice(Verifier):
    """The answer names the right option, by label (`B`, `(B)`, `B) Paris`) or by its whole text.

    The task's `meta["options"]` has the options as shown: a list (labelled A, B, C, ...) or a mapping from label to text. The reference is
    a label or the text of an option; with a list of them, exactly that set must be named. If the options were permuted, the text is
    the safest reference; for a label of the original order, `meta["order"]` gives the original position of each option shown.
    A label with another option's text is wrong, and so are two different options. Without options only a bare label is read.

    >>> import rlvr
    >>> task = rlvr.Task(rlvr.make_user_prompt("The capital of France?"), "Paris", id="t", meta={"options": ["Rome", "Paris"]})
    >>> rlvr.make_verifier("choice").verify(task, "The answer is (B).").score
    1.0
    """

    version = "4"  # 4: a label may be in quotes
    examples = (
        VerifierExample(
            "B",
            correct=("B", "(b)", "Paris", "B) Paris", '"B"'),
            incorrect=("A", "B) Rome", "A or B", '"B" or "A"', ""),
            meta={"options": ["Rome", "Paris"]},
        ),
        VerifierExample(["A", "C"], correct=("A and C", "C, A"), incorrect=("A", "A, B, C"), meta={"options": ["2", "4", "3"]}),
    )

    def __init__(self, *, extractor: str = "auto") -> None:
        """Set where the answer is declared.

        Args:
            extractor: where the answer is declared: auto, whole, boxed, tag, hash, final_line or fence.
        """
        extract_answer("", extractor)  # raises now for an unknown extractor
        self.extractor = extractor

    @require_text_answers
    def verify(self, task: Task, answer: str) -> Verdict:
        """Compare the named options with the correct ones."""
        try:
            options = _parse_options(task.meta)
            right = _find_correct_labels(task.reference, options, task.meta.get("order"))
        except ConfigError as error:
            return Verdict(None, str(error), fault=Fault.TASK)
        found = extract_answer(answer, self.extractor)
        text = found.text
        if text is None:
            whole = extract_answer(answer, "whole").text or ""
            if len(found.candidates) < 2 or len(right) < 2 or len(whole) > 200:
                return Verdict(0.0, f"no answer: {found.reason}")
            text = whole
        if (other := _find_correction(answer, text, options)) is not None:
            return Verdict(0.0, f"it names {text!r:.40}, and then corrects itself: {other!r:.60}")
        named = _parse_named_labels(text, options, allow_multiple=len(right) > 1)
        if named is None:
            return Verdict(0.0, f"{text!r:.80} does not name {'these options' if len(right) > 1 else 'one option'}")
        return Verdict(float(named == right), f"it names {' and '.join(sorted(named))}, right is {' and '.join(sorted(right))}")

    @property
    def explained_functions(self) -> Sequence[tuple[str, Callable[..., Any]]]:
        """Return the functions whose results are steps of an explanation."""
        return (("named", _parse_named_labels),)


def _find_correction(answer: str, text: str, options: dict[str, str] | None) -> str | None:
    """Find the sentence after a declared answer that takes it back and names another option; None if there is none."""
    shown = strip_thinking(answer) or ""
    at = shown.rfind(text)
    found = CORRECTION.match(shown[at + len(text) :]) if at >= 0 else None
    if found is None:
        return None
    sentence, own = found["rest"], (_parse_named_labels(text, options, allow_multiple=True) or set())
    labels = set(re.findall(r"(?<![\w'])\(?([A-Z])\)?(?![\w'])", sentence)) - {"I"}
    texts = {
        label
        for label, option in (options or {}).items()
        if re.search(rf"(?<!\w){re.escape(_normalize(option))}(?!\w)", sentence.casefold())
    }
    named = {label for label in labels if options is None or label in options} | texts
    return found[0].strip() if named - own else None


def _parse_options(meta: Mapping[str, Any]) -> dict[str, str] | None:
    """Return the options by label; None if the task has no options."""
    given = meta.get("options")
    if given is None:
        return None
    if isinstance(given, Sequence) and not isinstance(given, str) and len(given) <= len(OPTION_LABELS):
        given = dict(zip(OPTION_LABELS, given, strict=False))
    if (
        not isinstance(given, Mapping)
        or not given
        or not all(isinstance(part, str) and part.strip() for pair in given.items() for part in pair)
    ):
        raise ConfigError(f"meta['options'] is {given!r:.80}; it must be a list of texts, or a mapping from label to text")
    if len({_normalize(label) for label in given}) < len(given) or len({_normalize(text) for text in given.values()}) < len(given):
        raise ConfigError(f"two options are the same in {given!r:.120}")
    return {label.strip().upper(): text for label, text in given.items()}


def _find_correct_labels(reference: Any, options: dict[str, str] | None, original_positions: Any) -> set[str]:
    """Return the labels of the correct options, as shown."""
    wanted = reference if isinstance(reference, list | tuple) else [reference]
    if not wanted or not all(isinstance(text, str) and text.strip() for text in wanted):
        raise ConfigError(f"the reference is {reference!r:.80}; it must be a label or the text of an option, or a list of them")
    labels = list(options) if options is not None else list(OPTION_LABELS)
    shown = {label: label for label in labels}
    if original_positions is not None:
        places = list(original_positions) if isinstance(original_positions, list | tuple) else []
        if options is None or not all(type(n) is int for n in places) or sorted(places) != list(range(len(labels))):
            raise ConfigError(f"meta['order'] is {original_positions!r:.80}; it must have the original position of each option: [2, 0, 1]")
        shown = {labels[original]: labels[at] for at, original in enumerate(places)}
    texts = {_normalize(text): label for label, text in (options or {}).items()}
    right = set()
    for text in wanted:
        label = shown.get(text.strip().strip("().").upper()) or texts.get(_normalize(text))
        if label is None:
            raise ConfigError(f"the reference {text!r:.80} is not one of the options {' '.join(labels):.80}")
        right.add(label)
    return right


def _normalize(text: str) -> str:
    """Normalize the text of an option: Unicode form, markup, whitespace, quotes, case."""
    return " ".join(normalize_unicode("NFKC", strip_markdown_and_latex(text)).split()).strip("\"'“”‘’ ").removesuffix(".").casefold()


def _parse_named_labels(text: str, options: dict[str, str] | None, *, allow_multiple: bool) -> set[str] | None:
    """Return the labels that a declared answer names; None if it names none, or contains anything but options."""
    text = strip_markdown_and_latex(text)
    for pattern, _example in SURROUNDING_PATTERNS:
        whole = re.fullmatch(rf"\s*{pattern}\.?\s*", text, re.IGNORECASE | re.DOTALL)
        text = strip_markdown_and_latex(whole[1]) if whole else text
    if (label := _match_option(text, options)) is not None:
        return {label}
    if not allow_multiple:
        return None
    compact = text.strip(" ().")
    if 1 < len(compact) <= len(OPTION_LABELS) and compact.isupper() and compact.isalpha() and set(compact) <= set(options or OPTION_LABELS):
        return set(compact)
    labels = [_match_option(part, options) for part in LABEL_SEPARATOR.split(text) if part.strip()]
    return {label for label in labels if label} if all(labels) and labels else None


def _match_option(text: str, options: dict[str, str] | None) -> str | None:
    """Return the one option that a text names by label, by its text or by both."""
    texts = {_normalize(option): label for label, option in (options or {}).items()}
    bare = normalize_unicode("NFKC", text).strip().removesuffix(".").strip()
    label = bare.strip("()[]").strip().upper() if len(bare) <= 5 else ""
    if label in (options if options is not None else OPTION_LABELS) and label:
        return label
    if (known := texts.get(_normalize(text))) is not None:
        return known
    both = LABELLED_OPTION.fullmatch(normalize_unicode("NFKC", text).strip())
    if both is None or options is None or both[1].upper() not in options:
        return None
    said = _normalize(both[2])
    return both[1].upper() if not said or said == _normalize(options[both[1].upper()]) else None


make = Choice
