"""Groups of a run are sampled again from its checkpoints: what is right is found right, and what is not is found."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlvr.cli.running import resample_recorded_groups
from rlvr.cluster.checks.audit import audit_recorded_groups
from rlvr.cluster.checks.comparison import ComparedFields, describe_first_difference
from rlvr.config.config import ModelConfig
from rlvr.errors import ConfigError, NotFound
from rlvr.models.model_loading import load_model
from rlvr.training.train import train
from tests.fixtures.tiny import tiny_run

ROLLOUT = {"prompts_per_step": 3, "num_generations": 4}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("audit") / "run"
    train(
        tiny_run(
            rollout=ROLLOUT, train={"steps": 3, "learning_rate": 1e-3}, eval={"tasks": 0}, log={"save_every": 1, "save_total_limit": None}
        ),
        out=folder,
    )
    return folder


@pytest.mark.slow
def test_a_right_run_is_found_right(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = audit_recorded_groups(run, num_groups=100)
    assert (report.groups, report.answers, report.differing, report.details) == (9, 36, 0, [])
    assert resample_recorded_groups(run, num_groups=2, json=True) == 0
    assert json.loads(capsys.readouterr().out)["groups"] == 2


def test_other_weights_than_the_recorded_ones_are_found(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def wrong(config: ModelConfig) -> Any:
        made = load_model(config)
        for weight in made.parameters():
            weight.data *= 1.5
        return made

    monkeypatch.setattr("rlvr.cluster.checks.audit.load_model", wrong)
    assert resample_recorded_groups(run, num_groups=3, json=False) == 1
    assert "12 answers of 3 groups sampled again" in (said := capsys.readouterr().out) and "(version " in said


def test_a_changed_token_in_the_record_is_found(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "run", symlinks=True)
    log = tmp_path / "run" / "episodes.jsonl"
    rows = [json.loads(line) for line in log.read_text("utf-8").splitlines()]
    row = next(row for row in rows if row["policy_version"] == 2)
    row["tokens"][-1] += 1
    log.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    report = audit_recorded_groups(tmp_path / "run", num_groups=100)
    assert report.differing == 1 and f"completion 0 of group {row['group']} (version 2 of the weights): token" in report.details[0]


Row = dict[str, Any]


def copied(run: Path, to: Path, change: Callable[[list[Row]], list[Row] | None]) -> Path:
    """A copy of a run whose rows were changed."""
    shutil.copytree(run, to / "run", symlinks=True)
    log = to / "run" / "episodes.jsonl"
    rows = [json.loads(line) for line in log.read_text("utf-8").splitlines()]
    log.write_text("".join(json.dumps(row) + "\n" for row in change(rows) or rows), "utf-8")
    return to / "run"


@pytest.mark.parametrize("name", ["step", "group", "policy_version", "split", "index", "tokens", "action_mask", "logprobs"])
@pytest.mark.parametrize("value", [None, "x"], ids=["gone", "text"])
def test_a_damaged_row_is_one_sentence(run: Path, tmp_path: Path, name: str, value: Any) -> None:
    def harm(rows: list[Row]) -> None:
        rows[3][name] = value if name != "split" or value is None else 7

    with pytest.raises(ConfigError, match=rf"episodes.jsonl, line 4 has {name} .*not (int|str|list|STEP:PLACE); the record was damaged"):
        audit_recorded_groups(copied(run, tmp_path, harm))


def test_numbers_that_are_none_are_one_sentence(run: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"line 1 has tokens, acted or logprobs that are not numbers; the record was damaged"):
        audit_recorded_groups(copied(run, tmp_path, lambda rows: [{**row, "logprobs": [None] * len(row["tokens"])} for row in rows]))


@pytest.mark.parametrize(("name", "words"), [("action_mask", "mask entries"), ("logprobs", "log-probabilities"), ("tokens", "tokens")])
def test_a_record_that_is_too_short_is_found(run: Path, tmp_path: Path, name: str, words: str) -> None:
    report = audit_recorded_groups(copied(run, tmp_path, lambda rows: [{**row, name: row[name][:-1]} for row in rows]), num_groups=100)
    assert report.differing == 36 and re.search(rf"one has \d+ {words} and the other \d+", report.details[0])


def test_groups_that_cannot_be_sampled_again_are_counted(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = copied(run, tmp_path, lambda rows: [*rows[1:8], {**rows[8], "truncated": "time"}, *rows[9:]])
    report = audit_recorded_groups(folder, num_groups=100)
    assert (report.groups, report.left_out, report.differing) == (7, 2, 0)
    assert resample_recorded_groups(folder, num_groups=100, json=False) == 0
    assert "2 recorded groups lack answers, failed or hit a time limit" in capsys.readouterr().out
    shutil.rmtree(folder)
    with pytest.raises(NotFound, match=r"steps: 0, 1, 2, 3; 9 groups are incomplete\)"):
        audit_recorded_groups(copied(run, tmp_path, lambda rows: [row for row in rows if rows.index(row) % 4]))


def test_answers_beside_a_group_are_not_part_of_it(run: Path, tmp_path: Path) -> None:
    beside: list[Row] = [{"greedy": True}, {"canary": "a"}, {"mismatched": True}]
    report = audit_recorded_groups(
        copied(run, tmp_path, lambda rows: [*rows[:4], *({**rows[3], **mark} for mark in beside), *rows[4:]]), num_groups=100
    )
    assert (report.groups, report.left_out, report.differing) == (9, 0, 0)


def test_the_groups_of_an_audit_are_drawn_from_the_whole_run(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    versions = list[int]()
    monkeypatch.setattr(
        "rlvr.cluster.checks.audit.compare_and_add_group", lambda report, group, found: versions.append(group[0]["policy_version"])
    )
    audit_recorded_groups(run, num_groups=3)
    assert len(versions) == 3 and versions != [0, 0, 0]


@pytest.mark.parametrize("groups", [0, -1])
def test_an_audit_of_nothing_is_refused(run: Path, groups: int) -> None:
    with pytest.raises(ConfigError, match=f"groups is {groups}; an audit compares at least 1"):
        audit_recorded_groups(run, num_groups=groups)


def test_without_weights_there_is_nothing_to_audit(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "run", symlinks=True)
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    with pytest.raises(
        NotFound, match=r"no recorded group whose weights are in a checkpoint \(there are those of steps: none\); for an audit"
    ):
        audit_recorded_groups(tmp_path / "run")


def test_partial_rollouts_are_not_audited(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "run", symlinks=True)
    config = tmp_path / "run" / "config.yaml"
    text = config.read_text("utf-8")
    assert "partial_rollout_tokens: null" in text
    config.write_text(text.replace("partial_rollout_tokens: null", "partial_rollout_tokens: 4"), "utf-8")
    with pytest.raises(ConfigError, match=r"rollout\.partial_rollout_tokens mixes versions"):
        audit_recorded_groups(tmp_path / "run")


def test_what_differs_is_said() -> None:
    one = ComparedFields([5, 6, 7], [False, True, True], [0.0, -0.5, -1.0])
    assert describe_first_difference(one, one._replace(logprobs=[0.0, -0.501, -1.0])) == ""
    assert (
        describe_first_difference(one, one._replace(logprobs=[0.0, -0.6, -1.0]))
        == "the log-probability of token 1 is -0.5000 in one and -0.6000 in the other"
    )
    assert "is -0.5000 in one and nan" in describe_first_difference(one, one._replace(logprobs=[0.0, float("nan"), -1.0]))
    assert describe_first_difference(one, ComparedFields([5, 6], [False, True], [0.0, -0.5])) == "one has 3 tokens and the other 2"
    assert describe_first_difference(one, one._replace(goes_on=True)) == "one ends where the other goes on in the next step"
    assert (
        describe_first_difference(one, one._replace(action_mask=[False, False, True]))
        == "the mask of token 1 is True in one and False in the other"
    )
