"""Find the code in an answer, and put the task's own code in front of it.

A solution is often followed by a block with its usage or its output. The block is chosen without the tests, in this order:

    the last block that defines the required function, if there is one;
    the last block that is labelled with the task's language;
    the last block

Exactly one block is run.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from rlvr.extraction import Extraction, strip_thinking

FENCE_LINE = re.compile(r"^([ \t]*(?:(?:[-*+]|\d{1,9}[.)])[ \t]+)?)(`{3,}|~{3,})([^\n`]*)$")
LANGUAGE_LABELS = {
    "python": {"python", "py", "python3"},
    "bash": {"bash", "sh", "shell"},
    "cpp": {"cpp", "c++", "cc", "cxx"},
    "csharp": {"csharp", "c#", "cs"},
    "go": {"go", "golang"},
    "java": {"java"},
    "javascript": {"javascript", "js", "node"},
    "r": {"r"},
    "rust": {"rust", "rs"},
    "typescript": {"typescript", "ts"},
}
BYTE_ORDER_MARK = "\ufeff"  # Python skips it at the start of a file, but not of a text
FUTURE_IMPORT = re.compile(r"from\s+__future__\s+import\s")


@dataclass(frozen=True, slots=True)
class CodeBlock:
    r"""A fenced block, without its fence's indentation.

    >>> parse_blocks("1. So:\n   ```python\n   print(1)\n   ```")
    [CodeBlock(label='python', text='print(1)\n')]
    """

    label: str
    text: str


def parse_blocks(text: str) -> list[CodeBlock] | None:
    """Parse the fenced blocks of a Markdown text; None if the last one is not closed.

    As in CommonMark, the indentation of the opening fence is removed from each line, and a fence that is indented by four or more
    columns further does not close the block: it is part of a docstring.
    """
    found: list[CodeBlock] = []
    fence, indent, label = "", 0, ""
    lines: list[str] = []
    for line in text.removeprefix(BYTE_ORDER_MARK).split("\n"):
        mark = FENCE_LINE.match(line.rstrip("\r"))
        if not fence:
            if mark:
                fence, indent, lines = mark[2], len(mark[1].expandtabs(4)), []
                label = (mark[3].split() or [""])[0].strip("{}.,").lower()
        elif mark and mark[2].startswith(fence) and not mark[3].strip() and _is_closing_fence(mark[1], indent):
            found.append(CodeBlock(label, "".join(f"{row}\n" for row in lines).removeprefix(BYTE_ORDER_MARK)))
            fence = ""
        else:
            lines.append(_dedent_line(line, indent))
    return None if fence else found


def _is_closing_fence(before: str, indent: int) -> bool:
    return not before.strip() and len(before.expandtabs(4)) < indent + 4


def _dedent_line(line: str, indent: int) -> str:
    if not indent:
        return line
    rest = line.lstrip(" \t")
    width = len(line[: len(line) - len(rest)].expandtabs(4))
    return " " * (width - indent) + rest if width > indent else rest


def extract_code(answer: str, language: str, function: str = "") -> Extraction:
    r"""Extract the one code block of an answer that is run.

    >>> extract_code("```\ndef f(x): return x\n```\nSo:\n```python\nprint(f(3))\n```", "python", "f").text
    'def f(x): return x\n'
    """
    shown = strip_thinking(answer)
    if shown is None:
        return Extraction(None, "the thought section is not closed")
    found = parse_blocks(shown)
    if found is None:
        return Extraction(None, "the last code block is not closed")
    if not found:
        return Extraction(None, f"there is no code block (```{language} ... ```); with extractor='whole' the whole answer is the code")
    name = re.escape(function)
    defines = re.compile(rf"^(?:[ \t]*(?:async[ \t]+)?def[ \t]+{name}\b|class[ \t]+{name}\b|{name}[ \t]*(?:=[^=]|:))", re.MULTILINE)
    chosen = [block for block in found if function and defines.search(block.text)]
    chosen = chosen or [block for block in found if block.label in LANGUAGE_LABELS[language]] or found
    return Extraction(chosen[-1].text, "in a code block")


def insert_prelude(prelude: str, source: str) -> str:
    r"""Insert the task's code in front of a Python program, but after `from __future__`, which must come first.

    >>> insert_prelude("import math", "from __future__ import annotations\nprint(math.pi)")
    'from __future__ import annotations\nimport math\nprint(math.pi)'
    """
    if not prelude:
        return source
    lines = source.split("\n")
    at, quote = 0, ""
    for number, line in enumerate(lines, 1):
        bare = line.strip()
        if quote:
            quote = "" if quote in bare else quote
        elif bare[:3] in ('"""', "'''"):
            quote = "" if bare[:3] in bare[3:] else bare[:3]
        elif FUTURE_IMPORT.match(line):
            shown = lines[number - 1 : number + 40]  # a longer import is not one
            at = next((n for n, later in enumerate(shown, number) if ")" in later), number) if "(" in line else number
        elif number <= at:
            continue  # the imported names, in brackets
        elif bare and not bare.startswith("#"):
            break
    return "\n".join([*lines[:at], prelude.rstrip("\n"), *lines[at:]])
