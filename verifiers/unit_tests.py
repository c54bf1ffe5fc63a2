"""Verify code by running it in a sandbox: with input and output, function calls, or assertions.

The code is one fenced block of the answer (see `code/blocks.py`). Expected values and test code never enter the process of the answer: a
checker process in the sandbox makes the calls and runs the assertions, over a pipe that carries only data. The checker also decodes and
compares the returned values, under the limits of the task, so no result can keep rlvr's own process busy; the output of a program is read
only up to the first difference. A test without a record counts as failed. The format of references is documented in `code`.

An answer cannot turn a score of 0 into no score: whether a test is valid is decided before any answer runs, from its text and by a dry run
without an answer. After that, only a failure of the sandbox itself gives no score. A dry run that leaves no result decides nothing: no score.
"""

from __future__ import annotations

import ast
import codecs
import json
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

from rlvr.contracts import CheckerProgram, ExecutionResult, ExitStatus, Limits, Program, Sandbox, Verifier, VerifierExample
from rlvr.errors import ConfigError, format_suggestion, require_text_answers
from rlvr.extraction import extract_answer
from rlvr.python_source import parse_python_threadsafe
from rlvr.task import Fault, Task, Verdict
from rlvr.verifiers.code.blocks import extract_code, insert_prelude
from rlvr.verifiers.code.compare_text import is_same_text
from rlvr.verifiers.code.reference import EXAMPLES, UnitTestSpec, override_limits, parse_reference
from rlvr.verifiers.code.test_analysis import InstrumentedTest

CODE_DIR = Path(__file__).parent / "code"
ABORTING_STATUSES = (ExitStatus.TIMEOUT, ExitStatus.MEMORY_LIMIT, ExitStatus.OUTPUT_LIMIT, ExitStatus.SANDBOX_VIOLATION)
STATUS_MESSAGES = {
    ExitStatus.TIMEOUT: "it ran out of time",
    ExitStatus.MEMORY_LIMIT: "it ran out of memory",
    ExitStatus.OUTPUT_LIMIT: "it wrote too much",
    ExitStatus.RUNTIME_ERROR: "it crashed",
    ExitStatus.COMPILE_ERROR: "it does not compile",
    ExitStatus.SANDBOX_VIOLATION: "it tried a forbidden operation",
}
NO_RECORD = {"ok": False, "why": "no record"}
MAX_MESSAGE_BYTES = 1 << 16
"""Maximum bytes of a message from the checker; its records are far shorter."""
MAX_CACHED_DRY_RUNS = 4096
"""Maximum number of tests whose dry run is cached."""


