"""The conformance kit of verifiers: right answers score 1, all others score 0, and no text breaks the verifier."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from rlvr.conformance import adversarial_answers as canaries
from rlvr.conformance.check_runner import CheckSkipped, Steps, check_closing_twice, describe_first_problem, format_verdict
from rlvr.conformance.hostile_player import iter_hostile_turns
from rlvr.contracts import StepResult, Transcript, Verifier, VerifierExample
from rlvr.contracts.plugin import is_default_implementation
from rlvr.mdp.sessions import RAISED, verify_transcript_safely
from rlvr.mdp.verifier_executor import DaemonThreadExecutor
from rlvr.registry.plugins import build, load_factory
from rlvr.task import Fault, Task, Verdict, make_user_prompt
from rlvr.turns import ToolSpec, Turn

BROKEN_REFERENCES: tuple[Any, ...] = ([], {}, "", " ", float("nan"), object, {"unknown": 1}, ["", None], b"bytes")


def iter_verifier_checks(name: str, settings: dict[str, Any]) -> Steps:
    """Yield the checks of one verifier, built with these settings."""
    verifier: Any = build("verifier", name, **settings)
    kind = type(verifier).__name__
    yield "it can be built", lambda: "" if isinstance(verifier, Verifier) else f"it is a {kind}, not an rlvr.Verifier"
    if not isinstance(verifier, Verifier):
        return
    try:
        kit = _VerifierChecks(verifier)
        yield "it says what it is for", kit.check_docstring
        yield "it has examples", kit.check_examples
        yield "right answers score 1", kit.check_correct_answers
        yield "wrong answers score 0", kit.check_incorrect_answers
        yield "an empty answer scores 0", lambda: kit.check_zero_scores(canaries.EMPTY_ANSWERS)
        yield "a hedged answer scores 0", kit.check_hedged_answers
        yield "a denial of the right answer scores 0", kit.check_denials
        yield "an injected answer scores 0", lambda: kit.check_zero_scores(canaries.INJECTION_ANSWERS)
        yield "no text breaks it", lambda: kit.check_zero_scores(canaries.JUNK_ANSWERS)
        yield "no turn of a conversation breaks it", kit.check_hostile_turns
        yield "a broken reference gives no score", kit.check_broken_references
        yield "the same answer gets the same verdict", kit.check_determinism
        yield "verdicts are the same from many threads", kit.check_threads
        yield "verdicts are plain JSON", kit.check_json_detail
    finally:
        verifier.close()
    yield "it can be closed twice", partial(check_closing_twice, verifier)


class _VerifierChecks:
    """The checks of one verifier, on its own examples."""

    def __init__(self, verifier: Verifier) -> None:
        self.verifier = verifier
        self.examples: Sequence[VerifierExample] = type(verifier).examples

    def check_docstring(self) -> str:
        if not (type(self.verifier).__doc__ or "").strip():
            return "its class has no docstring; say what it verifies, and how"
        version = type(self.verifier).version
        return "" if isinstance(version, str) and version else f"version is {version!r}; it must be a string, such as '1'"

    def check_examples(self) -> str:
        if any(example.correct and example.incorrect for example in self.examples):
            return ""
        if self.examples and not is_default_implementation(self.verifier.verify_transcript) and not any(e.correct for e in self.examples):
            raise CheckSkipped("it verifies what a session did, and no text alone is right")
        return "`examples` has none with a right and a wrong answer; add VerifierExample(reference=..., correct=(...), incorrect=(...))"

    def check_correct_answers(self) -> str:
        return describe_first_problem(self._check_score(1.0, e, answer) for e in self._require_examples() for answer in e.correct)

    def check_incorrect_answers(self) -> str:
        return describe_first_problem(self._check_score(0.0, e, answer) for e in self._require_examples() for answer in e.incorrect)

    def check_zero_scores(self, answers: Sequence[str]) -> str:
        return describe_first_problem(
            self._check_score(0.0, e, answer) for e in self._require_examples() for answer in answers if answer not in e.correct
        )

    def check_hedged_answers(self) -> str:
        pairs = list(self._iter_right_and_wrong_answers())
        if not pairs:
            raise CheckSkipped("no example has both a bare right answer and a bare wrong one")
        return describe_first_problem(
            self._check_score(0.0, e, text)
            for e, right, other in pairs
            for text in canaries.iter_hedged_answers(right, other)
            if text not in e.correct
        )

    def check_denials(self) -> str:
        bare = [(e, right) for e in self._require_examples() for right in e.correct if canaries.is_bare_answer(right)]
        if not bare:
            raise CheckSkipped("all of its right answers are declared by a mark, so prose around them does not count")
        return describe_first_problem(self._check_score(0.0, e, text) for e, right in bare for text in canaries.iter_denials(right))

    def check_broken_references(self) -> str:
        if not self.verifier.needs_reference:
            raise CheckSkipped("it needs no reference")
        if type(self.verifier) is load_factory("verifier", "function"):
            raise CheckSkipped(
                "a function cannot say that a reference is broken; data whose references it cannot read are refused before a run"
            )
        answer = next((right for example in self._require_examples() for right in example.correct), "1")
        verdict = self._verify(None, answer, {})
        if verdict.score is not None or verdict.fault is not Fault.TASK:
            return f"reference None: {format_verdict(verdict)}; an invalid reference must give fault 'task' and no score"
        for reference in BROKEN_REFERENCES:
            verdict = self._verify(reference, answer, {})
            if verdict.fault is Fault.INFRA:
                return f"reference {reference!r}: {format_verdict(verdict)}; this is not an infrastructure fault"
        return ""

    def check_hostile_turns(self) -> str:
        """Verify transcripts with turns that cannot be executed, whose calls may have no arguments."""
        if not self.verifier.traits.takes_transcript:
            raise CheckSkipped("it reads only the answer")
        example = self._require_examples()[0]
        task = Task(make_user_prompt("question"), example.reference, id="kit", meta=dict(example.meta))
        plain = verify_transcript_safely(self.verifier, task, Transcript("-", turns=(Turn("-", content="-"),)))
        if RAISED in plain.detail:
            raise CheckSkipped("it needs artifacts; `rlvr check env` plays such turns in its environment")
        for turn in iter_hostile_turns([ToolSpec("answer", "Answer.")]):
            verdict = verify_transcript_safely(self.verifier, task, Transcript("", turns=(turn,), step_results=(StepResult(done=True),)))
            if RAISED in verdict.detail:
                return f"a turn with the call {turn.calls[0]!r:.160} {format_verdict(verdict)}; the arguments of such a call are None"
        return ""

    def check_determinism(self) -> str:
        for example in self._require_examples():
            for answer in (*example.correct, *example.incorrect):
                one, two = self._verify_example(example, answer), self._verify_example(example, answer)
                if (one.score, one.fault) != (two.score, two.fault):
                    return f"{canaries.shorten(answer)}: first {format_verdict(one)}, then {format_verdict(two)}"
        return ""

    def check_threads(self) -> str:
        asked = [(e, answer) for e in self._require_examples() for answer in (*e.correct, *e.incorrect)][:24]
        alone = [self._verify_example(*pair).score for pair in asked] * 2
        judges = DaemonThreadExecutor(8)  # not Python's own threads: if they deadlock, they block the exit of the process
        try:
            together = [verdict.result().score for verdict in [judges.submit(self._verify_example, *pair) for pair in asked * 2]]
        finally:
            judges.close()
        pairs = zip(asked * 2, alone, together, strict=True)
        return describe_first_problem(
            f"{canaries.shorten(pair[1])}: {a} alone, {b} in parallel with others" for pair, a, b in pairs if a != b
        )

    def check_json_detail(self) -> str:
        for example in self._require_examples():
            for answer in (*example.correct, *example.incorrect):
                json.dumps(
                    dict(self._verify_example(example, answer).detail), allow_nan=False
                )  # not `Verdict.record`, which converts it to JSON
        return ""

    def _require_examples(self) -> Sequence[VerifierExample]:
        if not self.examples:
            raise CheckSkipped("it has no examples")
        return self.examples

    def _iter_right_and_wrong_answers(self) -> Iterator[tuple[VerifierExample, str, str]]:
        """Yield a right and a wrong answer of the same example, the wrong one simple enough to be an alternative."""
        for example in self._require_examples():
            others = [text.strip() for text in example.incorrect if text.strip() and " or " not in text and canaries.is_bare_answer(text)]
            yield from ((example, right, others[0]) for right in example.correct if others and canaries.is_bare_answer(right))

    def _check_score(self, score: float, example: VerifierExample, answer: str) -> str:
        verdict = self._verify_example(example, answer)
        if verdict.score == score:
            return ""
        return f"{canaries.shorten(answer)} for the reference {example.reference!r:.80}: {format_verdict(verdict)}, not {score:g}"

    def _verify_example(self, example: VerifierExample, answer: str) -> Verdict:
        return self._verify(example.reference, answer, dict(example.meta))

    def _verify(self, reference: Any, answer: str, meta: dict[str, Any]) -> Verdict:
        verdict = self.verifier.verify(Task(make_user_prompt("question"), reference, id="kit", meta=meta), answer)
        if not isinstance(verdict, Verdict):
            raise TypeError(f"verify returned {verdict!r:.80} for {canaries.shorten(answer)}, not a Verdict")
        return verdict
