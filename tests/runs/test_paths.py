"""A folder is a text or a Path wherever a user names one in Python."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from rlvr.config.config import load_config
from rlvr.evaluation.compare import compare_evaluations
from rlvr.evaluation.evaluate import evaluate
from rlvr.evaluation.export import write_export
from rlvr.evaluation.rescore import rescore
from rlvr.rollout.replay import replay_recorded_episodes
from rlvr.viewer.view import watch_run, write_page
from tests.fixtures.tiny import tiny_run


def test_an_evaluation_takes_texts(tmp_path: Path) -> None:
    run, again, suite = f"{tmp_path}/run", f"{tmp_path}/again", tmp_path / "suite.yaml"
    suite.write_text("- {env: digit_sum, tasks: 3}", "utf-8")
    assert evaluate(suite, "scripted:gold", out=run).run_folder == Path(run)
    assert rescore(run, out=again).run_folder == Path(again)
    assert compare_evaluations(run, again, force=True).to_dict()
    assert write_export(run, "csv", f"{tmp_path}/run.csv").path.is_file()
    assert write_page(run, f"{tmp_path}/page.html", against=again).path.is_file() and watch_run(run).path.is_file()


def test_training_takes_texts(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from rlvr.training.train import train

    run = f"{tmp_path}/run"
    train(tiny_run(train={"steps": 1}), out=run, console=Console(file=io.StringIO()))
    assert replay_recorded_episodes(run).mismatches == 0 and load_config(Path(run) / "config.yaml").train.steps == 1
