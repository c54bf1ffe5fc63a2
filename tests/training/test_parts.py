"""Partial rollouts: each token of a known version, each group once, and a run that repeats itself to the bit all the same."""

from __future__ import annotations

import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from rlvr.config.config import ModelConfig
from rlvr.contracts import Completion, Request
from rlvr.errors import ConfigError
from rlvr.models.model_loading import load_model
from rlvr.models.plain_weights import compute_model_logprobs
from rlvr.rollout.partial_rollouts import InterruptibleSampler
from rlvr.runs.run_log import read_jsonl
from tests.fixtures.tiny import MODEL, tiny_run
from tests.training.test_ahead import assert_same, run
from tests.training.test_processes import launched, recipe_at, weights

pytestmark = pytest.mark.slow

STEPS, MEMBERS, MOST = 6, 2, 2
"""An answer has at most 8 tokens: 2 + 2 + 2 + 2."""


def settings(most: int | None = MOST, **changes: Any) -> dict[str, Any]:
    """Answers of one to eight tokens."""
    rollout = {"prompts_per_step": 8, "num_generations": MEMBERS, "max_new_tokens": 8, "partial_rollout_tokens": most}
    train = {"steps": STEPS, "learning_rate": 1e-3}
    return {"rollout": rollout, "train": train, "eval": {"tasks": 10, "every": 3}, "log": {"save_every": 1}} | changes


