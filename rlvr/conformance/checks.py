"""The conformance kits: does a plugin keep its contract? Run by `rlvr check`, by plugin authors' tests, and by our own.

>>> from rlvr.conformance.checks import check_verifier, failures
>>> failures(check_verifier("numeric"))
[]

A kit never raises for a defect: every check becomes a record, and a check that could not be made says so.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import wait
from dataclasses import dataclass
from functools import partial
from typing import Any

from rlvr.conformance import canaries
from rlvr.conformance.blame import place_of
from rlvr.contracts import Example, Plugin, Verifier
from rlvr.errors import ConfigError, PluginError, RlvrError, suggest
from rlvr.plugins.registry import build, kind_of
from rlvr.rollout.judges import Judges
from rlvr.task import Fault, Task, Verdict, user

DEADLINE_S = 600.0
"""How long one check may take: far longer than any needs, so that what takes longer hangs."""
BROKEN_REFERENCES: tuple[Any, ...] = ([], {}, "", " ", float("nan"), object, {"unknown": 1}, ["", None], b"bytes")


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at.

    >>> Check("the gold answer scores 1", ok=False, detail="task arithmetic/test/0.3: '14' scored 0").ok
    False
    """

    name: str
    ok: bool
    detail: str = ""
    skipped: bool = False
    """Whether it could not be made; `detail` says why. Never counts as a failure, and never hides."""


class CannotCheck(Exception):
    """Raised inside a check that does not apply; the reason is shown."""


def failures(checks: Sequence[Check]) -> list[str]:
    """What went wrong, one line each; a test says that there is nothing.

    >>> failures([Check("a", True), Check("b", False, "why")])
    ['b: why']
    """
    return [f"{check.name}: {check.detail}" for check in checks if not check.ok]


def check_plugin(kind: str, name: str, **settings: Any) -> list[Check]:
    """The kit of a kind, on one plugin of it."""
    return list(stream(kind, name, settings))


def check_env(name: str, **settings: Any) -> list[Check]:
    """Hold an environment to its contract: its tasks, its rewards, its life as a Gymnasium environment."""
    return check_plugin("env", name, **settings)


def check_verifier(name: str, **settings: Any) -> list[Check]:
    """Hold a verifier to its contract: right answers pay in full, nothing else pays, and no text breaks it."""
    return check_plugin("verifier", name, **settings)


def stream(kind: str, name: str, settings: dict[str, Any]) -> Iterator[Check]:
    """The checks one by one, as they are made, for those who watch."""
    wanted = kind_of(kind).name
    if wanted == "env":
        from rlvr.conformance.envkit import env_checks  # Gymnasium comes with it

        return run(env_checks(name, settings))
    if wanted == "verifier":
        return run(_verifier_checks(name, settings))
    if wanted == "sandbox":
        from rlvr.conformance.checks_sandbox import sandbox_checks

        return run(sandbox_checks(name, settings))
    raise ConfigError(f"there is no kit for a {wanted}; {suggest(wanted, ['env', 'verifier', 'sandbox'])}")


Steps = Iterator[tuple[str, Callable[[], str]]]


def run(steps: Steps) -> Iterator[Check]:
    """Make the checks one after the other. A check is a function that returns what is wrong, or ''.

    A plugin that cannot be built has failed its first check; a wrong name or setting is the caller's, and raises.
    """
    while True:
        try:
            step = next(steps)
        except StopIteration:
            return
        except PluginError as error:
            yield Check("it can be built", False, str(error))
            return
        except RlvrError:
            raise
        except (Exception, SystemExit) as error:  # between two checks only `close` is called
            yield Check("it can be closed", False, _raised(error))
            return
        made = _made(*step)
        if made is None:
            yield Check(step[0], False, f"not done after {DEADLINE_S:g} s: something in it waits for ever; what follows was not looked at")
            return
        yield made


def _made(name: str, look: Callable[[], str]) -> Check | None:
    """The check, in a thread that is left behind where it does not come back in time."""
    judges = Judges(1)
    looked = judges.submit(look)
    try:
        if not wait([looked], DEADLINE_S).done:
            return None
        wrong = looked.result()
    except CannotCheck as reason:
        return Check(name, True, str(reason), skipped=True)
    except (Exception, SystemExit) as error:
        return Check(name, False, _raised(error))
    finally:
        judges.close()
    return Check(name, not wrong, wrong)


