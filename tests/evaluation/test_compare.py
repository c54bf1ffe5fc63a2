"""Two runs side by side, one run judged again, one run in other formats."""

from __future__ import annotations

import csv
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import rlvr
from rlvr.cli.commands import run_command
from rlvr.errors import ConfigError, RlvrError
from rlvr.evaluation.compare import compare_evaluations
from rlvr.evaluation.evaluate import evaluate
from rlvr.evaluation.export import EXPORT_FORMATS, escape_spreadsheet_text, write_export
from rlvr.evaluation.rescore import rescore
from rlvr.evaluation.samples import iter_rows
from rlvr.viewer.view import write_page
from tests.evaluation.test_evaluate import results
from tests.fixtures.recorded import recorded_run

SUMS = "tests/fixtures/worlds.py:Sums"


def two(folder: Path, **second: Any) -> tuple[Path, Path]:
    evaluate(SUMS, "scripted:gold", tasks=30, n=2, out=folder / "a")
    evaluate(SUMS, "scripted:noop", **{"tasks": 30, "n": 2, **second}, out=folder / "b")
    return folder / "a", folder / "b"


def test_gold_beats_silence_on_every_task(tmp_path: Path) -> None:
    found = compare_evaluations(*two(tmp_path)).envs["Sums"]
    assert (found.first, found.second, found.num_pairs, found.num_unpaired) == (1.0, 0.0, 60, 0)
    assert (found.paired_test.wins, found.paired_test.losses, found.paired_test.ties, len(found.win_tasks), found.loss_tasks) == (
        30,
        0,
        0,
        30,
        [],
    )
    assert found.paired_test.difference == 1.0 and 0.7 < found.paired_test.low < found.paired_test.high == 1.0 and found.adjusted_p < 0.001


def test_greedy_runs_are_judged_by_mcnemar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, policy in (("a", "scripted:gold"), ("b", "scripted:noop")):
        evaluate(SUMS, policy, tasks=10, out=tmp_path / name)
    found = compare_evaluations(tmp_path / "a", tmp_path / "b").envs["Sums"].paired_test
    assert (found.test, found.p) == ("mcnemar", 2 / 2**10)


def test_a_run_against_itself_shows_nothing(tmp_path: Path) -> None:
    a, _ = two(tmp_path)
    found = compare_evaluations(a, a).envs["Sums"].paired_test
    assert (found.difference, found.p, found.wins, found.losses, found.ties) == (0.0, 1.0, 0, 0, 30)


@pytest.mark.parametrize(
    ("second", "told"),
    [
        ({"n": 3}, "n is 2 and 3"),
        ({"temperature": 0.5}, "temperature is 1.0 and 0.5"),
        ({"max_new_tokens": 3}, "max_new_tokens is None and 3"),
        ({"settings": {"below": 7}}, "prompts or references differ, the first at '7+0="),
    ],
)
def test_runs_that_do_not_match_are_refused_with_the_difference(second: dict[str, Any], told: str, tmp_path: Path) -> None:
    first, other = two(tmp_path, **second)
    with pytest.raises(ConfigError) as error:
        compare_evaluations(first, other)
    assert told in str(error.value) and "--force" in str(error.value)
    assert compare_evaluations(first, other, force=True).differences


def test_runs_of_different_verifiers_are_refused(tmp_path: Path) -> None:
    for name, verifier in (("a", "numeric"), ("b", "symbolic")):
        evaluate("arithmetic", "scripted:gold", tasks=5, settings={"verifier": verifier}, out=tmp_path / name)
    with pytest.raises(ConfigError, match=r"verifier is Numeric \d+, extractors \d+ and Symbolic"):
        compare_evaluations(tmp_path / "a", tmp_path / "b")


def test_runs_of_an_environment_with_other_settings_are_refused_though_the_prompts_are_the_same(tmp_path: Path) -> None:
    usual: dict[str, Any] = {"max_turns": 7}
    for name, settings in (("a", {}), ("b", usual), ("c", {"max_turns": 3})):
        evaluate("guess_number", "scripted:gold", tasks=5, settings=settings, out=tmp_path / name)
    assert not compare_evaluations(tmp_path / "a", tmp_path / "b").differences, "seven turns are the usual ones"
    with pytest.raises(ConfigError, match="guess_number: the environment's max_turns is 7 and 3"):
        compare_evaluations(tmp_path / "a", tmp_path / "c")


