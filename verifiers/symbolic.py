r"""Verify a mathematical answer: exactly where possible, by computer algebra where needed, never by evaluating text.

The extracted answer is parsed by a dedicated grammar, and compared with the gold by the gold's kind: number, expression, list, tuple,
set, interval, equation, matrix, words, choice. Conventions (units, percent, order, form) can be set by a task:
`meta={"conventions": {"units": "required"}}`.

A gold that cannot be parsed, or does not compare equal to itself, gives no score (score None, fault task).
"""

from __future__ import annotations

import contextlib
import itertools
import math
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from functools import partial
from typing import Any, ClassVar

from rlvr.contracts import Explanation, Verifier, VerifierExample
from rlvr.contracts.explanation import explain_verdict, format_shortened
from rlvr.errors import ConfigError, format_suggestion, require_text_answers
from rlvr.extraction import EXTRACTORS, Extraction, extract_answer
from rlvr.task import Fault, Task, Verdict
from rlvr.verifiers._workers.pool import BudgetExceeded, WorkersFailed
from rlvr.verifiers.math.compare.compare import UNEVALUATED_OPS, compare_trees
from rlvr.verifiers.math.compare.prompt_copies import explain_prompt_copy
from rlvr.verifiers.math.compare.question_forms import explain_mislabelled_option, order_named_values, take_value_after_formula
from rlvr.verifiers.math.compare.question_units import (
    drop_requested_comparison_word,
    drop_requested_multiplier_word,
    explain_unit_conflict,
)
from rlvr.verifiers.math.compare.scalars import CompareContext, Comparison, compare_integers, explain_invalid_value
from rlvr.verifiers.math.compare.worked_out import explain_open_step
from rlvr.verifiers.math.conventions import ALLOWED_VALUES, MathConventions
from rlvr.verifiers.math.parsing.notation import iter_alternative_readings
from rlvr.verifiers.math.parsing.parser import parse_answer, rewrite_for_parser
from rlvr.verifiers.math.parsing.tree import LimitExceeded, ParseError, Tree, describe_tree, format_tree_indented, has_op, list_nodes
from rlvr.verifiers.math.parsing.units import describe_unit_reading
from rlvr.verifiers.math.values.algebra_pool import AlgebraPool
from rlvr.verifiers.math.values.cost import reset_budget
from rlvr.verifiers.math.values.rational import NotFinite

MAX_CANDIDATES = 6
GOLD_CPU_FACTOR = 4
"""Factor on the CPU budget if the gold itself has to be evaluated."""

NOT_WORKED_OUT = "it is not worked out"
HOW_TO_ACCEPT = " (conventions: {worked_out: off} accepts it)"


