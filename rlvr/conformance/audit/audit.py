"""Audit a verifier: verify many labelled pairs twice, and count false positives, false negatives, missing scores and crashes by family."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rlvr import __version__
from rlvr.conformance.adversarial_answers import is_bare_answer
from rlvr.conformance.audit.families import ANSWER_FORMS, LabelledAnswer, generate_pairs
from rlvr.conformance.audit.search import UniversalAnswer, search_universal_answers
from rlvr.conformance.audit.verifier_process import VerifierProcess, VerifierReply
from rlvr.contracts import VerifierExample
from rlvr.errors import ConfigError
from rlvr.task import to_plain_json

LABEL_VALUES: Mapping[Any, bool] = {
    1: True,
    0: False,
    "1": True,
    "0": False,
    "right": True,
    "wrong": False,
    "correct": True,
    "incorrect": False,
}
GIVEN_FAMILY = "given"
RANGE_FAMILY = "a score outside of 0 to 1"
STANDARD_REFERENCES = ("42", "-17", "1234", "305", "0.5", "7/12", "Paris", "yes")
"""The references of an audit without pairs and without examples, as of a plain reward function."""
NUM_PROBE_GOLDS, MAX_SHOWN_EXAMPLES = 8, 5


@dataclass(slots=True)
class PairFamilyCounts:
    """The counts of one family of pairs, and its shortest failures.

    >>> PairFamilyCounts("near miss", right=False, num_verified=10, num_failed=1).error_rate
    0.1
    """

    name: str
    right: bool
    """Whether the answers are right: a failure is then a false negative, and otherwise a false positive."""
    is_labelled: bool = False
    """Whether the pairs were labelled by the user, and not generated."""
    num_verified: int = 0
    num_failed: int = 0
    num_partly_rewarded: int = 0
    """The number of wrong answers that got more than nothing and less than half of the full score."""
    highest_partial_score: float = 0.0
    """The highest score of those."""
    num_unscored: int = 0
    num_crashed: int = 0
    examples: list[dict[str, Any]] = field(default_factory=list)

    @property
    def error_rate(self) -> float | None:
        """Fraction of failures among the scored answers; None if there are none."""
        scored = self.num_verified - self.num_unscored - self.num_crashed
        return self.num_failed / scored if scored else None

    def count_reply(self, pair: LabelledAnswer, reply: VerifierReply) -> None:
        """Count one reply."""
        self.num_verified += 1
        if reply.crash_message:
            self.num_crashed += 1
        elif reply.score is None:
            self.num_unscored += 1
        elif reply.is_rewarded != pair.is_correct:
            self.num_failed += 1
        elif not pair.is_correct and reply.score > 0:
            self.num_partly_rewarded += 1
            self.highest_partial_score = max(self.highest_partial_score, reply.score)
        else:
            return
        self._keep_example(pair, reply)

    def count_score(self, pair: LabelledAnswer, reply: VerifierReply) -> None:
        """Count a score of the verifier; one outside of 0 to 1 is a failure."""
        self.num_verified += 1
        if reply.score is not None and not 0 <= reply.score <= 1:
            self.num_failed += 1
            self._keep_example(pair, reply, note=f"scored {reply.score:g}")

    def _keep_example(self, pair: LabelledAnswer, reply: VerifierReply, note: str = "") -> None:
        shown = {
            "answer": pair.answer.encode("utf-8", "backslashreplace").decode(),  # a lone surrogate cannot be printed
            "reference": to_plain_json(pair.reference),
            "score": reply.score,
            "reason": reply.crash_message or reply.reason or note,
        }
        self.examples = sorted([*self.examples, shown], key=lambda one: len(one["answer"]))[:MAX_SHOWN_EXAMPLES]


@dataclass(slots=True)
class AuditReport:
    """The results of an audit.

    >>> AuditReport("exact", []).compute_error_rates()
    {'given': {'false_positive': None, 'false_negative': None}, 'made': {'false_positive': None, 'false_negative': None}}

    Two things are shown that the rates of the labelled and the generated pairs do not count: wrong answers that are paid less than half
    (`paid in part`), which a policy farms as readily, and scores outside of 0 to 1 (a family of its own).
    """

    target: str
    families: list[PairFamilyCounts]
    accepted_forms: list[str] = field(default_factory=list)
    """The forms of declaring an answer that the verifier accepts."""
    skipped: int = 0
    """Number of pairs whose label is neither right nor wrong."""
    disagreements: list[dict[str, Any]] = field(default_factory=list)
    universal_answers: list[UniversalAnswer] = field(default_factory=list)
    score_range: tuple[float, float] = (0.0, 0.0)
    """The lowest and the highest score that was given."""
    durations_s: list[float] = field(default_factory=list)
    """Duration of each verification."""
    settings: dict[str, Any] = field(default_factory=dict)
    """The settings of the verifier."""
    verifier_version: str = ""
    """The version that the verifier states; a plain function has none."""
    options: dict[str, Any] = field(default_factory=dict)
    """What the audit ran with: seed, timeouts, the score from which on an answer counts as rewarded."""
    num_golds: int = 0
    """The number of references from which pairs were generated."""
    num_given: int = 0
    """The number of pairs that the user labelled."""
    date: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    stopped: str = ""
    """Why the audit ended before the last pair; "" if it did not."""

    def describe_run(self) -> dict[str, Any]:
        """Describe what was audited, and how."""
        return {
            "rlvr": __version__,
            "verifier_version": self.verifier_version,
            "settings": self.settings,
            "date": self.date,
            "golds": self.num_golds,
            "labelled_pairs": self.num_given,
            **self.options,
        }

    def compute_error_rates(self) -> dict[str, dict[str, float | None]]:
        """Compute the rates `false_positive` and `false_negative` of the pairs that were labelled (`given`) and of those that were generated
        (`made`); None where no such pair was scored.

        If wrong answers get less than half of the full score, but not 0, then `paid in part` has their rate, also as `false_positive`.
        """
        found: dict[str, dict[str, float | None]] = {}
        for name, given in (("given", True), ("made", False)):
            rows = [family for family in self.families if family.is_labelled == given and family.name != RANGE_FAMILY]
            found[name] = {
                "false_positive": _failure_rate(f for f in rows if not f.right),
                "false_negative": _failure_rate(f for f in rows if f.right),
            }
        wrong = [family for family in self.families if not family.right and family.name != RANGE_FAMILY]
        if paid := sum(family.num_partly_rewarded for family in wrong):
            scored = sum(family.num_verified - family.num_unscored - family.num_crashed for family in wrong)
            found["paid in part"] = {"false_positive": paid / scored, "false_negative": None}
        return found

    def compute_latency_quantiles(self) -> dict[str, float]:
        """Compute median, 95 %, 99 % and maximum of the verification time in seconds."""
        ordered = sorted(self.durations_s) or [0.0]
        at = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "max": 1.0}
        return {name: ordered[min(len(ordered) - 1, int(share * len(ordered)))] for name, share in at.items()}

    def to_dict(self) -> dict[str, Any]:
        """Convert the report to plain JSON."""
        return {
            "verifier": self.target,
            "run": self.describe_run(),
            "stopped": self.stopped,
            "rates": self.compute_error_rates(),
            "num_verified": sum(family.num_verified for family in self.families if family.name != RANGE_FAMILY),
            "score_range": list(self.score_range),
            "num_unscored": sum(family.num_unscored for family in self.families),
            "num_crashed": sum(family.num_crashed for family in self.families),
            "skipped": self.skipped,
            "forms": self.accepted_forms,
            "latency_seconds": self.compute_latency_quantiles(),
            "disagreements": self.disagreements,
            "search": [{**asdict(key), "share": key.rewarded_fraction} for key in self.universal_answers],
            "families": [{**asdict(family), "rate": family.error_rate} for family in self.families],
        }


def _failure_rate(families: Iterable[PairFamilyCounts]) -> float | None:
    rows = list(families)
    scored = sum(f.num_verified - f.num_unscored - f.num_crashed for f in rows)
    return sum(f.num_failed for f in rows) / scored if scored else None


def load_labelled_pairs(path: Path) -> tuple[list[LabelledAnswer], int]:
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
        right = LABEL_VALUES.get(label) if isinstance(label, int | str) else None
        if right is None:
            skipped += 1
            continue
        meta = row.get("meta")
        question = str(row.get("question") or "")
        found.append(
            LabelledAnswer(
                answer, reference, right, str(row.get("family") or GIVEN_FAMILY), question, meta if isinstance(meta, dict) else {}
            )
        )
    return found, skipped


def collect_golds(
    pairs: Sequence[LabelledAnswer], examples: Sequence[VerifierExample], *, max_golds: int, seed: int
) -> list[LabelledAnswer]:
    """Collect right answers without a declaring mark, from the pairs or else from the verifier's examples.

    These are the references of the pairs, or else the right answers of the examples; without both, a standard set of numbers and words.
    """
    found: dict[str, LabelledAnswer] = {}
    for pair in pairs:
        if isinstance(pair.reference, str | int | float) and not isinstance(pair.reference, bool):
            found.setdefault(str(pair.reference), replace(pair, answer=str(pair.reference), is_correct=True))
    for example in examples if not found else ():
        if example.correct:
            reference = example.reference
            bare = [answer for answer in example.correct if is_bare_answer(answer)]
            text = reference if isinstance(reference, str) and reference in example.correct else (bare or example.correct)[0]
            found.setdefault(text, LabelledAnswer(text, reference, True, meta=dict(example.meta)))
    if not pairs and not examples:
        found = {text: LabelledAnswer(text, text, True, question=f"Write {text}.") for text in STANDARD_REFERENCES}
    rows = list(found.values())
    random.Random(seed).shuffle(rows)
    return rows[:max_golds]


def run_audit(
    target: str,
    pairs: Sequence[LabelledAnswer],
    golds: Sequence[LabelledAnswer],
    *,
    settings: Mapping[str, Any] | None = None,
    timeout_s: float = 10.0,
    total_timeout_s: float = 3600.0,
    max_search_calls: int = 400,
    success_threshold: float = 0.5,
    seed: int = 0,
    on_progress: Callable[[int], None] = lambda count: None,
) -> AuditReport:
    """Verify every pair twice, in two processes, and search for answers that are rewarded without knowing the question.

    After `total_timeout_s` no further pair is verified, so that a function that hangs often does not take hours.
    """
    if not isinstance(target, str):
        raise ConfigError(
            f"the target is a {type(target).__name__}; an audit verifies in processes of its own: give the name of a verifier, or a function "
            "as 'FILE.py:function' or 'module:function'"
        )
    report = AuditReport(target, [], settings=dict(settings or {}), num_golds=len(golds), num_given=len(pairs))
    report.options = {"seed": seed, "timeout_s": timeout_s, "total_timeout_s": total_timeout_s, "success_threshold": success_threshold}
    until = time.monotonic() + total_timeout_s
    families: dict[tuple[str, bool, bool], PairFamilyCounts] = {}
    outside = PairFamilyCounts(RANGE_FAMILY, right=False)
    count = 0
    with (
        VerifierProcess(target, settings, timeout_s=timeout_s, seed=1, success_threshold=success_threshold) as one,
        VerifierProcess(target, settings, timeout_s=timeout_s, seed=2, success_threshold=success_threshold) as two,
    ):
        report.accepted_forms = _find_accepted_answer_forms(one, golds, until)
        report.verifier_version = one.version
        generated = generate_pairs(golds, report.accepted_forms or [ANSWER_FORMS[0][0]])
        rows = [*((pair, True) for pair in pairs), *((pair, False) for pair in generated)]
        for pair, labelled in rows:
            if time.monotonic() > until:
                report.stopped = f"after {total_timeout_s:g} s {count} of {len(rows)} pairs were verified; the rest was not"
                break
            first, second = one.verify_row(pair.to_worker_request()), two.verify_row(pair.to_worker_request())
            report.durations_s.append(first.duration_s)
            key = (pair.family, pair.is_correct, labelled)
            families.setdefault(key, PairFamilyCounts(*key)).count_reply(pair, first)
            if first.score is not None:
                outside.count_score(pair, first)
                low, high = report.score_range
                report.score_range = (min(low, first.score), max(high, first.score))
            if (first.score, first.crash_message) != (second.score, second.crash_message):
                report.disagreements.append(
                    {
                        "answer": pair.answer[:500].encode("utf-8", "backslashreplace").decode(),
                        "reference": to_plain_json(pair.reference),
                        "scores": [first.score, second.score],
                    }
                )
            count += 1
            on_progress(count)
        seen = [pair.answer for pair in pairs if len(pair.answer) < 300]
        max_search_calls = 0 if report.stopped else max_search_calls
        report.universal_answers = search_universal_answers(
            golds,
            seen,
            lambda gold, text: one.verify_row({**gold.to_worker_request(), "answer": text}).is_rewarded,
            max_calls=max_search_calls,
            seed=seed,
        )
    every = [*families.values(), *([outside] if outside.num_failed else [])]
    report.families = sorted(every, key=lambda f: (-(f.error_rate or 0.0), f.right, f.name))
    return report


def _find_accepted_answer_forms(verifier: VerifierProcess, golds: Sequence[LabelledAnswer], until: float) -> list[str]:
    """Find the answer forms (bare, box, tag, ...) in which the verifier accepts at least half of some golds, the best first."""
    some = golds[:NUM_PROBE_GOLDS]
    accepted = dict.fromkeys(dict(ANSWER_FORMS), 0)
    for name, text in ANSWER_FORMS:
        for gold in some:
            if time.monotonic() < until:
                accepted[name] += verifier.verify_row({**gold.to_worker_request(), "answer": text.format(gold.answer)}).is_rewarded
    return [name for name in sorted(accepted, key=lambda name: -accepted[name]) if some and 2 * accepted[name] >= len(some)]
