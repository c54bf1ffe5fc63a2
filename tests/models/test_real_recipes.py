"""The recipes with published models: what they say about memory is what the plan computes from the models' shapes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from huggingface_hub import constants

from rlvr.config.config import find_recipes, load_config
from rlvr.config.hub import resolve_model_folder
from rlvr.models.memory_plan import plan_memory

COMMON = {"vocab_size": 151936, "tie_word_embeddings": True}
SHAPES = {
    "Qwen/Qwen2.5-0.5B-Instruct": ("qwen2", 896, 4864, 24, 14, 2),
    "Qwen/Qwen2.5-1.5B-Instruct": ("qwen2", 1536, 8960, 28, 12, 2),
    "Qwen/Qwen3-1.7B": ("qwen3", 2048, 6144, 28, 16, 8),
}
KEYS = ("model_type", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
REAL = [name for name in find_recipes() if "qwen" in name]


@pytest.fixture
def shapes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The published configurations, without weights, in the Hub's cache."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    resolve_model_folder.cache_clear()
    for name, values in SHAPES.items():
        home = tmp_path / f"models--{name.replace('/', '--')}"
        place = home / "snapshots" / ("a" * 40)
        place.mkdir(parents=True)
        (home / "refs").mkdir()
        (home / "refs" / "main").write_text(place.name)
        head = {"head_dim": 128} if "Qwen3" in name else {}
        (place / "config.json").write_text(json.dumps(COMMON | dict(zip(KEYS, values, strict=True)) | head))


def test_there_are_recipes_for_real_models() -> None:
    assert {load_config(name).model.path for name in REAL} == set(SHAPES) and len(REAL) == 6


@pytest.mark.usefixtures("shapes")
@pytest.mark.parametrize("name", REAL)
def test_the_memory_in_the_comment_is_the_planned_one(name: str) -> None:
    told = re.search(r"Not run yet: planned by `rlvr doctor --plan`, ([\d.]+) GB", find_recipes()[name].read_text("utf-8"))
    parts = plan_memory(load_config(name), torch.device("cuda"))
    assert told and float(told[1]) == round(sum(part.bytes for part in parts) / 1e9, 1) < 0.9 * 80