class Symbolic(Verifier):
    r"""Compare answers with the gold as mathematics.

    >>> from rlvr.task import make_user_prompt
    >>> Symbolic().verify(Task(make_user_prompt("?"), id="t", reference=r"\frac12"), r"so it is \boxed{0.5}.").score
    1.0
    """

    version = "13"  # 13: dozens behind a number in words; Ohm
    setting_hints: ClassVar = {
        **{name: f"write conventions={{{name!r}: {value!r}}}" for name, value in asdict(MathConventions()).items()},
        **{
            name: f"write conventions={{{name!r}: {values[1]!r}}}; allowed: {', '.join(map(repr, values))}"
            for name, values in ALLOWED_VALUES.items()
        },
        "tolerance": "write conventions={'tolerance': 0.005} for how far an exact value may lie from a rounded gold; other decimals are exact",
    }
    instruction = r"Reason step by step, and put your final answer within \boxed{}."
    examples = (
        VerifierExample(
            r"\frac{1}{2}",
            correct=(r"\boxed{0.5}", "1/2", r"$\dfrac12$"),
            incorrect=(r"\boxed{2}", r"\boxed{1}\boxed{0.5}", r"0.5 \text{ or } 2", ""),
        ),
        VerifierExample("(1, 2]", correct=(r"1 < x \le 2", r"\left(1,2\right]"), incorrect=("[1, 2]", "(1, 2)", "1, 2")),
        VerifierExample("1,-2", correct=(r"\{-2, 1\}", r"x = 1 \text{ or } x = -2"), incorrect=("1", "1, 2", "-2, 1, 1")),
        VerifierExample(r"\text{(C)}", correct=("C", "(c)"), incorrect=("(B)", "(B) or (C)")),
        VerifierExample(r"\$18", correct=("18 dollars", "18.00"), incorrect=("18 cents", "81")),
    )

    def __init__(
        self,
        *,
        extractor: str = "auto",
        conventions: Mapping[str, Any] | None = None,
        workers: int = 2,
        cpu_s: float = 0.6,
        memory_mb: int = 1024,
        cache: int = 65_536,
    ) -> None:
        """Set where answers are declared and how they are compared.

        Args:
            extractor: where the answer is declared, one of `rlvr.extraction`; a task's `meta["extractor"]` overrides it.
            conventions: the conventions that differ from the default; a task's `meta["conventions"]` overrides them.
            workers: the maximum number of algebra processes; the first starts when an answer needs it, another one when an
                answer would have to wait, and all of them when `ready` is called.
            cpu_s: CPU seconds that one answer may use for algebra.
            memory_mb: memory of one algebra process.
            cache: how many verdicts are cached.
        """
        for value, name in ((workers, "workers"), (memory_mb, "memory_mb"), (cache, "cache")):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigError(f"{name} is {value!r}; it must be a whole number above 0")
        if not isinstance(cpu_s, int | float) or isinstance(cpu_s, bool) or not 0 < cpu_s <= 60:
            raise ConfigError(f"cpu_s is {cpu_s!r}; it must be a number of seconds from 0 to 60")
        self._settings: dict[str, Any] = {"extractor": extractor, "conventions": conventions, "workers": workers}
        self._settings |= {"cpu_s": cpu_s, "memory_mb": memory_mb, "cache": cache}
        self.extractor = _check_extractor(extractor)
        self.conventions = MathConventions().override(conventions)
        self._convention_changes = self.conventions.get_non_default_fields()
        self.pool = AlgebraPool(workers, cpu_s=cpu_s, memory_mb=memory_mb)
        self._cache: dict[tuple[Any, ...], Any] = {}
        self._cache_size = cache
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the settings only: another process builds its own workers."""
        return partial(type(self), **self._settings), ()

    @require_text_answers
    def verify(self, task: Task, answer: str) -> Verdict:
        """Extract the declared answer and compare it with the gold."""
        return self._verify(task, answer, self._get_or_compute)

    def explain_task(self, task: Task, answer: str) -> Explanation:
        """Verify an answer and explain the verdict: the extracted text, the rewritten texts, the trees, and the rule that decided."""
        found = explain_verdict(
            lambda: self._verify(task, answer, lambda work, *known: work(*(one for one in known if one is not None))),
            [("same value", CompareContext.is_same_value)],
        )
        steps = (*self._iter_parsing_steps(task, answer), *found.steps[-1:], *self._iter_worked_out_step(task, found.verdict))
        return replace(found, steps=steps)

    def _iter_worked_out_step(self, task: Task, verdict: Verdict) -> Iterator[tuple[str, str]]:
        """Say whether an answer of the right value was worked out; nothing for a wrong value."""
        if verdict.passed or NOT_WORKED_OUT in verdict.reason:
            why = verdict.reason.partition(f"{NOT_WORKED_OUT}: ")[2].removesuffix(HOW_TO_ACCEPT)
            setting = self.conventions.override(task.meta.get("conventions")).worked_out
            yield "worked out", f"{'no: ' + why if why else 'yes'} (convention worked_out={setting})"

    def _iter_parsing_steps(self, task: Task, answer: str) -> Iterator[tuple[str, str]]:
        """List what gold and answer were read as."""
        gold = _get_gold_text(task.reference)
        if gold is None or (found := self._extract(task, answer)) is None:
            return
        yield "extracted", f"nothing: {found.reason}" if found.text is None else f"{format_shortened(found.text)}  ({found.reason})"
        for name, text in [("gold", gold), *(("answer", text) for text in (found.candidates if found.text is None else (found.text,)))]:
            yield name, format_shortened(text)
            with contextlib.suppress(ParseError, LimitExceeded):
                if (shown := rewrite_for_parser(text)) != text:
                    yield f"{name}, rewritten", format_shortened(shown)
            try:
                yield f"{name}, as a tree", format_tree_indented(tree := parse_answer(text))
                yield from (
                    (f"{name}, unit", describe_unit_reading(label))
                    for label in dict.fromkeys(node[2] for node in list_nodes(tree) if node[0] == "unit")
                )
            except (ParseError, LimitExceeded) as error:
                yield f"{name}, as a tree", f"none: {error}"

    def _extract(self, task: Task, answer: str) -> Extraction | None:
        """Extract the answer as `verify` does; None if the task has invalid conventions."""
        with contextlib.suppress(ConfigError):
            conventions = self.conventions.override(task.meta.get("conventions"))
            extractor = _check_extractor(task.meta.get("extractor", self.extractor))
            return extract_answer(answer, extractor, multiple_answers=conventions.multiple_answers)
        return None

    def _verify(self, task: Task, answer: str, call_or_cache: Callable[..., Any]) -> Verdict:
        """Verify an answer; `call_or_cache` calls a function, or takes its result from the cache."""
        try:
            conventions = self.conventions.override(task.meta.get("conventions"))
            channel = _check_extractor(task.meta.get("extractor", self.extractor))
        except ConfigError as error:
            return Verdict(None, f"the task's conventions are invalid: {error}", fault=Fault.TASK)
        gold = _get_gold_text(task.reference)
        if gold is None:
            return _invalid_gold_verdict(
                repr(task.reference), "a reference must be a text (in quotes, if it starts with a bracket) or a finite number"
            )
        try:
            why = call_or_cache(self._find_gold_flaw, gold, None, conventions)
            if why:
                return _invalid_gold_verdict(gold, why)
            found = extract_answer(answer, channel, multiple_answers=conventions.multiple_answers)
            if found.text is None and not 1 < len(found.candidates) <= MAX_CANDIDATES:
                return Verdict(0.0, f"no answer: {found.reason}")
            if found.text is not None and "=" in found.text and (ordered := order_named_values(gold, found.text, _join_prompt(task))):
                found = Extraction(ordered, found.reason)
            verdict: Verdict = call_or_cache(self._verify_extraction, gold, found, conventions)
            for reading in _iter_question_readings(gold, found.text, _join_prompt(task)) if not verdict.passed and found.text else ():
                second: Verdict = call_or_cache(self._verify_extraction, gold, Extraction(reading, found.reason), conventions)
                if second.passed:
                    found, verdict = Extraction(reading, found.reason), second
                    break
            if verdict.passed and (why := self._explain_question_conflict(task, gold, found, conventions)):
                verdict = Verdict(0.0, why)
        except WorkersFailed as error:
            return Verdict(None, f"the algebra workers failed: {error}", fault=Fault.INFRA)
        changes = self._convention_changes if conventions is self.conventions else conventions.get_non_default_fields()
        return Verdict(verdict.score, verdict.reason, fault=verdict.fault, detail={"conventions": changes}) if changes else verdict

    def lint(self, gold: str, conventions: MathConventions | None = None) -> Verdict:
        """Check a gold: it must parse completely, be finite, not be a bare letter, and compare equal to itself."""
        try:
            why = self._find_gold_flaw(gold, conventions or self.conventions)
        except WorkersFailed as error:
            return Verdict(None, f"the gold could not be checked: {error}", fault=Fault.INFRA)
        return _invalid_gold_verdict(gold, why) if why else Verdict(1.0, f"parsed as {describe_tree(parse_answer(gold))}")

    def prepare(self) -> None:
        """Start the algebra workers in the background, so that no answer waits for them."""
        self.pool.start_workers()

    def close(self) -> None:
        """Close the worker processes."""
        self.pool.close()

    def _find_gold_flaw(self, gold: str, conventions: MathConventions) -> str:
        """Explain why a gold cannot be used; "" if it can."""
        try:
            tree = parse_answer(gold)
            if tree[0] == "sym" and " " not in tree[1] and not conventions.allow_symbol:
                return "it is a bare letter; set the policy symbol=true if that is meant"
            if tree[0] == "num" and tree[2] == 1 and not conventions.form:
                return ""
            why = explain_invalid_value(tree)
            if has_op(tree, *UNEVALUATED_OPS):
                self._compare_trees(tree, ("num", 0, 1), conventions)  # to check that it can be evaluated in time
            judged = Comparison(False, why) if why else self._compare_trees(tree, tree, conventions)
        except (ParseError, LimitExceeded, NotFinite) as error:
            return str(error)
        except WorkersFailed:
            raise
        except Exception as error:
            return f"comparing it failed: {type(error).__name__}"
        return "" if judged.is_equal else f"the reference does not compare equal to itself: {judged.reason}"

    def _verify_extraction(self, gold: str, found: Extraction, conventions: MathConventions) -> Verdict:
        if found.text is None:  # several answers: right only if every one is right
            verdicts = [self._verify_text(gold, text, conventions) for text in found.candidates]
            if all(verdict.passed for verdict in verdicts):
                return verdicts[-1]
            return Verdict(0.0, f"ambiguous: {found.reason}")
        return self._verify_text(gold, found.text, conventions)

    def _explain_question_conflict(self, task: Task, gold: str, extraction: Extraction, conventions: MathConventions) -> str:
        """Explain why a right value does not answer the question: it is copied from it, or has another unit; "" if it does."""
        texts = [text for text in ([extraction.text] if extraction.text is not None else extraction.candidates) if text != gold]
        prompt = _join_prompt(task) if texts else ""
        for text in texts:
            why = explain_prompt_copy(gold, text, prompt) if conventions.worked_out != "off" else ""
            if why or (why := explain_unit_conflict(gold, text, prompt) or explain_mislabelled_option(gold, text, prompt)):
                return why
        return ""

    def _verify_text(self, gold: str, text: str, conventions: MathConventions) -> Verdict:
        same = text == gold or ("".join(text.split()) == "".join(gold.split()) and _can_drop_spaces(text))
        if same and not conventions.form:
            return Verdict(1.0, "it is the gold, word for word")
        try:
            judged = self._compare_readings(gold, text, conventions)
        except ParseError as error:
            return Verdict(0.0, f"the answer cannot be read: {error}")
        except NotFinite as error:
            return Verdict(0.0, f"the answer has no finite value: {error}")
        except (LimitExceeded, BudgetExceeded) as error:
            return Verdict(0.0, f"comparing the answer did not finish: {error}", fault=Fault.ANSWER)
        except WorkersFailed:
            raise
        except Exception as error:
            return Verdict(0.0, f"the answer broke the comparison: {type(error).__name__}", fault=Fault.ANSWER)
        return Verdict(1.0 if judged.is_equal else 0.0, judged.reason)

    def _compare_readings(self, gold: str, answer: str, conventions: MathConventions) -> Comparison:
        """Compare the first reading of gold and answer, and then alternative readings until one is equal."""
        unreadable, judged = None, Comparison(False, "")
        try:
            judged = self._compare_trees(parse_answer(gold), parse_answer(answer), conventions)
        except ParseError as error:
            unreadable = error
        for want, have in iter_alternative_readings(gold, answer) if not judged.is_equal else ():
            with contextlib.suppress(ParseError):
                if (second := self._compare_trees(parse_answer(want), parse_answer(have), conventions)).is_equal:
                    return second
        if unreadable is not None:
            raise unreadable
        return judged

    def _compare_trees(self, gold: Tree, answer: Tree, conventions: MathConventions) -> Comparison:
        if gold[0] == answer[0] == "num" and gold[2] == answer[2] == 1 and not conventions.form:
            return compare_integers(gold, answer)
        reset_budget()
        budget = self.pool.new_budget()
        if has_op(gold, *UNEVALUATED_OPS):
            budget.cpu_s_left *= GOLD_CPU_FACTOR
        judged = compare_trees(gold, answer, CompareContext(conventions, algebra=lambda a, b: self.pool.is_equal(a, b, budget)))
        if judged.is_equal and conventions.worked_out == "strict" and (why := explain_open_step(gold, answer)):
            return Comparison(False, f"it has the right value, but {NOT_WORKED_OUT}: {why}{HOW_TO_ACCEPT}")
        return judged

    def _get_or_compute(self, work: Callable[..., Any], gold: str, extraction: Extraction | None, conventions: MathConventions) -> Any:
        """Return the cached result, or compute and cache it. The oldest entries are evicted; infrastructure failures are not cached."""
        key = (gold, extraction, None if conventions is self.conventions else conventions)  # hashing a policy takes longer than the rest
        known = self._cache.get(key)
        if known is None:
            known = work(gold, extraction, conventions) if extraction is not None else work(gold, conventions)
            with self._lock:
                self._cache[key] = known
                if len(self._cache) > self._cache_size:
                    del self._cache[next(iter(self._cache))]
        return known


def _iter_question_readings(gold: str, answer: str, prompt: str) -> Iterator[str]:
    """List other readings of an answer that its question allows."""
    for reading in (
        drop_requested_multiplier_word(gold, answer, prompt),
        drop_requested_comparison_word(answer, prompt),
        take_value_after_formula(answer, prompt),
    ):
        if reading:
            yield reading


def _join_prompt(task: Task) -> str:
    return "\n".join(message["content"] for message in task.prompt)


def _get_gold_text(reference: Any) -> str | None:
    """Return the gold as text; of a gold that is a whole solution, the last box or #### line."""
    if isinstance(reference, bool) or not isinstance(reference, str | int | float):
        return None
    if isinstance(reference, float) and not math.isfinite(reference):
        return None
    text = str(reference)
    if "\\boxed" in text or "\\fbox" in text or "\n####" in text:
        found = extract_answer(text, ("boxed", "hash"), multiple_answers="last")
        return found.text if found.text is not None else text
    return text.strip()


def _invalid_gold_verdict(gold: str, why: str) -> Verdict:
    return Verdict(None, f"the gold {gold[:80]!r} cannot be judged: {why}", fault=Fault.TASK)


def _can_drop_spaces(text: str) -> bool:
    """Whether removing the spaces changes nothing: no space is between two digits."""
    parts = text.split()
    return not any(a[-1].isdigit() and b[0].isdigit() for a, b in itertools.pairwise(parts))


def _check_extractor(channel: Any) -> Any:
    for name in [channel] if isinstance(channel, str) else list(channel or ["?"]):
        if name not in EXTRACTORS:
            raise ConfigError(f"there is no extractor {name!r}; {format_suggestion(str(name), EXTRACTORS)}")
    return channel


make = Symbolic
