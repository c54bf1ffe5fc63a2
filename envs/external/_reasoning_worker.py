"""Worker class of `reasoning_gym`: one data set of the package. The text of an answer is never executed here."""

from __future__ import annotations

import importlib
import os
import random
import sys
import tempfile
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Any

from rlvr.envs.external._foreign_worker import find_version

FIXED_LENGTH_DATASETS = frozenset(("acre", "gsm_symbolic", "list_functions", "word_ladder"))
"""Data sets of fixed length: for each number they are created again with one item. The others can generate any item."""

PROGRAM_DATASETS = frozenset(("codeio",))
"""Data sets whose questions come from running programs. Some programs use an unseeded generator, and some fail: then the package's answer
is `{}`."""


class ReasoningDataset:
    """Worker class of `reasoning_gym`: one data set of the package, indexed by number; a number always gives the same question."""

    def __init__(self, *, dataset: str, config: Mapping[str, Any]) -> None:
        factory = importlib.import_module("reasoning_gym.factory")
        if dataset not in factory.DATASETS:
            raise ValueError(f"reasoning_gym has no data set {dataset!r}")
        self.make_dataset: Callable[..., Any] = partial(factory.create_dataset, dataset, **config)
        self.dataset = self.make_dataset(seed=0)
        self.is_fixed_length, self.runs_programs = dataset in FIXED_LENGTH_DATASETS, dataset in PROGRAM_DATASETS
        if self.runs_programs:  # they run in a deleted folder, so that none can leave a file
            os.chdir(folder := tempfile.mkdtemp())
            os.rmdir(folder)
        self.get_entry = lru_cache(maxsize=256)(self._load_entry)

    @staticmethod
    def import_and_describe_package() -> Any:
        """Import the package and return its version; from then on, no text of an answer is compiled in this process."""
        module = importlib.import_module("reasoning_gym")
        sys.addaudithook(_block_compile)
        return {"version": find_version("reasoning-gym", module)}

    def get_question_and_answer(self, number: int) -> dict[str, Any]:
        """Return the question and its answer. An empty answer means that the question cannot be reproduced."""
        entry = self.get_entry(number)
        return {"question": entry["question"], "answer": entry["answer"]}

    def get_metadata(self, number: int, names: list[str]) -> dict[str, Any]:
        """Return metadata of a question, for our own verification; the policy never sees it."""
        return {name: entry for name in names if (entry := self.get_entry(number)["metadata"].get(name)) is not None}

    def score(self, number: int, answer: str) -> Any:
        """Score an answer with the package's own scorer, which is stopped if it would execute the answer."""
        entry = self.get_entry(number)
        _ScoringState.allowed_texts, _ScoringState.answer, _ScoringState.stopped = frozenset(_collect_strings(entry)), answer, False
        _ScoringState.active = True
        try:
            found = self.dataset.score_answer(answer, entry)
        finally:
            _ScoringState.active = False
        return {"score": float(found) if isinstance(found, int | float) else repr(found), "stopped": _ScoringState.stopped}

    def _load_entry(self, number: int) -> dict[str, Any]:
        entry = self._generate_entry(number)
        if self.runs_programs and (entry["answer"] == "{}" or any(self._generate_entry(number) != entry for _ in range(2))):
            entry = {**entry, "answer": ""}
        return entry

    def _generate_entry(self, number: int) -> dict[str, Any]:
        random.seed(number)
        if (numpy := sys.modules.get("numpy")) is not None:
            numpy.random.seed(number % 2**32)
        entry: dict[str, Any] = self.make_dataset(seed=number, size=1)[0] if self.is_fixed_length else self.dataset[number]
        if not isinstance(entry["question"], str) or not isinstance(entry["answer"], str | None):
            raise TypeError(f"question {number} is {entry['question']!r:.80} with the answer {entry['answer']!r:.80}; both must be texts")
        return entry


class _ScoringState:
    """State of the current scoring in this process, read by the audit hook."""

    active = False
    answer = ""
    allowed_texts: frozenset[str] = frozenset()
    stopped = False


def _block_compile(event: str, arguments: tuple[Any, ...]) -> None:
    """Audit hook: while an answer is scored, stop compiling any text except the texts of the question's own entry."""
    if event != "compile" or not _ScoringState.active:
        return
    source, name = arguments[0], arguments[1]
    text = source.decode("utf-8", "replace") if isinstance(source, bytes) else source
    if name != "<string>" or not isinstance(text, str):
        return  # a module that is imported lazily
    if text not in _ScoringState.allowed_texts:
        _ScoringState.stopped = True
        raise PermissionError("the scorer would execute the answer")


def _collect_strings(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, Mapping):
        return [text for part in value.values() for text in _collect_strings(part)]
    return [text for part in value for text in _collect_strings(part)] if isinstance(value, list | tuple | set | frozenset) else []
