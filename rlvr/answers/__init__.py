r"""Find the declared answer in the text of a policy.

An extractor looks in one place where an answer is declared on purpose; prose is never searched for numbers. Text in a thinking section is
never an answer, and an unclosed thinking section hides everything after it. If two different answers are declared there is no answer,
unless the words between them mark the later one as the result. Every scanner is one pass over the text.

    extractor     the answer is
    boxed         the content of \boxed{...} or \fbox{...}
    tag           the content of <answer>...</answer>
    hash          the rest of a line that starts with ####
    final_line    the text after "the final answer is" or "Answer:", in some twenty languages
    fence         the content of the last ``` block (code)
    whole         the whole text, stripped
    auto          boxed and tag, else hash, else final_line, else a last sentence that concludes ("Thus, the sum is $7$."),
                  else the whole text when it is one short line
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from rlvr.answers.around import AFTER, BEFORE, denied
from rlvr.answers.beside import offered
from rlvr.answers.boxes import DENIED, EMPTY, NO_BOX, declared, inside, void
from rlvr.answers.edges import ended
from rlvr.answers.found import MANY, Found, one
from rlvr.answers.lines import conclusion, final_line, hash_line, numeral, settled
from rlvr.answers.thoughts import visible
from rlvr.errors import ConfigError, suggest

__all__ = ["CHANNELS", "Found", "find", "visible"]

WHOLE_LIMIT = 2000
"""Maximum length in characters of a single line that `auto` takes for a bare answer."""
SEVERAL = ("refuse", "last")
NO_TAG = Found(None, "there is no <answer> tag")


def find(text: str, channel: str | Sequence[str] = "auto", *, several: str = "refuse") -> Found:
    """Extract the answer declared in `text`. Several extractors are tried in order until one of them finds a declaration.

    With `several="last"`, the last of several different answers is taken; by default different answers give no answer.

    >>> find("The answer is 7. Or 8.", "final_line").text is None
    True
    """
    names = [channel] if isinstance(channel, str) else list(channel)
    if several not in SEVERAL or not CHANNELS.keys() >= set(names):
        raise _unknown(names, several)
    found, shown = Found(None, "no channel was given"), visible(text)
    if shown is None:
        return Found(None, "the thought section is not closed")
    for name in names:
        found = CHANNELS[name](ended(shown))
        if found.text is not None or found.several:
            break
    return Found(found.several[-1], "the last of several") if found.several and several == "last" else found


def _unknown(names: Sequence[str], several: str) -> ConfigError:
    for name in names:
        if name not in CHANNELS:
            return ConfigError(f"there is no answer channel {name!r}; {suggest(name, CHANNELS)}")
    return ConfigError(f"several is {several!r}; {suggest(several, SEVERAL)}")


def _boxed(text: str) -> Found:
    found, after = declared(text)
    return settled(found, after)


_TAG = re.compile(r"<(/?)answer>", re.IGNORECASE)


def _tag(text: str) -> Found:
    contents: list[tuple[int, int, str]] = []
    start: int | None = None
    nested = False
    for mark in _TAG.finditer(text) if "<" in text else ():
        if not mark[1]:
            nested = nested or start is not None  # if nothing closes it, it may be just the word "<answer>" in prose
            start = mark.end()
        elif start is not None:
            contents.append((start - len("<answer>"), mark.end(), text[start : mark.start()]))
            start = None
        elif nested:
            return Found(None, "one <answer> is inside another")
    if start is not None:
        return Found(None, "the last <answer> is not closed")
    if not contents:
        return NO_TAG
    filled = [tag for tag in contents[-MANY:] if not void(tag[2])]
    if not filled:
        return Found(None, "the tag is empty")
    asserted = [tag for tag in filled if not denied(text[max(0, tag[0] - BEFORE) : tag[0]], text[tag[1] : tag[1] + AFTER])]
    if not asserted:
        return Found(None, DENIED)
    found = one([inside(tag[2]) for tag in asserted], "the tag")
    if found.text is None:
        return found
    start, end = asserted[0][0], asserted[-1][1]
    return settled(offered(found, text[max(0, start - BEFORE) : start], text[end : end + AFTER]), text[end:])


_FENCE = re.compile(r"^[ \t]*(`{3,}+|~{3,}+)([^\n`]*)$", re.MULTILINE)


def _fence(text: str) -> Found:
    last: str | None = None
    opened: re.Match[str] | None = None
    for mark in _FENCE.finditer(text):
        if opened is None:
            opened = mark
        elif mark[1].startswith(opened[1]) and not mark[2].strip():
            last, opened = text[opened.end() : mark.start()].lstrip("\n"), None
    if opened is not None:
        return Found(None, "the last code block is not closed")
    return Found(last, "in the last code block") if last is not None else Found(None, "there is no code block")


def _whole(text: str) -> Found:
    stripped = text.strip()
    return Found(stripped, "the whole text") if stripped else Found(None, "the answer is empty")


_BLOCK = re.compile(r"```\w{0,20}\n([^\n`]+)\n```")
"""A code block of one line."""


def _signed_off(text: str) -> Found:
    """Extract the number of a last #### line that is followed by at most a short closing remark without numbers."""
    head, mark, tail = text.rpartition("####")
    line, _, after = tail.partition("\n")
    if not numeral(line.strip()) or re.search(r"[\d$\\]", after) or len(after.strip()) > 300:
        return Found(None, "no #### line ends the text")
    return settled(hash_line(head + mark + line), after)


def _auto(text: str) -> Found:
    box, tag = _boxed(text), _tag(text)
    if box.text is not None and tag.reason is DENIED:
        return tag
    if box.text is not None and tag.text is not None:
        return one([box.text, tag.text], "the box and the tag")
    if box is not NO_BOX and box is not EMPTY:
        return box
    if tag is not NO_TAG:
        return tag
    rows = text.strip().splitlines()
    if rows and re.match(r"\s*####\s*[^#\s]", rows[-1]):
        return hash_line(text)
    if "####" in text and (found := _signed_off(text)).text is not None:
        return found
    found = final_line(text)
    if found.text is not None or found.several:
        return found
    found = conclusion(text)
    if found.text is not None or box is EMPTY:
        return found if found.text is not None else box
    bare = text.strip()
    block = _BLOCK.fullmatch(bare) if bare.endswith("```") and len(bare) <= WHOLE_LIMIT else None
    if block is not None:
        return Found(block[1].strip(), "the whole text")
    single = len(rows) == 1 or bare.startswith(("\\begin", "$", "\\[", "\\left"))
    if bare and single and len(bare) <= WHOLE_LIMIT:
        return Found(bare, "the whole text")
    return Found(None, "nothing in the text declares an answer" if bare else "the answer is empty")


CHANNELS: dict[str, Callable[[str], Found]] = {
    "boxed": _boxed,
    "tag": _tag,
    "hash": hash_line,
    "final_line": final_line,
    "fence": _fence,
    "whole": _whole,
    "auto": _auto,
}
"""Every extractor by name."""
