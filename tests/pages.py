"""The pages that users read, as a reader works through them: every block in order, in one new folder.

    ```bash              typed into a shell; must succeed
    ```python            run as a program of its own; must succeed
    ```yaml, ```json     must parse; of JSON each line
    ```text              what the block before it prints; `...` stands for anything, and times may differ

A block behind a line that ends with "`NAME`:" is written to that file instead of being run. A comment before a block says where
it differs: `<!-- needs: docker -->` (or vllm) for blocks that run where that is there, `<!-- not run: REASON -->` for the rest.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "envs" / "README.md", ROOT / "verifiers" / "README.md")
FENCE = re.compile(r"```(.*)")
NAMED = re.compile(r".*`([\w./-]+\.(?:py|yaml|json|jsonl|txt))`:")
COMMENT = re.compile(r"<!-- (needs|not run): (.+) -->")
CLOCK = re.compile(r"\\?\d[\d,]*(?:\\\.\d+)?(?=(?:\\ )+(?:s\b|ms\b|tokens/s))")
"""A time in a text that has been made a pattern: the only figure that may differ."""
RUN = ("bash", "python")
DEADLINE_S = 240


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block of a page, and what the page says about it.

    >>> Block("README.md", 12, "bash", "rlvr list envs", file="", needs="", not_run="", shown="").where
    'README.md:12'
    """

    page: str
    line: int
    language: str
    text: str
    file: str = ""
    needs: str = ""
    not_run: str = ""
    shown: str = ""
    """What the page says that it prints."""

    @property
    def where(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def title(self) -> str:
        return self.text.strip().split("\n")[0]


def blocks_of(page: Path) -> list[Block]:
    """The blocks of a page, each `text` joined to the block whose output it is."""
    found: list[Block] = []
    for line, language, text, before in _fences(page):
        said = dict(COMMENT.findall(before[0]))
        named = NAMED.fullmatch(before[1])
        block = Block(page.relative_to(ROOT).as_posix(), line, language, text, file=named[1] if named else "")
        block = replace(block, needs=said.get("needs", ""), not_run=said.get("not run", ""))
        if language == "text" and not named:
            if not found or found[-1].shown or not (found[-1].language in RUN and not found[-1].file):
                raise ValueError(f"{block.where}: no block stands before this output")
            found.append(replace(found.pop(), shown=text))
        else:
            found.append(block)
    return found


def _fences(page: Path) -> Iterator[tuple[int, str, str, tuple[str, str]]]:
    """Line, language, text, and the last two lines with words before each fence: a comment, and what announces the block."""
    start, language = 0, ""
    inside: list[str] = []
    spoken: list[str] = ["", ""]
    for number, line in enumerate(page.read_text("utf-8").splitlines(), 1):
        fence = FENCE.fullmatch(line)
        if fence and not start:
            start, language, inside = number, fence[1], []
        elif fence:
            comment = spoken[-1] if COMMENT.fullmatch(spoken[-1]) else ""
            yield start, language, "\n".join(inside) + "\n", (comment, spoken[-2] if comment else spoken[-1])
            start, spoken = 0, ["", ""]
        elif start:
            inside.append(line)
        elif line.strip():
            spoken.append(line)
    if start:
        raise ValueError(f"{page.name}:{start}: this block never ends")


def pattern_of(shown: str) -> re.Pattern[str]:
    """What a page shows, as a pattern for what is printed.

    >>> bool(pattern_of("2 episodes in 0.4 s\\n...\\ndone").search("2 episodes   in 12 s\\nso it is\\ndone"))
    True
    """
    lines = [re.escape(" ".join(line.split())) for line in shown.strip().splitlines()]
    timed = [CLOCK.sub(r"[\\d.,]+", line).replace(r"\.\.\.", r"[\s\S]*?").replace(r"\ ", r"[ \t]+") for line in lines]
    return re.compile(r"[ \t]*\n[ \t]*".join(timed))


@dataclass
class Reader:
    """Somebody who works through one page in a new folder.

    >>> Reader(Path("/tmp/a"), blocks_of(ROOT / "README.md")).done
    0
    """

    folder: Path
    blocks: list[Block]
    instead: dict[str, str] = field(default_factory=dict)
    """Shorter or other commands for lines that a test cannot run as they stand."""
    done: int = 0

    def read(self, block: Block) -> None:
        """Do what the block says, after those before it that this machine can do."""
        place = self.blocks.index(block)
        while self.done < place:
            before = self.blocks[self.done]
            self.done += 1
            if not before.needs:
                self.obey(before)
        self.done = place + 1
        self.obey(block)

    def obey(self, block: Block) -> None:
        if block.not_run:
            return
        if block.file:
            path = self.folder / block.file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text, "utf-8")
        if block.language == "yaml":
            yaml.safe_load(block.text)
        elif block.language == "json":
            [json.loads(line) for line in block.text.splitlines()]
        elif block.language in RUN and not block.file:
            self.run(block)

    def run(self, block: Block) -> None:
        lines = [self.instead.get(line.partition("  #")[0].rstrip(), line) for line in block.text.splitlines()]
        program = "\n".join(lines)
        command = ["bash", "-euo", "pipefail", "-c", program] if block.language == "bash" else [sys.executable, "-c", program]
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        own = {"PATH": path, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "COLUMNS": "100"}
        code, said = _finished(command, self.folder, os.environ | own)
        if code:
            raise AssertionError(f"{block.where} ended with {code}:\n{program}\n---\n{said[-3000:]}")
        if block.shown and not pattern_of(block.shown).search(said):
            raise AssertionError(f"{block.where} shows\n{block.shown}---\nbut this was printed:\n{said[-3000:]}")


def _finished(command: list[str], folder: Path, own: dict[str, str]) -> tuple[int, str]:
    """The exit code and all that was printed; what is late is ended with everything that it started."""
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(
            command, cwd=folder, env=own, stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            code = process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            code = process.wait()
        said.seek(0)
        return code, said.read()
