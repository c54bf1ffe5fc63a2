"""`choice`, `regex`, `json_schema`, `span`, `table` and `quantity`: what they pay, what they refuse, what they cannot judge."""

from __future__ import annotations

from typing import Any

import pytest

from rlvr import Fault, Task, Verifier, make_verifier, user
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
    verdict = built(name, settings).verify(Task(user("q"), reference, id="t", meta=meta), answer)
    assert verdict.score == (score if score is None else pytest.approx(score, abs=0.011)), (answer[:80], verdict)
    assert (verdict.fault is Fault.TASK) == (score is None), verdict
