r"""Finding the declared answer in what a policy said, and nothing else.

A channel is a place where an answer is declared on purpose; prose is never searched for numbers. What stands in a thought
section is never an answer, a thought section that never closes hides everything after it, and an answer declared twice
with different contents is no answer. Every scanner is one pass over the text.

    channel       the answer is
    boxed         the content of \boxed{...} or \fbox{...}
    tag           the content of <answer>...</answer>
    hash          the rest of a line that starts with ####
    final_line    what follows "the final answer is" or "Answer:"
    fence         the content of the last ``` block (code)
    whole         the whole text, stripped
    auto          boxed and tag, else hash, else final_line, else the whole text when it is one short line
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rlvr.errors import ConfigError, suggest

WHOLE_LIMIT = 2000
"""The longest single line that `auto` takes for a bare answer."""
MANY = 1000
"""Of more declarations than this only the last ones count."""


@dataclass(frozen=True, slots=True)
class Found:
    r"""The answer that a text declares, or None and why there is none.

    >>> find(r"so it is \boxed{42}.", "boxed")
    Found(text='42', reason='in the box', several=())
    """

    text: str | None
    reason: str
    several: tuple[str, ...] = ()
    """The different answers that were declared, when there was more than one and `text` is therefore None."""


NO_BOX = Found(None, "there is no box")
NO_TAG = Found(None, "there is no <answer> tag")


def find(text: str, channel: str | Sequence[str] = "auto", *, several: str = "refuse") -> Found:
    """The answer declared in `text`; several channels are tried in order until one declares something.

    `several="last"` takes the last of several different answers, instead of refusing them all.

    >>> find("The answer is 7. Or 8.", "final_line").text is None
    True
    """
    if several not in ("refuse", "last"):
        raise ConfigError(f"several is {several!r}; {suggest(several, ['refuse', 'last'])}")
    names = [channel] if isinstance(channel, str) else list(channel)
    for name in names:
        if name not in CHANNELS:
            raise ConfigError(f"there is no answer channel {name!r}; {suggest(name, CHANNELS)}")
    shown = visible(text)
    if shown is None:
        return Found(None, "the thought section never closes")
    found = Found(None, "no channel was asked for")
    for name in names:
        found = CHANNELS[name](shown)
        if found.text is not None or found.several:
            break
    if found.several and several == "last":
        return Found(found.several[-1], "the last of several")
    return found


_THOUGHT = re.compile(r"<(/?)(?:think|thinking|thought|reasoning)>", re.IGNORECASE)


def visible(text: str) -> str | None:
    """The text outside every thought section; None when one never closes.

    >>> visible("<think>is it 7?</think> It is 8.")
    ' It is 8.'
    """
    kept: list[str] = []
    start, thinking = 0, False
    for mark in _THOUGHT.finditer(text) if "<" in text else ():
        if mark[1]:  # a close; without an open, all before it was thought (the prompt opened it)
            kept = kept if thinking else []
            start, thinking = mark.end(), False
        elif not thinking:
            kept.append(text[start : mark.start()])
            thinking = True
    if thinking:
        return None
    return "".join(kept) + text[start:]


_BRACES = re.compile(r"\\(?:boxed|fbox)\s*\{(?:([^{}\\]*)\})?|\\(?:boxed|fbox)\s*(?=[^\s{}$\\.,;])[^\s{}$\\]+|\\[^a-zA-Z]|[{}]")
_DENIED = re.compile(
    r"(?:\b(?:not|never|cannot|neither|nor|anything\s+(?:but|except|other\s+than)|rul(?:e|ed|es|ing)\s+out"
    r"|(?:wrong|incorrect|mistaken|false)ly(?:\s+(?:wrote|said|got|answered|claimed|gave))?)|n't)"
    r"(?:\s+(?:be|equal|equals|to|is|the|answer|simply|just))*\s*[:=$\s]*$",
    re.IGNORECASE,
)
_DENYING = ("not", "n't", "nor", "never", "neither", "anything", "rul", "wrong", "incorrect", "mistaken", "false")
"""One of these stands in whatever `_DENIED` finds; looking for them is cheaper."""
_DENIED_AFTER = re.compile(
    r"[\s$.,)*]*(?:\?\s*no\b|(?:is|was|are|would\s+be)\s+(?:wrong|incorrect|false|impossible|invalid"
    r"|not\s+(?:the|correct|right|true|possible|valid|my)\b)|isn't\s+(?:the|correct|right|true))",
    re.IGNORECASE,
)
_LETTER = r"[a-zA-Z](?:_\{?\w{1,3}\}?)?"
_JOINT = re.compile(rf"(?:[\s$,;]|\\[,;: ]|\\q?quad|\\\(|\\\)|\\text\{{\s*(?:and|or)\s*\}}|\b(?:and|or|{_LETTER}\s*=))*")
_NAMED = re.compile(rf"(?<![a-zA-Z\\])({_LETTER})\s*=[\s$]*$")
_JOINT_WORD = re.compile(r"[,;]|and|or")


def _boxed(text: str) -> Found:
    boxes: list[tuple[int, int, str]] = []
    opened: list[tuple[bool, int, int]] = []  # (is a box, where it starts, where its content starts)
    depth = 0
    first = text.find("box")  # the braces before it do not matter
    for token in _BRACES.finditer(text, text.rfind(" ", 0, first) + 1) if first > 0 else ():
        word = token[0]
        if token[1] is not None:  # it closes, and holds no brace: most boxes
            if not depth:
                boxes.append((token.start(), token.end(), token[1]))
        elif word == "}":
            if opened:
                box, start, inside = opened.pop()
                depth -= box
                if box and not depth:
                    boxes.append((start, token.end(), text[inside : token.start()]))
        elif word.endswith("{") and len(word) != 2:
            opened.append((len(word) > 1, token.start(), token.end()))
            depth += len(word) > 1
        elif len(word) > 2 and not depth:
            boxes.append((token.start(), token.end(), re.sub(r"^\\f?box(?:ed)?\s*|[.,;]+$", "", word)))
    if depth:
        return Found(None, "the last box never closes")
    if not boxes:
        return NO_BOX
    asserted = [box for box in boxes[-MANY:] if not _denied(text[max(0, box[0] - 40) : box[0]], text[box[1] : box[1] + 60])]
    if not asserted:
        return Found(None, "the words around the box deny it")
    if len(asserted) > 1:
        between = [text[a[1] : b[0]] for a, b in itertools.pairwise(asserted)]
        if len(asserted) <= 12 and all(len(gap) < 40 and _JOINT.fullmatch(gap) and _JOINT_WORD.search(gap) for gap in between):
            parts = _distinct([_unbox(box[2]) for box in asserted])
            names = [match and match[1] for match in (_NAMED.search(text[max(0, box[0] - 16) : box[0]]) for box in asserted)]
            if len(set(names)) == len(parts) == len(asserted):  # x = 1 and y = 2, but not twice x
                parts = [f"{name}={part}" if name and "=" not in part else part for name, part in zip(names, parts, strict=True)]
            if any(part.count("(") + part.count("[") != part.count(")") + part.count("]") for part in parts):
                return Found(None, "a bracket opens in one box and closes in another")
            return Found(", ".join(parts), "in boxes side by side") if len(parts) > 1 else Found(parts[0], "in the box")
    return _one([_unbox(box[2]) for box in asserted], "the box")


def _denied(before: str, after: str) -> bool:
    """Whether the words around a box say that it is not the answer."""
    before = before.lower()
    for word in _DENYING:
        if word in before and _DENIED.search(before):
            return True
    return _DENIED_AFTER.match(after) is not None


def _unbox(content: str) -> str:
    """A box inside the box or the tag is peeled, when it is all there is."""
    if "\\" not in content:
        return content.strip()
    for _ in range(4):
        inner = content.strip().strip("$").strip()
        match = re.match(r"\\(?:boxed|fbox)\s*\{", inner)
        if not match or not inner.endswith("}") or _unbalanced(inner[match.end() : -1]):
            break
        content = inner[match.end() : -1]
    return content.strip()


def _unbalanced(text: str) -> bool:
    """Whether a brace closes in a text that it does not open in: then the last brace is not the first one's."""
    steps = ({"{": 1, "}": -1}.get(mark[0], 0) for mark in re.finditer(r"\\.|[{}]", text, re.DOTALL))
    return any(depth < 0 for depth in itertools.accumulate(steps))


