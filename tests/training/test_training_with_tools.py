"""A model made on the spot learns to call a tool, and what it did is replayed token by token."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from rlvr.config.config import load_config
from rlvr.rollout.replay import replay_recorded_episodes
from rlvr.runs.run_log import read_jsonl
from rlvr.task import Task, make_user_prompt
from rlvr.tools._arithmetic import CalculatorNumber, evaluate
from rlvr.training.batch_sources import MAX_REFERENCE_CHARACTERS, build_reference_meta
from rlvr.training.train import train
from tests.fixtures.tiny import MODEL, tiny_run


def test_a_small_model_learns_to_call(tmp_path: Path) -> None:
    config = tiny_run(
        env={"name": "tests/tools/desks.py:Desks"},
        tokenizer="chars:0123456789 abcdefghijklmnopqrstuvwxyz!_",
        model={"config": MODEL | {"max_position_embeddings": 160}},
        sft_warmup={"max_steps": 60, "batch_size": 16, "learning_rate": 1e-2},
        rollout={"prompts_per_step": 4, "num_generations": 4, "max_new_tokens": 40, "max_length": 160},
        train={"steps": 1, "learning_rate": 1e-3},
    )
    result = train(config, out=tmp_path / "run")
    assert result.accuracy_after is not None and result.accuracy_after > 0.5
    rows = list(read_jsonl(tmp_path / "run" / "episodes.jsonl"))
    called = [row for row in rows if any(heard.get("tool_results", [{}])[0].get("ok") for heard in row["session"]["step_results"])]
    assert len(called) > len(rows) / 2 and all("add" in str(row["session"]["turns"]) for row in called)
    (row,), (times,) = (list(read_jsonl(tmp_path / "run" / name)) for name in ("metrics.jsonl", "timings.jsonl"))
    calls = sum(len(turn.get("calls", ())) for row in rows for turn in row["session"]["turns"])
    assert (
        row["tools/calls_per_episode"] == calls / len(rows)
        and row["turns/mean_per_episode"] == sum(row["turns"] for row in rows) / len(rows) > 1
    )
    assert 1 <= times["rollout/max_open_sessions"] <= 16 and times["tools/total_time"] > 0 and times["time/sampler_idle"] >= 0
    assert all(row["reference"].isdecimal() for row in rows), "the viewer shows it"
    assert (
        build_reference_meta(Task(make_user_prompt("?"), {"tests": ["x" * MAX_REFERENCE_CHARACTERS]}, id="t"))
        == {}
        == build_reference_meta(Task(make_user_prompt("?"), None, id="t"))
    )
    report = replay_recorded_episodes(tmp_path / "run")
    assert (report.mismatches, report.num_recorded_sessions) == (0, len(rows))


SHORT = ["sft_warmup.max_steps=2", "train.steps=1", "eval.tasks=4", "rollout.prompts_per_step=4", "log.save_every=1"]


@pytest.mark.parametrize("tools", ["[calculator]", "[]"])
def test_the_recipe_for_agents_runs_with_and_without_its_tool(tools: str, tmp_path: Path) -> None:
    result = train(load_config("agent_quickstart", [*SHORT, f"env.tools={tools}"]), out=tmp_path / "run")
    assert result.accuracy_after is not None
    (row, *_) = read_jsonl(tmp_path / "run" / "episodes.jsonl")
    assert ("session" in row) == (tools != "[]")


@pytest.mark.slow
def test_a_run_with_tools_has_the_same_bits_however_long_they_take(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By default, on a CPU. The second run waits at other calls than the first."""
    taught = [
        "sft_warmup.max_steps=40",
        "sft_warmup.batch_size=16",
        "sft_warmup.learning_rate=5e-3",
        "sft_warmup.target_accuracy=1",
        "env.gold_tool_call_fraction=1",
    ]
    config = load_config("agent_quickstart", [*SHORT, *taught, "train.steps=2"])
    waits = dict.fromkeys(("first", "second"), 0)
    for number, run in enumerate(waits):

        def late(expression: str, *, number: int = number, run: str = run) -> CalculatorNumber:
            waits[run] += 1
            time.sleep(0.03 if waits[run] % 4 == number else 0.0)
            return evaluate(expression)

        monkeypatch.setattr("rlvr.tools.calculator.evaluate", late)
        train(config, out=tmp_path / run)
    first, second = ((tmp_path / run / "checkpoints" / "last" / "model.safetensors").read_bytes() for run in waits)
    assert waits["first"] == waits["second"] > 20 and first == second
    sampled = [[(row["tokens"], row["logprobs"]) for row in read_jsonl(tmp_path / run / "episodes.jsonl")] for run in waits]
    assert sampled[0] == sampled[1]  # without sync_turns, most answers have other last bits here: they were sampled in other batches
