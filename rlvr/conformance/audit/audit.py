"""Audit a verifier: verify many labelled pairs twice, and count false positives, false negatives, missing scores and crashes by family."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from rlvr.conformance.audit.asking import Asked, Reply
from rlvr.conformance.audit.families import FORMS, Pair, made
from rlvr.conformance.audit.search import Key, searched
from rlvr.contracts import Example
from rlvr.errors import ConfigError
from rlvr.task import plain

LABELS: Mapping[Any, bool] = {1: True, 0: False, "1": True, "0": False, "right": True, "wrong": False, "correct": True, "incorrect": False}
GIVEN = "given"
PROBED, MOST_SHOWN = 8, 5


@dataclass(slots=True)
class Family:
    """The counts of one family of pairs, and its shortest failures.

    >>> Family("near miss", right=False, asked=10, failed=1).rate
    0.1
    """

    name: str
    right: bool
    """Whether the answers are right: a failure is then a false negative, and otherwise a false positive."""
    given: bool = False
    """Whether the pairs were labelled by the user, and not generated."""
    asked: int = 0
    failed: int = 0
    unscored: int = 0
    crashed: int = 0
    examples: list[dict[str, Any]] = field(default_factory=list)

    @property
    def rate(self) -> float | None:
        """Fraction of failures among the scored answers; None if there are none."""
        scored = self.asked - self.unscored - self.crashed
        return self.failed / scored if scored else None

    def add(self, pair: Pair, reply: Reply) -> None:
        """Count one reply."""
        self.asked += 1
        if reply.crash:
            self.crashed += 1
        elif reply.score is None:
            self.unscored += 1
        elif reply.paid == pair.right:
            return
        else:
            self.failed += 1
        shown = {"answer": pair.answer, "reference": plain(pair.reference), "score": reply.score, "reason": reply.crash or reply.reason}
        self.examples = sorted([*self.examples, shown], key=lambda one: len(one["answer"]))[:MOST_SHOWN]


@dataclass(slots=True)
class Report:
    """The results of an audit.

    >>> Report("exact", []).rates()
    {'given': {'false_positive': None, 'false_negative': None}, 'made': {'false_positive': None, 'false_negative': None}}
    """

    target: str
    families: list[Family]
    forms: list[str] = field(default_factory=list)
    """The forms of declaring an answer that the verifier accepts."""
    skipped: int = 0
    """Number of pairs whose label is neither right nor wrong."""
    disagreements: list[dict[str, Any]] = field(default_factory=list)
    keys: list[Key] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    """Duration of each verification."""

    def rates(self) -> dict[str, dict[str, float | None]]:
        """Compute the rates of false positives and false negatives, of labelled and of generated pairs."""
        found: dict[str, dict[str, float | None]] = {}
        for name, given in (("given", True), ("made", False)):
            rows = [family for family in self.families if family.given == given]
            found[name] = {"false_positive": _rate(f for f in rows if not f.right), "false_negative": _rate(f for f in rows if f.right)}
        return found

    def latency(self) -> dict[str, float]:
        """Compute median, 95 %, 99 % and maximum of the verification time in seconds."""
        ordered = sorted(self.seconds) or [0.0]
        at = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "max": 1.0}
        return {name: ordered[min(len(ordered) - 1, int(share * len(ordered)))] for name, share in at.items()}

    def record(self) -> dict[str, Any]:
        """Convert the report to plain JSON."""
        return {
            "verifier": self.target,
            "rates": self.rates(),
            "asked": sum(family.asked for family in self.families),
            "unscored": sum(family.unscored for family in self.families),
            "crashed": sum(family.crashed for family in self.families),
            "skipped": self.skipped,
            "forms": self.forms,
            "latency_seconds": self.latency(),
            "disagreements": self.disagreements,
            "search": [{**asdict(key), "share": key.share} for key in self.keys],
            "families": [{**asdict(family), "rate": family.rate} for family in self.families],
        }


def _rate(families: Iterable[Family]) -> float | None:
    rows = list(families)
    scored = sum(f.asked - f.unscored - f.crashed for f in rows)
    return sum(f.failed for f in rows) / scored if scored else None


def pairs_in(path: Path) -> tuple[list[Pair], int]:
    """Load the labelled pairs of a JSONL file; also return how many have another label than right or wrong."""
    found, skipped = [], 0
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            answer, reference, label = row["answer"], row["reference"], row["label"]
        except (ValueError, KeyError, TypeError) as error:
            form = '{"answer": "...", "reference": ..., "label": 1, "question"?, "family"?, "meta"?}'
            raise ConfigError(f"{path}:{number} is not a labelled pair ({error!r:.80}); each line must be {form}") from error
        if not isinstance(answer, str):
            raise ConfigError(f"{path}:{number}: the answer is {answer!r:.60}; it must be a string")
        right = LABELS.get(label) if isinstance(label, int | str) else None
        if right is None:
            skipped += 1
            continue
        meta = row.get("meta")
        question = str(row.get("question") or "")
        found.append(Pair(answer, reference, right, str(row.get("family") or GIVEN), question, meta if isinstance(meta, dict) else {}))
    return found, skipped


def golds_from(pairs: Sequence[Pair], examples: Sequence[Example], *, most: int, seed: int) -> list[Pair]:
    """Collect some bare golds: references of the pairs, else of the verifier's own examples."""
    found: dict[str, Pair] = {}
    for pair in pairs:
        if isinstance(pair.reference, str | int | float) and not isinstance(pair.reference, bool):
            found.setdefault(str(pair.reference), replace(pair, answer=str(pair.reference), right=True))
    for example in examples if not found else ():
        if example.right:
            reference = example.reference
            text = reference if isinstance(reference, str) and reference in example.right else example.right[0]
            found.setdefault(text, Pair(text, reference, True, meta=dict(example.meta)))
    rows = list(found.values())
    random.Random(seed).shuffle(rows)
    return rows[:most]


