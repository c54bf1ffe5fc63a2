# ruff: noqa: E501 -- rows of tables read better in lines
"""IFBench: brackets, quotes, lists, lines, emoji, templates."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from typing import Any

from rlvr.verifiers.instruction_checks.instruction import InstructionKind
from rlvr.verifiers.instruction_checks.text_parsing import EMOJI, ends_with_emoji, split_nonblank_lines, split_sentences, split_words

Arguments = Mapping[str, Any]
BRACKET_PAIRS = {")": "(", "]": "[", "}": "{"}
STRAIGHT_QUOTES = {"“": '"', "”": '"', "‘": "'", "’": "'"}
_MINOR = "a an the and or but nor for so yet at by in of on off to up via as if per vs from with into over than is"
MINOR_WORDS = frozenset(_MINOR.split())
TEMPLATE = re.compile(r"\s*My Answer:(.*?)My Conclusion:(.*?)Future Outlook:(.*)", re.DOTALL)
HEADING = re.compile(
    r"^[ \t]*(?:#{1,6}[ \t].*|<h\d>.*</h\d>|\*\*[^*\n]+\*\*:?|\d+\.[ \t]*\*\*[^*\n]+\*\*:?)[ \t]*$", re.MULTILINE | re.IGNORECASE
)
ITALIC = re.compile(r"\s*(?:<p>\s*)?<(i|em)>(.*?)</\1>(.*)", re.DOTALL | re.IGNORECASE)


def _has_nested_brackets(text: str, _: Arguments) -> bool:
    open_, depths = [], []
    deepest = 0
    for sign in text:
        if sign in "([{":
            open_.append(sign)
            depths.append(0)
        elif sign in BRACKET_PAIRS:
            if not open_ or open_[-1] != BRACKET_PAIRS[sign]:
                open_, depths = [], []
                continue
            open_.pop()
            depth = depths.pop() + 1
            deepest = max(deepest, depth)
            if depths:
                depths[-1] = max(depths[-1], depth)
    return deepest >= 5


def _has_nested_quotes(text: str, _: Arguments) -> bool:
    open_: list[str] = []
    reached = 0
    for at, sign in enumerate(text):
        sign = STRAIGHT_QUOTES.get(sign, sign)
        before, after = text[at - 1 : at], text[at + 1 : at + 2]
        if sign not in "\"'" or (sign == "'" and before.isalnum() and after.isalnum()):
            continue
        if open_ and open_[-1] == sign:
            open_.pop()
            if not open_ and reached >= 3:
                return True
            reached = reached if open_ else 0
        elif not before.isalnum() and (after.isalnum() or after in "\"'“”‘’([{"):
            open_.append(sign)
            reached = max(reached, len(open_)) if any(map(str.isalnum, text[at + 1 : at + 200])) else reached
    return False


def _is_one_option(text: str, a: Arguments) -> bool:
    given = a["options"]
    separator = "/" if "/" in given else " or " if " or " in given else ","
    marks = " \t\n.!?\"'*`“”()[]"
    return text.strip(marks).casefold() in {option.strip(marks).casefold() for option in given.split(separator)}


def _has_one_word_per_line(text: str, _: Arguments) -> bool:
    rows = split_nonblank_lines(text)
    return len(rows) > 1 and all(len(row.split()) == 1 for row in rows)


def _has_emoji_endings(text: str, _: Arguments) -> bool:
    text = re.sub(rf"([.!?…]+[\"'”’]?)(\s*)((?:{EMOJI.pattern})+)", r"\3\1\2", text)  # `Hi. 🎉` is the sentence `Hi🎉.`
    return all(map(ends_with_emoji, split_sentences(text) or [text]))  # a text of emoji alone holds no sentence


def _has_growing_indent(text: str, _: Arguments) -> bool:
    depths = [len(line) - len(line.lstrip()) for line in split_nonblank_lines(text.expandtabs(4))]
    return len(depths) > 1 and all(a < b for a, b in itertools.pairwise(depths))


def _has_explained_quotes(text: str, _: Arguments) -> bool:
    parts = re.sub("[“”]", '"', text).split('"')
    quoted, outside = parts[1::2], parts[2::2]
    return len(parts) % 2 == 1 and bool(quoted) and all(map(split_words, outside))


def _has_marked_list(text: str, a: Arguments) -> bool:
    mark = a["sep"].strip()
    items = [line for line in split_nonblank_lines(text) if line.strip().startswith(mark) and split_words(line.strip()[len(mark) :])]
    others = [
        line for line in split_nonblank_lines(text) if re.match(r"\s*(?:[*+•-]|\d+[.)])\s", line) and not line.strip().startswith(mark)
    ]
    return len(items) >= 2 and not others


def _has_section_theses(text: str, _: Arguments) -> bool:
    heads = list(HEADING.finditer(text))
    ends = [*(head.start() for head in heads[1:]), len(text)]
    bodies = [text[head.end() : end] for head, end in zip(heads, ends, strict=False)] if heads else [text]
    bodies = [body for body in bodies if body.strip()]
    found = [ITALIC.match(body) for body in bodies]
    return bool(bodies) and all(match and split_words(match[2]) and split_words(match[3]) for match in found)


def _has_sub_bullets(text: str, _: Arguments) -> bool:
    marks = re.findall(r"^[ \t]*([*-])[ \t]+\S", text, re.MULTILINE)
    return re.fullmatch(r"(?:\*-+)+", "".join(marks)) is not None


def _has_sentences_then_bullets(text: str, _: Arguments) -> bool:
    bullet = re.search(r"^[ \t]*\*[ \t]+\S", text, re.MULTILINE)
    if bullet is None:
        return False
    before = [sentence for sentence in split_sentences(text[: bullet.start()]) if sentence.rstrip("\"'”’)*_").endswith(".")]
    return len(before) >= 2 and len(re.findall(r"^[ \t]*\*[ \t]+\S", text, re.MULTILINE)) >= 2


def _is_title_case(text: str, _: Arguments) -> bool:
    said = [word for word in split_words(text) if word[0].isalpha() and word[0].lower() != word[0].upper()]
    if not said or sum(len(word) > 1 and word.isupper() for word in said) > len(said) / 2:
        return False
    return all(word[0].isupper() or (word in MINOR_WORDS and at > 0) for at, word in enumerate(said))


def _has_template(text: str, _: Arguments) -> bool:
    found = TEMPLATE.fullmatch(text)
    return found is not None and all(map(split_words, found.groups()))


INSTRUCTIONS: tuple[InstructionKind, ...] = (
    InstructionKind("format:parentheses", "Brackets nested five levels deep.", _has_nested_brackets, correct="(a [b {c (d [e])}])", incorrect="(((( a ))))",
         difference_note="All five levels must be closed in order; the published checker is content when one is."),
    InstructionKind("format:quotes", "Quotes in quotes in quotes, double and single in turn.", _has_nested_quotes, correct="\"He said 'she said \"no\" to me' then\".",
         incorrect="It's \"one\" 'two' \"three\".", difference_note="Apostrophes are no quotes, curly quotes are, and the outermost quote must be closed."),
    InstructionKind("format:options", "Exactly one of the options, without explanation.", _is_one_option, {"options": str}, {"options": "yes/no/maybe"}, "Maybe.", "yes, maybe",
         "The same for lettered options: case and marks do not matter there either."),
    InstructionKind("format:newline", "Each word on a line of its own.", _has_one_word_per_line, correct="One\ntwo", incorrect="One two\nthree", difference_note="At least two words."),
    InstructionKind("format:emoji", "An emoji at the end of every sentence.", _has_emoji_endings, correct="Hi! 🎉 You too ❤️.", incorrect="🎉 Hi! You too.",
         difference_note="The number of a list item is no sentence; the published checker takes `1.` for one that has no emoji."),
    InstructionKind("format:line_indent", "Each line is indented more than the one before.", _has_growing_indent, correct="a\n b\n  c", incorrect="a\n b\n b",
         difference_note="At least two lines; the published checker accepts one, and loses lines while it removes blank ones."),
    InstructionKind("format:quote_unquote", "Every quoted phrase is followed by an unquoted explanation.", _has_explained_quotes, correct='"Go" means leave.', incorrect='He said "go".',
         difference_note="There must be a quoted phrase, and words after each; curly quotes count (published: they are not seen)."),
    InstructionKind("format:list", "A list whose items begin with the mark instead of a bullet.", _has_marked_list, {"sep": str}, {"sep": "!?!?"}, "!?!? one\n!?!? two",
         "one !?!? two !?!? three", "The mark must begin two lines, and no other bullets may stand there; the published checker counts it anywhere."),
    InstructionKind("format:thesis", "Each section begins with a thesis in HTML italics.", _has_section_theses, correct="# A\n<i>So it is.</i> Since.\n# B\n<em>And so.</em> Yes.",
         incorrect="# A\n<i>So it is.</i> Since.\n# B\nAnd so.", difference_note="Every section is looked at, and the italics must begin it; the published checker looks for one anywhere."),
    InstructionKind("format:sub-bullets", "Bullets with *, each with a sub-bullet with -.", _has_sub_bullets, correct="* a\n  - b\n* c\n  - d", incorrect="* well-known\n* c\n  - d",
         difference_note="Bullets begin lines; the published checker accepts a text without bullets and takes any hyphen for a sub-bullet."),
    InstructionKind("format:no_bullets_bullets", "Two sentences that end in a period, then two bullets with *.", _has_sentences_then_bullets,
         correct="I came. I saw.\n\n* a\n\n* b\n", incorrect="I came!\n* a\n* b", difference_note="Blank lines and words after the list are allowed; the sentences must end in a period."),
    InstructionKind("format:title_case", "Title case: every major word begins with a capital letter.", _is_title_case, correct="The Lord of the Rings", incorrect="The lord of the Rings",
         difference_note="Articles, short prepositions and conjunctions may be in lower case, as the text says; a text in capitals is not in title case."),
    InstructionKind("format:output_template", "My Answer: ... My Conclusion: ... Future Outlook: ...", _has_template, correct="My Answer: a\nMy Conclusion: b\nFuture Outlook: c",
         incorrect="Future Outlook: My Conclusion: My Answer:", difference_note="In this order, from the start, with words in each; the published checker looks for the labels only."),
    InstructionKind("format:no_whitespace", "No white space.", lambda text, _: bool(text.strip()) and not any(map(str.isspace, text.strip())), correct="Yes,all-of-it.\n",
         incorrect="Yes all", difference_note="A line break at the very end is not part of the answer."),
)  # fmt: skip
