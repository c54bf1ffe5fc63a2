"""The memory arithmetic of `rlvr doctor --plan`, against tensors that are counted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from rlvr.cli.commands import run_command
from rlvr.config.config import load_config
from rlvr.mdp.tokenizers import load_tokenizer
from rlvr.models.memory_plan import estimate_activation_bytes, plan_memory
from rlvr.models.model_loading import load_model
from tests.fixtures.tiny import tiny_run

TOKENS = 512


def kept(family: str, layers: int, autocast: bool) -> tuple[float, object]:
    """The bytes that a forward pass keeps for the backward pass, without weights and their copies in 16 bits."""
    shape = AutoConfig.for_model(
        family, vocab_size=50, hidden_size=64, intermediate_size=192, num_hidden_layers=layers, num_attention_heads=4,
        num_key_value_heads=4, head_dim=16, max_position_embeddings=TOKENS,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_config(shape)
    seen: dict[int, tuple[int, torch.Tensor]] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.nbytes() % TOKENS == 0 and TOKENS in tensor.shape:
            seen[storage.data_ptr()] = storage.nbytes(), tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda x: x), torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        model.model(input_ids=torch.arange(TOKENS)[None] % 50, use_cache=False)
    return float(sum(size for size, _ in seen.values())), model


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("autocast", [False, True])
def test_activations_are_those_of_counted_tensors(family: str, autocast: bool) -> None:
    (three, deep), (two, shallow) = kept(family, 3, autocast), kept(family, 2, autocast)
    size = 2 if autocast else 4
    said = estimate_activation_bytes(deep, TOKENS, 4, size, checkpointing=False) - estimate_activation_bytes(
        shallow, TOKENS, 4, size, checkpointing=False
    )
    assert said == pytest.approx(three - two, rel=0.15)


def test_weights_and_optimizer_are_those_of_a_learner() -> None:
    parts = {part.name: part.bytes for part in plan_memory(tiny_run(), torch.device("cpu"))}
    model = load_model(tiny_run().model, load_tokenizer(str(tiny_run().tokenizer)))
    optimizer = torch.optim.AdamW(model.parameters())
    sum(p.sum() for p in model.parameters()).backward()
    optimizer.step()
    moments = [x for entry in optimizer.state.values() for x in entry.values() if x.ndim]
    assert parts["weights"] == parts["gradients"] == sum(p.numel() * 4 for p in model.parameters())
    assert parts["optimizer"] == sum(x.numel() * 4 for x in moments)


def test_sharding_divides_and_a_reference_adds() -> None:
    cuda = torch.device("cuda")
    one = {part.name: part.bytes for part in plan_memory(tiny_run(), cuda)}
    eight = {part.name: part.bytes for part in plan_memory(tiny_run(), cuda, processes=8, sharded=True, frozen_models=("reference",))}
    assert eight["weights"] == one["weights"] / 8 and eight["optimizer"] == one["optimizer"] / 8
    assert eight["reference"] == one["weights"] / 8 and "reference" not in one
    assert one["cast weights"] == one["weights"] / 2  # mixed bf16
    assert "cast weights" not in eight and "gathered weights" not in one


RECIPE = """
env: copy_reverse
tokenizer: chars
model: {config: {model_type: qwen3, hidden_size: 4096, intermediate_size: 12288, num_hidden_layers: 36, num_attention_heads: 32,
    num_key_value_heads: 8, head_dim: 128, vocab_size: 151936, tie_word_embeddings: false}}
rollout: {max_new_tokens: 4096, sampler: vllm}
"""


def test_a_model_of_8b_does_not_fit_on_one_card_and_does_on_eight(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run.yaml").write_text(RECIPE)
    command = ["doctor", "--plan", str(tmp_path / "run.yaml"), "--memory", "141", "--json"]
    assert run_command(command) == 1
    alone = json.loads(capsys.readouterr().out)
    weights = next(part["bytes"] for part in alone["parts"] if part["name"] == "weights")
    assert weights == pytest.approx(4 * 8.19e9, rel=0.01) and "it does not fit" in alone["advice"]
    assert alone["parts"][0]["bytes"] == max(part["bytes"] for part in alone["parts"])
    assert run_command([*command, "--gpus", "0"]) == 2
    capsys.readouterr()
    (tmp_path / "run.yaml").write_text(RECIPE + "train: {gradient_checkpointing: true}\n")
    assert run_command([*command, "--gpus", "8"]) == 0 and "it fits" in capsys.readouterr().out


def test_an_engine_that_sleeps_during_the_update_must_fit_while_it_samples(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """4 GB of weights and 8 GB of moments stay; the engine takes its fraction of the card."""
    recipe = RECIPE.replace("num_hidden_layers: 36", "num_hidden_layers: 1").replace("vocab_size: 151936", "vocab_size: 100000")
    codes = {}
    for fraction in (0.2, 0.9):
        (tmp_path / "run.yaml").write_text(recipe.replace("sampler: vllm", f"sampler: {{name: vllm, memory_fraction: {fraction}}}"))
        codes[fraction] = run_command(["doctor", "--plan", str(tmp_path / "run.yaml"), "--memory", "141", "--json"])
        words = json.loads(capsys.readouterr().out)["advice"]
        assert ("while the engine samples: it does not fit" in words) == (fraction == 0.9), words
    assert codes == {0.2: 0, 0.9: 1}


def test_sharded_weights_are_gathered_layer_by_layer(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(RECIPE)
    plans = {}
    for exact in (False, True):
        config = load_config(tmp_path / "run.yaml", [f"model.fp32_head={exact}"])
        plans[exact] = {part.name: part.bytes for part in plan_memory(config, torch.device("cuda"), processes=8, sharded=True)}
    layer = 4096 * (2 * 4096 + 2 * 1024 + 3 * 12288) + 2 * 4096 + 2 * 128
    rest = 2 * 151936 * 4096 + 4096
    assert plans[False]["gathered weights"] == 10 * layer + 2 * rest
    assert plans[True]["gathered weights"] == 10 * layer + 4 * rest
    assert plans[False]["gathered weights"] < 0.2 * 8 * plans[False]["weights"]