class UnitTests(Verifier):
    """Run the tests of the task on the code of the answer. `score` is "all" (1 or 0) or "fraction" (by weight).

    The reference is a text of assertions, such as "assert add(1, 2) == 3", or a mapping (see `rlvr.verifiers.code.reference`).
    """

    needs: ClassVar = {"sandbox": "auto"}
    version = (
        "8"  # 8: byte order marks of C#, C++20; 7: the runs of one answer are limited together; 6: a text of assertions is a reference
    )
    setting_hints: ClassVar = {
        **dict.fromkeys(("timeout", "timeout_s", "time_limit", "time_limit_s", "wall_s"), "write limits={'wall_s': 5}"),
        **dict.fromkeys(("memory", "memory_mb", "memory_limit"), "write limits={'memory_mb': 128}"),
        **dict.fromkeys(
            ("test", "tests", "cases", "function", "entry_point", "language"), "the tests are the reference: " + EXAMPLES["asserts"]
        ),
    }
    examples = (
        VerifierExample(
            reference={"kind": "stdio", "cases": [{"stdin": "3", "stdout": "9"}, {"stdin": "4", "stdout": "16"}]},
            correct=("```python\nprint(int(input()) ** 2)\n```",),
            incorrect=("```python\nprint(9)\n```", "print(int(input()) ** 2)", "```python\nimport os\nos._exit(0)\n```"),
        ),
        VerifierExample(
            reference={"kind": "calls", "function": "f", "cases": [{"args": [3], "expected": 9}, {"args": [4], "expected": 16}]},
            correct=("```python\ndef f(x):\n    return x * x\n```",),
            incorrect=(
                "```python\ndef f(x):\n    return 9\n```",
                "```python\nclass A:\n    __eq__ = lambda *a: True\nf = lambda x: A()\n```",
            ),
        ),
        VerifierExample(
            reference={"kind": "asserts", "entry_point": "f", "test": "def check(candidate):\n    assert candidate(3) == 9\n"},
            correct=("```python\ndef f(x):\n    return x * x\n```",),
            incorrect=("```python\ndef f(x):\n    return x\n```", "```python\nraise SystemExit(0)\n```"),
        ),
    )

    def __init__(
        self,
        *,
        sandbox: Sandbox,
        score: str = "all",
        extractor: str = "fence",
        limits: Mapping[str, float] | None = None,
        total_s: float = 400.0,
    ) -> None:
        """Set how tests become a score.

        Args:
            sandbox: where the code runs.
            score: all: 1 if every test passes, else 0; fraction: the share of passed tests, by weight.
            extractor: where the code is declared; fence, or another extractor of `rlvr.extraction`.
            limits: the limits of one run, such as {wall_s: 2, memory_mb: 128}; the limits of a task override them.
            total_s: when the runs of one answer have taken so long together, the remaining cases fail; below `rollout.call_timeout_s`,
                after which there is no score.
        """
        if isinstance(total_s, bool) or not isinstance(total_s, int | float) or not 0 < total_s < float("inf"):
            raise ConfigError(f"total_s is {total_s!r}; a number of seconds above 0 is needed")
        if score not in ("all", "fraction"):
            raise ConfigError(f"score is {score!r}; {format_suggestion(str(score), ['all', 'fraction'])}")
        extract_answer("", extractor)  # raises now for an unknown extractor, not at the first answer
        self.sandbox, self.score, self.extractor, self.total_s = sandbox, score, extractor, float(total_s)
        self.max_memory_mb: int | None = getattr(sandbox, "memory_mb", None)
        default = Limits() if self.max_memory_mb is None else Limits(memory_mb=min(Limits().memory_mb, self.max_memory_mb))
        self.limits = override_limits(limits or {}, default)
        self._dry_runs: dict[tuple[str, InstrumentedTest, str], str] = {}
        if self.max_memory_mb is not None and self.limits.memory_mb > self.max_memory_mb:
            raise ConfigError(f"limits: {self._format_memory_error(self.limits)}")

    def _format_memory_error(self, limits: Limits) -> str:
        return f"memory_mb is {limits.memory_mb}, but the sandbox has only {self.max_memory_mb}; raise the sandbox's memory_mb"

    @require_text_answers
    def verify(self, task: Task, answer: str) -> Verdict:
        """Extract the code of `answer` and run the tests on it."""
        try:
            tests = parse_reference(task.reference, self.limits)
            if self.max_memory_mb is not None and tests.limits.memory_mb > self.max_memory_mb:
                raise ConfigError(f"limits: {self._format_memory_error(tests.limits)}")
        except ConfigError as error:
            return Verdict(None, f"the task cannot be verified: {error}", fault=Fault.TASK)
        if (unfit := self._find_invalid_test_verdict(tests)) is not None:
            return unfit
        found = (
            extract_code(answer, tests.language, tests.function)
            if self.extractor == "fence"
            else extract_answer(answer, self.extractor, multiple_answers="last")
        )
        if found.text is None:
            return Verdict(0.0, f"no code: {found.reason}")
        source = insert_prelude(tests.prelude, found.text) if tests.language == "python" else f"{tests.prelude}\n{found.text}"
        return self._run_stdio(tests, source) if tests.kind == "stdio" else self._run_checker(tests, source)

    def _run_stdio(self, tests: UnitTestSpec, source: str) -> Verdict:
        records: dict[int, dict[str, Any]] = {}
        broke, spent_s = "", 0.0
        for index, case in enumerate(tests.cases):
            if spent_s > self.total_s:
                broke = f"its runs took more than {self.total_s:g} s together"
                break
            outcome = self.sandbox.run(Program(source, case.inputs, tests.language, tests.limits))
            if outcome.status is ExitStatus.INTERNAL_ERROR:
                return _infra_verdict(outcome)
            ok = (
                outcome.status is ExitStatus.OK
                and not outcome.truncated
                and is_same_text(_strip_runtime_marks(outcome.stdout_bytes, tests.language), case.expected, tests.comparison_rule)
            )
            spent_s += min(outcome.wall_s, tests.limits.wall_s)  # what is above the limit is waiting for a processor
            why = "" if ok else STATUS_MESSAGES.get(outcome.status, "the output differs")
            records[index] = {"ok": ok, "why": why, **_resource_usage(outcome)}
            if not ok:
                broke = why if outcome.status in (*ABORTING_STATUSES, ExitStatus.RUNTIME_ERROR, ExitStatus.COMPILE_ERROR) else ""
                if self.score == "all" or outcome.status is ExitStatus.COMPILE_ERROR:
                    break
        return self._make_verdict(records, [case.weight for case in tests.cases], [case.name for case in tests.cases], broke)

    def _find_invalid_test_verdict(self, tests: UnitTestSpec) -> Verdict | None:
        """Return a verdict if the test is invalid for every answer; decided once per test by a dry run without an answer."""
        if tests.prepared is None:
            return None
        key = (tests.setup, tests.prepared, tests.function)
        why = self._dry_runs.get(key)
        if why is None:
            outcome = self.sandbox.run(Program(_dry_run_source(), json.dumps(tests.build_checker_input()).encode(), "python", tests.limits))
            if outcome.status is ExitStatus.INTERNAL_ERROR:
                return _infra_verdict(outcome)
            messages = list(_parse_messages(outcome.checker_output))
            why = next((_as_text(message.get("unfit")) for message in messages if "unfit" in message), "")
            if not why and not any(message.get("valid") is True for message in messages):
                ended = STATUS_MESSAGES.get(outcome.status, "it ended without a result")
                if not any("started" in message for message in messages):
                    return Verdict(None, f"the sandbox did not run the dry run of the test: {ended}", fault=Fault.INFRA)
                if outcome.status is ExitStatus.TIMEOUT:  # perhaps only here and now: not cached
                    return Verdict(
                        None, f"the task cannot be verified: without any answer, its test did not finish: {ended}", fault=Fault.TASK
                    )
                why = f"without any answer, its test did not finish: {ended}"
            if len(self._dry_runs) >= MAX_CACHED_DRY_RUNS:
                self._dry_runs.clear()
            self._dry_runs[key] = why
        return Verdict(None, _make_printable(f"the task cannot be verified: {why}"), fault=Fault.TASK) if why else None

    def _run_checker(self, tests: UnitTestSpec, source: str) -> Verdict:
        """Run the checker in the sandbox, which calls the answer's function, and read its records."""
        brief = json.dumps({"source": source, "most": int(tests.limits.output_bytes), **tests.build_checker_input()}).encode()
        checker = CheckerProgram(_checker_source(tests.kind), brief)
        outcome = self.sandbox.run(Program(_driver_source(), b"", "python", tests.limits, checker=checker))
        if outcome.status is ExitStatus.INTERNAL_ERROR:
            return _infra_verdict(outcome)
        calls = tests.kind == "calls"
        total = tests.prepared.num_assertions or 1 if tests.prepared else len(tests.cases)
        ready, ended, over = calls, False, ""
        records: dict[int, dict[str, Any]] = {}
        for message in _parse_messages(outcome.checker_output):  # written by the checker: the answer cannot write here
            ready, ended, over = ready or "ready" in message, ended or "end" in message, _as_text(message.get("over")) or over
            index, why = message.get("test"), _as_text(message.get("why"))
            if type(index) is int and records.get(index, {"ok": True})["ok"]:
                records[index] = {"ok": message.get("ok") is True, "why": why}
        if not ready and outcome.status not in ABORTING_STATUSES:
            return Verdict(0.0, "the checker was stopped while it loaded the answer", fault=Fault.ANSWER, detail=_resource_usage(outcome))
        if not ended and not calls:
            records = {index: row for index, row in records.items() if not row["ok"]}  # passed tests are only reported at the end
        broke = (
            STATUS_MESSAGES[outcome.status]
            if outcome.status in ABORTING_STATUSES
            else over or ("" if ended else "the tests did not finish")
        )
        names = [case.name for case in tests.cases] if calls else [f"test {n + 1}" for n in range(total)]
        weights = [case.weight for case in tests.cases] if calls else [1.0] * total
        return self._make_verdict(records, weights, names, broke, _resource_usage(outcome))

    def _make_verdict(
        self,
        records: dict[int, dict[str, Any]],
        weights: list[float],
        names: list[str],
        abort_reason: str,
        resource_usage: dict[str, Any] | None = None,
    ) -> Verdict:
        """Compute the score from the records; a test without a record counts as failed."""
        rows = [{"name": name, **records.get(index, NO_RECORD)} for index, name in enumerate(names)]
        for row in rows:
            row["why"] = _make_printable(row["why"])
        passed = [weight for row, weight in zip(rows, weights, strict=True) if row["ok"] is True]
        share = sum(passed) / sum(weights)
        detail = {"tests": rows, **(resource_usage or {})}
        if len(passed) == len(rows) and not abort_reason:
            return Verdict(1.0, f"all {len(rows)} tests passed", components={"tests": 1.0}, detail=detail)
        first = next((row for row in rows if row["ok"] is not True), None)
        what = f"{first['name']}: {abort_reason or first['why']}" if first else abort_reason
        reason = _make_printable(f"{len(passed)} of {len(rows)} tests passed; {what}")
        score = 0.0 if self.score == "all" else min(share, 1.0)
        fault = Fault.ANSWER if abort_reason and score == 0.0 else Fault.NONE
        return Verdict(score, reason, components={"tests": share}, fault=fault, detail=detail)

    def close(self) -> None:
        """Close the sandbox."""
        self.sandbox.close()


