"""Verify whether a response follows instructions that a program can check: the 25 kinds of IFEval and the 58 of IFBench."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlvr.contracts import Verifier, VerifierExample
from rlvr.errors import ConfigError, format_suggestion, require_text_answers
from rlvr.extraction import strip_thinking
from rlvr.task import Fault, Task, Verdict
from rlvr.verifiers.instruction_checks.instruction import BadArguments, InstructionKind
from rlvr.verifiers.instruction_checks.registry import INSTRUCTIONS
from rlvr.verifiers.instruction_checks.text_parsing import EMOJI

ParsedInstructions = list[tuple[InstructionKind, dict[str, Any]]]
SCORE_MODES = ("all", "share")
MAX_RESPONSE_CHARS = 200_000
INVISIBLE = dict.fromkeys(map(ord, "\u00ad\u200b\u2060\ufeff"))
"""Characters without a width that no script needs within a word."""


class Instructions(Verifier):
    """The response follows every instruction of the reference.

    The reference is `{"instruction_id_list": [...], "kwargs": [...]}`, as published, or a list of `{"id": ..., argument: value}`.
    Unknown kinds and missing arguments give no score. With `loose`, a response also counts if it follows an instruction without its
    first line, its last line or its asterisks, as in the published loose accuracy. Thoughts are removed first. The verdict is a function
    of the text alone: nothing is drawn or downloaded. The rows in `verifiers/instruction_checks/` list each difference from the published
    checkers.

    >>> import rlvr
    >>> task = rlvr.Task(rlvr.make_user_prompt("Write without commas."), id="t", reference=[{"id": "punctuation:no_comma"}])
    >>> rlvr.make_verifier("instructions").verify(task, "Short and sweet.").score
    1.0
    """

    version = "2"  # 2: invisible characters within words are removed first
    examples = (
        VerifierExample(
            [{"id": "detectable_format:title"}, {"id": "keywords:existence", "keywords": ["art"]}],
            correct=("<<On art>>\nIt lasts.", "Some art. <<A title>>"),
            incorrect=("<<On art", "<<A party>>", "art", "<< >> art"),
        ),
        VerifierExample(
            {"instruction_id_list": ["startend:end_checker"], "kwargs": [{"end_phrase": "</done>", "num_words": None}]},
            correct=("Yes </done>",),
            incorrect=("</done> Yes", ""),
        ),
    )

    def __init__(self, *, loose: bool = False, score: str = "all") -> None:
        """Set how strictly responses are verified.

        Args:
            loose: whether a response may follow an instruction without its first line, its last line or its asterisks.
            score: all (1 if every instruction is followed, else 0), or share (the fraction of followed instructions).
        """
        if not isinstance(loose, bool):
            raise ConfigError(f"loose is {loose!r}; it must be true or false")
        if score not in SCORE_MODES:
            raise ConfigError(f"score is {score!r}; {format_suggestion(str(score), SCORE_MODES)}")
        self.loose, self.score = loose, score

    @require_text_answers
    def verify(self, task: Task, answer: str) -> Verdict:
        """Check every instruction on the response."""
        try:
            asked = _parse_reference(task.reference)
        except BadArguments as error:
            return Verdict(None, f"the instructions cannot be checked: {error}", fault=Fault.TASK)
        shown = strip_thinking(answer)
        if shown is not None and not shown.isascii():
            shown = shown.translate(INVISIBLE)  # within a word they hide it from every test, and from nobody who reads
        if shown is None or not (any(map(str.isalnum, shown)) or EMOJI.search(shown)):  # punctuation alone would follow most of them
            return Verdict(0.0, "the response is empty" if shown is not None else "the thought section is not closed")
        if len(shown) > MAX_RESPONSE_CHARS:
            return Verdict(0.0, f"the response has {len(shown)} characters; at most {MAX_RESPONSE_CHARS} are read")
        texts = _make_loose_variants(shown) if self.loose else [shown]
        followed = [any(kind.check(text, arguments) for text in texts) for kind, arguments in asked]
        share = sum(followed) / len(followed)
        missed = [kind.id for (kind, _), good in zip(asked, followed, strict=True) if not good]
        return Verdict(
            share if self.score == "share" else float(not missed),
            f"not followed: {', '.join(missed)}"[:300] if missed else "every instruction is followed",
            {"share": share},
            detail={"followed": followed},
        )


def _parse_reference(reference: Any) -> ParsedInstructions:
    """Parse the instructions of a reference with their validated arguments."""
    if isinstance(reference, Mapping):
        names, arguments = reference.get("instruction_id_list"), reference.get("kwargs")
        if not isinstance(names, list | tuple) or not isinstance(arguments, list | tuple) or len(names) != len(arguments):
            raise BadArguments("instruction_id_list and kwargs must be two lists of one length")
        rows: Sequence[Any] = [{**(given or {}), "id": name} for name, given in zip(names, arguments, strict=True)]
    else:
        rows = reference if isinstance(reference, list | tuple) else []
    if not rows:
        raise BadArguments(f"the reference is {reference!r:.80}; give a list of {{'id': ...}}")
    return [_parse_instruction(row) for row in rows]


def _parse_instruction(row: Any) -> tuple[InstructionKind, dict[str, Any]]:
    if not isinstance(row, Mapping) or not isinstance(row.get("id"), str):
        raise BadArguments(f"{row!r:.80} is not an instruction; write {{'id': 'punctuation:no_comma'}}")
    kind = INSTRUCTIONS.get(row["id"])
    if kind is None:
        raise BadArguments(f"there is no instruction {row['id']!r:.60}; {format_suggestion(row['id'], INSTRUCTIONS, max_names=3)}")
    return kind, kind.parse_arguments(row)


def _make_loose_variants(text: str) -> list[str]:
    """Return the text unchanged, and without its first line, its last line, both, and each of these without asterisks."""
    rows = text.split("\n")
    cut = [text, *("\n".join(part).strip() for part in (rows[1:], rows[:-1], rows[1:-1]))]
    return [part for one in cut for part in (one, one.replace("*", "")) if part.strip()]


make = Instructions
