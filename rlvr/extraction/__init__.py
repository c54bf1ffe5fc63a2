r"""Find the declared answer in the text of a policy.

An extractor looks in one place where an answer is declared on purpose. Prose is never searched for numbers, except the last sentence. Text in
a thinking section is never an answer, and an unclosed thinking section hides everything after it. If two different answers are declared there is no answer,
unless the words between them mark the later one as the result. Every scanner is one pass over the text.

    extractor     the answer is
    boxed         the content of \boxed{...} or \fbox{...}
    tag           the content of <answer>...</answer>
    hash          the rest of a line that starts with ####
    final_line    the text after "the final answer is" or "Answer:", in some twenty languages
    fence         the content of the last ``` block (code)
    whole         the whole text, stripped
    auto          boxed and tag, else hash, else final_line, else a last sentence that concludes ("Thus, the sum is $7$."),
                  else the one value that the last sentence states ("It takes her 5 days."), else the whole text when it is one short line
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from rlvr.errors import ConfigError, format_suggestion
from rlvr.extraction.answer_lines import (
    extract_answer_phrase,
    extract_conclusion,
    extract_hash_line,
    is_quantity_line,
    reject_retracted_or_replaced_answer,
)
from rlvr.extraction.boxes import DENIED_REASON, EMPTY_BOX, NO_BOX, extract_boxed_and_text_after, get_inner_box_or_all, is_placeholder
from rlvr.extraction.context_words import CHARS_AFTER, CHARS_BEFORE, is_denied
from rlvr.extraction.extraction import MAX_DECLARATIONS, Extraction, require_agreement
from rlvr.extraction.last_sentence import extract_last_sentence
from rlvr.extraction.retractions import reject_alternatives
from rlvr.extraction.thinking import strip_thinking
from rlvr.extraction.trimming import strip_trailing_special_tokens

__all__ = ["EXTRACTORS", "Extraction", "extract_answer", "strip_thinking"]

MAX_BARE_ANSWER_CHARS = 2000
"""Maximum length in characters of a single line that `auto` takes for a bare answer."""
MULTIPLE_ANSWER_MODES = ("refuse", "last")
VERBATIM_EXTRACTORS = ("whole", "fence")
"""Those that find a text as it is, whatever its marks mean."""
_STRUCK_THROUGH = re.compile(r"\s*(?:~~(?=[^\s~])[^~]+(?<!\s)~~|<(s|del|strike)>[^<]+</\1>)[.\s]*", re.IGNORECASE)
NO_TAG = Extraction(None, "there is no <answer> tag")


def extract_answer(text: str, extractor: str | Sequence[str] = "auto", *, multiple_answers: str = "refuse") -> Extraction:
    """Extract the answer declared in `text`. Several extractors are tried in order until one of them finds a declaration.

    With `multiple_answers="last"`, the last of several different answers is taken; by default different answers give no answer.

    >>> extract_answer("The answer is 7. Or 8.", "final_line").text is None
    True
    """
    names = [extractor] if isinstance(extractor, str) else list(extractor)
    if multiple_answers not in MULTIPLE_ANSWER_MODES or not EXTRACTORS.keys() >= set(names):
        raise _unknown_setting_error(names, multiple_answers)
    found, shown = Extraction(None, "no extractor was given"), strip_thinking(text)
    if shown is None:
        return Extraction(None, "the thought section is not closed")
    if "<|begin_of_box|>" in shown:
        shown = _BOX_TOKENS.sub(r"\\boxed{\1}", shown)
    for name in names:
        found = EXTRACTORS[name](strip_trailing_special_tokens(shown))
        if found.text is not None and name not in VERBATIM_EXTRACTORS and _STRUCK_THROUGH.fullmatch(found.text):
            return Extraction(None, "it is struck through")
        if found.text is not None or found.candidates:
            break
    return Extraction(found.candidates[-1], "the last of several") if found.candidates and multiple_answers == "last" else found


def _unknown_setting_error(names: Sequence[str], multiple_answers: str) -> ConfigError:
    for name in names:
        if name not in EXTRACTORS:
            return ConfigError(f"there is no extractor {name!r}; {format_suggestion(name, EXTRACTORS)}")
    return ConfigError(f"multiple_answers is {multiple_answers!r}; {format_suggestion(multiple_answers, MULTIPLE_ANSWER_MODES)}")


def _extract_boxed(text: str) -> Extraction:
    found, after = extract_boxed_and_text_after(text)
    return reject_retracted_or_replaced_answer(found, after)


_BOX_TOKENS = re.compile(r"<\|begin_of_box\|>([^<>]{0,2000}?)<\|end_of_box\|>")
"""How GLM models mark the answer: tokens instead of a command."""

_TAG_MARK = re.compile(r"<(/?)answer>", re.IGNORECASE)


def _extract_tag(text: str) -> Extraction:
    contents: list[tuple[int, int, str]] = []
    start: int | None = None
    nested = False
    for mark in _TAG_MARK.finditer(text) if "<" in text else ():
        if not mark[1]:
            nested = nested or start is not None  # if nothing closes it, it may be just the word "<answer>" in prose
            start = mark.end()
        elif start is not None:
            contents.append((start - len("<answer>"), mark.end(), text[start : mark.start()]))
            start = None
        elif nested:
            return Extraction(None, "one <answer> is inside another")
    if start is not None:
        return Extraction(None, "the last <answer> is not closed")
    if not contents:
        return NO_TAG
    filled = [tag for tag in contents[-MAX_DECLARATIONS:] if not is_placeholder(tag[2])]
    if not filled:
        return Extraction(None, "the tag is empty")
    asserted = [tag for tag in filled if not is_denied(text[max(0, tag[0] - CHARS_BEFORE) : tag[0]], text[tag[1] : tag[1] + CHARS_AFTER])]
    if not asserted:
        return Extraction(None, DENIED_REASON)
    found = require_agreement([get_inner_box_or_all(tag[2]) for tag in asserted], "the tag")
    if found.text is None:
        return found
    start, end = asserted[0][0], asserted[-1][1]
    return reject_retracted_or_replaced_answer(
        reject_alternatives(found, text[max(0, start - CHARS_BEFORE) : start], text[end : end + CHARS_AFTER]), text[end:]
    )


_FENCE_LINE = re.compile(r"^[ \t]*(`{3,}+|~{3,}+)([^\n`]*)$", re.MULTILINE)


def _extract_fence(text: str) -> Extraction:
    last: str | None = None
    opened: re.Match[str] | None = None
    for mark in _FENCE_LINE.finditer(text):
        if opened is None:
            opened = mark
        elif mark[1].startswith(opened[1]) and not mark[2].strip():
            last, opened = text[opened.end() : mark.start()].lstrip("\n"), None
    if opened is not None:
        return Extraction(None, "the last code block is not closed")
    return Extraction(last, "in the last code block") if last is not None else Extraction(None, "there is no code block")


def _extract_whole(text: str) -> Extraction:
    stripped = text.strip()
    return Extraction(stripped, "the whole text") if stripped else Extraction(None, "the answer is empty")


_PART_LINE = re.compile(r"(?:\*\*)?(?:\(([a-h])\)|([1-9])[.)])(?:\*\*)?[ \t]*[:=]?[ \t]*(\S.{0,200})")
"""One line of an answer in parts: `(a) 5`, `**2.** 12`."""


def _extract_part_lines(text: str) -> Extraction | None:
    """Extract the answers to the parts of a question, where the text is nothing but them, one a line; None for other texts."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    parts = [_PART_LINE.fullmatch(line) for line in lines] if 2 <= len(lines) <= 8 else []
    labels = "".join(part[1] or part[2] for part in parts if part is not None)
    if not parts or None in parts or labels not in ("abcdefgh"[: len(parts)], "12345678"[: len(parts)]):
        return None
    values = [part[3].strip().strip("$*").rstrip(" ,;.") for part in parts if part is not None]
    return Extraction(
        ", ".join(f"({label}) {value}" for label, value in zip("abcdefgh", values, strict=False)), "in the lines of the parts"
    )


