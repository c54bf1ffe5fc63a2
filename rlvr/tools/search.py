"""Search passages of text by keywords (BM25)."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from rlvr.contracts.tool import Tool, tool
from rlvr.errors import ConfigError, MissingExtra, ToolError, ToolInfrastructureError

SUFFIXES = (".txt", ".md", ".rst")
"""The file types in a folder that are indexed."""
MAX_RESULTS = 20
MAX_QUERY_CHARS = 2_000


@dataclass(frozen=True, slots=True)
class Passage:
    """A passage of text in the index.

    >>> Passage("weather.md#1", "Rain", "It rains.").title
    'Rain'
    """

    id: str
    title: str
    text: str


class Search(Tool):
    """BM25 search over a folder of text files or a JSONL file of passages.

    All conversations share one index, except for tasks that provide their own passages.

    >>> from rlvr.contracts.tool import ToolContext
    >>> context = ToolContext(data={"passages": [Passage("a", "Rain", "It falls."), Passage("b", "Snow", "It melts.")]})
    >>> with Search().session(context) as search:
    ...     print(search.search("snow"))
    [1] Snow (b)
    It melts.
    """

    def __init__(self, *, path: str = "", passage_chars: int = 1_000, shown_chars: int = 600) -> None:
        """Keyword arguments are the settings.

        Args:
            path: a folder of .txt, .md and .rst files, split into passages at empty lines; or a JSONL file of {"text", "id"?, "title"?}.
                A task may provide its own documents, as `passages` in the data for its tools.
            passage_chars: maximum characters of a passage of a file; paragraphs are joined up to it.
            shown_chars: maximum characters of each passage in a result.
        """
        if min(passage_chars, shown_chars) < 20:
            raise ValueError(f"passage_chars {passage_chars} and shown_chars {shown_chars} must be at least 20")
        self.shown_chars = shown_chars
        self.passages = tuple(_load_passages(Path(path).expanduser(), passage_chars)) if path else ()
        if path and not self.passages:
            raise ConfigError(f"{path!r} has no passages; a folder needs {', '.join(SUFFIXES)} files, a JSONL file lines with a text")
        self._bm25s = _import_bm25s()
        self.index = _build_index(self.passages) if path else None

    def setup(self) -> None:
        """Prepare for one task: index the task's own passages if it has some, else use the configured documents."""
        if own := self.context.data.get("passages"):
            self.passages = tuple(own)
            self.index = _build_index(self.passages)
        if self.index is None:
            raise ConfigError("the tool 'search' has no documents; set path, or use it in an environment whose tasks provide some")

    @tool
    def search(self, query: str, limit: int = 5) -> str:
        """Search the documents by words and get the best passages, the best first.

        Args:
            query: words that the passage should contain.
            limit: how many passages, at most 20.
        """
        if not 1 <= limit <= MAX_RESULTS:
            raise ToolError(f"limit is {limit}; it must be from 1 to {MAX_RESULTS}")
        if len(query) > MAX_QUERY_CHARS:
            raise ToolError(f"the query has {len(query)} characters; at most {MAX_QUERY_CHARS} are allowed")
        if self.index is None:
            raise ToolInfrastructureError("the documents are not open")
        words = _tokenize(self._bm25s, [query])
        if not words or not words[0]:
            return "No passage contains any of these words."
        found, scores = self.index.retrieve(words, k=min(limit, len(self.passages)), show_progress=False)
        best = [self.passages[int(n)] for n, score in zip(found[0], scores[0], strict=True) if score > 0]
        shown = (f"[{rank}] {p.title + ' ' if p.title else ''}({p.id})\n{self._truncate(p.text)}" for rank, p in enumerate(best, start=1))
        return "\n\n".join(shown) or "No passage contains any of these words."

    def _truncate(self, text: str) -> str:
        return text if len(text) <= self.shown_chars else text[: self.shown_chars - 3] + "..."


def _import_bm25s() -> Any:
    """Import bm25s without numba: numba loads for seconds, and vLLM cannot start an engine in a process that has loaded it."""
    masked = "numba" not in sys.modules
    if masked:
        sys.modules["numba"] = None  # type: ignore[assignment]
    try:
        return importlib.import_module("bm25s")
    except ModuleNotFoundError as error:
        if error.name != "bm25s":
            raise
        raise MissingExtra("bm25s", "search") from error
    finally:
        if masked:
            del sys.modules["numba"]


@lru_cache(maxsize=128)
def _build_index(passages: tuple[Passage, ...]) -> Any:
    bm25s = _import_bm25s()
    index = bm25s.BM25()
    index.index(_tokenize(bm25s, [f"{passage.title}\n{passage.text}" for passage in passages]), show_progress=False)
    return index


def _tokenize(bm25s: Any, texts: list[str]) -> list[list[str]]:
    tokens: list[list[str]] = bm25s.tokenize(texts, return_ids=False, show_progress=False)
    return tokens


def _load_passages(path: Path, size: int) -> Iterator[Passage]:
    if path.is_dir():
        for file in sorted(path.rglob("*")):
            if file.suffix in SUFFIXES and file.is_file():
                name = file.relative_to(path).as_posix()
                for number, text in enumerate(_split_into_passages(file.read_text("utf-8", "replace"), size)):
                    yield Passage(f"{name}#{number}", "", text)
    elif path.is_file():
        yield from _load_jsonl(path)
    else:
        raise ConfigError(f"there is no file or folder {str(path)!r}; give a folder of texts or a JSONL file of passages")


def _load_jsonl(path: Path) -> Iterator[Passage]:
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError as error:
                raise ConfigError(f"{path}, line {number + 1} is not JSON: {error}") from error
            if not isinstance(row, dict) or not isinstance(row.get("text"), str):
                raise ConfigError(f'{path}, line {number + 1} has no "text"; write {{"text": ..., "id"?: ..., "title"?: ...}}')
            yield Passage(str(row.get("id", number)), str(row.get("title") or ""), row["text"])


def _split_into_passages(text: str, max_chars: int) -> Iterator[str]:
    """Join paragraphs up to a size; split a longer paragraph."""
    held = ""
    for paragraph in filter(None, (part.strip() for part in text.split("\n\n"))):
        if held and len(held) + len(paragraph) + 2 > max_chars:
            yield held
            held = ""
        held = f"{held}\n\n{paragraph}" if held else paragraph
        while len(held) > max_chars:
            yield held[:max_chars]
            held = held[max_chars:]
    if held:
        yield held


make = Search
