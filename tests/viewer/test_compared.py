"""Several runs on one page: conditions, differences with intervals, and the curves that only the episodes tell."""

from __future__ import annotations

import csv
import importlib
import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from rlvr.evaluation.compare import compare_evaluations
from rlvr.evaluation.evaluate import evaluate
from rlvr.evaluation.export import write_export
from rlvr.runs.run_log import RunLog
from rlvr.viewer.comparison import compare_eval_runs, compare_training_runs, group_runs_into_conditions, load_settings
from rlvr.viewer.episode_curves import BANDS, COMPONENTS_TITLE, GroupAndComponentCurves
from rlvr.viewer.run_summary import list_held_out_accuracies, load_viewed_run
from tests.fixtures.tiny import tiny_run


def run_of(folder: Path, report: Mapping[str, Any], seed: int = 0) -> Path:
    log = RunLog.create(folder, tiny_run().model_copy(update={"seed": seed}))
    log.log_metrics({"step": 1, "reward": 0.5}, {"step": 1})
    log.write_json("report.json", report)
    log.close()
    return folder


def test_runs_that_differ_by_their_seed_are_one_condition(tmp_path: Path) -> None:
    runs = [run_of(tmp_path / f"tool-{seed}", {}, seed) for seed in range(3)]
    settings = [load_settings(run) for run in runs]
    assert group_runs_into_conditions(["tool-0", "tool-1", "tool-2"], settings) == (["tool"], [0, 0, 0])
    other = settings[0] | {"train.learning_rate": "0.1"}
    assert group_runs_into_conditions(["ab", "xy", "q"], [settings[0], settings[1], other])[0] == [
        f"train.learning_rate={settings[0]['train.learning_rate']}",
        "q",
    ]
    assert group_runs_into_conditions(["a", "a"], [{"x": "1"}, {"x": "2"}])[0] == ["x=1", "x=2"], (
        "equal short names are told apart by the settings"
    )


def test_seeds_give_an_interval_by_welch(tmp_path: Path) -> None:
    a, b = [0.9, 0.92, 0.97], [0.5, 0.55, 0.63]
    runs = [run_of(tmp_path / str(n), {"accuracy_after": value, "held_out_tasks": 100}) for n, value in enumerate([*a, *b])]
    found = compare_training_runs(runs, ["A", "B"], [0, 0, 0, 1, 1, 1])
    (row,) = found["forest"]
    # Welch: t is 8.5638 with 3.108 degrees of freedom, whose quantile is 3.1208
    assert row["value"] == pytest.approx(0.37) and row["high"] - row["value"] == pytest.approx(3.1208 * 0.37 / 8.5638, rel=3e-3)
    assert "p 0.003" in row["told"] and "over seeds" in found["notes"][0]
    assert found["tables"][0]["lines"][1] == ["B", "3", "", "56.0 % (50.0 to 63.0)"]


def test_the_interval_over_seeds_is_scipy_s(tmp_path: Path) -> None:
    """Degrees of freedom are not whole, and 2 and 1 of them give intervals that differ threefold."""
    stats: Any = importlib.import_module("scipy.stats")
    dice = random.Random(3)
    cases = [([0.30, 0.34], [0.50, 0.54]), ([0.45, 0.55], [0.62, 0.72]), ([0.5, 0.6], [0.1, 0.2])]
    cases += [
        ([dice.random() for _ in range(dice.randrange(2, 6))], [dice.random() for _ in range(dice.randrange(2, 6))]) for _ in range(6)
    ]
    for n, (a, b) in enumerate(cases):
        runs = [run_of(tmp_path / f"{n}-{k}", {"accuracy_after": value, "held_out_tasks": 100}) for k, value in enumerate([*a, *b])]
        (row,) = compare_training_runs(runs, ["A", "B"], [0] * len(a) + [1] * len(b))["forest"]
        expected = stats.ttest_ind(a, b, equal_var=False)
        low, high = expected.confidence_interval(0.95)
        assert (row["low"], row["high"]) == pytest.approx((low, high), rel=1e-6)
        if n == 0:
            assert "p 0.019" in row["told"]


