"""The far side of `reasoning_gym`: one data set of the package. What an answer says is never executed here."""

from __future__ import annotations

import importlib
import os
import random
import sys
import tempfile
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Any

from rlvr.envs._hosted import version_of

LISTED = frozenset(("acre", "gsm_symbolic", "list_functions", "word_ladder"))
"""Data sets that know their length: they are made anew, with one item, for each number. The others give any item."""

PROGRAMS = frozenset(("codeio",))
"""Data sets whose questions come from running programs. Some programs draw from a generator that nobody seeds, and some fail: then the
package's answer is `{}`."""


class Questions:
    """One data set of reasoning_gym, by numbers: the question of a number is always the same.

    >>> questions = Questions(dataset="chain_sum", config={})                                  # doctest: +SKIP
    >>> questions.item(7)["answer"]; questions.score(7, "12")                                  # doctest: +SKIP
    '10'
    0.01
    """

    def __init__(self, *, dataset: str, config: Mapping[str, Any]) -> None:
        factory = importlib.import_module("reasoning_gym.factory")
        if dataset not in factory.DATASETS:
            raise ValueError(f"reasoning_gym has no data set {dataset!r}")
        self.make: Callable[..., Any] = partial(factory.create_dataset, dataset, **config)
        self.set = self.make(seed=0)
        self.listed, self.programs = dataset in LISTED, dataset in PROGRAMS
        if self.programs:  # they run in a folder that is gone, where none can leave a file
            os.chdir(folder := tempfile.mkdtemp())
            os.rmdir(folder)
        self.entry = lru_cache(maxsize=256)(self._entry)

    @staticmethod
    def prepare() -> Any:
        """Import the package, and say which version it is; from here on, no text that an answer brings is compiled in this process."""
        module = importlib.import_module("reasoning_gym")
        sys.addaudithook(_watch)
        return {"version": version_of("reasoning-gym", module)}

    def item(self, number: int) -> dict[str, Any]:
        """The question, and the answer if there is one only. An empty answer: the number has no question that can be asked again."""
        entry = self.entry(number)
        return {"question": entry["question"], "answer": entry["answer"]}

    def facts(self, number: int, names: list[str]) -> dict[str, Any]:
        """Some of what the package knows of a question: for checks of our own, never shown."""
        return {name: entry for name in names if (entry := self.entry(number)["metadata"].get(name)) is not None}

    def score(self, number: int, answer: str) -> Any:
        """What the package's own scorer gives. A scorer that would execute the answer is stopped."""
        entry = self.entry(number)
        _Scoring.texts, _Scoring.answer, _Scoring.stopped = frozenset(_strings(entry)), answer, False
        _Scoring.on = True
        try:
            found = self.set.score_answer(answer, entry)
        finally:
            _Scoring.on = False
        return {"score": float(found) if isinstance(found, int | float) else repr(found), "stopped": _Scoring.stopped}

    def _entry(self, number: int) -> dict[str, Any]:
        entry = self._made(number)
        if self.programs and (entry["answer"] == "{}" or any(self._made(number) != entry for _ in range(2))):
            entry = {**entry, "answer": ""}
        return entry

    def _made(self, number: int) -> dict[str, Any]:
        random.seed(number)
        if (numpy := sys.modules.get("numpy")) is not None:
            numpy.random.seed(number % 2**32)
        entry: dict[str, Any] = self.make(seed=number, size=1)[0] if self.listed else self.set[number]
        if not isinstance(entry["question"], str) or not isinstance(entry["answer"], str | None):
            raise TypeError(f"question {number} is {entry['question']!r:.80} with the answer {entry['answer']!r:.80}; both must be texts")
        return entry


class _Scoring:
    """What is being scored in this process, for the hook."""

    on = False
    answer = ""
    texts: frozenset[str] = frozenset()
    stopped = False


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    """Stop `eval`, `exec` and `compile` of a text while an answer is scored, unless it is a text of the question's own entry."""
    if event != "compile" or not _Scoring.on:
        return
    source, name = arguments[0], arguments[1]
    text = source.decode("utf-8", "replace") if isinstance(source, bytes) else source
    if name != "<string>" or not isinstance(text, str):
        return  # a module that is imported late
    if text not in _Scoring.texts:
        _Scoring.stopped = True
        raise PermissionError("the scorer would execute the answer")


def _strings(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, Mapping):
        return [text for part in value.values() for text in _strings(part)]
    return [text for part in value for text in _strings(part)] if isinstance(value, list | tuple | set | frozenset) else []
