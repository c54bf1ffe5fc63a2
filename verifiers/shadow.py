"""Verify with one verifier, and audit a sample of the answers with a second one, to detect reward hacking or drift."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from rlvr.contracts import Begun, Example, Transcript, Verifier, together
from rlvr.errors import ConfigError
from rlvr.mdp.sessions import begun, judged_whole
from rlvr.plugins.registry import from_config
from rlvr.task import Task, Verdict


class Shadow(Verifier):
    """The score of the first verifier; a fraction of the verdicts also has the score of an audit verifier, as the component `shadow`.

    The sample is a hash of the task and the answer, so that the same answer is always or never audited. A failure of the audit verifier
    changes nothing. On an environment it is written as `shadow: {verifier: symbolic, share: 0.05}`.

    >>> import rlvr
    >>> rlvr.make("verifier", "shadow", by="numeric", share=1.0).verify(rlvr.Task("t", rlvr.user("2+2="), "4"), "4").parts
    {'shadow': 1.0}
    """

    needs = {"verifier": "exact"}
    examples = (Example("4", right=("4",), wrong=("5", "4 or 5", "")),)
    shadows = True
    """Whether verdicts may have the audit component, which a run then monitors."""

    def __init__(self, *, verifier: Verifier, by: str | Mapping[str, Any] = "numeric", share: float = 0.05) -> None:
        """Set the audit verifier.

        Args:
            verifier: gives the score.
            by: the audit verifier; a name, or a mapping with a name and settings.
            share: the fraction of answers that are audited.
        """
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 1:
            raise ConfigError(f"share is {share!r}; it must be a number from 0 to 1, such as 0.05")
        self.verifier, self.share = verifier, float(share)
        self.by: Verifier = from_config("verifier", by)
        self.needs_reference, self.instruction = verifier.needs_reference, verifier.instruction

    def verify(self, task: Task, answer: str) -> Verdict:
        """Verify a text, and audit it if it is sampled."""
        return self.judge(task, Transcript(answer))

    def judge(self, task: Task, transcript: Transcript) -> Verdict:
        """Verify a conversation, and audit it if it is sampled."""
        return self._with(self.verifier.judge(task, transcript), task, transcript)

    def begin(self, task: Task, transcript: Transcript) -> Begun:
        """Start verification; a verifier that waits for a remote verdict occupies no thread."""
        both = [self.verifier.begin(task, transcript)]
        both += [begun(self.by, task, transcript)] if self._drawn(task, transcript.answer) else []
        return together(both, lambda verdicts: _joined(verdicts[0], *verdicts[1:]))

    def verify_many(self, tasks: Sequence[Task], answers: Sequence[str]) -> list[Verdict]:
        """Verify many answers with the batch method of the first verifier, and audit the sampled ones."""
        verdicts = self.verifier.verify_many(tasks, answers)
        return [self._with(v, task, Transcript(answer)) for v, task, answer in zip(verdicts, tasks, answers, strict=True)]

    def _with(self, verdict: Verdict, task: Task, transcript: Transcript) -> Verdict:
        if verdict.score is None or not self._drawn(task, transcript.answer):
            return verdict
        return _joined(verdict, judged_whole(self.by, task, transcript))

    def _drawn(self, task: Task, answer: str) -> bool:
        digest = hashlib.blake2b(f"{task.id}\0{answer}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
        return int.from_bytes(digest, "big") < self.share * 2**64

    def ready(self) -> None:
        """Check that both verifiers are ready."""
        self.verifier.ready()
        self.by.ready()

    def close(self) -> None:
        """Close both verifiers."""
        self.verifier.close()
        self.by.close()


def _joined(verdict: Verdict, second: Verdict | None = None) -> Verdict:
    if second is None or verdict.score is None:
        return verdict
    if second.score is None:
        return replace(verdict, detail={**verdict.detail, "shadow": second.reason})
    return replace(verdict, parts={**verdict.parts, "shadow": second.score})


make = Shadow
