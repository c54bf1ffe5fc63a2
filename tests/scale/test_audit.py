"""Groups of a run are sampled again from its checkpoints: what is right is found right, and what is not is found."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from rlvr.commands.running import audit_run
from rlvr.config.config import ModelConfig
from rlvr.errors import ConfigError, NotFound
from rlvr.learn.train import train
from rlvr.model.weights import model_from
from rlvr.scale.checks.audit import audit
from rlvr.scale.checks.compared import Answer, difference
from tests.fixtures.tiny import tiny_run

ROLLOUT = {"prompts_per_step": 3, "num_generations": 4}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("audit") / "run"
    train(
        tiny_run(rollout=ROLLOUT, train={"steps": 3, "learning_rate": 1e-3}, eval={"tasks": 0}, log={"save_every": 1, "keep": None}),
        out=folder,
    )
    return folder


def test_a_right_run_is_found_right(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = audit(run, groups=100)
    assert (report.groups, report.answers, report.differing, report.details) == (9, 36, 0, [])
    assert audit_run(run, groups=2, json=True) == 0
    assert json.loads(capsys.readouterr().out)["groups"] == 2


def test_other_weights_than_the_recorded_ones_are_found(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def wrong(config: ModelConfig) -> Any:
        made = model_from(config)
        for weight in made.parameters():
            weight.data *= 1.5
        return made

    monkeypatch.setattr("rlvr.scale.checks.audit.model_from", wrong)
    assert audit_run(run, groups=3, json=False) == 1
    assert "12 answers of 3 groups sampled again" in (said := capsys.readouterr().out) and "(version " in said


def test_a_changed_token_in_the_record_is_found(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "run", symlinks=True)
    log = tmp_path / "run" / "episodes.jsonl"
    rows = [json.loads(line) for line in log.read_text("utf-8").splitlines()]
    row = next(row for row in rows if row["policy_version"] == 2)
    row["tokens"][-1] += 1
    log.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    report = audit(tmp_path / "run", groups=100)
    assert report.differing == 1 and f"answer 0 of group {row['group']} (version 2 of the weights): token" in report.details[0]


def test_without_weights_there_is_nothing_to_audit(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "run", symlinks=True)
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    with pytest.raises(
        NotFound, match=r"no recorded group whose weights are in a checkpoint \(there are those of steps: none\); for an audit"
    ):
        audit(tmp_path / "run")


def test_answers_in_parts_are_not_audited(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "run", symlinks=True)
    config = tmp_path / "run" / "config.yaml"
    text = config.read_text("utf-8")
    assert "max_tokens_per_version: null" in text
    config.write_text(text.replace("max_tokens_per_version: null", "max_tokens_per_version: 4"), "utf-8")
    with pytest.raises(ConfigError, match=r"rollout\.max_tokens_per_version divides them"):
        audit(tmp_path / "run")


def test_what_differs_is_said() -> None:
    one = Answer([5, 6, 7], [False, True, True], [0.0, -0.5, -1.0])
    assert difference(one, one._replace(logprobs=[0.0, -0.501, -1.0])) == ""
    assert (
        difference(one, one._replace(logprobs=[0.0, -0.6, -1.0]))
        == "the log-probability of token 1 is -0.5000 in one and -0.6000 in the other"
    )
    assert "is -0.5000 in one and nan" in difference(one, one._replace(logprobs=[0.0, float("nan"), -1.0]))
    assert difference(one, Answer([5, 6], [False, True], [0.0, -0.5])) == "one has 3 tokens and the other 2"
    assert difference(one, one._replace(acted=[False, False, True])) == "the mask of token 1 is True in one and False in the other"