def test_what_only_one_run_has_is_left_out_and_said(tmp_path: Path) -> None:
    a, b = two(tmp_path, tasks=20)
    lines = (b / "episodes.jsonl").read_text("utf-8").splitlines(keepends=True)
    (b / "episodes.jsonl").write_text("".join(lines[:-3]) + lines[-3][:40], "utf-8")
    with pytest.raises(ConfigError, match=r"Sums: 3 of the 40 samples asked of both .*--retry.*--force"):
        compare_evaluations(a, b)
    found = compare_evaluations(a, b, force=True)
    assert found.envs["Sums"].num_pairs == 37 and found.envs["Sums"].num_unpaired == 3
    assert f"Sums: 10 tasks that only {a} asks" in found.warnings
    with pytest.raises(ConfigError, match="is not an evaluation"):
        compare_evaluations(a, tmp_path)


def scored(run: Path, scores: Mapping[tuple[str, int, int], float | None], *, otherwise: float | None = None) -> None:
    """Give the samples of a run other scores; None is a dead machine."""
    rows = []
    for row in iter_rows(run):
        score = scores.get((row["env"], row["index"], row["sample"]), otherwise)
        dead = {"reason": "the engine does not answer", "fault": "infra"}
        verdict = {"score": score, **({"reason": "", "fault": "none"} if score is not None else dead)}
        rows.append(json.dumps(row | {"verdict": verdict, "error": ""}) + "\n")
    (run / "episodes.jsonl").write_text("".join(rows), "utf-8")


