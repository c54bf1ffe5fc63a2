"""The math verifier's tables do what their rows say, and its rules hold against answers made to get round them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlvr.task import Fault, Task, Verdict, make_user_prompt
from rlvr.verifiers.math.compare.prompt_copies import explain_prompt_copy
from rlvr.verifiers.math.parsing.spelling_rules import SPELLING_RULES, SpellingRule, standardize_notation
from rlvr.verifiers.math.parsing.units import is_number_word, parse_unit_label
from rlvr.verifiers.math.parsing.words import PHRASES, AnswerWording, parse_date, parse_number_words, parse_words
from rlvr.verifiers.math.values import cost
from rlvr.verifiers.math.values.numeric import differs_at_sample_points
from rlvr.verifiers.symbolic import Symbolic

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"


@pytest.fixture(scope="module")
def verifier() -> Iterator[Symbolic]:
    with Symbolic() as plugin:
        yield plugin


@pytest.mark.parametrize("row", SPELLING_RULES, ids=lambda row: row.name.replace(" ", "_"))
def test_each_spelling_becomes_what_its_row_shows(row: SpellingRule) -> None:
    before, after = row.example
    assert row.apply(before) == after
    assert any(sign in before for sign in row.triggers)
    assert row.reason and standardize_notation(before) != before


def test_each_spelling_has_its_own_name() -> None:
    assert len({row.name for row in SPELLING_RULES}) == len(SPELLING_RULES)


@pytest.mark.parametrize("saying", PHRASES, ids=lambda saying: saying.meaning.replace(" ", "_"))
def test_each_saying_is_read_as_its_row_shows(saying: AnswerWording) -> None:
    assert saying.pattern.fullmatch(saying.example) and saying.pattern.fullmatch(saying.meaning)
    assert parse_words(saying.example, only_if_unambiguous=True) == ("text", saying.meaning)


UNTOUCHED = ["10~08", "x^o", r"5\angle", "12 (thirteen)", "Yes, but not always", "10\\;08", r"\$5k + 3", "f(x) = 3", "70k"]


@pytest.mark.parametrize("text", UNTOUCHED)
def test_what_only_looks_like_a_spelling_stays_as_it_is(text: str) -> None:
    assert standardize_notation(text) == text


@pytest.mark.parametrize(
    "text", ["five two", "twenty eleven", "hundred", "one twenty", "two and three", "ten one", "zero five", "one and", ""]
)
def test_words_that_are_no_number_are_none(text: str) -> None:
    assert parse_number_words(text) is None


def test_numbers_and_dates_in_words() -> None:
    said = {"seven": 7, "ninety nine": 99, "one hundred": 100, "two thousand twenty-four": 2024, "three million five hundred": 3_000_500}
    assert {text: parse_number_words(text) for text in said} == said
    assert parse_date("the 4th of july, 1776") == parse_date("july 4 1776") == "july 4 1776"


NO_THINGS = "fifth fifths twelfths sixteenths thousandths halves eight zillion gazillion score gross grand nought sqrt pi lakhs hundredth"
THINGS = "apples months tests cloths booths moths tents teeth pens ninjas myths quarters students eggs"


def test_number_words_never_count_as_things() -> None:
    assert [word for word in NO_THINGS.split() if parse_unit_label(word) is not None and not word.startswith("lakh")] == []
    assert [word for word in THINGS.split() if is_number_word(word) or parse_unit_label(word) is None] == []
    assert parse_unit_label("B.C.") is None and parse_unit_label("-ish") is None and parse_unit_label("lb.") is not None


@pytest.mark.parametrize(
    ("label", "same_as"),
    [
        ("bags of oats", "bags"),
        ("cups of the flour", "cups"),
        ("more petals", "petals"),
        ("more", None),
        ("more than petals", None),
        ("quarters of the pie", None),
        ("bags of five apples", None),
        ("groups of 3", None),
        ("bags of", None),
    ],
)
def test_labels_of_counted_things(label: str, same_as: str | None) -> None:
    assert parse_unit_label(label) == (parse_unit_label(same_as) if same_as else None)


PROMPT = r"Simplify $\frac{x^2-1}{x-1}$ for $x \ne 1$. By the way, 17*23 is large, a coin has probability $\frac{1}{2}$, and $AB = 5$."


@pytest.mark.parametrize(
    ("gold", "answer", "copied"),
    [
        ("x+1", r"\frac{x^2-1}{x-1}", True),
        ("x+1", r"\dfrac{x^2 - 1}{x - 1}", True),
        ("x+1", r"\frac{-1+x^2}{-1+x}", True),
        ("391", r"17 \cdot 23", True),
        ("391", "17*23", True),
        ("391", "391", False),
        ("x+1", "1+x", False),
        ("0.5", r"\frac{1}{2}", True),
        (r"\frac12", r"\frac{1}{2}", False),
        (r"\frac{1}{2}", "1/2", False),
        ("5", "5", False),
        ("5", "AB = 5", False),
        ("23", "23", False),
        ("7", "7*1", False),
    ],
)
def test_an_expression_out_of_the_question_is_no_answer(gold: str, answer: str, copied: bool) -> None:
    assert bool(explain_prompt_copy(gold, answer, PROMPT)) is copied


def test_the_rule_about_the_question_can_be_turned_off(verifier: Symbolic) -> None:
    task = Task(make_user_prompt("What is $6 \\cdot 7$?"), id="t", reference="42")
    assert verifier.verify(task, r"\boxed{6 \cdot 7}").score == 0.0
    assert verifier.verify(task, r"\boxed{42}").score == 1.0
    free = Task(make_user_prompt("What is $6 \\cdot 7$?"), id="t", reference="42", meta={"conventions": {"worked_out": "off"}})
    assert verifier.verify(free, r"\boxed{6 \cdot 7}").score == 1.0


def test_copying_formulas_out_of_published_questions_pays_nothing(verifier: Symbolic) -> None:
    if not (DATA / "math500.jsonl").is_file():
        pytest.skip(f"NOT RUN: math500.jsonl is not in {DATA}")
    paid = []
    for line in (DATA / "math500.jsonl").read_text("utf-8").splitlines():
        row = json.loads(line)
        task = Task(make_user_prompt(row["problem"]), id="t", reference=row["answer"])
        assert verifier.verify(task, f"\\boxed{{{row['answer']}}}").score == 1.0, row["answer"]
        for span in re.findall(r"\$([^$]+)\$", row["problem"]):
            arithmetic = re.search(r"[-+*/^=]|\\[a-z]", span.strip("-")) and not re.search("text|mathrm", span)
            if arithmetic and span != row["answer"] and verifier.verify(task, f"\\boxed{{{span.rstrip('.,')}}}").score == 1.0:
                paid.append((row["answer"], span))
    assert paid == []


X = ("sym", "x")
TINY = ("pow", ("const", "e"), ("num", -1000, 1))


def test_sixty_digits_prove_nothing_where_a_part_is_too_small_to_see() -> None:
    assert differs_at_sample_points(("fun", "tanh", ("num", 200, 1)), ("num", 1, 1)) is True
    assert differs_at_sample_points(("add", ("fun", "sin", X), TINY), ("fun", "sin", X)) is True
    assert differs_at_sample_points(("fun", "tanh", ("num", 20_000, 1)), ("num", 1, 1)) is None  # beyond all the digits there are
    assert (
        differs_at_sample_points(
            ("add", X, ("pow", ("const", "e"), ("neg", X))), ("add", X, ("div", ("num", 1, 1), ("pow", ("const", "e"), X)))
        )
        is False
    )


def boxed(verifier: Symbolic, gold: str, answer: str) -> Verdict:
    return verifier.verify(Task(make_user_prompt("?"), id="t", reference=gold), f"\\boxed{{{answer}}}")


COSTLY = ["+".join([r"\erf(60)"] * 20) + "+10^{780}", r"\Gamma(\frac13)+10^{780}", r"(\frac13)!+10^{780}"]


@pytest.mark.parametrize("answer", COSTLY)
def test_an_answer_that_is_too_much_work_is_refused_before_the_work_is_done(
    verifier: Symbolic, answer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    prices: list[int] = []
    charged = cost.compute_cost

    def noted(name: str, digits: int) -> int:
        prices.append(charged(name, digits))
        return prices[-1]

    monkeypatch.setattr(cost, "compute_cost", noted)
    verdict = boxed(verifier, "2", answer)
    assert verdict.score == 0.0 and verdict.fault is Fault.ANSWER, verdict
    assert sum(prices[:-1]) <= cost.MAX_COST < sum(prices)  # the call that costs too much is not made


def test_each_answer_has_its_own_account(verifier: Symbolic) -> None:
    other = COSTLY[0].replace("60", "61")  # what an answer costs is remembered, and another test counts the calls of the first
    assert boxed(verifier, "2", other).fault is Fault.ANSWER
    assert boxed(verifier, r"\sin 1", r"\cos(\frac{\pi}{2}-1)").score == 1.0


@pytest.mark.parametrize(("gold", "answer"), [("0.35", "1e400"), ("5", r"\frac" * 900 + "1"), ("5", r"\sqrt" * 900 + "5")])
def test_long_numbers_and_deep_commands_are_read_or_refused(verifier: Symbolic, gold: str, answer: str) -> None:
    verdict = boxed(verifier, gold, answer)
    assert verdict.score == 0.0 and "broke the comparison" not in verdict.reason