_TAG = re.compile(r"<(/?)answer>", re.IGNORECASE)


def _tag(text: str) -> Found:
    contents: list[str] = []
    start: int | None = None
    nested = False
    for mark in _TAG.finditer(text) if "<" in text else ():
        if not mark[1]:
            nested = nested or start is not None  # perhaps only the word "<answer>" in prose, if nothing closes it
            start = mark.end()
        elif start is not None:
            contents.append(text[start : mark.start()])
            start = None
        elif nested:
            return Found(None, "one <answer> stands inside another")
    if start is not None:
        return Found(None, "the last <answer> never closes")
    if not contents:
        return NO_TAG
    return _one([_inside(content) for content in contents], "the tag")


def _inside(content: str) -> str:
    """What a tag or a line declares: the box in it if there is one, else all of it."""
    if ("\\boxed" in content or "\\fbox" in content) and (boxed := _boxed(content).text) is not None:
        return boxed
    return content.strip()


_NUMERAL = re.compile(r"[-+\s$\\]*[\d.,/ ]+\s*[%a-zA-Z]{0,12}\.?")


def _hash(text: str) -> Found:
    lines = [line.strip()[4:].strip() for line in text.splitlines() if line.strip().startswith("####")]
    lines = [line for line in lines if line and not line.startswith("#")]
    if not lines:
        return Found(None, "there is no #### line")
    numerals = [line for line in lines[:-1] if _NUMERAL.fullmatch(line)]  # the others are headings
    return _one([*numerals, lines[-1]], "the #### line")