def test_a_run_that_has_not_come_to_its_end_is_told_apart(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    for folder, policy in ((a, "scripted:gold"), (b, "scripted:noop")):
        evaluate({"name": SUMS, "below": 5}, policy, tasks=100, out=folder)  # the split has 25
    (b / "report.json").unlink()
    (b / "episodes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in list(iter_rows(b))[:20]), "utf-8")
    with pytest.raises(ConfigError, match=r"what .*b has not sampled yet .*; Sums: 5 of the 25 samples") as refused:
        compare_evaluations(a, b)
    assert "--retry" not in str(refused.value), "it does not ask for what is missing"
    found = compare_evaluations(a, b, force=True)
    assert len(found.warnings) == 2 and "that only" not in str(found.warnings), "both ask the same"


def test_both_columns_are_means_over_tasks_as_their_difference_is(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    for folder in (a, b):
        evaluate(SUMS, "scripted:gold", tasks=2, n=4, out=folder)
    scored(a, {("Sums", 0, 0): 1.0, ("Sums", 1, 0): 0.0, ("Sums", 1, 1): 0.0, ("Sums", 1, 2): 0.0, ("Sums", 1, 3): 0.0})
    scored(b, {}, otherwise=0.0)
    found = compare_evaluations(a, b, force=True).envs["Sums"]
    assert (found.first, found.second, found.paired_test.difference, found.num_pairs, found.num_unpaired) == (0.5, 0.0, 0.5, 5, 3)


def test_a_question_that_several_tasks_ask_is_one_pair_and_weighs_as_many(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    for folder, policy in ((a, "scripted:gold"), (b, "scripted:noop")):
        evaluate({"name": SUMS, "below": 2}, policy, split="train", tasks=5, out=folder)  # four questions, the first one twice
    scored(a, {("Sums", 0, 0): 0.0, ("Sums", 4, 0): 0.0}, otherwise=1.0)
    scored(b, {}, otherwise=0.0)
    found = compare_evaluations(a, b).envs["Sums"]
    assert (found.first, found.second) == (0.6, 0.0), "the mean over tasks, as the report has it"
    assert found.paired_test.difference == pytest.approx(0.6)
    assert (found.paired_test.wins, found.paired_test.ties, found.win_tasks) == (3, 1, ["sums/train/1", "sums/train/2", "sums/train/3"])


def test_tasks_of_one_name_that_ask_different_things_are_two_pairs(tmp_path: Path) -> None:
    a, b = two(tmp_path, tasks=30)
    for run_ in (a, b):
        rows = [json.dumps(row | {"task_id": "sum"}) + "\n" for row in iter_rows(run_)]
        (run_ / "episodes.jsonl").write_text("".join(rows), "utf-8")
    scored(a, {("Sums", 0, 0): 1.0, ("Sums", 0, 1): 1.0}, otherwise=0.0)
    found = compare_evaluations(a, b).envs["Sums"]
    assert (found.first, found.paired_test.wins, found.paired_test.ties, found.win_tasks) == (1 / 30, 1, 29, ["sum"])


def test_what_rounding_leaves_is_no_win(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    for folder in (a, b):
        evaluate(SUMS, "scripted:gold", tasks=1, n=3, out=folder)
    scored(a, {("Sums", 0, 0): 0.1, ("Sums", 0, 1): 0.2}, otherwise=0.0)
    scored(b, {("Sums", 0, 0): 0.3}, otherwise=0.0)
    assert compare_evaluations(a, b).envs["Sums"].paired_test.ties == 1


def test_what_is_dead_in_both_runs_is_missed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = two(tmp_path)
    alive = {("Sums", index, sample): 1.0 for index in range(28) for sample in range(2)}
    scored(a, alive)
    scored(b, alive)
    assert run_command(["compare", str(a), str(b)]) == 2
    assert "4 of the 60 samples" in capsys.readouterr().err
    assert run_command(["compare", str(a), str(b), "--force"]) == 0
    assert "left out: Sums: 4 of the 60 samples asked of both runs" in capsys.readouterr().out
    alive |= {("Sums", 28, 0): 1.0, ("Sums", 28, 1): 1.0, ("Sums", 29, 0): 1.0}
    scored(a, alive)
    scored(b, alive)
    assert compare_evaluations(a, b).envs["Sums"].num_unpaired == 1


def test_a_dead_environment_stops_no_other(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("- {env: arithmetic, tasks: 9}\n- {env: digit_sum, tasks: 9}\n", "utf-8")
    a, b = tmp_path / "a", tmp_path / "b"
    for folder, policy in ((a, "scripted:gold"), (b, "scripted:noop")):
        evaluate(str(tmp_path / "mine.yaml"), policy, out=folder)
    scored(b, {("arithmetic", index, 0): 0.0 for index in range(9)})
    found = compare_evaluations(a, b)
    assert list(found.envs) == ["arithmetic"] and found.envs["arithmetic"].first == 1.0
    assert len(found.warnings) == 1 and "digit_sum: no sample has a score in both" in found.warnings[0]
    assert f"{b}: 9 of 9 without, mostly 'the engine does not answer'" in found.warnings[0] and f"{a}: 0 of 9 without" in found.warnings[0]
    scored(b, {})
    with pytest.raises(ConfigError, match=r"nothing can be compared: arithmetic: .*digit_sum: "):
        compare_evaluations(a, b, force=True)


def test_the_tables_fit_a_narrow_screen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = two(tmp_path)
    assert run_command(["compare", str(a), str(b)]) == 0
    said = capsys.readouterr().out
    assert "+100.0" in said and "better on 30 (sums/test/0," in said and "<0.001" in said
    assert run_command(["compare", str(a), str(b), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["envs"]["Sums"]["p_holm"] < 0.001
    assert (
        run_command(["eval", SUMS, "--policy", "scripted:random", "-n", "4", "--tasks", "20", "--select", "shortest", "--price", "1,2"])
        == 0
    )
    said = capsys.readouterr().out
    assert "pass@k" in said and "best@k" in said and "cost" in said and "ran into the length cap" in said
    assert all(len(line) <= 80 for line in said.splitlines() if "–" in line)


def test_judged_again_by_the_same_verifier_nothing_changes(tmp_path: Path) -> None:
    a, _ = two(tmp_path)
    before = results(a)
    assert rescore(a).num_new_samples == 60 and results(a) == before == results(tmp_path / "a-rescored")
    assert rescore(a).num_new_samples == 0
    with pytest.raises(ConfigError, match="not overwritten"):
        rescore(a, out=a)


def test_judged_again_by_another_verifier(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evaluate("arithmetic", "scripted:gold", tasks=9, settings={"verifier": "tests/fixtures/worlds.py:Unable"}, out=tmp_path / "a")
    assert run_command(["eval", "--rescore", str(tmp_path / "a"), "--set", "verifier=numeric", "--out", str(tmp_path / "b"), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)["envs"]["arithmetic"]
    assert (shown["mean_score"], shown["scored"], shown["unscored"]) == (1.0, 9, 0)
    assert [row["stop_reason"] for row in iter_rows(tmp_path / "b")] == ["terminated"] * 9
    with pytest.raises(ConfigError, match="has changed since it was sampled"):
        rescore(tmp_path / "a", out=tmp_path / "c", settings={"levels": ["3+3"]})


def test_every_format_holds_every_sample(tmp_path: Path) -> None:
    a, _ = two(tmp_path)
    written = {to: write_export(a, to).path for to in EXPORT_FORMATS}
    with written["csv"].open(encoding="utf-8", newline="") as file:
        table = list(csv.DictReader(file))
    assert len(table) == 60 and {row["score"] for row in table} == {"1.0"} and table[0]["prompt"] == "0+0="
    trl = [json.loads(line) for line in written["trl-dataset"].read_text("utf-8").splitlines()]
    assert (
        trl[2]["prompt"] == [{"role": "user", "content": "1+0="}] and trl[2]["completion"][0]["content"] == "1" and trl[2]["label"] is True
    )
    assert "| Sums | 100.0% |" in written["markdown"].read_text("utf-8")
    log = json.loads((written["inspect"] / "Sums.json").read_text("utf-8"))
    assert len(log["samples"]) == 60 and log["results"]["scores"][0]["metrics"]["accuracy"]["value"] == 1.0
    import pyarrow.parquet

    assert pyarrow.parquet.read_table(written["parquet"]).num_rows == 60


@pytest.mark.parametrize("answer", ["=cmd|'/C calc'!A0", "+cmd|'/C calc'!A0", "-2+3+cmd|' /C calc'!A0", "@SUM(1+1)", "\t=1+1", "\r=1+1"])
def test_a_formula_that_the_policy_wrote_is_a_text_in_the_table(answer: str, tmp_path: Path) -> None:
    a, _ = two(tmp_path)
    rows = [{**row, "text": answer} if number == 0 else row for number, row in enumerate(iter_rows(a))]
    (a / "episodes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    with write_export(a, "csv").path.open(encoding="utf-8", newline="") as file:
        table = list(csv.reader(file))
    assert any(f"'{answer}" in line for line in table)
    assert not [cell for line in table for cell in line if cell.startswith(("=", "+", "@", "\t", "\r", "-2+"))]


@pytest.mark.parametrize("line", ["[1]", "null", "5", "[" * 100_000, '{"a": ' + "9" * 5_000 + "}", '{"env": ["a"]}'])
def test_an_edited_run_is_one_message_for_exports_and_pages(line: str, tmp_path: Path) -> None:
    evaluate("tests/fixtures/worlds.py:Sums", "scripted:gold", tasks=2, out=tmp_path / "e")
    rows = tmp_path / "e" / "episodes.jsonl"
    rows.write_text(f"{line}\n{rows.read_text()}")
    for read in (lambda: write_export(tmp_path / "e", "csv"), lambda: write_page(tmp_path / "e")):
        with pytest.raises(RlvrError):
            read()


def test_control_characters_of_an_answer_reach_no_terminal_through_a_table() -> None:
    for formula in (
        "\uff1d1+1",
        "\uff0b1+1a",
        "\uff20SUM(1)",
        "\u200b=1+1",
        "\u2060\u200e =1+1",
        " \xa0\u3000=1+1",
        "\t=1",
        "\r=1",
        "\n=1",
    ):
        assert escape_spreadsheet_text(formula).startswith("'"), formula
    assert escape_spreadsheet_text("a\x1b[2J\nb\tc\x9b") == "a\\x1b[2J\nb\tc\\x9b"


def test_a_training_run_becomes_a_table_and_nothing_else(tmp_path: Path) -> None:
    a, _ = two(tmp_path)
    trained = tmp_path / "trained"
    trained.mkdir()
    (trained / "config.yaml").write_text("seed: 0\n", "utf-8")
    rows = [{key: row[key] for key in row if key not in ("env", "sample", "prompt", "reference", "finish")} for row in iter_rows(a)]
    (trained / "episodes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    with write_export(trained, "csv").path.open(encoding="utf-8", newline="") as file:
        table = list(csv.DictReader(file))
    assert len(table) == 60 and table[0]["step"] == "0" and table[0]["score"] == "1.0" and table[0]["stop_reason"] == "terminated"
    for folder, to, told in ((trained, "inspect", "is a training run, and inspect needs an evaluation"), (tmp_path, "csv", "is not a run")):
        with pytest.raises(ConfigError, match=told):
            write_export(folder, to)


def test_the_accuracy_for_inspect_is_the_average_of_the_report(tmp_path: Path) -> None:
    a, _ = two(tmp_path, tasks=2)
    scored(a, {("Sums", 0, 0): 1.0, **{("Sums", index, sample): 0.0 for index in range(1, 30) for sample in range(2)}})
    found = json.loads((write_export(a, "inspect").path / "Sums.json").read_text("utf-8"))["results"]["scores"][0]
    assert found["metrics"]["accuracy"]["value"] == 1 / 30 and (found["scored_samples"], found["unscored_samples"]) == (59, 1)


def test_a_conversation_is_exported_turn_by_turn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evaluate("guess_number", "scripted:noop", tasks=3, out=tmp_path / "a")
    (line, *_) = [json.loads(line) for line in write_export(tmp_path / "a", "trl-dataset").path.read_text("utf-8").splitlines()]
    silence, answer = {"role": "assistant", "content": ""}, {"role": "user", "content": "say one number"}
    assert line["completion"] == [silence] and line["prompt"][0]["content"].startswith("Guess my number")
    assert line["prompt"][1:] == [silence, answer] * (len(line["prompt"]) // 2) and len(line["prompt"]) > 4
    (log,) = write_export(tmp_path / "a", "inspect").path.iterdir()
    said = json.loads(log.read_text("utf-8"))["samples"][0]["messages"]
    assert [(m["role"], m["content"]) for m in said] == [(m["role"], m["content"]) for m in [*line["prompt"], silence]]

    rows = [
        json.dumps(row | ({"action_mask": [0] * len(row["action_mask"])} if row["index"] else {})) + "\n"
        for row in iter_rows(tmp_path / "a")
    ]
    (tmp_path / "a" / "episodes.jsonl").write_text("".join(rows), "utf-8")
    assert run_command(["export", str(tmp_path / "a"), "--to", "trl-dataset"]) == 0
    assert "left out: 2 conversations whose turns cannot be read back" in capsys.readouterr().err
    assert len((tmp_path / "a" / "trl.jsonl").read_text("utf-8").splitlines()) == 1


def test_what_has_no_score_is_no_line_for_trl_and_counted(tmp_path: Path) -> None:
    a, _ = two(tmp_path, tasks=2)
    scored(a, {("Sums", 0, 0): 1.0})
    found = write_export(a, "trl-dataset")
    assert found.skipped_counts == {"samples without a score": 59} and len(found.path.read_text("utf-8").splitlines()) == 1


def test_a_text_that_is_no_utf8_is_exported_so_that_others_read_it(tmp_path: Path) -> None:
    a, _ = two(tmp_path, tasks=2)
    rows = [json.dumps(row | {"text": "half \ud83d"}) + "\n" for row in iter_rows(a)]
    (a / "episodes.jsonl").write_text("".join(rows), "utf-8")
    assert "half ?" in write_export(a, "csv").path.read_text("utf-8")
    said = [json.loads(line) for line in write_export(a, "trl-dataset").path.read_text("utf-8").splitlines()]
    assert said[0]["completion"][0]["content"] == "half ?"
    assert "half ?" in (write_export(a, "inspect").path / "Sums.json").read_text("utf-8")
    import pyarrow.parquet

    assert pyarrow.parquet.read_table(write_export(a, "parquet").path)["text"][0].as_py() == "half ?"


def test_for_inspect_a_run_that_has_not_come_to_its_end_is_no_success(tmp_path: Path) -> None:
    a, _ = two(tmp_path, tasks=2)
    status = [json.loads((write_export(a, "inspect").path / "Sums.json").read_text("utf-8"))["status"]]
    (a / "report.json").unlink()
    status.append(json.loads((write_export(a, "inspect").path / "Sums.json").read_text("utf-8"))["status"])
    assert status == ["success", "started"]


@pytest.mark.parametrize("to", ["csv", "parquet", "trl-dataset", "markdown"])
def test_an_export_that_breaks_off_leaves_what_was_there(to: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a, _ = two(tmp_path)
    before = (written := write_export(a, to).path).read_bytes()

    def full(*told: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)  # the last thing that is done
    for place in (None, tmp_path / "elsewhere"):
        with pytest.raises(ConfigError, match="No space left on device"):
            write_export(a, to, place)
    assert written.read_bytes() == before and not (tmp_path / "elsewhere").exists()
    assert not [path for folder in (a, tmp_path) for path in folder.iterdir() if path.name.endswith(".part")]


def test_tokens_are_exported_as_the_endpoint_counted_them(tmp_path: Path) -> None:
    a, _ = two(tmp_path)
    rows = [json.dumps(row | {"usage": [100, 7]}) + "\n" for row in iter_rows(a)]
    (a / "episodes.jsonl").write_text("".join(rows), "utf-8")
    with write_export(a, "csv").path.open(encoding="utf-8", newline="") as file:
        assert {(row["prompt_tokens"], row["tokens"]) for row in csv.DictReader(file)} == {("100", "7")}


def test_an_environment_of_any_name_is_exported(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("- {name: a/b, env: arithmetic, tasks: 2}\n- {name: a%2Fb c, env: arithmetic, tasks: 2}\n", "utf-8")
    evaluate(str(tmp_path / "mine.yaml"), "scripted:gold", out=tmp_path / "a")
    assert {path.name for path in write_export(tmp_path / "a", "inspect").path.iterdir()} == {"a%2Fb.json", "a%252Fb c.json"}


def test_an_export_that_cannot_be(tmp_path: Path) -> None:
    a, _ = two(tmp_path)
    with pytest.raises(ConfigError, match="did you mean 'csv'"):
        write_export(a, "cvs")
    (tmp_path / "mine.csv").write_text("mine", "utf-8")
    with pytest.raises(ConfigError, match="not overwritten"):
        write_export(a, "csv", tmp_path / "mine.csv")
    for name in ("episodes.jsonl", "eval.yaml", "notes.csv"):
        (a / "notes.csv").write_text("mine", "utf-8")
        before = (a / name).read_bytes()
        with pytest.raises(ConfigError, match="not overwritten"):
            write_export(a, "csv", a / name)
        assert (a / name).read_bytes() == before
    assert write_export(a, "csv") == write_export(a, "csv", a / "samples.csv")


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("episodes.jsonl", "[" * 100_000 + "\n"),
        ("episodes.jsonl", '{"index": ' + "9" * 10_000 + "}\n"),
        ("episodes.jsonl", {"verdict": [1]}),
        ("episodes.jsonl", {"verdict": {"score": "1", "reason": "", "fault": "none"}}),
        ("episodes.jsonl", {"verdict": {"score": 10**400, "reason": "", "fault": "none"}}),
        ("episodes.jsonl", {"verdict": {"score": float("nan"), "reason": "", "fault": "none"}}),
        ("episodes.jsonl", {"verdict": {"score": float("inf"), "reason": "", "fault": "none"}}),
        ("episodes.jsonl", {"session": 5}),
        ("episodes.jsonl", {"prompt": 5}),
        ("eval.yaml", "seed: " + "[" * 50_000),
        ("eval.yaml", "seed: " + "9" * 10_000),
        ("eval.yaml", "seed: &a [*a]"),
    ],
    ids=["deep", "digits", "verdict", "score", "huge", "nan", "inf", "session", "prompt", "deep plan", "digits of the plan", "alias"],
)
def test_damaged_runs_are_not_compared_and_are_one_message(tmp_path: Path, file: str, text: Any) -> None:
    a, b = two(tmp_path, tasks=4)
    path = b / file
    if isinstance(text, dict):
        rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
        text = "".join(json.dumps(row | text) + "\n" for row in rows)
        path.write_text(text, "utf-8")
    else:
        path.write_text(path.read_text("utf-8") + text, "utf-8")
    with pytest.raises(ConfigError):
        compare_evaluations(a, b)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"envs": ' + "9" * 10_000 + "}", "[]"], ids=["deep", "digits", "list"])
def test_a_damaged_report_does_not_matter_to_a_comparison(tmp_path: Path, text: str) -> None:
    a, b = two(tmp_path)
    (b / "report.json").write_text(text, "utf-8")
    assert compare_evaluations(a, b).envs["Sums"].num_pairs == 60


def test_a_pipe_is_no_report_and_is_not_waited_for(tmp_path: Path) -> None:
    a, b = two(tmp_path)
    (b / "report.json").unlink()
    os.mkfifo(b / "report.json")
    assert compare_evaluations(a, b).envs["Sums"].num_pairs == 60
    assert write_page(b, tmp_path / "page.html").num_episodes == 60


def test_names_in_a_written_report_are_no_markup(tmp_path: Path) -> None:
    a, _ = two(tmp_path)
    plan, report = a / "eval.yaml", a / "report.json"
    hostile = "x|y <img src=z> ![a](b) \x1b[2J"
    plan.write_text(plan.read_text("utf-8").replace("scripted:gold", json.dumps(hostile)), "utf-8")
    report.write_text(report.read_text("utf-8").replace('"Sums"', json.dumps(hostile)), "utf-8")
    text = write_export(a, "markdown").path.read_text("utf-8")
    assert "<img" not in text and "![" not in text and "x|y" not in text and "\x1b" not in text and "&lt;img src=z>" in text


def test_what_a_stored_run_says_reaches_no_terminal_as_a_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = two(tmp_path)
    plan = b / "eval.yaml"
    text = plan.read_text("utf-8")
    plan.write_text(text[: text.index("verifiers:")] + "verifiers: {Sums: " + json.dumps("\x1b]0;title\x07\x9b\u202e") + "}\n", "utf-8")
    for run in (a, b):
        rows = [json.loads(line) for line in (run / "episodes.jsonl").read_text("utf-8").splitlines()]
        text = "".join(json.dumps(row | {"task_id": f"\x1b[2J\x9b {row['task_id']}"}) + "\n" for row in rows)
        (run / "episodes.jsonl").write_text(text, "utf-8")
    for command in (["compare", str(a), str(b), "--force"], ["compare", str(b), str(a), "--force"], ["view", str(a), "--against", str(b)]):
        assert run_command(command) == 0
        said = "".join(capsys.readouterr())
        assert not {"\x1b", "\x9b", "\x07", "\u202e"} & set(said), said


def test_a_comparison_runs_no_code_that_a_run_names(tmp_path: Path) -> None:
    a, b = two(tmp_path)
    own, ran = tmp_path / "own.py", tmp_path / "ran"
    own.write_text(f"open({str(ran)!r}, 'w')\nclass Sums: pass\n")
    for run in (a, b):
        plan = run / "eval.yaml"
        text = plan.read_text("utf-8")
        assert "worlds.py:Sums" in text
        plan.write_text(re.sub(r"name: \S*worlds.py:Sums", f"name: {own}:Sums", text), "utf-8")
    assert run_command(["compare", str(a), str(b)]) == 0
    assert run_command(["view", str(a), "--against", str(b), "--out", str(tmp_path / "page.html")]) == 0
    for to in ("csv", "markdown", "inspect", "trl-dataset"):
        write_export(a, to)
    assert not ran.exists()


@pytest.mark.parametrize("text", ["[" * 100_000, "9" * 10_000, "{", "[1]"], ids=["deep", "digits", "torn", "list"])
def test_a_damaged_file_of_a_loaded_run_is_one_message(tmp_path: Path, text: str) -> None:
    a, _ = two(tmp_path, tasks=2)
    trained = recorded_run(tmp_path / "trained", steps=1)
    for folder in (a, trained):
        (folder / "report.json").write_text(text, "utf-8")
    with pytest.raises(ConfigError, match="cannot be read as those of a run"):
        _ = rlvr.load_evaluation(a)
    with pytest.raises(ConfigError, match="cannot be read as those of a run"):
        _ = rlvr.load_run(trained).report
    rows = [json.loads(line) for line in (a / "episodes.jsonl").read_text("utf-8").splitlines()]
    (a / "episodes.jsonl").write_text("".join(json.dumps(row | {"session": 5}) + "\n" for row in rows), "utf-8")
    with pytest.raises(ConfigError, match=rf"{a}/episodes.jsonl: a row is not a sample of an evaluation"):
        _ = rlvr.load_evaluation(a)


@pytest.mark.parametrize(
    "damage", [{"prompt": "text"}, {"prompt": None}, {"prompt": [{"x": 1}]}, {"text": None}, {"verdict": "right"}], ids=str
)
def test_a_damaged_row_is_one_message_that_names_its_folder(tmp_path: Path, damage: dict[str, Any]) -> None:
    a, b = two(tmp_path, tasks=2)
    rows = [json.loads(line) for line in (a / "episodes.jsonl").read_text("utf-8").splitlines()]
    (a / "episodes.jsonl").write_text("".join(json.dumps(row | damage) + "\n" for row in rows), "utf-8")
    for read in (lambda: rlvr.load_evaluation(a), lambda: rlvr.load_evaluation(b).compare(a)):
        with pytest.raises(ConfigError, match=rf"{a}/episodes.jsonl: a row is not a sample of an evaluation"):
            read()
