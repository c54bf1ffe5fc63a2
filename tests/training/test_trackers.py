"""Trackers: nobody is told of a run unless asked, everybody who is gets numbers, held-out accuracy and tables, and nothing is sent away."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from accelerate import Accelerator
from accelerate.tracking import GeneralTracker
from rich.console import Console

from rlvr.errors import ConfigError
from rlvr.runs.run_log import read_jsonl
from rlvr.training import processes
from rlvr.training.processes import validate_trackers
from rlvr.training.trackers import MAX_TABLE_ROWS, build_tracker_settings
from rlvr.training.train import train
from tests.fixtures.tiny import tiny_run

SAVED = {"steps": 3, "learning_rate": 1e-3}


class Numbers(GeneralTracker):
    """A tracker that keeps what it is told."""

    name = "numbers"
    requires_logging_directory = False

    def __init__(self) -> None:
        super().__init__()
        self.told: list[tuple[int | None, dict[str, Any]]] = []

    @property
    def tracker(self) -> Numbers:
        return self

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        self.configured = values

    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        self.told.append((step, values))


class Tables(Numbers):
    """One that shows tables too, as wandb's does."""

    name = "tables"

    def log_table(self, table_name: str, columns: list[str], data: list[list[Any]], step: int) -> None:
        self.told.append((step, {table_name: [dict(zip(columns, line, strict=True)) for line in data]}))


class Trackio(Numbers):
    """One whose tables are values, as trackio's are."""

    name = "trackio"


def run(folder: Path, monkeypatch: pytest.MonkeyPatch, *trackers: Numbers) -> None:
    """A tiny run whose accelerator has these trackers."""
    monkeypatch.setattr(processes, "validate_trackers", lambda names: list(trackers))
    config = tiny_run(train=SAVED, log={"save_every": 2, "report_to": [tracker.name for tracker in trackers]})
    train(config, out=folder, console=Console(file=io.StringIO()))


def test_every_step_and_the_held_out_accuracy_reach_a_tracker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = Numbers()
    run(tmp_path / "x", monkeypatch, numbers)
    rewards = {row["step"]: row["reward"] for row in read_jsonl(tmp_path / "x" / "metrics.jsonl")}
    assert {step: values["reward"] for step, values in numbers.told if "reward" in values} == rewards
    assert [step for step, values in numbers.told if "eval/accuracy" in values] == [0, 3]
    assert all(value is not None and name != "step" for _, values in numbers.told for name, value in values.items())
    assert any("step_time" in values for _, values in numbers.told) and "seed: 0" in numbers.configured["config"]


def test_a_tracker_with_tables_gets_the_episodes_of_saved_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tables, trackio, module = Tables(), Trackio(), ModuleType("trackio")
    module.Table = lambda columns, data: [dict(zip(columns, line, strict=True)) for line in data]  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "trackio", module)
    run(tmp_path / "x", monkeypatch, tables, trackio)
    written = list(read_jsonl(tmp_path / "x" / "episodes.jsonl"))
    for tracker in (tables, trackio):
        shown = {step: values["episodes"] for step, values in tracker.told if "episodes" in values}
        assert list(shown) == [2, 3] and all(len(lines) == 16 <= MAX_TABLE_ROWS for lines in shown.values())
        assert [line["text"] for line in shown[2]] == [row["text"] for row in written if row["step"] == 2]
        assert shown[3][0]["reason"] == next(row for row in written if row["step"] == 3)["verdict"]["reason"]


def test_tensorboard_writes_what_the_run_says(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    config = tiny_run(train=SAVED, log={"save_every": 2, "report_to": ["tensorboard"]})
    report = train(config, out=tmp_path / "x", console=Console(file=io.StringIO()))
    events = EventAccumulator(str(tmp_path / "x" / "rlvr"))
    events.Reload()
    logged = {e.step: e.value for e in events.Scalars("reward")}
    assert logged == pytest.approx({row["step"]: row["reward"] for row in read_jsonl(tmp_path / "x" / "metrics.jsonl")}, abs=1e-6)
    accuracy = [(e.step, e.value) for e in events.Scalars("eval/accuracy")]
    assert accuracy == [(0, pytest.approx(report.accuracy_before)), (3, pytest.approx(report.accuracy_after))]


def test_nobody_is_told_unless_asked_and_wandb_stays_on_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert tiny_run().log.report_to == [] and validate_trackers([]) == []
    monkeypatch.delenv("WANDB_MODE", raising=False)
    assert build_tracker_settings(tmp_path / "mine")["wandb"] == {"name": "mine", "dir": str(tmp_path / "mine"), "mode": "offline"}
    monkeypatch.setenv("WANDB_MODE", "online")
    assert build_tracker_settings(tmp_path)["wandb"]["mode"] == "online"
    assert not Accelerator(cpu=True).trackers


def test_a_tracker_that_is_not_there_is_told_in_one_line() -> None:
    with pytest.raises(ConfigError, match="names 'aim', which is not installed; `pip install aim`, or leave it out"):
        validate_trackers(["aim"])
    with pytest.raises(ConfigError, match="names 'wandbb'; did you mean 'wandb'"):
        validate_trackers(["wandbb"])


def test_prometheus_reads_the_newest_numbers_from_a_file(tmp_path: Path) -> None:
    config = tiny_run(train=SAVED, log={"save_every": 1, "report_to": ["prometheus"]})
    train(config, out=tmp_path / 'a "b"', console=Console(file=io.StringIO()))
    lines = (tmp_path / 'a "b"' / "metrics.prom").read_text("utf-8").splitlines()
    last = list(read_jsonl(tmp_path / 'a "b"' / "metrics.jsonl"))[-1]
    assert f'rlvr_reward{{run="a \\"b\\""}} {last["reward"]}' in lines and 'rlvr_step{run="a \\"b\\""} 3' in lines
    assert any(line.startswith("rlvr_time_update{") for line in lines) and any(line.startswith("rlvr_eval_accuracy{") for line in lines)
    assert len([line for line in lines if line.startswith("# TYPE ")]) * 2 == len(lines) == len(set(lines))
    assert not (tmp_path / 'a "b"' / ".metrics.prom.part").exists()
