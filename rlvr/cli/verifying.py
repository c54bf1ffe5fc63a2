"""`rlvr verify`: verify one answer, or a file of answers in parallel, with results in the order of the file."""

from __future__ import annotations

import difflib
import json
import logging
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TextIO

from rich.text import Text

from rlvr.cli import screen
from rlvr.cli.settings import parse_settings
from rlvr.conformance.check_runner import BLOCKED_TIMEOUT_S
from rlvr.contracts import Explanation, Verifier
from rlvr.errors import ConfigError, NotFound
from rlvr.hints import ANSWER_COLUMNS, QUESTION_COLUMNS, REFERENCE_COLUMNS, SOLUTION_COLUMNS
from rlvr.mdp.sessions import verify_answer_safely
from rlvr.mdp.verifier_executor import DaemonThreadExecutor, build_timeout_verdict
from rlvr.registry.plugins import build
from rlvr.rollout.hang_watchdog import abort_on_blocked_interpreter
from rlvr.runs.progress import ProgressReporter
from rlvr.task import Task, Verdict

logger = logging.getLogger(__name__)

MAX_QUEUED_PER_WORKER = 8
"""The maximum of queued answers per worker: enough to keep workers busy, few enough to stream a file of any size."""

VERIFY_TIMEOUT_S = 600.0
"""The timeout of one verdict, as in a rollout."""

ROW_KEYS = frozenset({"id", "prompt", "reference", "answer", "meta"})
"""The keys of a row of a file of answers."""
USUAL_NAMES: Mapping[str, tuple[str, ...]] = {
    "reference": (*REFERENCE_COLUMNS, *SOLUTION_COLUMNS),
    "answer": (*ANSWER_COLUMNS, "text"),  # of the episodes of a run
    "prompt": QUESTION_COLUMNS,
}
"""Names under which other tools write the same."""
ROW_FORM = 'each line must be {"reference": ..., "answer": "..."}, with "id": ..., "prompt": "..." and "meta": {...} where they are needed'


def verify_one(
    name: str, reference: str, answer: str, *, prompt: str = "", meta: str, setting_pairs: Sequence[str], explain: bool = False, json: bool
) -> int:
    """Verify the answer given on the command line; returns 1 if it has no score."""
    row = {"id": 1, "reference": _parse_reference(reference), "answer": answer, "prompt": prompt, "meta": _parse_meta(meta)}
    with build("verifier", name, **parse_settings(setting_pairs)) as verifier:
        if explain:
            return _show_explanation(verifier.explain(_make_task(row), answer), json=json)
        ((_, verdict),) = verify_in_order([row], _make_verify_function(verifier), workers=1)
    if json:
        screen.print_json(verdict.to_dict())
        return int(not verdict.is_scored)
    console = screen.make_stdout_console()
    console.print(Text.assemble(_format_score(verdict), "  ", verdict.reason))
    for part, value in verdict.components.items():
        console.print(Text(f"  {part} {value:g}"))
    return int(not verdict.is_scored)


def verify_file(name: str, file: Path, *, setting_pairs: Sequence[str], workers: int, json: bool) -> int:
    """Verify every line of a JSONL file (`-` is standard input); returns 1 if any answer has no score."""
    if workers < 1:
        raise ConfigError(f"--workers is {workers}; at least 1 is needed")
    settings = parse_settings(setting_pairs)
    stdin = str(file) == "-"
    noted_keys: set[str] = set()
    total = None if stdin else sum(1 for _ in _read_rows(file, noted_keys))  # finds a malformed line before any answer is verified
    counts: Counter[str] = Counter()
    points, began = 0.0, time.perf_counter()
    with ExitStack() as stack:
        verifier = stack.enter_context(build("verifier", name, **settings))
        work = (
            stack.enter_context(ProgressReporter(screen.make_stderr_console(), "verifying", total))
            if total and sys.stderr.isatty()
            else None
        )
        for row, verdict in verify_in_order(_read_rows(file, noted_keys), _make_verify_function(verifier), workers=workers):
            if json:
                screen.print_json({"id": row["id"], "score": verdict.score, "reason": verdict.reason, "fault": verdict.fault.value})
            counts["full score" if verdict.passed else "no score" if verdict.score is None else "less"] += 1
            counts[f"fault: {verdict.fault.value}"] += verdict.fault.value != "none"
            points += verdict.score or 0.0
            if work:
                work.advance({"full score": counts["full score"] / counts.total()})
    if not json:
        _print_summary(counts, points, time.perf_counter() - began)
    return int(counts["no score"] > 0)


