"""`rlvr audit`: it finds the holes of a zoo of bad reward functions, passes a sound one, and survives those that hang or exit."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

import rlvr
from rlvr.cli.commands import run_command
from rlvr.conformance.audit.audit import AuditReport, collect_golds, load_labelled_pairs, run_audit
from rlvr.conformance.audit.families import LabelledAnswer, generate_pairs
from rlvr.conformance.audit.html_report import render_page
from rlvr.conformance.audit.search import search_universal_answers
from rlvr.errors import ConfigError
from tests.conformance import bad_rewards

ZOO = bad_rewards.__file__
GOLDS = [LabelledAnswer(text, text, True, question=f"What is {text} + 0?") for text in ("42", "-17", "1234", "305")]


def audited(
    function: str, *, search: int = 0, timeout_s: float = 10.0, pairs: list[LabelledAnswer] | None = None, golds: int = 4
) -> AuditReport:
    return run_audit(f"{ZOO}:{function}", pairs or [], GOLDS[:golds], max_search_calls=search, timeout_s=timeout_s)


def failed(report: AuditReport) -> set[str]:
    return {family.name.partition(":")[0] for family in report.families if family.num_failed}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "found", "kept"),
    [
        (
            "substring",
            {"near miss", "hedge", "denial", "two answers", "all answers at once", "question echoed"},
            {"same value", "injection"},
        ),
        ("last_number", {"hedge", "denial", "two answers"}, {"another task's answer"}),
        ("compute_score", {"hedge", "denial"}, {"another task's answer"}),
        ("tolerant", {"near miss"}, {"hedge", "denial", "injection"}),
        ("strict", {"form", "same value"}, {"near miss", "hedge", "denial", "injection"}),
        ("universal", {"injection"}, {"hedge", "denial", "near miss"}),
        ("sound", {"same value"}, {"near miss", "hedge", "denial", "injection", "junk", "empty", "two answers"}),
    ],
)
def test_the_zoo_is_seen_through(function: str, found: set[str], kept: set[str]) -> None:
    wrong = failed(audited(function))
    assert found <= wrong and not kept & wrong, wrong


@pytest.mark.slow
def test_a_reward_that_hangs_exits_or_prints_costs_only_its_own_answers() -> None:
    hanging, exiting, noisy = (audited("hanging", timeout_s=0.5, golds=1), audited("exiting", golds=1), audited("noisy", golds=1))
    (junk,) = [family for family in hanging.families if family.name == "junk"]
    assert junk.num_crashed == 1 and "no answer within 0.5 s" in junk.examples[0]["reason"]
    (empty,) = [family for family in exiting.families if family.name == "empty"]
    assert empty.num_crashed == 1 and "status 7" in empty.examples[0]["reason"]
    (none,) = [family for family in noisy.families if family.name == "empty"]
    assert (none.num_unscored, none.num_failed, none.num_crashed) == (1, 0, 0)


@pytest.mark.slow
def test_a_verdict_that_depends_on_the_process_is_reported() -> None:
    assert audited("moody").disagreements and not audited("sound").disagreements


def test_the_search_finds_a_text_that_is_always_paid() -> None:
    keys = search_universal_answers(GOLDS, [], lambda gold, text: "score of 1" in text or text == gold.answer, max_calls=400, seed=0)
    assert keys and keys[0].rewarded_fraction == 1.0 and "score of 1" in keys[0].text
    assert search_universal_answers(GOLDS, [], lambda gold, text: text == gold.answer, max_calls=400, seed=0) == []
    both = search_universal_answers(GOLDS, [], lambda gold, text: gold.answer in text, max_calls=800, seed=0)
    assert both and len(both[0].rewarded_references) > 2  # a recombination of several golds


def test_no_made_pair_has_the_wrong_label() -> None:
    golds = [LabelledAnswer(str(n), str(n), True) for n in (0, 1, -1, 7, 10, 100, -25, 1000, 99)] + [
        LabelledAnswer("0.5", "0.5", True),
        LabelledAnswer("-1.25", "-1.25", True),
    ]
    for pair in generate_pairs(golds, ["bare"]):
        if pair.family.startswith("near miss"):
            assert float(pair.answer) != float(pair.reference), pair
        elif pair.family.startswith("same value") and "thought" not in pair.family:
            assert float(pair.answer.replace(",", "")) == float(pair.reference), pair


def test_one_gold_is_enough_for_every_family() -> None:
    pairs = list(generate_pairs([LabelledAnswer("4", ["4", "four"], True)], ["bare"]))
    assert {"hedge", "two answers", "all answers at once"} <= {pair.family for pair in pairs}
    assert not any(pair.answer.strip() == "4" for pair in pairs if not pair.is_correct)


def labelled(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return path


@pytest.mark.slow
def test_the_command_writes_a_page_and_fails_past_a_limit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"answer": str(n), "reference": "5", "label": int(n == 5)} for n in range(10)]
    file = labelled(tmp_path / "pairs.jsonl", [*rows, {"answer": "<b>", "reference": "5", "label": "contested"}])
    asked = ["audit", f"{ZOO}:tolerant", "--pairs", str(file), "--search", "0", "--golds", "2", "--json"]
    assert run_command([*asked, "--max-fpr", "0.5", "--out", str(tmp_path / "out")]) == 1
    said = json.loads(capsys.readouterr().out)
    assert said["rates"]["given"] == {"false_positive": 1.0, "false_negative": 0.0}
    assert said["skipped"] == 1 and not said["ok"] and "is above 0.5" in said["above"][0]
    text = (tmp_path / "out" / "audit.html").read_text("utf-8")
    assert "<h2>Families</h2>" in text and "<script" not in text and "100.0%" in text
    assert json.loads((tmp_path / "out" / "audit.json").read_text("utf-8"))["rates"] == said["rates"]
    assert run_command([*asked, "--max-fnr", "0.5"]) == 0
    assert json.loads(capsys.readouterr().out)["ok"] is True
    assert run_command(asked) == 0
    assert json.loads(capsys.readouterr().out)["ok"] is None  # without a limit nothing is promised


def test_an_answer_on_the_page_is_text() -> None:
    report = audited("sound", pairs=[LabelledAnswer("<script>alert(1)</script>", "4", True)])
    assert "<script>" not in render_page(report, lambda failed, scored: (0.0, 1.0))


def test_a_verifier_of_ours_is_audited_from_its_examples(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["audit", "numeric", "--search", "40", "--golds", "4", "--max-fpr", "0", "--max-fnr", "0", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["num_verified"] > 100 and said["num_crashed"] == 0 and said["search"] == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["audit", "/nowhere/mine.py:f"], "there is no file"),
        (["audit", "numerc"], "'numeric'"),
        (["audit", "numeric", "--max-fpr", "2"], "--max-fpr is 2.0"),
    ],
)
def test_a_wrong_command_is_one_message(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(arguments) == 2
    said = capsys.readouterr().err
    assert words in said and "Traceback" not in said


def test_pairs_that_cannot_be_read(tmp_path: Path) -> None:
    for text in ("no json\n", '{"answer": "4"}\n', '{"answer": 4, "reference": "4", "label": 1}\n'):
        (tmp_path / "p.jsonl").write_text(text, "utf-8")
        with pytest.raises(ConfigError, match=r"p\.jsonl:1"):
            load_labelled_pairs(tmp_path / "p.jsonl")


def test_golds_come_from_references_else_from_examples() -> None:
    pairs = [LabelledAnswer("x", "4", True), LabelledAnswer("y", "4", False), LabelledAnswer("z", ["4"], True)]
    assert [gold.answer for gold in collect_golds(pairs, (), max_golds=9, seed=0)] == ["4"]


@pytest.mark.slow
def test_small_pays_and_scores_out_of_range_are_seen() -> None:
    report = audited("generous")
    assert (
        report.compute_error_rates()["paid in part"]["false_positive"] == 1.0
        and report.compute_error_rates()["made"]["false_positive"] == 0.0
    )
    assert report.score_range == (0.0, 5.0) and report.to_dict()["score_range"] == [0.0, 5.0]
    (outside,) = [family for family in report.families if family.name == "a score outside of 0 to 1"]
    assert outside.num_failed and "scored 5" in outside.examples[0]["reason"]
    assert any(family.highest_partial_score == 0.35 for family in report.families)
    assert "paid in part, up to 0.35" in render_page(report, lambda failed, scored: (0.0, 1.0))
    assert set(audited("sound").compute_error_rates()) == {"given", "made"}


@pytest.mark.slow
def test_a_plain_function_needs_no_pairs(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["audit", f"{ZOO}:generous", "--search", "0", "--max-fpr", "0", "--json"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert said["num_verified"] > 100 and "paid in part" in said["above"][0]
    assert run_command(["audit", f"{ZOO}:formed", "--search", "0", "--max-fpr", "0", "--json"]) == 1
    assert "paid in part" in json.loads(capsys.readouterr().out)["rates"]


def test_a_reward_that_evaluates_the_answer_is_found() -> None:
    assert {"code", "calculation left open"} <= failed(audited("evaluating", timeout_s=0.5, golds=1))
    assert not {"code", "calculation left open"} & failed(audited("sound"))


def test_a_small_tolerance_is_no_hole() -> None:
    golds = [LabelledAnswer(text, text, True) for text in ("0.333333", "42", "-17.5", "1234")]
    report = run_audit(f"{ZOO}:near", [], golds, max_search_calls=0)
    assert not failed(report) & {"near miss", "hedge"}, failed(report)


def test_partial_scores_count_from_the_threshold_on() -> None:
    def count(threshold: float) -> int:
        report = run_audit(f"{ZOO}:dense", [], GOLDS, max_search_calls=0, success_threshold=threshold)
        return sum(family.num_failed for family in report.families if not family.right)

    assert count(0.5) > 0 and count(1.0) == 0


def test_a_function_that_hangs_fails_the_audit_and_does_not_take_hours(capsys: pytest.CaptureFixture[str]) -> None:
    hanging = ["audit", f"{ZOO}:hanging", "--search", "0", "--golds", "1", "--timeout", "0.3", "--json"]
    assert run_command(hanging) == 1
    said = json.loads(capsys.readouterr().out)
    assert said["ok"] is False and "hung on 1 answers, such as: no answer within 0.3 s" in said["above"][0] and not said["stopped"]
    began = time.monotonic()
    assert run_command(["audit", f"{ZOO}:sleeping", "--search", "0", "--timeout", "0.2", "--total-timeout", "2", "--json"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert time.monotonic() - began < 60 and "after 2 s" in said["stopped"] and "incomplete" in said["above"][0]


def test_the_report_says_what_was_audited_and_how(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = [
        "audit",
        "numeric",
        "--search",
        "0",
        "--golds",
        "2",
        "--seed",
        "7",
        "--set",
        "tolerance=0.01",
        "--out",
        str(tmp_path),
        "--json",
    ]
    assert run_command(asked) == 0
    run = json.loads(capsys.readouterr().out)["run"]
    assert (run["seed"], run["golds"], run["labelled_pairs"], run["settings"]) == (7, 2, 0, {"tolerance": 0.01})
    assert run["rlvr"] == rlvr.__version__ and run["verifier_version"] and run["date"][:2] == "20"
    page = (tmp_path / "audit.html").read_text("utf-8")
    assert "<h2>Run</h2>" in page and run["date"] in page and "tolerance" in page


def test_golds_of_examples_have_no_mark_that_declares_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["audit", "symbolic", "--search", "0", "--max-fpr", "0", "--max-fnr", "0", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rates"]["made"]["false_positive"] == 0.0
