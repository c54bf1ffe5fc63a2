"""Several environments in one run: their shares, their own verifiers and figures."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from rlvr.envs.mixture import build_cycle
from rlvr.errors import ConfigError
from rlvr.evaluation.evaluate import evaluate
from rlvr.registry.plugins import build
from rlvr.training.held_out import parse_sub_environment
from rlvr.training.train import train
from tests.fixtures.tiny import tiny_run

ENDLESS = {"sums": {"env": "arithmetic", "weight": 3}, "digits": "digit_sum"}


def rows(path: Path, count: int) -> dict[str, Any]:
    path.write_text("".join(json.dumps({"question": f"{path.stem} {n}?", "answer": n}) + "\n" for n in range(count)))
    return {
        "name": "dataset",
        "path": str(path),
        "test": str(path.with_name(f"{path.stem}-held.jsonl")),
        "verifier": "exact",
        "instruction": "",
    }


def two_files(folder: Path) -> dict[str, Any]:
    for name, count in (("long-held", 8), ("short-held", 2)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps({"question": f"{name} {n}", "answer": n}) + "\n" for n in range(count)))
    return {"long": rows(folder / "long.jsonl", 30), "short": {"env": rows(folder / "short.jsonl", 3), "weight": 1}}


def test_tasks_come_in_proportion_to_the_weights() -> None:
    env = build("env", "mixture", envs=ENDLESS)
    tasks = [env.task("train", index) for index in range(400)]
    assert Counter(parse_sub_environment(task.id) for task in tasks) == {"sums": 300, "digits": 100}
    assert len({task.id for task in tasks}) == 400 and env.num_tasks("train") is None and env.sub_environments == ("sums", "digits")
    assert all(env.verifier.verify(task, env.gold(task)).passed for task in tasks[:40])
    assert env.warnings == ["mixture: sums 75%, digits 25%"]


def test_each_task_is_judged_by_its_own_verifier() -> None:
    env = build("env", "mixture", envs={"sums": {"name": "arithmetic", "verifier": "numeric"}, "copy": "copy_reverse"})
    sums, copy = env.task("train", 0), env.task("train", 1)
    assert env.verifier.verify(sums, f"{sums.reference}.0").passed and not env.verifier.verify(copy, f"{copy.reference}.0").passed


def test_finite_environments_begin_again_and_held_out_tasks_come_once(tmp_path: Path) -> None:
    env = build("env", "mixture", envs=two_files(tmp_path))
    tasks = [env.task("train", index) for index in range(env.num_tasks("train"))]
    assert Counter(parse_sub_environment(task.id) for task in tasks) == {"long": 30, "short": 30} and len({task.id for task in tasks}) == 60
    assert Counter(task.question for task in tasks if parse_sub_environment(task.id) == "short") == {f"short {n}?": 10 for n in range(3)}
    held = [env.task("test", index).question for index in range(env.num_tasks("test"))]
    assert len(held) == len(set(held)) == 10 and held[:4] == ["long-held 0", "short-held 0", "long-held 1", "short-held 1"]
    with pytest.raises(ConfigError, match="0 to 9"):
        env.task("test", 10)


def test_a_conversation_keeps_its_own_course() -> None:
    env = build("env", "mixture", envs={"guess": "guess_number", "sums": "arithmetic"})
    guess, sums = env.task("train", 0), env.task("train", 1)
    assert env.max_turns == 7 and env.reply(guess, ["x"]) == "say one number" and env.reply(sums, ["x"]) is None


@pytest.mark.parametrize(("weights", "cycle"), [
    ({"a": 1, "b": 1}, "ab"), ({"a": 2, "b": 1}, "aba"), ({"a": 0.5, "b": 0.25, "c": 0.25}, "abca"), ({"a": 1.0}, "a"),
])  # fmt: skip
def test_the_cycle_is_the_shortest_one(weights: dict[str, float], cycle: str) -> None:
    assert "".join(build_cycle(weights)) == cycle


def test_a_small_weight_is_not_lost() -> None:
    assert Counter(build_cycle({"a": 10_000, "b": 1})) == {"a": 100, "b": 1}


@pytest.mark.parametrize(("envs", "words"), [
    ({}, "it must name environments"), ({"a": {"env": "arithmetic", "weight": -1}}, "weight of 'a' is -1"),
    ({"a": {"env": "arithmetic", "weight": 0}}, "all weights are 0"), ({"a": "arithmetc"}, "did you mean 'arithmetic'"),
    ({"a/b": {"env": "arithmetic"}}, "a name without /"), ({"a": {"env": "arithmetic", "wieght": 2}}, "it must be a name without /"),
])  # fmt: skip
def test_what_cannot_be_mixed_is_refused(envs: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        build("env", "mixture", envs=envs)


def test_an_evaluation_of_a_mixture_has_a_figure_for_each() -> None:
    report = evaluate("mixture", "scripted:gold", settings={"envs": ENDLESS}, tasks=5)
    assert {name: env.mean_score.value for name, env in report.envs.items() if env.mean_score} == {"sums": 1.0, "digits": 1.0}


@pytest.mark.slow
def test_a_run_reports_each_environment(tmp_path: Path) -> None:
    easy, hard = ({"name": "arithmetic", "levels": [level], "verifier": "numeric"} for level in ("1+1", "1-1"))
    envs = {"easy": easy, "hard": {"env": hard, "weight": 3}}
    report = train(tiny_run(env={"name": "mixture", "envs": envs}, tokenizer="chars", sft_warmup=None), out=tmp_path / "run")
    metrics, episodes = (
        [json.loads(line) for line in (tmp_path / "run" / name).read_text().splitlines()] for name in ("metrics.jsonl", "episodes.jsonl")
    )
    for row in metrics:
        for name in envs:
            own = [e["reward"] for e in episodes if e["step"] == row["step"] and parse_sub_environment(e["task_id"]) == name]
            assert row[f"reward/{name}"] == (pytest.approx(sum(own) / len(own)) if own else None)
    assert set(report.scores_by_env) == {"easy", "hard"} and report.interval_after is not None and report.held_out_contaminated == 0
