"""`explain` says what an answer was read as and which function decided, with the verdict that `verify` gives."""

from __future__ import annotations

import inspect
import json
import sys
from pathlib import Path
from typing import Any

import pytest

import rlvr
from rlvr.cli.commands import run_command
from rlvr.contracts import Explanation, Verifier
from rlvr.task import Task, Verdict
from rlvr.verifiers.math.compare import scalars

ROOT = Path(inspect.getfile(rlvr)).parent


def explain(verifier: str, reference: Any, answer: str, **meta: Any) -> Explanation:
    with rlvr.make_verifier(verifier) as made:
        task = Task("?", reference, meta=meta)
        found: Explanation = made.explain(task, answer)
        assert found.verdict == made.verify(task, answer)
    return found


@pytest.mark.parametrize(
    ("reference", "answer", "rule"),
    [
        ("12", r"\boxed{13}", "compare_integers"),
        ("|x-1|", r"\boxed{|1-x|}", "compare_unitless_values"),
        ("(1, 2)", r"\boxed{(1, 3)}", "_compare_in_order"),
        (r"\{1, 2\}", r"\boxed{1}", "match_members"),
        ("3 km", r"\boxed{3 \text{ kg}}", "_compare_with_units"),
        ("12", r"\boxed{\foo}", "AnswerParser.parse_command"),
        (r"\foo", "12", "AnswerParser.parse_command"),
        ("12", "", "Symbolic._verify"),
    ],
)
def test_the_function_that_decided_is_named_with_its_place(reference: str, answer: str, rule: str) -> None:
    found = explain("symbolic", reference, answer)
    assert found.rule == rule and found.path[-1] == rule and found.path[0] == "Symbolic._verify"
    file, _, line = found.where.rpartition(":")
    function = rule.rpartition(".")[2]
    text = (ROOT / file).read_text("utf-8").splitlines()
    above = [row.strip() for row in text[: int(line)] if row.lstrip().startswith("def ")]
    assert above[-1].startswith(f"def {function}("), "the line is in the function that is named"


def test_the_steps_show_what_was_read() -> None:
    found = explain("symbolic", "0.5", r"It is \boxed{$\dfrac{1}{2}$}.")
    steps = dict(found.steps)
    assert steps["extracted"] == r"$\dfrac{1}{2}$  (in the box)"
    assert steps["answer, rewritten"] == r"\dfrac{1}{2}" and steps["answer, as a tree"].split() == ["div", "num", "1", "num", "2"]
    assert steps["gold, as a tree"] == "dec 0.5"


def test_an_unreadable_answer_is_shown_as_one() -> None:
    assert dict(explain("symbolic", "1", r"\boxed{\foo}").steps)["answer, as a tree"].startswith("none: the command")


@pytest.mark.parametrize(
    ("verifier", "reference", "answer", "steps"),
    [
        ("numeric", "1000", "1,000", {"extracted": "1,000  (the whole text)", "parsed": "1,000  ->  1000"}),
        ("exact", "Paris", "Rome", {"extracted": "Rome  (the whole text)"}),
        ("choice", "B", "The answer is B", {"named": "B  ->  {'B'}"}),
        ("quantity", "72 km/h", "20 apples or so", {"parsed": "20 apples or so  ->  nothing"}),
    ],
)
def test_plain_verifiers_show_the_extracted_text_and_the_parsed_value(
    verifier: str, reference: str, answer: str, steps: dict[str, str]
) -> None:
    found = explain(verifier, reference, answer)
    assert steps.items() <= dict(found.steps).items(), found.steps
    assert found.rule.endswith(".verify") and found.where.startswith(f"verifiers/{verifier}.py:")