def kept(folder: Path, name: str) -> list[dict[str, Any]]:
    return list(read_jsonl(folder / f"{name}.jsonl"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("parts") / "whole"
    run(folder, **settings(log={"save_every": 1, "save_total_limit": STEPS + 1}))
    return folder


def spans(row: dict[str, Any]) -> list[list[int]]:
    return row.get("versions") or [[row["policy_version"], sum(row["action_mask"])]]


def test_each_token_is_of_the_version_that_the_record_says(whole: Path) -> None:
    models = {n: load_model(ModelConfig(path=str(whole / "checkpoints" / f"step-{n:06}"))) for n in range(STEPS)}
    seen = set[int]()
    for row in kept(whole, "episodes"):
        versions = [version for version, count in spans(row) for _ in range(count)]
        assert len(versions) == sum(row["action_mask"]) and versions == sorted(versions)
        assert all(count % MOST == 0 for _, count in spans(row)[:-1])  # more than MOST where no group had ended
        assert spans(row)[-1][0] == row["policy_version"]
        acted = [i for i, flag in enumerate(row["action_mask"]) if flag]
        scores = {version: compute_model_logprobs(models[version], row["tokens"]) for version in set(versions)}
        for i, version in zip(acted, versions, strict=True):
            assert scores[version][i - 1] == pytest.approx(row["logprobs"][i], abs=1e-5)
        seen.add(len(spans(row)))
    assert seen == {1, 2, 3}


def test_a_group_is_trained_on_once_when_its_last_answer_ends(whole: Path) -> None:
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in kept(whole, "episodes"):
        groups.setdefault(row["group"], []).append(row)
    for rows in groups.values():
        assert len(rows) == MEMBERS and len({row["step"] for row in rows}) == 1
        assert max(row["policy_version"] for row in rows) == rows[0]["step"] - 1
    asked = {f"{step + 1}:{place}" for step in range(STEPS) for place in range(8)}
    old = {name for name in asked if int(name.split(":")[0]) <= STEPS - 3}
    assert old <= groups.keys() <= asked
    assert {int(name.split(":")[0]) - groups[name][0]["step"] for name in groups} == {0, -1, -2}


def test_the_metrics_count_what_continues_and_the_ages(whole: Path) -> None:
    rows = kept(whole, "metrics")
    assert rows[0]["partial/resumed_completions"] == 0 < rows[0]["partial/open_completions"]
    assert all(later["partial/resumed_completions"] == row["partial/open_completions"] for row, later in pairwise(rows))
    for row in rows:
        ages = {name: value for name, value in row.items() if name.startswith("staleness/") and name != "staleness/mean"}
        assert sum(ages.values()) == row["tokens/sampled"]
    assert any(row.get("staleness/2") for row in rows)


def test_answers_that_fail_in_a_later_part_have_no_tokens_of_any_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = InterruptibleSampler._join_completion

    def failing(self: InterruptibleSampler, request: Request, completion: Completion) -> Completion:
        begun = (self.partial_by_seed or {}).get(request.seed)
        bad = begun is not None and len(begun.tokens) == 2 and request.seed % 3 == 0
        return plain(self, request, Completion([], [], "error", "the engine fell over") if bad else completion)

    monkeypatch.setattr(InterruptibleSampler, "_join_completion", failing)
    run(tmp_path / "run", **settings(1, eval={"tasks": 0}))
    failed = [row for row in kept(tmp_path / "run", "episodes") if row["stop_reason"] == "failed"]
    assert failed and all("versions" not in row and not sum(row["action_mask"]) and row["verdict"]["score"] is None for row in failed)
    for row in kept(tmp_path / "run", "metrics"):
        ages = {name: value for name, value in row.items() if name.startswith("staleness/") and name != "staleness/mean"}
        assert sum(ages.values()) == row["tokens/sampled"]


def test_answers_that_fit_are_those_of_a_run_without_parts(tmp_path: Path) -> None:
    for name, most in (("parts", 8), ("plain", None)):
        run(tmp_path / name, **settings(most))
    parts, plain = (kept(tmp_path / name, "episodes") for name in ("parts", "plain"))
    assert [row["tokens"] for row in parts] == [row["tokens"] for row in plain]
    assert [row["logprobs"] for row in parts[:16]] == [row["logprobs"] for row in plain[:16]]


def test_a_resumed_run_ends_like_one_that_was_not_interrupted(whole: Path, tmp_path: Path) -> None:
    for step in (1, 3):
        folder = tmp_path / str(step)
        shutil.copytree(whole, folder, symlinks=True)
        for later in range(step + 1, STEPS + 1):
            shutil.rmtree(folder / "checkpoints" / f"step-{later:06}")
        told = run(folder, resume=True, **settings(log={"save_every": 1, "save_total_limit": STEPS + 1}))
        assert "held-out accuracy" in told
        assert_same(folder, whole)


def test_it_works_with_batches_sampled_ahead(tmp_path: Path) -> None:
    ahead = settings()
    ahead["rollout"] = ahead["rollout"] | {"max_staleness": 1}
    for name in ("one", "two"):
        run(tmp_path / name, **ahead)
    assert_same(tmp_path / "one", tmp_path / "two")
    shutil.rmtree(tmp_path / "two" / "checkpoints" / f"step-{STEPS:06}")
    run(tmp_path / "two", resume=True, **ahead)
    assert_same(tmp_path / "one", tmp_path / "two")
    ages = {
        int(key.split("/")[1]) for row in kept(tmp_path / "one", "metrics") for key, value in row.items() if key[10:].isdigit() and value
    }
    assert ages >= {0, 1, 2}


def test_two_processes_continue_the_same_answers(whole: Path, tmp_path: Path, preloaded: Path) -> None:
    done = launched("cpu", recipe_at(tmp_path / "recipe.yaml", **settings()), "--out", str(tmp_path / "two"), preloaded=preloaded)
    assert done.returncode == 0, done.stderr
    ours, theirs = ([{**spans_of(row), "step": row["step"]} for row in kept(folder, "episodes")] for folder in (whole, tmp_path / "two"))
    assert ours == theirs
    assert float((weights(tmp_path / "two") - weights(whole)).norm() / weights(whole).norm()) < 1e-6


def spans_of(row: dict[str, Any]) -> dict[str, Any]:
    return {"group": row["group"], "tokens": row["tokens"], "versions": spans(row)}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"algorithm": {"name": "dapo", "dynamic_sampling_rounds": 3}}, "dapo needs all answers of a step"),
        ({"algorithm": {"name": "remax"}}, "remax needs all answers of a step"),
        (
            {"env": {"name": "guess_number"}, "tokenizer": "chars", "model": {"config": MODEL | {"max_position_embeddings": 256}}},
            "conversations have several turns",
        ),
    ],
)
def test_what_cannot_continue_is_refused(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=f"rollout.partial_rollout_tokens is 2.*{said}"):
        run(tmp_path / "run", **settings(**changes))


def test_what_does_not_fit_it_is_refused_with_the_file() -> None:
    with pytest.raises(ConfigError, match=r"rollout\.partial_rollout_tokens"):
        tiny_run(**settings(), data={})
