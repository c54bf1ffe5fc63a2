"""`choice`, `regex`, `json_schema`, `span`, `table` and `quantity`: what they pay, what they refuse, what they cannot judge."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from rlvr import Fault, Task, Verifier, make_user_prompt, make_verifier
from tests.verifiers.texts.cases_of_short_answers import CASES, Case

FLAT = [(name, case) for name, cases in CASES.items() for case in cases]
MADE: dict[tuple[str, str], Verifier] = {}


def built(name: str, settings: dict[str, Any]) -> Verifier:
    """Each verifier once for each setting: some have worker processes."""
    key = (name, repr(sorted(settings.items())))
    if key not in MADE:
        MADE[key] = make_verifier(name, **settings)
    return MADE[key]


@pytest.fixture(scope="module", autouse=True)
def closing() -> Any:
    yield
    for verifier in MADE.values():
        verifier.close()
    MADE.clear()


@pytest.mark.parametrize(("name", "case"), FLAT, ids=[f"{name}-{i}" for i, (name, _) in enumerate(FLAT)])
def test_a_case(name: str, case: Case) -> None:
    settings, reference, meta, answer, score = case
    verdict = built(name, settings).verify(Task(make_user_prompt("q"), reference, id="t", meta=meta), answer)
    assert verdict.score == (score if score is None else pytest.approx(score, abs=0.011)), (answer[:80], verdict)
    assert (verdict.fault is Fault.TASK) == (score is None), verdict


@pytest.mark.parametrize("unit", ["```python\n", "```\n", "```a\n|a|\n"])
def test_code_blocks_that_are_only_opened_are_read_in_one_pass(unit: str) -> None:
    """The time of a search for the end of each block would grow with the square of their number: minutes for these."""
    began = time.process_time()
    verdict = built("table", {}).verify(Task(make_user_prompt("q"), [{"a": 1}]), unit * 20_000)
    assert verdict.score == 0.0 and time.process_time() - began < 10


@pytest.mark.parametrize(
    ("name", "settings", "reference"),
    [
        ("exact", {}, "4"),
        ("span", {"extractor": "whole"}, ["4"]),
        ("choice", {"extractor": "whole"}, "4"),
    ],
)
def test_a_long_row_of_combining_marks_costs_little(name: str, settings: dict[str, Any], reference: Any) -> None:
    """A normal form sorts the marks on one letter, in time that grows with the square of their number: half a minute for these."""
    answer = "4" + "\u0301" * 40_000 + "\u0336" * 40_000
    began = time.process_time()
    options = {"options": {"4": "four", "5": "five"}} if name == "choice" else {}
    verdict = built(name, settings).verify(Task(make_user_prompt("q"), reference, meta=options), answer)
    assert verdict.fault is not Fault.INFRA and time.process_time() - began < 5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "hostile", "harmless"),
    [
        ("regex", (r"(a+)+b", "a" * 60), (r"\d+", "12")),
        (
            "json_schema",
            ({"properties": {"n": {"pattern": "^(a+)+$"}}, "required": ["n"]}, '{"n": "' + "a" * 60 + '!"}'),
            ({"required": ["x"]}, '{"x": 1}'),
        ),
    ],
)
def test_answers_that_backtrack_delay_only_each_other(name: str, hostile: tuple[Any, str], harmless: tuple[Any, str]) -> None:
    """Beside eight answers that use up their processor time, a harmless one waits for a small part of what they take together."""

    def verify(reference: Any, answer: str) -> tuple[float | None, float]:
        began = time.monotonic()
        return verifier.verify(Task(make_user_prompt("q"), reference), answer).score, time.monotonic() - began

    with make_verifier(name) as verifier, ThreadPoolExecutor(8) as threads:
        assert verify(*harmless)[0] == 1.0
        began = time.monotonic()
        running = [threads.submit(verify, *hostile) for _ in range(8)]
        time.sleep(0.1)
        waits = []
        while not all(job.done() for job in running):
            score, waited = verify(*harmless)
            waits.append(waited)
            assert score == 1.0
        took = time.monotonic() - began
        assert [job.result()[0] for job in running] == [0.0] * 8
        assert waits and max(waits) < took / 2, (max(waits), took)