_ANSWER = re.compile(
    r"(?:\bfinal\s+answer|\banswer|\bcorrect\s+(?:option|choice))\b[*_\s]*(?:\(?final\)?\s*)?(?:(?:is|are)\b\s*:?|:|=|(?=\s[$\\]))[*_]*|^(?:[#*_]|[^\S\n])*final\s+answer[*_#.\s]*$",
    re.IGNORECASE | re.MULTILINE,
)
_FIRM = re.compile(r"\s*final|(?:answers?|correct\s+\w+)[*_\s]*(?:is|are)\b", re.IGNORECASE)
_SENTENCE = re.compile(r"[.!?](?=\s+\S)(?!\s*\d)")


def _final_line(text: str) -> Found:
    said: list[str] = []
    marks = list(_ANSWER.finditer(text))
    # "to find the answer: ..." counts only where nobody says "the answer is", "final answer", or starts a line with it
    firm = [mark for mark in marks[-MANY:] if _FIRM.match(mark[0]) or _starts_line(text, mark.start())]
    marks = (firm or marks)[-100:]
    for mark, after in itertools.zip_longest(marks, marks[1:]):
        end = text.find("\n", mark.end())
        end = min(end if end >= 0 else len(text), after.start() if after else len(text))
        line = _bare(text[mark.end() : end])
        if line.startswith("}") and "{" in text[max(0, mark.start() - 30) : mark.end()]:
            line = _bare(line[1:])  # the words stood in a text command
        if not line and not (after and after.start() == end):  # the value stands on a line of its own
            line = next((_bare(row) for row in text[mark.end() : mark.end() + 400].splitlines() if _bare(row)), "")
        if line in ("$$", "\\["):  # a displayed formula
            close = text.find("$$" if line == "$$" else "\\]", mark.end() + 3, mark.end() + 2000)
            line = text[mark.end() : close + 2].strip() if close >= 0 else ""
        if line and not re.match(r"(?:not|never|cannot)\b|n't\b", line, re.IGNORECASE):
            said.append(line)
    if not said:
        return Found(None, "no line says what the answer is")
    answers = []
    for line in said:
        head = _SENTENCE.split(line, maxsplit=1)
        if len(head) > 1 and re.search(r"\d|\\boxed|\bor\b|\bmaybe\b|\$", head[1]):
            return Found(None, "after the answer more is said that may be another answer", (head[0], head[1]))
        answers.append(_inside(_bare(head[0].strip().rstrip("."))))
    return _one(answers, "the answer line")