def _as_text(told: Any) -> str:
    return told if isinstance(told, str) else ""


def _make_printable(text: str) -> str:
    """Make text from an answer printable: no control characters, at most 500 characters."""
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text[:500])


def _parse_messages(report: bytes) -> Iterator[dict[str, Any]]:
    """Parse the messages in the checker's output, up to the first malformed one."""
    at = 0
    while at + 4 <= len(report):
        length = int.from_bytes(report[at : at + 4], "big")
        if length > MAX_MESSAGE_BYTES:
            return
        try:
            message = json.loads(report[at + 4 : at + 4 + length])
        except (ValueError, RecursionError):
            return
        if not isinstance(message, dict):
            return
        yield message
        at += 4 + length


def _infra_verdict(outcome: ExecutionResult) -> Verdict:
    if outcome.unsupported:
        return Verdict(None, f"the task needs what the sandbox does not have: {outcome.reason}", fault=Fault.TASK)
    return Verdict(None, f"the sandbox failed: {outcome.reason}", fault=Fault.INFRA)


def _resource_usage(outcome: ExecutionResult) -> dict[str, Any]:
    shown = {"stop": outcome.status.value, "exit": outcome.exit_code, "cpu_s": round(outcome.cpu_s, 4), "wall_s": round(outcome.wall_s, 4)}
    return shown | {"peak_mb": round(outcome.peak_mb, 1), "stderr": outcome.stderr_bytes[-300:].decode("utf-8", "replace")}


