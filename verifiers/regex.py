"""Verify an answer with a regular expression of the task, with a limit on CPU time."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from rlvr.contracts import Verifier, VerifierExample
from rlvr.errors import ConfigError, require_text_answers
from rlvr.extraction import extract_answer
from rlvr.task import Fault, Task, Verdict
from rlvr.verifiers._workers.pool import PATTERNS_FILE, BudgetExceeded, TwoLanePool, WorkersFailed

FLAGS = {"i": re.IGNORECASE, "m": re.MULTILINE, "s": re.DOTALL, "x": re.VERBOSE, "u": re.UNICODE}
MAX_PATTERN_CHARS, MAX_TEXT_CHARS = 10_000, 200_000


class Regex(Verifier):
    r"""The declared answer matches the pattern as a whole, or in part with `search`.

    The reference is a pattern in the syntax of Python's `re`, or `{"pattern": ..., "flags": "im"}`. `\d` and `\w` mean ASCII unless the
    flag `u` is given. A pattern that accepts the empty text is rejected, because it would reward an empty answer. Matching runs in a worker
    process. If matching takes too long, the answer scores 0 (fault `answer`), and other answers are not delayed.

    >>> import rlvr
    >>> with rlvr.make_verifier("regex") as regex:
    ...     regex.verify(rlvr.Task("A date?", r"\d{4}-\d{2}-\d{2}"), "2026-11-22").score
    1.0
    """

    examples = (
        VerifierExample(r"\d{4}-\d\d", correct=("2026-11", " 2026-12\n"), incorrect=("2026-1", "2026-11 or 2026-12", "")),
        VerifierExample({"pattern": "yes|no", "flags": "i"}, correct=("YES", "no"), incorrect=("yesno", "yes!")),
    )

    def __init__(self, *, extractor: str = "whole", search: bool = False, workers: int = 1, cpu_s: float = 0.5) -> None:
        """Set where the answer is declared and how it is matched.

        Args:
            extractor: where the answer is declared: whole, boxed, tag, hash, final_line, fence or auto.
            search: whether a match of a part of the answer is enough.
            workers: the maximum number of worker processes.
            cpu_s: processor seconds for one answer.
        """
        extract_answer("", extractor)
        if isinstance(workers, bool) or not isinstance(workers, int) or workers < 1:
            raise ConfigError(f"workers is {workers!r}; it must be a whole number above 0")
        if isinstance(cpu_s, bool) or not isinstance(cpu_s, int | float) or not 0 < cpu_s <= 60:
            raise ConfigError(f"cpu_s is {cpu_s!r}; it must be a number of seconds from 0 to 60")
        self.extractor, self.search = extractor, search
        self.pool = TwoLanePool(workers, cpu_s=cpu_s, memory_mb=1024, handler_file=PATTERNS_FILE, work_name="matching")

    @require_text_answers
    def verify(self, task: Task, answer: str) -> Verdict:
        """Match the declared answer."""
        try:
            pattern, flags = _parse_reference(task.reference, search=self.search)
        except ConfigError as error:
            return Verdict(None, str(error), fault=Fault.TASK)
        found = extract_answer(answer, self.extractor)
        if found.text is None:
            return Verdict(0.0, f"no answer: {found.reason}")
        if len(found.text) > MAX_TEXT_CHARS:
            return Verdict(0.0, f"the answer has {len(found.text)} characters; at most {MAX_TEXT_CHARS} are matched")
        question = {"do": "match", "pattern": pattern, "flags": flags, "text": found.text, "search": self.search}
        try:
            said = self.pool.send_request(question)
        except BudgetExceeded as error:
            return Verdict(0.0, f"matching did not finish: {error}; the pattern may backtrack without bound", fault=Fault.ANSWER)
        except WorkersFailed as error:
            return Verdict(None, f"the worker failed: {error}", fault=Fault.INFRA)
        if "same" not in said:
            return Verdict(0.0, f"matching failed: {said.get('failed')}", fault=Fault.ANSWER)
        return Verdict(float(said["same"]), f"{found.text!r:.80} {'matches' if said['same'] else 'does not match'} {pattern!r:.80}")

    def prepare(self) -> None:
        """Start the workers in the background."""
        self.pool.start_workers()

    def close(self) -> None:
        """Stop the workers."""
        self.pool.close()


def _parse_reference(reference: Any, *, search: bool) -> tuple[str, int]:
    """Parse the pattern and the flags of a reference."""
    given = reference if isinstance(reference, Mapping) else {"pattern": reference}
    pattern, letters = given.get("pattern"), given.get("flags", "")
    if not isinstance(pattern, str) or not isinstance(letters, str) or set(given) - {"pattern", "flags"}:
        raise ConfigError(f"the reference is {reference!r:.80}; it must be a pattern, or {{'pattern': ..., 'flags': 'i'}}")
    return _validate_pattern(pattern, letters, search)


@lru_cache(maxsize=4096)
def _validate_pattern(pattern: str, letters: str, search: bool) -> tuple[str, int]:
    if len(pattern) > MAX_PATTERN_CHARS:
        raise ConfigError(f"the pattern has {len(pattern)} characters; at most {MAX_PATTERN_CHARS} are allowed")
    if unknown := set(letters) - set(FLAGS):
        raise ConfigError(f"the flag {min(unknown)!r} is not one of {' '.join(FLAGS)}")
    flags = re.RegexFlag(0) if "u" in letters else re.ASCII
    for letter in letters:
        flags |= FLAGS[letter]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = re.compile(pattern, flags)
    except (re.error, RecursionError, OverflowError, ValueError) as error:
        raise ConfigError(f"the pattern {pattern!r:.80} is not a regular expression: {error}") from error
    if made.search("") if search else made.fullmatch(""):
        raise ConfigError(f"the pattern {pattern!r:.80} accepts the empty text; write one that does not, such as .+ for .*")
    return pattern, int(flags)


make = Regex
