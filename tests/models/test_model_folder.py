"""Folders that hold something else than the model they should: said in one message, never trained on as if it were one."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSequenceClassification

from rlvr.config.config import ModelConfig
from rlvr.errors import ConfigError
from rlvr.mdp.tokenizers import CharTokenizer
from rlvr.models.model_loading import load_model
from rlvr.models.reward_model import build_reward_model
from rlvr.training.train import train
from tests.fixtures.tiny import MODEL, tiny_run

TOKENIZER = CharTokenizer("0123456789+=")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    load_model(ModelConfig(config=MODEL), TOKENIZER).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def lose(folder: Path, name: str) -> None:
    """Leave the weights with such a name out."""
    path = folder / "model.safetensors"
    kept = {key: value for key, value in load_file(path).items() if name not in key}
    save_file(kept, path, metadata={"format": "pt"})


def changed(folder: Path, name: str, **values: Any) -> None:
    path = folder / name
    before = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    path.write_text(json.dumps(before | values), "utf-8")


def test_weights_that_the_folder_lacks_are_never_made_up(folder: Path) -> None:
    assert load_model(ModelConfig(path=str(folder))) is not None
    lose(folder, "layers.0.mlp.up_proj")
    with pytest.raises(ConfigError, match=r"1 weights are missing, such as model\.layers\.0\.mlp\.up_proj\.weight"):
        load_model(ModelConfig(path=str(folder)))
    with pytest.raises(ConfigError, match=r"1 weights are missing there, such as model\.layers\.0\.mlp\.up_proj\.weight"):
        build_reward_model(ModelConfig(path=str(folder)), TOKENIZER, seed=0)


def test_a_reward_model_is_no_policy(folder: Path, tmp_path: Path) -> None:
    AutoModelForSequenceClassification.from_pretrained(folder, num_labels=1).save_pretrained(tmp_path / "judge")
    with pytest.raises(ConfigError, match=r"such as lm_head\.weight, .* is it a reward model"):
        load_model(ModelConfig(path=str(tmp_path / "judge")))


@pytest.mark.parametrize("fault", ["shape", "torn", "json"])
def test_a_folder_that_does_not_load_is_one_message(folder: Path, fault: str) -> None:
    if fault == "shape":
        changed(folder, "config.json", intermediate_size=48)
    else:
        path = folder / ("model.safetensors" if fault == "torn" else "config.json")
        path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(ConfigError, match="contains no causal language model"):
        load_model(ModelConfig(path=str(folder)))


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_answers_beyond_the_positions_that_a_model_knows_are_refused(tmp_path: Path, family: str) -> None:
    small = {"model_type": family, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 8}
    long: dict[str, Any] = {"rollout": {"max_new_tokens": 20}, "train": {"steps": 1}, "sft_warmup": None, "eval": {"tasks": 2}}
    with pytest.raises(ConfigError, match=r"may reach 2[0-9] tokens, but this model has 8 positions; set rollout.max_length=8"):
        train(tiny_run(model={"config": small}, **long), out=tmp_path / "a")
    assert not (tmp_path / "a").exists()
    stretched = {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}
    if family == "llama":
        model = {"config": small | {"rope_parameters": stretched, "intermediate_size": 32}}
        train(tiny_run(model=model, **long), out=tmp_path / "a", console=Console(file=io.StringIO()))


def test_an_adapter_is_no_model(folder: Path, tmp_path: Path) -> None:
    changed(folder, "adapter_config.json", base_model_name_or_path="elsewhere")
    with pytest.raises(ConfigError, match="has an adapter without a model"):
        train(tiny_run(model={"path": str(folder)}), out=tmp_path / "a")


def test_a_model_whose_generation_settings_contradict_each_other_can_be_saved(folder: Path, tmp_path: Path) -> None:
    changed(folder, "generation_config.json", temperature=0.6, top_p=0.9, eos_token_id=[0, 1])
    load_model(ModelConfig(path=str(folder))).save_pretrained(tmp_path / "again")
    again = json.loads((tmp_path / "again" / "generation_config.json").read_text("utf-8"))
    assert again["eos_token_id"] == [0, 1] and "temperature" not in again
