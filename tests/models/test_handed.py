"""The weights as they are handed over one by one: what a model's files have, under the same names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from rlvr.config.config import LoraConfig
from rlvr.models.plain_weights import PlainWeights
from rlvr.training.update import lora_adapter as adapter
from rlvr.training.update.policy_weights import AdaptedModelWeights
from tests.fixtures.families import model_of


@pytest.mark.parametrize("dtype", [None, "bfloat16"])
@pytest.mark.parametrize("family", ["qwen2", "llama", "gpt2", "mixtral", "qwen3_next"])
def test_the_tensors_are_those_of_the_files(family: str, dtype: str | None, tmp_path: Path) -> None:
    """Tied weights once, experts apart, vectors in their own precision."""
    same(PlainWeights(model_of(family)), dtype, tmp_path)


@pytest.mark.parametrize("dtype", [None, "bfloat16"])
def test_an_adapter_is_merged_into_them(dtype: str | None, tmp_path: Path) -> None:
    model = adapter.add_adapter(model_of("qwen2"), LoraConfig(rank=2))
    for p in model.parameters():
        p.data.add_(0.01)
    same(AdaptedModelWeights(model), dtype, tmp_path)


def same(weights: Any, dtype: str | None, folder: Path) -> None:
    weights.save(folder, dtype)
    files = load_file(folder / "model.safetensors")
    handed = dict(weights.iter_tensors(dtype))
    assert {name: (like.dtype, like.shape) for name, like in weights.get_meta_tensors(dtype).items()} == {
        name: (tensor.dtype, tensor.shape) for name, tensor in handed.items()
    }
    assert handed.keys() == files.keys()
    assert all(handed[name].dtype == tensor.dtype and torch.equal(handed[name], tensor) for name, tensor in files.items())