def test_one_run_of_a_condition_says_what_its_interval_covers(tmp_path: Path) -> None:
    reports = [{"accuracy_after": 0.9, "held_out_tasks": 100}, {"accuracy_after": 0.5, "held_out_tasks": 100}, {"accuracy_after": 0.5}, {}]
    runs = [run_of(tmp_path / str(n), report) for n, report in enumerate(reports)]
    found = compare_training_runs(runs, list("ABCD"), [0, 1, 2, 3])
    newcombe, unknown = found["forest"]
    assert newcombe["low"] < 0.4 < newcombe["high"] and 0.2 < newcombe["high"] - newcombe["low"] < 0.3
    assert unknown["low"] is None and [row["label"] for row in found["forest"]] == ["A - B", "A - C"]
    assert any("between tasks, not seeds" in note for note in found["notes"]) and any("not recorded" in note for note in found["notes"])


def test_evaluations_are_compared_as_rlvr_compare_does(tmp_path: Path) -> None:
    for name, policy in (("gold", "scripted:gold"), ("noop", "scripted:noop")):
        evaluate("tests/fixtures/worlds.py:Sums", policy, tasks=12, n=1, out=tmp_path / name)
    evaluate("tests/fixtures/worlds.py:Talk", "scripted:noop", tasks=3, out=tmp_path / "talk")
    paired = compare_evaluations(tmp_path / "gold", tmp_path / "noop").envs["Sums"].paired_test
    found = compare_eval_runs([tmp_path / "gold", tmp_path / "noop", tmp_path / "talk"])
    (row,) = found["forest"]
    assert (row["value"], row["low"], row["high"]) == (paired.difference, paired.low, paired.high)
    assert found["tables"][0]["lines"][0][:4] == ["Sums", "100.0%", "0.0%", "+100.0"]
    assert "no difference between gold and talk" in found["notes"][0] and "nothing to compare" in found["notes"][0]


def test_held_out_points_have_the_interval_of_their_tasks(tmp_path: Path) -> None:
    rows = [{"step": 5, "eval/accuracy": 0.5}, {"step": 10, "reward": 1.0}]
    points = list_held_out_accuracies(rows, {"accuracy_before": 0.0, "accuracy_after": 1.0, "held_out_tasks": 20})
    assert [point[:2] for point in points] == [[0, 0.0], [5, 0.5], [10, 1.0]]
    assert points[2][2] == pytest.approx(0.8389, abs=1e-3) and points[0][3] == pytest.approx(0.1611, abs=1e-3)
    assert load_viewed_run(run_of(tmp_path / "a", {"accuracy_after": 0.25})).head["held_out"] == [[1, 0.25, None, None]]


def test_rates_count_groups_and_average_parts() -> None:
    rates = GroupAndComponentCurves()
    scores: dict[str, list[float | None]] = {
        "all": [1.0, 1.0],
        "most": [1.0, 0.0, 1.0],
        "some": [1.0, 0.0, 0.0],
        "none": [0.0, 0.5],
        "unscored": [None, None],
    }
    for group, found in scores.items():
        for score in found:
            rates.add_episode({"step": 1, "group": group, "verdict": {"score": score, "components": {"format": 1.0 if score else 0.5}}})
    rates.add_episode({"step": 2, "group": "b", "verdict": None})
    shares, parts = rates.build_panels()
    assert list(shares["lines"].items()) == [(name, [0.25]) for name in BANDS] and shares["stacked"]
    assert parts["title"] == COMPONENTS_TITLE and parts["lines"]["format"] == [pytest.approx(0.8)]
    assert json.dumps(shares), "it goes into the page as JSON"


def test_markdown_and_csv_have_the_turns_and_calls(tmp_path: Path) -> None:
    run = tmp_path / "gold"
    evaluate("calculator_sums", "scripted:gold", tasks=4, out=run)
    head, _, line = write_export(run, "markdown").path.read_text("utf-8").splitlines()[2:]
    assert head.endswith("| failed | turns | calls | errors |") and line.endswith("| 0 | 2 | 1 | 0 |")
    with write_export(run, "csv").path.open(encoding="utf-8", newline="") as file:
        assert {(row["turns"], row["calls"]) for row in csv.DictReader(file)} == {("2", "1")}
    evaluate("tests/fixtures/worlds.py:Sums", "scripted:gold", tasks=2, out=tmp_path / "plain")
    assert "turns" not in write_export(tmp_path / "plain", "markdown").path.read_text("utf-8"), "one question has one turn"