def verify_in_order(
    rows: Iterable[dict[str, Any]], verify: Callable[[dict[str, Any]], Verdict], *, workers: int
) -> Iterator[tuple[dict[str, Any], Verdict]]:
    """Yield every row with its verdict, in the order of the rows; only a bounded number of rows is read ahead."""
    waiting: deque[tuple[dict[str, Any], Future[Verdict]]] = deque()
    judges = DaemonThreadExecutor(workers)
    try:
        with abort_on_blocked_interpreter(BLOCKED_TIMEOUT_S):
            for row in rows:
                waiting.append((row, judges.submit(verify, row)))
                while waiting and (len(waiting) >= workers * MAX_QUEUED_PER_WORKER or waiting[0][1].done()):
                    first, future = waiting.popleft()
                    yield first, _wait_for_verdict(future)
            while waiting:
                first, future = waiting.popleft()
                yield first, _wait_for_verdict(future)
    finally:
        judges.close()


def _wait_for_verdict(verdict: Future[Verdict]) -> Verdict:
    """Wait for a verdict; after the timeout return a verdict with fault `infra`."""
    if not wait([verdict], VERIFY_TIMEOUT_S).done:
        verdict.cancel()
        return build_timeout_verdict(VERIFY_TIMEOUT_S)
    return verdict.result()


def _make_verify_function(verifier: Verifier) -> Callable[[dict[str, Any]], Verdict]:
    def verify(row: dict[str, Any]) -> Verdict:
        return verify_answer_safely(verifier, _make_task(row), lambda: str(row["answer"]))

    return verify


def _make_task(row: dict[str, Any]) -> Task:
    return Task(row.get("prompt") or "?", row["reference"], id=f"line {row['id']}", meta=row.get("meta") or {})


def _show_explanation(explanation: Explanation, *, json: bool) -> int:
    """Print the steps of one verification, the rule and the verdict; returns 1 if there is no score."""
    verdict = explanation.verdict
    if json:
        screen.print_json(explanation.to_dict())
        return int(not verdict.is_scored)
    rows = list(explanation.steps)
    if explanation.rule:
        rows += [("rule", explanation.rule), ("where", explanation.where), ("called by", " > ".join(explanation.path[:-1]))]
    console = screen.make_stdout_console()
    console.print(screen.make_facts_table(row for row in rows if row[1]))
    console.print(Text.assemble("\n", _format_score(verdict), "  ", verdict.reason))
    return int(not verdict.is_scored)


def _read_rows(file: Path, noted_keys: set[str]) -> Iterator[dict[str, Any]]:
    """Yield the rows of a file; a key that nothing reads is said once, and is added to `noted_keys`."""
    with ExitStack() as stack:
        lines: TextIO
        if str(file) == "-":
            lines = sys.stdin
        else:
            try:
                lines = stack.enter_context(file.open(encoding="utf-8"))
            except OSError as error:
                raise NotFound(f"{file} cannot be read: {error.strerror}; --file takes a JSONL file, or - for standard input") from error
        number, some = 0, False
        try:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    some = True
                    yield _parse_row(line, number, f"{file}:{number}", noted_keys)
        except UnicodeDecodeError as error:
            raise ConfigError(f"{file}:{number + 1}: this is not UTF-8 text ({error.reason}); write the file as UTF-8") from error
        if not some:
            raise ConfigError(f"{file} has no lines; {ROW_FORM}")


