"""The second verifier: it changes no score, judges a fixed share, and its drift from the first is told."""

from __future__ import annotations

from typing import Any

import pytest

from rlvr.errors import ConfigError
from rlvr.registry.plugins import build
from rlvr.task import Task, make_user_prompt
from rlvr.training.step_notes import UnusualMetricNotes
from rlvr.training.task_sampling.audit_monitor import AuditVerifierMonitor
from tests.fixtures.tiny import tiny_run


def task(number: int = 0) -> Task:
    return Task(make_user_prompt("2+2="), "4", id=f"t/{number}")


def test_the_score_is_the_first_verifier_s_and_the_share_is_fixed() -> None:
    with (
        build("verifier", "with_audit", verifier="exact", audit_with="numeric", fraction=0.2) as verifier,
        build("verifier", "exact") as plain,
    ):
        ours = [verifier.verify(task(i), "4.0") for i in range(500)]
        assert [v.score for v in ours] == [plain.verify(task(i), "4.0").score for i in range(500)]
        drawn = [v.components.get("audit") for v in ours]
        assert set(drawn) == {None, 1.0} and 70 < drawn.count(1.0) < 130
        again = verifier.verify_many([task(i) for i in range(500)], ["4.0"] * 500)
        assert [v.components.get("audit") for v in again] == drawn


def test_a_second_verifier_that_fails_changes_no_score() -> None:
    with build("verifier", "with_audit", verifier="exact", audit_with="numeric", fraction=1.0) as verifier:
        verdict = verifier.verify(Task(make_user_prompt("?"), "Paris", id="t"), "Paris")
        assert verdict.score == 1.0 and "audit" not in verdict.components and verdict.detail["audit"]


def test_it_is_a_setting_of_any_environment() -> None:
    with build("env", "arithmetic", audit_verifier={"verifier": "symbolic", "fraction": 0.5}) as environment:
        assert type(environment.verifier).__name__ == "AuditedVerifier" and type(environment.verifier.audit_verifier).__name__ == "Symbolic"
    wrong: list[Any] = ["symbolic", {"fraction": 0.1}, {"verifier": "symbolic", "fractions": 1}, {"verifier": "symbolic", "fraction": 2}]
    for section in wrong:
        with pytest.raises(ConfigError, match=r"(audit_verifier|fraction) is"):
            build("env", "arithmetic", audit_verifier=section)
    with pytest.raises(ConfigError, match="environments in it"):
        build("env", "mixture", envs={"a": "arithmetic"}, audit_verifier={"verifier": "symbolic"})


def test_drift_is_a_metric_and_a_note() -> None:
    watch, notes = AuditVerifierMonitor(), UnusualMetricNotes(tiny_run())
    watch.add_pairs([(1.0, 1.0), (0.0, 0.0)] * 60)
    assert notes.find_notes({"step": 1, **watch.metrics()}) == []
    other = AuditVerifierMonitor()
    other.load_state_dict(watch.state_dict())
    for same in (watch, other):
        same.add_pairs([(1.0, 0.0)] * 100)
    assert watch.metrics() == other.metrics() and watch.metrics()["audit_verifier/correlation_drop"] > 0.3
    [said] = notes.find_notes({"step": 2, **watch.metrics()})
    assert "drift apart" in said
