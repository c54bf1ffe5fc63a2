"""Verify the final content of files after a conversation, and the answer if the task asks a question.

The files come from the session's artifacts, as bytes, and are only compared: no program of the policy runs, and the sandbox session of the
policy is not used. A verdict can be recomputed from the record.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlvr.contracts import Transcript, Verifier, VerifierExample
from rlvr.errors import ConfigError, require_text_answers
from rlvr.extraction import extract_answer
from rlvr.task import Fault, Task, Verdict

REFERENCE_FORMAT = "write {'answer': [text, ...]}, {'files': {path: text, or null where nothing may be}}, or both"


class FinalState(Verifier):
    """Score 1 if every file of the reference has the expected content at the end and the answer is an accepted one; else 0.

    One line break at the end of a file does not count. The reference has `answer`, `files`, or both.

    >>> task = Task(({"role": "user", "content": "Sort a.txt"},), {"files": {"a.txt": "1", "b.txt": None}}, id="t")
    >>> FinalState().verify_transcript(task, Transcript("", {"a.txt": b"1", "b.txt": None})).score
    1.0
    """

    version = "2"  # 2: exactly one line break at the end does not count
    examples = (
        VerifierExample(
            {"answer": ["42"]}, correct=("42", " 42\n", "\\boxed{42}"), incorrect=("41", "42 or 41", "4 2", "It is not 42.", "")
        ),
        VerifierExample({"answer": ["a.log", "./a.log"]}, correct=("a.log", "./a.log"), incorrect=("b.log", "a.log b.log")),
        VerifierExample({"files": {"a.txt": "1"}}, correct=(), incorrect=("1", "a.txt", '{"a.txt": "1"}')),
        VerifierExample({"files": {"a.txt": None}}, correct=(), incorrect=("", "it is deleted")),
    )

    @require_text_answers
    def verify(self, task: Task, answer: str) -> Verdict:
        """Verify an answer without artifacts."""
        return self.verify_transcript(task, Transcript(answer))

    def verify_transcript(self, task: Task, transcript: Transcript) -> Verdict:
        """Compare the artifacts with the expected files, then the answer."""
        try:
            answers, files = _parse_reference(task.reference)
        except ConfigError as error:
            return Verdict(None, f"the task cannot be judged: {error}", fault=Fault.TASK)
        wrong = {path: why for path, wanted in files.items() if (why := _describe_difference(path, wanted, transcript.artifacts))}
        if answers:
            found = extract_answer(transcript.answer)
            said = found.text.strip() if found.text is not None else None
            if said not in answers:
                wrong["answer"] = f"the answer {said!r:.80} is wrong" if said is not None else f"no answer: {found.reason}"
        parts = {"state": float(not wrong)}
        if wrong:
            return Verdict(0.0, next(iter(wrong.values())), components=parts, detail={"wrong": wrong})
        return Verdict(1.0, "the answer and the final state are right" if answers else "the final state is right", components=parts)


def _parse_reference(reference: Any) -> tuple[list[str], dict[str, str | None]]:
    if not isinstance(reference, Mapping) or not reference or set(reference) - {"answer", "files"}:
        raise ConfigError(f"the reference is {reference!r:.80}; {REFERENCE_FORMAT}")
    answers, files = reference.get("answer", []), reference.get("files", {})
    if not isinstance(answers, list) or not all(isinstance(text, str) and text.strip() for text in answers):
        raise ConfigError(f"answer is {answers!r:.80}; {REFERENCE_FORMAT}")
    if not isinstance(files, Mapping) or not all(isinstance(path, str) and isinstance(text, str | None) for path, text in files.items()):
        raise ConfigError(f"files is {files!r:.80}; {REFERENCE_FORMAT}")
    if not (answers or files):
        raise ConfigError(f"the reference asks for nothing; {REFERENCE_FORMAT}")
    return list(answers), dict(files)


def _describe_difference(path: str, wanted: str | None, artifacts: Mapping[str, Any]) -> str:
    """Describe the difference of one file; "" if there is none."""
    if path not in artifacts:
        return f"the state of {path} is not known"
    found = artifacts[path]
    if wanted is None:
        return "" if found is None else f"{path} is still there"
    if found is None:
        return f"{path} is missing"
    if not isinstance(found, bytes):
        return f"{path} cannot be read: {found!r:.40}"
    return "" if found.removesuffix(b"\n") == wanted.encode().removesuffix(b"\n") else f"the content of {path} is wrong"


make = FinalState