@lru_cache(maxsize=1)
def _driver_source() -> str:
    return _join_sources("wire", "driver") + "\nrun_answer_process()\n"


@lru_cache(maxsize=1)
def _dry_run_source() -> str:
    return _join_sources("wire", "checker", "dry_run") + "\ndry_run_test()\n"


@lru_cache(maxsize=2)
def _checker_source(kind: str) -> str:
    return _join_sources("wire", *(["compare_values"] if kind == "calls" else []), "checker") + f"\ncheck_{kind}()\n"


def _join_sources(*module_names: str) -> str:
    """Join modules of rlvr into one program; their imports of each other are removed."""
    future = "from __future__ import annotations"
    joined = [future]
    for name in module_names:
        text = (CODE_DIR / f"{name}.py").read_text("utf-8")
        lines = text.split("\n")
        for node in parse_python_threadsafe(text).body:
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(("rlvr.", "__future__")):
                lines[node.lineno - 1 : node.end_lineno] = [""] * ((node.end_lineno or node.lineno) - node.lineno + 1)
        joined += lines
    return "\n".join(joined)


def _strip_runtime_marks(output: bytes, language: str) -> bytes:
    """Remove the byte order marks that Mono writes before the output of a program that asks for UTF-8; a program of another language
    prints its own.
    """
    while language == "csharp" and output.startswith(codecs.BOM_UTF8):
        output = output[len(codecs.BOM_UTF8) :]
    return output


make = UnitTests
