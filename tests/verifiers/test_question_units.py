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
    ("What is the radius, in meters?", r"\sqrt{5}", r"\boxed{\sqrt{5}\text{ cm}}", 0.0),
    ("What is its speed in inches per second?", r"12\pi", r"\boxed{12\pi \text{ feet per second}}", 0.0),
    ("What is its speed in inches per second?", r"12\pi", r"\boxed{12\pi \text{ in/s}}", 1.0),
    ("How many square meters are there?", "8", r"\boxed{8 \text{ square feet}}", 0.0),
    ("How many square meters are there?", "8", r"\boxed{8 \text{ m}^2}", 1.0),
    ("What is the radius, in meters?", r"\sqrt{5}", r"\boxed{\sqrt{5}\text{ m}}", 1.0),
    ("4000 gallons pass, then 6000 gallons more. Find the total.", "10000", r"\boxed{10,000 \text{ liters}}", 0.0),
    ("4000 gallons pass, then 6000 gallons more. Find the total.", "10000", r"\boxed{10,000 \text{ gallons}}", 1.0),
    ("He reads 30 minutes a day, for 4 days. How long does he read?", "2", r"\boxed{2 \text{ hours}}", 1.0),
]


@pytest.mark.parametrize(("prompt", "gold", "answer", "score"), CASES)
def test_another_unit_than_the_one_asked_for_is_wrong(prompt: str, gold: str, answer: str, score: float) -> None:
    with make_verifier("symbolic") as verifier:
        verdict = verifier.verify(Task(prompt, gold), answer)
    assert verdict.score == score, verdict.reason


COUNTS = [
    ("How many dozens of eggs will she eat?", "7", r"\boxed{7 \text{ dozen}}", 1.0),
    ("How many dozens of eggs will she eat?", "7", "The answer is 7 dozens of eggs.", 1.0),
    ("How many dozens of eggs will she eat?", "7", r"\boxed{8 \text{ dozen}}", 0.0),
    ("How many dozens of eggs will she eat?", "7", r"\boxed{7 \text{ hundred}}", 0.0),
    ("How many dozens of eggs will she eat?", "7", r"\boxed{84}", 0.0),
    ("How many eggs will she eat?", "7", r"\boxed{7 \text{ dozen}}", 0.0),
    ("How many eggs will she eat?", "84", r"\boxed{7 \text{ dozen}}", 1.0),
    ("What is the profit in thousands of dollars?", "3", r"\boxed{3 \text{ thousand dollars}}", 1.0),
    ("How many times can he go?", "3", "The answer is 3 times.", 1.0),
    ("How many tickets are left?", "3", "The answer is 3 times.", 0.0),
]


@pytest.mark.parametrize(("prompt", "gold", "answer", "score"), COUNTS)
def test_a_count_of_dozens_is_read_as_the_question_asks_for_it(prompt: str, gold: str, answer: str, score: float) -> None:
    with make_verifier("symbolic") as verifier:
        verdict = verifier.verify(Task(prompt, gold), answer)
    assert verdict.score == score, verdict.reason


def test_a_percentage_of_something_in_the_question_asks_for_no_percentage() -> None:
    with make_verifier("symbolic") as verifier:
        assert verifier.verify(Task("What is 20% of 150?", "30"), r"\boxed{30\%}").score == 0.0
        assert verifier.verify(Task("20% of them left. What percent of them stayed?", "80"), r"\boxed{80\%}").score == 1.0
