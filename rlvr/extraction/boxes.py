r"""Find the boxes of a text, \boxed{...} and \fbox{...}, and decide which of several is the answer.

Empty boxes are ignored. Adjacent boxes (`\boxed{7} or \boxed{8}`) are read together: as a list if commas, `and` or `or` join them, and as
no answer otherwise. If words separate boxes (a new part, a correction, an intermediate result), only the boxes after the last such place
count. The tables of words are in the module with the context words.
"""

from __future__ import annotations

import itertools
import re

from rlvr.extraction.context_words import CHARS_AFTER, CHARS_BEFORE, is_denied, starts_new_part_or_correction
from rlvr.extraction.extraction import MAX_DECLARATIONS, Extraction, deduplicate_keeping_last, require_agreement
from rlvr.extraction.partial_boxes import is_part_of_formula
from rlvr.extraction.retractions import reject_alternatives
from rlvr.extraction.trimming import strip_whitespace_and_emoji

BoxSpan = tuple[int, int, str]
"""The start, the end and the content of a box."""

NO_BOX = Extraction(None, "there is no box")
EMPTY_BOX = Extraction(None, "the box is empty")

_BRACES = re.compile(r"\\(?:boxed|fbox)\s*\{(?:([^{}\\]*)\})?|\\(?:boxed|fbox)\s*(?=[^\s{}$\\.,;])[^\s{}$\\]+|\\[^a-zA-Z]|[{}]")
_LETTER = r"[a-zA-Z](?:_\{?\w{1,3}\}?)?"
_AND_WORDS = r"(?:and|or|y|o|et|ou|und|oder|и|или)"
_LIST_JOINT = re.compile(
    rf"(?:[\s$,;、，；]|\\[,;: ]|\\q?quad|\\\(|\\\)|\\text\{{\s*(?:and|or)\s*\}}|和|或|\b{_AND_WORDS}\b|\b{_LETTER}\s*=)*"
)
_TAGGED = re.compile(r"\s*<answer>((?:(?!</?answer>).)*)</answer>\s*", re.IGNORECASE | re.DOTALL)
_VARIABLE_EQUALS = re.compile(rf"(?<![a-zA-Z\\])({_LETTER})\s*=[\s$]*$")
_LIST_JOINT_WORD = re.compile(rf"[,;、，；和或]|\b{_AND_WORDS}\b")
_OPERATOR = re.compile(r"[\s$]*(?:[-+*/·×÷]|\\(?:times|cdot|div|pm))[\s$]*")
_EQUALS = re.compile(r"[\s$]*=[\s$]*")
_PLACEHOLDER = re.compile(
    r"(?:[\s$~.…?_{}]|\\[,;:! ]|\\q?quad\b|\\(?:ldots|dots|cdots)\b|\\[hv]?phantom\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\}"
    r"|\\hspace\*?\{[^{}]*\}|\\(?:text|mathrm|textbf)(?=\{)|(?:(?:your|the|final|my)\s+)*answer(?:\s+here)?\b)*",
    re.IGNORECASE,
)
_CONDITIONAL_WORDS = re.compile(
    r"\bdepend(?:s|ing)\s+(?:on|upon)\s+(?:the\s+|your\s+)?(?:interpretation|reading|whether|how|which|what|if)", re.IGNORECASE
)
"""Before the boxes: each of them is offered under its own condition."""
DENIED_REASON = "the words around it deny it"


def _extract_from_boxes(text: str) -> Extraction:
    """Extract the answer declared by the boxes of a text."""
    return extract_boxed_and_text_after(text)[0]


def extract_boxed_and_text_after(text: str) -> tuple[Extraction, str]:
    """Extract the answer declared by the boxes, and return it with the text after the last box that counts."""
    boxes = _find_boxes(text)
    if boxes is None:
        return Extraction(None, "the last box is not closed"), ""
    if not boxes:
        return NO_BOX, ""
    boxes = [box for box in boxes[-MAX_DECLARATIONS:] if not is_placeholder(box[2])]
    if not boxes:
        return EMPTY_BOX, ""
    asserted = [box for box in boxes if not is_denied(text[max(0, box[0] - CHARS_BEFORE) : box[0]], text[box[1] : box[1] + CHARS_AFTER])]
    if not asserted:
        return Extraction(None, DENIED_REASON), ""
    run = (
        asserted
        if len(asserted) == 1 or _CONDITIONAL_WORDS.search(text[max(0, asserted[0][0] - 300) : asserted[0][0]])
        else _select_boxes_after_separator(text, asserted)
    )
    found = require_agreement([_strip_outer_box(run[0][2])], "the box") if len(run) == 1 else _combine_adjacent(text, run)
    start, end = run[0][0], run[-1][1]
    if found.text is not None and found.reason == "in the box":
        if is_part_of_formula(text[max(0, run[-1][0] - CHARS_BEFORE) : run[-1][0]], text[end : end + CHARS_AFTER]):
            return Extraction(None, "the box is only a part of a formula"), text[end:]
        if text.startswith("\\%", end):
            found = Extraction(found.text + "\\%", found.reason)
    if found.text is not None:
        found = reject_alternatives(found, text[max(0, start - CHARS_BEFORE) : start], text[end : end + CHARS_AFTER])
    return found, text[end:]


