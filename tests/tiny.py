"""A training run small enough for tests: a model of a few thousand parameters that learns sums below ten."""

from __future__ import annotations

from typing import Any

from rlvr.config.config import RunConfig, check

MODEL = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}


def tiny_run(**changes: Any) -> RunConfig:
    """A run of two steps of sixteen episodes; `changes` replace whole top-level keys."""
    data: dict[str, Any] = {
        "seed": 0,
        "env": {"name": "tests/worlds.py:Sums", "below": 5},
        "tokenizer": "chars:0123456789+=",
        "model": {"config": MODEL},
        "warmstart": {"steps": 5, "batch_size": 16, "learning_rate": 3e-3},
        "rollout": {"prompts_per_step": 4, "num_generations": 4},
        "algorithm": {"name": "grpo"},
        "train": {"steps": 2, "learning_rate": 1e-3},
        "eval": {"tasks": 10},
        "log": {"save_every": 1},
    }
    return check(data | changes, "tiny")
