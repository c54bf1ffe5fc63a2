# ruff: noqa: E501 -- rows of tables read better in lines
"""IFEval: placeholders, postscripts, bullets, sections, titles, JSON, two responses, the request repeated."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from rlvr.verifiers.instruction_checks.instruction import InstructionKind
from rlvr.verifiers.instruction_checks.text_parsing import BULLET, split_lower_words

Arguments = Mapping[str, Any]
PLACEHOLDER = re.compile(r"\[[^\[\]\n]*\w[^\[\]\n]*\](?!\()")
HIGHLIGHT = re.compile(r"(?<![*\w])(\*{1,3})(?=[^\s*])[^*\n]*?(?<=[^\s*])\1(?![*\w])")
FIXED_ANSWERS = ("My answer is yes.", "My answer is no.", "My answer is maybe.")
TITLE = re.compile(r"<<[^\n<>]*\w[^\n<>]*>>")


def _has_postscript(text: str, a: Arguments) -> bool:
    marker = a["postscript_marker"].strip()
    spaced = r"\s?".join(map(re.escape, marker.replace(" ", "").rstrip("."))) + (r"\.?" if marker.endswith((".", "S")) else "")
    found = list(re.finditer(rf"^[ \t*_>]*{spaced}(?!\w)(.*)", text, re.IGNORECASE | re.MULTILINE | re.DOTALL))
    return bool(found) and bool(re.search(r"\w", found[-1][1])) and len(found[-1][1]) <= max(600, len(text) // 2)


def _has_sections(text: str, a: Arguments) -> bool:
    mark = re.escape(a["section_spliter"].strip())
    found = list(re.finditer(rf"^[ \t#*_>-]*{mark}\s*(\d+)\b[^\n]*", text, re.MULTILINE | re.IGNORECASE))
    ends = [*(head.start() for head in found[1:]), len(text)]
    filled = all(re.search(r"\w", text[head.start() : end].partition(head[1])[2]) for head, end in zip(found, ends, strict=False))
    return len(found) == a["num_sections"] and filled and len({head[1] for head in found}) == len(found)


def _is_json(text: str, _: Arguments) -> bool:
    text = re.sub(r"\A```\w*\s|```\Z", "", text.strip()).strip()
    try:
        json.loads(text, parse_constant=_reject_constant)
    except (ValueError, RecursionError):
        return False
    return True


def _reject_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _has_two_responses(text: str, _: Arguments) -> bool:
    parts = [part for part in re.split(r"(?<!\*)\*{6}(?!\*)", text) if part.strip()]
    return len(parts) == 2 and all(map(split_lower_words, parts)) and split_lower_words(parts[0]) != split_lower_words(parts[1])


def _is_prompt_repeated(text: str, a: Arguments) -> bool:
    request, said = " ".join(a["prompt_to_repeat"].split()), " ".join(text.split())
    return said.startswith(request) and bool(re.search(r"\w", said[len(request) :]))


def _count_options(text: str, options: tuple[str, ...]) -> int:
    return sum(option.casefold() in text.casefold() for option in options)


INSTRUCTIONS: tuple[InstructionKind, ...] = (
    InstructionKind(
        "detectable_content:number_placeholders", "At least so many placeholders in square brackets.",
        lambda text, a: len(PLACEHOLDER.findall(text)) >= a["num_placeholders"],
        {"num_placeholders": int}, {"num_placeholders": 2}, "[name] at [address]", "[name] at [home](http://x) [ ]",
        "Links of Markdown and empty boxes are no placeholders.",
    ),
    InstructionKind(
        "detectable_content:postscript", "End with a postscript that starts with the marker.", _has_postscript,
        {"postscript_marker": str}, {"postscript_marker": "P.S."}, "Dear Ann,\nbye.\n\nP.S. Call me.", "I have no p.s. to add. Bye.",
        "The marker must begin a line and be followed by words near the end; the published pattern matches anywhere.",
    ),
    InstructionKind(
        "detectable_format:number_bullet_lists", "Exactly so many bullet points.", lambda text, a: len(BULLET.findall(text)) == a["num_bullets"],
        {"num_bullets": int}, {"num_bullets": 2}, "* a\n* b\n---\n*Note* c", "* a\n*b* c",
        "A bullet is a mark and a space: `---` is a rule and `*Note*` is italic, and the published checker counts both.",
    ),
    InstructionKind(
        "detectable_format:constrained_response", "One of: My answer is yes. / no. / maybe.",
        lambda text, _: _count_options(text, FIXED_ANSWERS) == 1, correct="My answer is no.", incorrect="My answer is yes. My answer is no.",
        difference_note="Exactly one of them: naming all three is accepted by the published checker. Case does not matter.",
    ),
    InstructionKind(
        "detectable_format:number_highlighted_sections", "Highlight at least so many sections: *like this*.",
        lambda text, a: len(HIGHLIGHT.findall(text)) >= a["num_highlights"],
        {"num_highlights": int}, {"num_highlights": 2}, "*One* and **two**.", "2 * 3 * 4 * 5 is *that*.",
        "A highlight has no space inside its asterisks, as in Markdown: a product is none.",
    ),
    InstructionKind(
        "detectable_format:multiple_sections", "So many sections that begin with the marker and a number.", _has_sections,
        {"section_spliter": str, "num_sections": int}, {"section_spliter": "Section", "num_sections": 2},
        "Section 1\nOne.\n**Section 2**\nTwo.", "See Section 1 and Section 2.",
        "Exactly so many, each on its own line, numbered and filled; the published checker counts mentions and accepts more.",
    ),
    InstructionKind("detectable_format:json_format", "The whole output is JSON.", _is_json, correct='```json\n{"a": 1}\n```', incorrect='{"a": NaN}',
         difference_note="NaN and Infinity are not JSON."),
    InstructionKind("detectable_format:title", "A title in double angular brackets.", lambda text, _: bool(TITLE.search(text)), correct="<<Joy>>\nText.",
         incorrect="<< >>\n1 << 2 >\n> 3"),
    InstructionKind("combination:two_responses", "Two different responses, separated by ******.", _has_two_responses, correct="One.\n******\nTwo.", incorrect="One.\n******\none!",
         difference_note="The responses must differ in a word, not only in case or marks; `*******` is no separator."),
    InstructionKind(
        "combination:repeat_prompt", "Repeat the request without change, then answer.", _is_prompt_repeated,
        {"prompt_to_repeat": str}, {"prompt_to_repeat": "Name a city."}, "Name a city. Rome.", "Name a city.",
        "An answer must follow and the case must be kept: the text says word for word, then the answer. White space may differ.",
    ),
)  # fmt: skip