def _starts_line(text: str, at: int) -> bool:
    """Whether only Markdown stands before a place on its line."""
    before = ("\n" + text[:at] if at < 40 else text[at - 40 : at]).rpartition("\n")
    return bool(before[1]) and not before[2].strip("#*_ >-")


def _bare(line: str) -> str:
    """A line without Markdown's emphasis; empty when only an article is left."""
    line = line.strip().strip("*_ ")
    return "" if line.lower() in ("the", "my", "our", "so", "the final", "so the", "thus, the") else line


_FENCE = re.compile(r"^[ \t]*(`{3,}|~{3,})([^\n`]*)$", re.MULTILINE)


def _fence(text: str) -> Found:
    last: str | None = None
    opened: re.Match[str] | None = None
    for mark in _FENCE.finditer(text):
        if opened is None:
            opened = mark
        elif mark[1].startswith(opened[1]) and not mark[2].strip():
            last, opened = text[opened.end() : mark.start()].lstrip("\n"), None
    if opened is not None:
        return Found(None, "the last code block never closes")
    return Found(last, "in the last code block") if last is not None else Found(None, "there is no code block")


def _whole(text: str) -> Found:
    stripped = text.strip()
    return Found(stripped, "the whole text") if stripped else Found(None, "the answer is empty")


def _auto(text: str) -> Found:
    boxed, tagged = _boxed(text), _tag(text)
    if boxed.text is not None and tagged.text is not None:
        return _one([boxed.text, tagged.text], "the box and the tag")
    if boxed is not NO_BOX:
        return boxed
    if tagged is not NO_TAG:
        return tagged
    rows = text.strip().splitlines()
    if rows and re.match(r"\s*####\s*[^#\s]", rows[-1]):
        return _hash(text)
    found = _final_line(text)
    if found.text is not None or found.several:
        return found
    bare = text.strip()
    one = len(rows) == 1 or bare.startswith(("\\begin", "$", "\\[", "\\left"))
    if bare and one and len(bare) <= WHOLE_LIMIT:
        return Found(bare, "the whole text")
    return Found(None, "nothing in the text declares an answer" if bare else "the answer is empty")


def _distinct(texts: Sequence[str]) -> list[str]:
    """The different ones, spaces apart, in order of their last appearance."""
    rows: dict[str, str] = {}
    for text in texts:
        key = "".join(text.split())
        rows.pop(key, None)
        rows[key] = text
    return list(rows.values())


def _one(texts: Sequence[str], where: str) -> Found:
    different = _distinct([text.strip() for text in texts]) if len(texts) > 1 else [texts[0].strip()]
    if len(different) > 1:
        return Found(None, f"{where} holds {len(different)} different answers", tuple(different))
    return Found(different[0], f"in {where}") if different[0] else Found(None, f"{where} is empty")


CHANNELS: dict[str, Callable[[str], Found]] = {
    "boxed": _boxed,
    "tag": _tag,
    "hash": _hash,
    "final_line": _final_line,
    "fence": _fence,
    "whole": _whole,
    "auto": _auto,
}
"""Every channel by name."""
