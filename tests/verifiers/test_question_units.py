"""The unit that a question asks for, where the gold is a bare number."""

from __future__ import annotations

import pytest

from rlvr import Task, make_verifier

CASES = [
    ("How many centimeters shorter is it?", "8", r"\boxed{8 \text{ meters}}", 0.0),
    ("How many centimeters shorter is it?", "8", r"\boxed{8 \text{ cm}}", 1.0),
    ("How many meters are in 2.4 km?", "2400", "2400 cm", 0.0),
    ("How much does he pay, in dollars?", "104", "104 cents", 0.0),
    ("How much does he pay, in dollars?", "104", "$104", 1.0),
    ("How much water is left?", "15", "15%", 0.0),
    ("What percent of the water is left?", "15", "15%", 1.0),
    ("Find the share of the water. Express your answer as a percentage.", "15", "15%", 1.0),
    ("How many are left?", "8", "8 apples", 1.0),
    ("How many hours does it take, and how many minutes is a break?", "8", "8 minutes", 1.0),
]


@pytest.mark.parametrize(("prompt", "gold", "answer", "score"), CASES)
def test_another_unit_than_the_one_asked_for_is_wrong(prompt: str, gold: str, answer: str, score: float) -> None:
    with make_verifier("symbolic") as verifier:
        verdict = verifier.verify(Task(prompt, gold), answer)
    assert verdict.score == score, verdict.reason