@pytest.mark.parametrize(
    ("verifier", "reference", "answer", "extracted"),
    [("span", "Paris", "The answer is Paris.", "Paris"), ("regex", "a.", "ab", "ab"), ("countdown", None, r"\boxed{1+2}", "1+2")],
)
def test_every_verifier_that_extracts_an_answer_shows_it(verifier: str, reference: Any, answer: str, extracted: str) -> None:
    meta = {"numbers": [1, 2], "target": 3} if verifier == "countdown" else {}
    found = explain(verifier, {"numbers": [1, 2], "target": 3} if reference is None else reference, answer, **meta)
    assert dict(found.steps)["extracted"].startswith(f"{extracted}  ("), found


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("answer", r"verifier\.explain\(task, answer\)\.steps.*rlvr verify NAME --explain.*extract_answer\(answer, 'auto'\)\.text"),
        ("extracted", r"verifier\.explain"),
        ("prediction", r"verifier\.explain"),
        ("info", r"write \.detail"),
        ("ok", r"write \.passed"),
        ("error", r"write \.fault"),
    ],
)
def test_a_verdict_says_where_the_extracted_answer_is(name: str, words: str) -> None:
    with pytest.raises(AttributeError, match=words):
        getattr(rlvr.verify("numeric", answer="it is 4", reference="4"), name)


class Parity(Verifier):
    """A verifier of somebody else, without an `explain` of its own."""

    def verify(self, task: Task, answer: str) -> Verdict:
        return self.check_parity(answer)

    def check_parity(self, answer: str) -> Verdict:
        if not answer.isdigit():
            raise ValueError("no number")
        return Verdict(1.0 - int(answer) % 2, "odd or even")


def test_any_verifier_names_the_function_that_decided() -> None:
    found = Parity().explain(Task("?", None), "4")
    assert found.verdict.score == 1.0 and found.steps == ()


def test_the_trace_ends_with_the_call_even_if_it_raises() -> None:
    before = sys.gettrace()
    with pytest.raises(ValueError, match="no number"):
        Parity().explain(Task("?", None), "four")
    assert sys.gettrace() is before


def test_nothing_is_recorded_while_answers_are_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    decide = scalars.compare_integers

    def watched(a: Any, b: Any) -> Any:
        seen.append(sys.gettrace())
        return decide(a, b)

    monkeypatch.setattr("rlvr.verifiers.symbolic.compare_integers", watched)
    before = sys.gettrace()
    with rlvr.make_verifier("symbolic") as verifier:
        assert verifier.verify(Task("?", "12"), "13").score == 0.0
        verifier.explain(Task("?", "12"), "13")
    assert seen[0] is before and seen[-1] is not before


def test_the_command_prints_the_steps_in_eighty_columns(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    line = ["verify", "symbolic", "--explain", "--reference", "12", "--answer", r"\boxed{13}"]
    assert run_command(line) == 0
    said = capsys.readouterr().out
    assert "compare_integers" in said and "verifiers/math/compare/" in said and "13 is not 12" in said
    assert all(len(row.rstrip()) <= 80 for row in said.splitlines())
    assert run_command([*line, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["rule"] == "compare_integers" and found["score"] == 0.0 and found["steps"][0]["name"] == "extracted"
    assert run_command(["verify", "symbolic", "--explain", "--file", "x.jsonl"]) == 2
    assert "--explain" in capsys.readouterr().err


def test_texts_and_keywords_are_explained_and_the_rule_of_a_verifier_of_ones_own_is_its() -> None:
    numeric = rlvr.make_verifier("numeric")
    assert numeric.explain("it is 7", "7") == numeric.explain(answer="it is 7", reference="7") == numeric.explain(Task("?", "7"), "it is 7")
    assert Parity().explain("4").rule == "Parity.check_parity"


def test_symbolic_names_the_table_of_a_unit() -> None:
    steps = dict(explain("symbolic", "1 km", r"\boxed{5 furlongs}").steps)
    assert steps["gold, unit"] == "km: in _UNIT_TABLE (verifiers/math/parsing/units.py)"
    assert steps["answer, unit"].startswith("furlongs: not in _UNIT_TABLE") and steps["answer, unit"].endswith("a counted thing")