_ONE_LINE_CODE_BLOCK = re.compile(r"```\w{0,20}\n([^\n`]+)\n```")
"""A code block of one line."""


def _extract_closing_hash_line(text: str) -> Extraction:
    """Extract the number of a last #### line that is followed by at most a short closing remark without numbers."""
    head, mark, tail = text.rpartition("####")
    line, _, after = tail.partition("\n")
    if not is_quantity_line(line.strip()) or re.search(r"[\d$\\]", after) or len(after.strip()) > 300:
        return Extraction(None, "no #### line ends the text")
    return reject_retracted_or_replaced_answer(extract_hash_line(head + mark + line), after)


_PROSE = re.compile(r"(?:^|\s)[a-zA-Z]{2,}\s+[a-zA-Z]{2,}\b.*\s[a-zA-Z]{2,}.*[.!]|[a-zA-Z)\d]\.\s+[A-Z\d].*[.!=]", re.DOTALL)
"""A line that is a sentence, and not one expression."""


def _extract_auto(text: str) -> Extraction:
    box, tag = _extract_boxed(text), _extract_tag(text)
    if box.text is not None and tag.reason is DENIED_REASON:
        return tag
    if box.text is not None and tag.text is not None:
        return require_agreement([box.text, tag.text], "the box and the tag")
    if box.text is not None and tag.candidates:  # tags that differ among themselves are no less a hedge beside a box
        return require_agreement([box.text, *tag.candidates], "the box and the tag")
    if box is not NO_BOX and box is not EMPTY_BOX:
        return box
    if tag is not NO_TAG:
        return tag
    rows = text.strip().splitlines()
    if rows and re.match(r"\s*(?:\*\*)?####\s*[^#\s]", rows[-1]):
        return extract_hash_line(text)
    if "####" in text and (found := _extract_closing_hash_line(text)).text is not None:
        return found
    found = extract_answer_phrase(text)
    if found.text is not None or found.candidates:
        return found
    found = extract_conclusion(text)
    if found.text is not None or box is EMPTY_BOX:
        return found if found.text is not None else box
    bare = text.strip()
    block = _ONE_LINE_CODE_BLOCK.fullmatch(bare) if bare.endswith("```") and len(bare) <= MAX_BARE_ANSWER_CHARS else None
    if block is not None:
        return Extraction(block[1].strip(), "the whole text")
    if len(rows) > 1 and (parts := _extract_part_lines(bare)) is not None:
        return parts
    stated = extract_last_sentence(bare)
    if stated.text is not None and (len(rows) > 1 or _PROSE.search(bare)):
        return stated
    single = len(rows) == 1 or bare.startswith(("\\begin", "$", "\\[", "\\left"))
    if bare and single and len(bare) <= MAX_BARE_ANSWER_CHARS:
        return Extraction(bare, "the whole text")
    return Extraction(None, "nothing in the text declares an answer" if bare else "the answer is empty")


VERSION = "4"
"""Increase it whenever an extractor may find something else in a text: it is recorded with the version of every verifier.

2: tags that differ are a hedge beside a box too. 3: what is struck through, in a comment or taken back as a joke declares nothing.
4: further wordings of denial (`it is not the case that the answer is`).
"""
EXTRACTORS: dict[str, Callable[[str], Extraction]] = {
    "boxed": _extract_boxed,
    "tag": _extract_tag,
    "hash": extract_hash_line,
    "final_line": extract_answer_phrase,
    "fence": _extract_fence,
    "whole": _extract_whole,
    "auto": _extract_auto,
}
"""Every extractor by name."""
