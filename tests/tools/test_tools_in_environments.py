"""Every tool that `rlvr list tools` offers, in an environment: a scripted policy calls it, its result arrives, the episode is scored."""

from __future__ import annotations

import json
import sqlite3
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from rlvr.cli.commands import run_command
from rlvr.contracts import SamplingParams
from rlvr.contracts.environment import Environment
from rlvr.episode import Episode
from rlvr.mdp.token_mdp import TokenMDP
from rlvr.mdp.tokenizers import load_tokenizer
from rlvr.registry.plugins import build, list_entries
from rlvr.rollout.rollout import Rollout, RolloutRequest
from rlvr.runs.run_log import read_jsonl
from rlvr.samplers.scripted import ScriptedSampler
from rlvr.task import Task
from rlvr.training.train import train
from rlvr.turns import Call
from tests.fixtures.tiny import MODEL, tiny_run

SERVER = Path(__file__).with_name("mcp_server.py")
PROCESS_SANDBOX = {"name": "process", "trusted": True}


def list_cases(folder: Path) -> dict[str, tuple[dict[str, Any], Call, str]]:
    """The settings of each tool, one call of it, and a part of the result."""
    passages, database = folder / "passages.jsonl", folder / "stock.db"
    passages.write_text(json.dumps({"id": "1", "title": "Lyon", "text": "Lyon lies on the Rhone."}) + "\n", "utf-8")
    with sqlite3.connect(database) as connection:
        connection.execute("create table stock (item text)")
        connection.execute("insert into stock values ('lamp')")
    connection.close()
    return {
        "bash": ({}, Call("", "bash", {"command": "echo $((20 + 22))"}), "42"),
        "calculator": ({}, Call("", "calculator", {"expression": "20+22"}), "42"),
        "files": ({}, Call("", "write_file", {"path": "note.txt", "text": "hello"}), "note.txt"),
        "function": ({}, Call("", "add", {"a": 20, "b": 22}), "42"),
        "mcp": ({"command": [sys.executable, str(SERVER)]}, Call("", "add", {"x": 20, "y": 22}), "42"),
        "python": ({}, Call("", "python", {"code": "print(20 + 22)"}), "42"),
        "search": ({"path": str(passages)}, Call("", "search", {"query": "Rhone"}), "Lyon"),
        "sql": ({"path": str(database)}, Call("", "sql", {"query": "select item from stock"}), "lamp"),
        "submit": ({}, Call("", "submit", {"answer": "7"}), "7"),
    }


def play(environment: Environment, *turns: str) -> Episode:
    tokenizer = load_tokenizer("bytes")
    sampler = ScriptedSampler(answers=list(turns))
    sampler.setup(environment, tokenizer)
    with Rollout(TokenMDP(environment, tokenizer), sampler=sampler) as rollout:
        (found,) = rollout.collect([RolloutRequest(environment.task("train", 0), "g", 0)], SamplingParams(stop_ids=tokenizer.stop_ids))
    return found


def write_call(call: Call, environment: Environment) -> str:
    dialect = TokenMDP(environment, load_tokenizer("bytes")).tool_format.dialect
    specs = [spec for tool in environment.tools for spec in tool.specs()]
    return dialect.format_calls([call], specs)


def test_every_tool_has_a_case(tmp_path: Path) -> None:
    assert sorted(list_cases(tmp_path)) == sorted(entry.name for entry in list_entries("tool") if entry.source == "rlvr")


@pytest.mark.parametrize("name", ["bash", "calculator", "files", "function", "mcp", "python", "search", "sql", "submit"])
def test_a_tool_in_an_environment(name: str, tmp_path: Path) -> None:
    if name == "mcp":
        pytest.importorskip("mcp")
    settings, call, part = list_cases(tmp_path)[name]
    with build(
        "env", "arithmetic", levels=["1+1"], tools=[{"name": name, **settings}], sandbox=PROCESS_SANDBOX, max_new_tokens=400
    ) as environment:
        found = play(environment, write_call(call, environment), str(environment.task("train", 0).reference))
    assert found.verdict is not None and found.is_scored, found.error
    (result,) = found.meta["session"]["step_results"][0]["tool_results"]
    assert result["ok"] and part in result["text"]
    if name == "submit":
        assert found.text == "7"
    else:
        assert found.meta["session"]["step_results"][0]["messages"][0]["content"] == result["text"] and found.reward == 1.0


@pytest.fixture(scope="module")
def mcp_settings() -> list[str]:
    pytest.importorskip("mcp")
    return ["--set", f"tools={json.dumps([{'name': 'mcp', 'command': [sys.executable, str(SERVER)], 'only': ['add', 'die']}])}"]


def test_a_server_in_an_evaluation(mcp_settings: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with build("env", "arithmetic", tools=[{"name": "mcp", "command": [sys.executable, str(SERVER)]}]) as environment:
        call = write_call(Call("", "add", {"x": 20, "y": 22}), environment)
    line = ["eval", "arithmetic", "--policy", "scripted:noop", "--limit", "1", "--out", str(tmp_path / "run"), *mcp_settings]
    assert run_command([*line, "--max-new-tokens", "300", "--sampler", f"answers={json.dumps([call, '3'])}", "--json"]) == 0
    capsys.readouterr()
    (sample,) = read_jsonl(tmp_path / "run" / "episodes.jsonl")
    (result,) = sample["session"]["step_results"][0]["tool_results"]
    assert sample["verdict"]["score"] is not None and result["ok"] and result["text"] == "42"


class Asked(Environment):
    """Add two numbers, by a call of the server."""

    max_turns, max_prompt_tokens, max_new_tokens = 2, 32, 60

    def __init__(self) -> None:
        self.verifier = build("verifier", "exact")
        self.tools = [build("tool", "mcp", command=[sys.executable, str(SERVER)], only=["add"])]

    def task(self, split: str, index: int) -> Task:
        return Task(f"{index}+{index}=", str(2 * index), id=f"asked/{split}/{index}")

    def oracle_turns(self, task: Task) -> Sequence[str | Call]:
        index = int(task.reference) // 2
        return [Call("", "add", {"x": index, "y": index}), str(task.reference)]


@pytest.mark.slow
def test_a_server_in_training(tmp_path: Path) -> None:
    pytest.importorskip("mcp")
    config = tiny_run(
        env={"name": f"{__file__}:Asked"},
        tokenizer="bytes",
        model={"config": MODEL | {"max_position_embeddings": 1024}},
        sft_warmup={"max_steps": 1, "batch_size": 2, "learning_rate": 1e-3},
        rollout={"prompts_per_step": 1, "num_generations": 2},
        train={"steps": 1, "learning_rate": 1e-3},
        eval={"tasks": 1},
    )
    train(config, out=tmp_path / "run")
    rows = list(read_jsonl(tmp_path / "run" / "episodes.jsonl"))
    assert len(rows) == 2 and all(row["verdict"]["score"] is not None for row in rows)
    assert all(row["session"]["tools"][0]["name"] == "add" for row in rows)