def _parse_row(line: str, number: int, where: str, noted_keys: set[str]) -> dict[str, Any]:
    try:
        parsed = json.loads(line)
    except ValueError as error:
        raise ConfigError(f"{where}: this is not JSON ({error}); {ROW_FORM}") from error
    if not isinstance(parsed, dict):
        raise ConfigError(f"{where}: this is a {type(parsed).__name__}, not an object; {ROW_FORM}")
    row: dict[str, Any] = {"id": number, **_take_usual_names(parsed, where, noted_keys)}
    for key in sorted(set(row) - ROW_KEYS - noted_keys):
        if meant := difflib.get_close_matches(key, ROW_KEYS - set(row), n=1, cutoff=0.7):
            raise ConfigError(f"{where}: there is no key {key!r}; did you mean {meant[0]!r}? {ROW_FORM}")
        noted_keys.add(key)
        logger.warning('%s: the key %r is not read; what a verifier shall read beside the answer stands in "meta"', where, key)
    if not isinstance(row["answer"], str):
        raise ConfigError(f"{where}: the answer is {row['answer']!r:.60}; it must be a string; {ROW_FORM}")
    try:
        Task(row.get("prompt") or "?")
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"{where}: the prompt is {row['prompt']!r:.60}; it must be a text, or a list of messages {{role, content}}"
        ) from error
    if not isinstance(row.get("meta") or {}, dict):
        raise ConfigError(f"{where}: meta is {row['meta']!r:.60}; it must be an object; {ROW_FORM}")
    return row


def _take_usual_names(row: dict[str, Any], where: str, noted_keys: set[str]) -> dict[str, Any]:
    """Read columns that other tools name otherwise, such as `completion` and `target`, where one column alone can be meant.

    >>> _take_usual_names({"question": "2+2=", "target": "4", "completion": "it is 4"}, "a.jsonl:1", set())
    {'prompt': '2+2=', 'reference': '4', 'answer': 'it is 4'}
    """
    found = {key: [name for name in row if name.lower() in names and name not in ROW_KEYS] for key, names in USUAL_NAMES.items()}
    if len(found["reference"]) > 1:  # a solution is the reference only if no other column is
        found["reference"] = [name for name in found["reference"] if name.lower() not in SOLUTION_COLUMNS]
    taken = {names[0]: key for key, names in found.items() if key not in row and len(names) == 1}
    if missing := [key for key in ("reference", "answer") if key not in row and key not in taken.values()]:
        unclear = [f"the {key} may be {' or '.join(map(repr, found[key]))}" for key in missing if found[key]]
        lacking = [key for key in missing if not found[key]]
        unclear += [f"{' and '.join(map(repr, lacking))} {'is' if len(lacking) == 1 else 'are'} missing"] if lacking else []
        columns = ", ".join(map(repr, row)) or "none"
        rename = (
            "; 'answer' is what was answered: rename it to 'reference' if it is the right answer"
            if missing == ["reference"] and "answer" in row
            else ""
        )
        raise ConfigError(f"{where}: {', and '.join(unclear)}; the columns are {columns}{rename}; {ROW_FORM}")
    if new := {name: key for name, key in taken.items() if name not in noted_keys}:
        noted_keys.update(new)
        logger.info("%s: %s", where.rpartition(":")[0], ", ".join(f"the column {name!r} is read as the {key}" for name, key in new.items()))
    return {taken.get(name, name): value for name, value in row.items()}


def _parse_reference(text: str) -> Any:
    """Parse a reference of the command line: as JSON if it starts like JSON and is valid, otherwise as plain text."""
    if not text.lstrip().startswith(("{", "[", '"')):
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text


def _parse_meta(text: str) -> dict[str, Any]:
    if not text:
        return {}
    try:
        meta = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"--meta {text!r:.80} is not JSON ({error}); write an object, such as '{{\"level\": 3}}'") from error
    if not isinstance(meta, dict):
        raise ConfigError(f"--meta is a {type(meta).__name__}; write an object, such as '{{\"level\": 3}}'")
    return meta


def _format_score(verdict: Verdict) -> Text:
    if verdict.score is None:
        return Text(f"no score (fault: {verdict.fault.value})", style="yellow")
    return Text(f"{verdict.score:g}", style="bold green" if verdict.passed else "bold red" if not verdict.score else "bold yellow")


def _print_summary(counts: Counter[str], score_sum: float, seconds: float) -> None:
    scored = counts["full score"] + counts["less"]
    total = scored + counts["no score"]
    mean = f"{score_sum / scored:.4f}" if scored else "none"
    rows = [("answers", str(total)), ("mean score", mean), *((name, str(counts[name])) for name in ("full score", "less", "no score"))]
    rows += [(name, str(count)) for name, count in sorted(counts.items()) if name.startswith("fault") and count]
    rows.append(("answers a second", f"{total / max(seconds, 1e-9):.0f}"))
    console = screen.make_stdout_console()
    console.print(screen.make_facts_table(rows))
    if total > counts["full score"]:
        console.print(Text("--json prints the verdict of each answer", style="dim"))