def _find_boxes(text: str) -> list[BoxSpan] | None:
    """Find every outermost box, in order; None if the last one is not closed."""
    boxes: list[BoxSpan] = []
    opened: list[tuple[bool, int, int]] = []  # (is a box, where it starts, where its content starts)
    depth = 0
    first = text.find("box")  # the braces before it do not matter
    for token in _BRACES.finditer(text, text.rfind(" ", 0, first) + 1) if first > 0 else ():
        word = token[0]
        if token[1] is not None:  # most boxes: closed, without a brace inside
            if not depth:
                boxes.append((token.start(), token.end(), token[1]))
        elif word == "}":
            if opened:
                box, start, within = opened.pop()
                depth -= box
                if box and not depth:
                    boxes.append((start, token.end(), text[within : token.start()]))
        elif word.endswith("{") and len(word) != 2:
            opened.append((len(word) > 1, token.start(), token.end()))
            depth += len(word) > 1
        elif len(word) > 2 and not depth:
            boxes.append((token.start(), token.end(), re.sub(r"^\\f?box(?:ed)?\s*|[.,;]+$", "", word)))
    return None if depth else boxes


def is_placeholder(content: str) -> bool:
    r"""Whether a box or a tag has no visible content, or only a placeholder such as "answer".

    >>> [is_placeholder(text) for text in ("", r"\phantom{2}", "...", r"\text{answer}", "2")]
    [True, True, True, True, False]
    """
    return len(content) <= 200 and _PLACEHOLDER.fullmatch(content) is not None


def _select_boxes_after_separator(text: str, boxes: list[BoxSpan]) -> list[BoxSpan]:
    """Select the boxes after the last place where words separate two of them."""
    for at in range(len(boxes) - 1, 0, -1):
        if starts_new_part_or_correction(text[boxes[at - 1][1] : boxes[at][0]]):
            return boxes[at:]
    return boxes


def _combine_adjacent(text: str, boxes: list[BoxSpan]) -> Extraction:
    """Combine adjacent boxes into one answer."""
    between = [text[a[1] : b[0]] for a, b in itertools.pairwise(boxes)]
    if (
        between
        and len(boxes) <= 12
        and all(len(gap) < 40 and _LIST_JOINT.fullmatch(gap) and _LIST_JOINT_WORD.search(gap) for gap in between)
    ):
        return _join_as_list(text, boxes)
    if len(between) > 1 and len(boxes) <= 12 and _EQUALS.fullmatch(between[-1]) and all(map(_OPERATOR.fullmatch, between[:-1])):
        return Extraction(_strip_outer_box(boxes[-1][2]), "in the box with the result")  # \boxed{2} + \boxed{4} = \boxed{6}
    return require_agreement([_strip_outer_box(box[2]) for box in boxes], "the box")


def _join_as_list(text: str, boxes: list[BoxSpan]) -> Extraction:
    """Join boxes separated by commas and words into a list: x = 1 and y = 2, but not x twice."""
    parts = deduplicate_keeping_last([_strip_outer_box(box[2]) for box in boxes])
    names = [match and match[1] for match in (_VARIABLE_EQUALS.search(text[max(0, box[0] - 16) : box[0]]) for box in boxes)]
    if len(set(names)) == len(parts) == len(boxes):
        parts = [f"{name}={part}" if name and "=" not in part else part for name, part in zip(names, parts, strict=True)]
    if any(part.count("(") + part.count("[") != part.count(")") + part.count("]") for part in parts):
        return Extraction(None, "a bracket opens in one box and closes in another")
    return Extraction(", ".join(parts), "in boxes side by side") if len(parts) > 1 else Extraction(parts[0], "in the box")


def _strip_outer_box(content: str) -> str:
    """Remove a box that is the whole content of a box or a tag, or a tag that is the whole content of a box."""
    if "<" in content and (tagged := _TAGGED.fullmatch(content)):
        content = tagged[1]
    if "\\" not in content:
        return strip_whitespace_and_emoji(content)
    for _ in range(4):
        inner = content.strip().strip("$").strip()
        match = re.match(r"\\(?:boxed|fbox)\s*\{", inner)
        if not match or not inner.endswith("}") or _has_unbalanced_braces(inner[match.end() : -1]):
            break
        content = inner[match.end() : -1]
    return strip_whitespace_and_emoji(content)


def _has_unbalanced_braces(text: str) -> bool:
    """Whether a text closes a brace that it does not open: then the last brace does not belong to the first one."""
    steps = ({"{": 1, "}": -1}.get(mark[0], 0) for mark in re.finditer(r"\\.|[{}]", text, re.DOTALL))
    return any(depth < 0 for depth in itertools.accumulate(steps))


def get_inner_box_or_all(content: str) -> str:
    """Return the answer in a tag or a line: the box in it if there is one, else all of it."""
    if ("\\boxed" in content or "\\fbox" in content) and (answer := _extract_from_boxes(content).text) is not None:
        return answer
    return strip_whitespace_and_emoji(content)
