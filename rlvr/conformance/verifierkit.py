"""The conformance kit of verifiers: right answers score 1, all others score 0, and no text breaks the verifier."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from rlvr.conformance import canaries
from rlvr.conformance.steps import CannotCheck, Steps, closed, first, shown
from rlvr.contracts import Example, Verifier
from rlvr.mdp.judges import Judges
from rlvr.plugins.registry import build
from rlvr.task import Fault, Task, Verdict, user

BROKEN_REFERENCES: tuple[Any, ...] = ([], {}, "", " ", float("nan"), object, {"unknown": 1}, ["", None], b"bytes")


def verifier_checks(name: str, settings: dict[str, Any]) -> Steps:
    """Yield the checks of one verifier, built with these settings."""
    verifier: Any = build("verifier", name, **settings)
    kind = type(verifier).__name__
    yield "it can be built", lambda: "" if isinstance(verifier, Verifier) else f"it is a {kind}, not an rlvr.Verifier"
    if not isinstance(verifier, Verifier):
        return
    try:
        kit = _VerifierKit(verifier)
        yield "it says what it is for", kit.described
        yield "it has examples", kit.has_examples
        yield "right answers score 1", kit.right
        yield "wrong answers score 0", kit.wrong
        yield "an empty answer scores 0", lambda: kit.floor(canaries.EMPTY)
        yield "a hedged answer scores 0", kit.hedged
        yield "a denial of the right answer scores 0", kit.contained
        yield "an injected answer scores 0", lambda: kit.floor(canaries.INJECTED)
        yield "no text breaks it", lambda: kit.floor(canaries.JUNK)
        yield "a broken reference gives no score", kit.broken_reference
        yield "the same answer gets the same verdict", kit.deterministic
        yield "verdicts are the same from many threads", kit.threads
        yield "verdicts are plain JSON", kit.plain
    finally:
        verifier.close()
    yield "it can be closed twice", partial(closed, verifier)


class _VerifierKit:
    """The checks of one verifier, on its own examples."""

    def __init__(self, verifier: Verifier) -> None:
        self.verifier = verifier
        self.examples: Sequence[Example] = type(verifier).examples

    def described(self) -> str:
        if not (type(self.verifier).__doc__ or "").strip():
            return "its class has no docstring; say what it verifies, and how"
        version = type(self.verifier).version
        return "" if isinstance(version, str) and version else f"version is {version!r}; it must be a string, such as '1'"

    def has_examples(self) -> str:
        if any(example.right and example.wrong for example in self.examples):
            return ""
        return "`examples` has none with a right and a wrong answer; add Example(reference=..., right=(...), wrong=(...))"

    def right(self) -> str:
        return first(self._not(1.0, e, answer) for e in self._some() for answer in e.right)

    def wrong(self) -> str:
        return first(self._not(0.0, e, answer) for e in self._some() for answer in e.wrong)

    def floor(self, answers: Sequence[str]) -> str:
        return first(self._not(0.0, e, answer) for e in self._some() for answer in answers if answer not in e.right)

    def hedged(self) -> str:
        pairs = list(self._pairs())
        if not pairs:
            raise CannotCheck("no example has both a bare right answer and a bare wrong one")
        return first(self._not(0.0, e, text) for e, right, other in pairs for text in canaries.hedged(right, other) if text not in e.right)

    def contained(self) -> str:
        bare = [(e, right) for e in self._some() for right in e.right if canaries.bare(right)]
        if not bare:
            raise CannotCheck("all of its right answers are declared by a mark, so prose around them does not count")
        return first(self._not(0.0, e, text) for e, right in bare for text in canaries.contained(right))

    def broken_reference(self) -> str:
        if not self.verifier.needs_reference:
            raise CannotCheck("it needs no reference")
        answer = next((right for example in self._some() for right in example.right), "1")
        verdict = self._ask(None, answer, {})
        if verdict.score is not None or verdict.fault is not Fault.TASK:
            return f"reference None: {shown(verdict)}; an invalid reference must give fault 'task' and no score"
        for reference in BROKEN_REFERENCES:
            verdict = self._ask(reference, answer, {})
            if verdict.fault is Fault.INFRA:
                return f"reference {reference!r}: {shown(verdict)}; this is not an infrastructure fault"
        return ""

    def deterministic(self) -> str:
        for example in self._some():
            for answer in (*example.right, *example.wrong):
                one, two = self._of(example, answer), self._of(example, answer)
                if (one.score, one.fault) != (two.score, two.fault):
                    return f"{canaries.short(answer)}: first {shown(one)}, then {shown(two)}"
        return ""

    def threads(self) -> str:
        asked = [(e, answer) for e in self._some() for answer in (*e.right, *e.wrong)][:24]
        alone = [self._of(*pair).score for pair in asked] * 2
        judges = Judges(8)  # not Python's own threads: if they deadlock, they block the exit of the process
        try:
            together = [verdict.result().score for verdict in [judges.submit(self._of, *pair) for pair in asked * 2]]
        finally:
            judges.close()
        pairs = zip(asked * 2, alone, together, strict=True)
        return first(f"{canaries.short(pair[1])}: {a} alone, {b} in parallel with others" for pair, a, b in pairs if a != b)

    def plain(self) -> str:
        for example in self._some():
            for answer in (*example.right, *example.wrong):
                json.dumps(dict(self._of(example, answer).detail), allow_nan=False)  # not `Verdict.record`, which converts it to JSON
        return ""

    def _some(self) -> Sequence[Example]:
        if not self.examples:
            raise CannotCheck("it has no examples")
        return self.examples

    def _pairs(self) -> Iterator[tuple[Example, str, str]]:
        """Yield a right and a wrong answer of the same example, the wrong one simple enough to be an alternative."""
        for example in self._some():
            others = [text.strip() for text in example.wrong if text.strip() and " or " not in text and canaries.bare(text)]
            yield from ((example, right, others[0]) for right in example.right if others and canaries.bare(right))

    def _not(self, score: float, example: Example, answer: str) -> str:
        verdict = self._of(example, answer)
        if verdict.score == score:
            return ""
        return f"{canaries.short(answer)} for the reference {example.reference!r:.80}: {shown(verdict)}, not {score:g}"

    def _of(self, example: Example, answer: str) -> Verdict:
        return self._ask(example.reference, answer, dict(example.meta))

    def _ask(self, reference: Any, answer: str, meta: dict[str, Any]) -> Verdict:
        verdict = self.verifier.verify(Task("kit", user("question"), reference, meta), answer)
        if not isinstance(verdict, Verdict):
            raise TypeError(f"verify returned {verdict!r:.80} for {canaries.short(answer)}, not a Verdict")
        return verdict