def audit(
    target: str,
    pairs: Sequence[Pair],
    golds: Sequence[Pair],
    *,
    settings: Mapping[str, Any] | None = None,
    timeout_s: float = 10.0,
    search: int = 400,
    seed: int = 0,
    told: Callable[[int], None] = lambda count: None,
) -> Report:
    """Verify every pair twice, in two processes, and search for answers that are rewarded without knowing the question."""
    report = Report(target, [])
    families: dict[tuple[str, bool, bool], Family] = {}
    count = 0
    with Asked(target, settings, timeout_s=timeout_s, seed=1) as one, Asked(target, settings, timeout_s=timeout_s, seed=2) as two:
        report.forms = _forms(one, golds)
        given = [(pair, True) for pair in pairs]
        for pair, labelled in [*given, *((pair, False) for pair in made(golds, report.forms or [FORMS[0][0]]))]:
            first, second = one.ask(pair.row()), two.ask(pair.row())
            report.seconds.append(first.seconds)
            key = (pair.family, pair.right, labelled)
            families.setdefault(key, Family(*key)).add(pair, first)
            if (first.score, first.crash) != (second.score, second.crash):
                report.disagreements.append(
                    {"answer": pair.answer[:500], "reference": plain(pair.reference), "scores": [first.score, second.score]}
                )
            count += 1
            told(count)
        seen = [pair.answer for pair in pairs if len(pair.answer) < 300]
        report.keys = searched(golds, seen, lambda gold, text: one.ask({**gold.row(), "answer": text}).paid, calls=search, seed=seed)
    report.families = sorted(families.values(), key=lambda f: (-(f.rate or 0.0), f.right, f.name))
    return report


def _forms(verifier: Asked, golds: Sequence[Pair]) -> list[str]:
    """Find the forms in which at least half of some golds are accepted, the best first."""
    some = golds[:PROBED]
    accepted = {name: sum(verifier.ask({**gold.row(), "answer": text.format(gold.answer)}).paid for gold in some) for name, text in FORMS}
    return [name for name in sorted(accepted, key=lambda name: -accepted[name]) if some and 2 * accepted[name] >= len(some)]
