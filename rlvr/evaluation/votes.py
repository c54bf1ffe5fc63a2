"""Group the equal answers of a task into classes, for a majority vote.

Two answers are equal if the verifier says so: the declared answer of one is used as the reference for the other.
So `1/2` and `0.5` vote together. If the reference is not a single text (unit tests, puzzles with many solutions), answers are equal if
their words are equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rlvr.contracts import Verifier
from rlvr.evaluation.samples import EvalSample
from rlvr.extraction import extract_answer
from rlvr.task import Task


def assign_answer_classes(verifier: Verifier, task: Task, samples: Sequence[EvalSample]) -> list[int | None]:
    """Return one class number per sample, in order; None for a sample that declares no answer, and so has no vote."""
    declared = [_extract_declared(verifier, task, sample.text) for sample in samples]
    found: list[int | None] = []
    heads: list[int] = []
    """The first sample of each class, which represents the class."""
    for i, text in enumerate(declared):
        if text is None:
            found.append(None)
            continue
        match = next((c for c, head in enumerate(heads) if _is_same_answer(verifier, task, samples, declared, head, i)), None)
        if match is None:
            match = len(heads)
            heads.append(i)
        found.append(match)
    return found


def _extract_declared(verifier: Verifier, task: Task, text: str) -> str | None:
    channel = task.meta.get("extractor", getattr(verifier, "extractor", None))
    if channel is None or not isinstance(task.reference, str):
        return text.strip() or None
    return extract_answer(text, channel).text


def _is_same_answer(verifier: Verifier, task: Task, samples: Sequence[EvalSample], declared: Sequence[str | None], a: int, b: int) -> bool:
    if declared[a] == declared[b]:
        return True
    if not isinstance(task.reference, str) or getattr(verifier, "extractor", None) is None:
        return False
    if samples[a].is_correct != samples[b].is_correct:
        return False
    if samples[a].is_correct:
        return True  # both equal the reference
    try:
        return verifier.verify(replace(task, reference=declared[a]), samples[b].text).passed
    except Exception:  # if the verifier fails on such a reference, the answers do not count as equal
        return False
