"""What reads the prompts of tasks and the records of sessions, where an agent plays."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import rlvr
from rlvr.config.config import validate_config
from rlvr.errors import ConfigError
from rlvr.gateway.agents import AgentClient
from rlvr.integrations.texts import TextConversationFactory
from rlvr.mdp.token_mdp import TokenMDP
from rlvr.mdp.transcript import load_messages_after_prompt
from rlvr.rollout.replay import replay_recorded_episodes
from rlvr.serve.session_host import SessionHost
from rlvr.task import Task
from rlvr.training.train import train

AGENT = """
async def ask(client, task):
    system = {"role": "system", "content": "0000"}
    reply = await client.chat([system, {"role": "user", "content": task.question}])
    await client.chat([{"role": "user", "content": "1+1="}], max_tokens=2)
    last = await client.chat([system, {"role": "user", "content": task.question}, reply, {"role": "user", "content": "+"}])
    return last["content"]
"""


async def ask(client: AgentClient, task: Task) -> None:
    raise AssertionError("no agent is to be started")


def test_a_preview_starts_no_agent() -> None:
    env = rlvr.make_env("agent", env="arithmetic", function=ask)
    mdp = TokenMDP(env, rlvr.load_tokenizer("bytes"))
    assert len(mdp.preview_prompt(env.task("train", 0)).tokens) > 3
    env.close()


def test_what_carries_no_conversations_of_agents_says_so() -> None:
    env = rlvr.make_env("agent", env="arithmetic", function=ask)
    with pytest.raises(ConfigError, match="an agent sends whole conversations"):
        TextConversationFactory(env)
    with pytest.raises(ConfigError, match="played is played by an agent"):
        SessionHost({"played": env})
    env.close()


def test_a_run_is_logged_replayed_resumed_and_read_as_data(tmp_path: Path) -> None:
    (tmp_path / "ask.py").write_text(AGENT, "utf-8")
    data: dict[str, Any] = {
        "env": {"name": "agent", "env": "arithmetic", "function": f"{tmp_path}/ask.py:ask"},
        "tokenizer": "chars:0123456789+=",
        "model": {"config": {"model_type": "llama", "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 64}},
        "rollout": {"prompts_per_step": 2, "num_generations": 4, "max_new_tokens": 12, "max_turn_tokens": 4, "max_length": 64},
        "train": {"steps": 2, "learning_rate": 1e-3},
        "eval": {"tasks": 2},
        "log": {"save_every": 1},
    }  # fmt: skip
    quiet = Console(quiet=True)
    train(validate_config(data, "agent"), out=tmp_path / "run", console=quiet)
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    for row in rows:
        assert row["tokens/sampled"] == row["tokens/trained"] + row["tokens/masked"] + row["tokens/dropped"] > 0
        assert abs(row.get("mismatch_kl", 0.0)) < 1e-9
    episodes = [json.loads(line) for line in (tmp_path / "run" / "episodes.jsonl").read_text().splitlines()]
    assert any("segments" in episode for episode in episodes)
    assert replay_recorded_episodes(tmp_path / "run").mismatches == 0
    train(validate_config(data | {"train": {"steps": 3, "learning_rate": 1e-3}}, "agent"), out=tmp_path / "run", resume=True, console=quiet)
    stored = dict(data)
    stored |= {
        "data": {"run": str(tmp_path / "run")},
        "algorithm": {"name": "best_of_n", "score_threshold": -1.0},
        "train": {"steps": 1, "learning_rate": 1e-3},
    }
    train(validate_config(stored, "stored"), out=tmp_path / "stored", console=quiet)
    messages = load_messages_after_prompt(episodes[0]["session"])
    assert messages is not None and messages[-1]["role"] == "assistant" and messages[0]["role"] in ("system", "user")