def _raised(error: BaseException) -> str:
    place = place_of(error)
    return f"raised {type(error).__name__}: {' '.join(str(error).split())[:400]}" + (f" ({place})" if place else "")


def first(texts: Iterator[str]) -> str:
    """The first complaint, and how many more there are.

    >>> first(iter(["", "a is wrong", "b is wrong"]))
    'a is wrong; and 1 more'
    """
    found = [text for text in texts if text]
    return "" if not found else found[0] if len(found) == 1 else f"{found[0]}; and {len(found) - 1} more"


def closed(plugin: Plugin) -> str:
    """Close it once more; what is wrong with that shows as an exception."""
    plugin.close()
    return ""


def shown(verdict: Verdict) -> str:
    """A verdict in a complaint.

    >>> shown(Verdict(1.0, "4 equals 4"))
    'scored 1 (4 equals 4)'
    """
    score = "no score" if verdict.score is None else f"scored {verdict.score:g}"
    return f"{score} ({'' if verdict.fault is Fault.NONE else f'fault {verdict.fault.value}: '}{verdict.reason:.120})"


def _verifier_checks(name: str, settings: dict[str, Any]) -> Steps:
    verifier: Any = build("verifier", name, **settings)
    kind = type(verifier).__name__
    yield "it can be built", lambda: "" if isinstance(verifier, Verifier) else f"it is a {kind}, not an rlvr.Verifier"
    if not isinstance(verifier, Verifier):
        return
    try:
        kit = _VerifierKit(verifier)
        yield "it says what it is for", kit.described
        yield "it brings examples of its own", kit.has_examples
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
    """The checks of one verifier, over the examples that it brings."""

    def __init__(self, verifier: Verifier) -> None:
        self.verifier = verifier
        self.examples: Sequence[Example] = type(verifier).examples

    def described(self) -> str:
        if not (type(self.verifier).__doc__ or "").strip():
            return "its class has no docstring; say what it judges, and how"
        version = type(self.verifier).version
        return "" if isinstance(version, str) and version else f"version is {version!r}; it must be a text, such as '1'"

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
            raise CannotCheck("none of its examples has a bare right answer beside a bare wrong one")
        return first(self._not(0.0, e, text) for e, right, other in pairs for text in canaries.hedged(right, other) if text not in e.right)

    def contained(self) -> str:
        bare = [(e, right) for e in self._some() for right in e.right if canaries.bare(right)]
        if not bare:
            raise CannotCheck("all of its right answers are declared by a mark, so prose around them does not count")
        return first(self._not(0.0, e, text) for e, right in bare for text in canaries.contained(right))

    def broken_reference(self) -> str:
        answer = next((right for example in self._some() for right in example.right), "1")
        verdict = self._ask(None, answer, {})
        if verdict.score is not None or verdict.fault is not Fault.TASK:
            return f"reference None: {shown(verdict)}; a reference that cannot be judged has fault 'task' and no score"
        for reference in BROKEN_REFERENCES:
            verdict = self._ask(reference, answer, {})
            if verdict.fault is Fault.INFRA:
                return f"reference {reference!r}: {shown(verdict)}; the machinery is not to blame for it"
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
        judges = Judges(8)  # not Python's own threads, which hold up the end of the process where they lock each other out
        try:
            together = [verdict.result().score for verdict in [judges.submit(self._of, *pair) for pair in asked * 2]]
        finally:
            judges.close()
        pairs = zip(asked * 2, alone, together, strict=True)
        return first(f"{canaries.short(pair[1])}: alone {a}, among others {b}" for pair, a, b in pairs if a != b)

    def plain(self) -> str:
        for example in self._some():
            for answer in (*example.right, *example.wrong):
                json.dumps(dict(self._of(example, answer).detail), allow_nan=False)  # its record makes plain what is not
        return ""

    def _some(self) -> Sequence[Example]:
        if not self.examples:
            raise CannotCheck("it brings no examples")
        return self.examples

    def _pairs(self) -> Iterator[tuple[Example, str, str]]:
        """A right and a wrong answer of the same example, the wrong one simple enough to be an alternative."""
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
