"""Verify with one verifier, and audit a sample of the answers with a second one, to detect reward hacking or drift."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from rlvr.contracts import Transcript, Verifier, VerifierExample, VerifierTraits
from rlvr.errors import ConfigError, require_text_answers
from rlvr.mdp.sessions import averify_transcript_safely, await_with_exceptions, verify_transcript_safely
from rlvr.registry.plugins import build_from_config
from rlvr.task import Task, Verdict


class AuditedVerifier(Verifier):
    """The score of the first verifier; a fraction of the verdicts also has the score of an audit verifier, as the component `audit`.

    The sample is a hash of the task and the answer, so that the same answer is always or never audited. A failure of the audit verifier
    changes nothing. On an environment it is written as `audit_verifier: {verifier: symbolic, fraction: 0.05}`.

    >>> import rlvr
    >>> rlvr.make_verifier("with_audit", audit_with="numeric", fraction=1.0).verify(rlvr.Task(rlvr.make_user_prompt("2+2="), "4", id="t"), "4").components
    {'audit': 1.0}
    """

    needs = {"verifier": "exact"}
    examples = (VerifierExample("4", correct=("4",), incorrect=("5", "4 or 5", "")),)
    has_audit_component = True
    """Whether verdicts may have the audit component, which a run then monitors."""

    def __init__(self, *, verifier: Verifier, audit_with: str | Mapping[str, Any] = "numeric", fraction: float = 0.05) -> None:
        """Set the audit verifier.

        Args:
            verifier: gives the score.
            audit_with: the audit verifier; a name, or a mapping with a name and settings.
            fraction: the fraction of answers that are audited.
        """
        if isinstance(fraction, bool) or not isinstance(fraction, int | float) or not 0 <= fraction <= 1:
            raise ConfigError(f"fraction is {fraction!r}; it must be a number from 0 to 1, such as 0.05")
        self.verifier, self.fraction = verifier, float(fraction)
        self.audit_verifier: Verifier = build_from_config("verifier", audit_with)
        self.has_bounded_score = verifier.has_bounded_score
        self.traits = VerifierTraits(
            is_async=verifier.traits.is_async or self.audit_verifier.traits.is_async, takes_transcript=True, has_batch_method=True
        )
        self.needs_reference, self.columns, self.instruction = verifier.needs_reference, verifier.columns, verifier.instruction

    @require_text_answers
    def verify(self, task: Task, answer: str) -> Verdict:
        """Verify a text, and audit it if it is sampled."""
        return self.verify_transcript(task, Transcript(answer))

    def verify_transcript(self, task: Task, transcript: Transcript) -> Verdict:
        """Verify a conversation, and audit it if it is sampled."""
        return self._add_audit_score(self.verifier.verify_transcript(task, transcript), task, transcript)

    async def averify(self, task: Task, answer: str) -> Verdict:
        """Verify an answer without occupying a thread, and audit it if it is sampled."""
        return await self.averify_transcript(task, Transcript(answer))

    async def averify_transcript(self, task: Task, transcript: Transcript) -> Verdict:
        """Await the verdict, together with that of the audit verifier if the answer is sampled."""
        both = [await_with_exceptions(self.verifier.averify_transcript(task, transcript))]
        both += [averify_transcript_safely(self.audit_verifier, task, transcript)] if self._is_sampled(task, transcript.answer) else []
        return _attach_audit_score(*await asyncio.gather(*both))

    def verify_many(self, tasks: Sequence[Task], answers: Sequence[str]) -> list[Verdict]:
        """Verify many answers with the batch method of the first verifier, and audit the sampled ones."""
        verdicts = self.verifier.verify_many(tasks, answers)
        return [self._add_audit_score(v, task, Transcript(answer)) for v, task, answer in zip(verdicts, tasks, answers, strict=True)]

    def _add_audit_score(self, verdict: Verdict, task: Task, transcript: Transcript) -> Verdict:
        if verdict.score is None or not self._is_sampled(task, transcript.answer):
            return verdict
        return _attach_audit_score(verdict, verify_transcript_safely(self.audit_verifier, task, transcript))

    def _is_sampled(self, task: Task, answer: str) -> bool:
        digest = hashlib.blake2b(f"{task.id}\0{answer}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
        return int.from_bytes(digest, "big") < self.fraction * 2**64

    def prepare(self) -> None:
        """Check that both verifiers are ready."""
        self.verifier.prepare()
        self.audit_verifier.prepare()

    def close(self) -> None:
        """Close both verifiers."""
        self.verifier.close()
        self.audit_verifier.close()


def _attach_audit_score(verdict: Verdict, second: Verdict | None = None) -> Verdict:
    if second is None or verdict.score is None:
        return verdict
    if second.score is None:
        return replace(verdict, detail={**verdict.detail, "audit": second.reason})
    return replace(verdict, components={**verdict.components, "audit": second.score})


make = AuditedVerifier
