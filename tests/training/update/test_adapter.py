"""LoRA: only the adapter is trained, its base is the reference, samplers and checkpoints get plain models, and a resume is to the bit."""

from __future__ import annotations

import copy
import io
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator, DistributedType
from rich.console import Console
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from rlvr.config.config import LoraConfig, ModelConfig, load_config
from rlvr.contracts import Request, SamplingParams
from rlvr.errors import ConfigError, MissingExtra
from rlvr.mdp.tokenizers import CharTokenizer
from rlvr.models.batch import TokenRows
from rlvr.models.model_loading import load_model
from rlvr.registry.plugins import build
from rlvr.runs.run_log import read_jsonl
from rlvr.samplers.hf import HFSampler
from rlvr.training.train import train
from rlvr.training.update import lora_adapter as adapter
from rlvr.training.update.learner import Learner, OptimizationSettings
from rlvr.training.update.policy import Policy
from rlvr.training.update.reference import ReferencePolicy
from tests.fixtures.tiny import MODEL, tiny_run
from tests.fixtures.worlds import DIGITS
from tests.training.update.test_learner import group

GPT2 = {"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64}
TOKENS = [[1, 6, 4, 11, 2, 7, 9, 0], [1, 5, 4, 2, 12, 0]]
ROWS = TokenRows(TOKENS, [[False] * 5 + [True] * (len(t) - 5) for t in TOKENS])


def plain(config: dict[str, Any] = MODEL) -> Any:
    return load_model(ModelConfig(config=config), CharTokenizer(DIGITS), seed=3).eval()


def moved(model: Any, settings: LoraConfig | None = None) -> Any:
    """With an adapter that changes a good deal."""
    adapted = adapter.add_adapter(model, settings or LoraConfig(rank=2)).eval()
    torch.manual_seed(5)
    for parameter in adapted.parameters():
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter, std=0.3)
    return adapted


@torch.no_grad()
def scores(model: Any) -> torch.Tensor:
    return Policy(model)(next(ROWS.iter_batches([0, 1], max_tokens=1000))).logprobs


def learner(model: Any, **settings: Any) -> Learner:
    return Learner(
        model, build("algorithm", "grpo", **settings), OptimizationSettings(learning_rate=1e-2), accelerator=Accelerator(cpu=True), total_steps=10,
        max_new_tokens=4,
    )  # fmt: skip


def test_the_adapter_alone_learns() -> None:
    model = adapter.add_adapter(plain(), LoraConfig(rank=2, target_modules=["q_proj", "up_proj"]))
    names = {n.split(".lora_")[0].rpartition(".")[2] for n, p in model.named_parameters() if p.requires_grad}
    assert names == {"q_proj", "up_proj"}
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    subject = learner(model)
    assert sum(p.numel() for g in subject.optimizer.param_groups for p in g["params"]) == 2 * ((32 + 32) + (32 + 64))
    for _ in range(2):  # in the first step B is zero, and A has no gradient yet
        subject.update([group([1.0, 0.0, 1.0, 0.0])])
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, before[name]) != parameter.requires_grad, name
        assert parameter.grad is None


@pytest.mark.parametrize(
    "config", [MODEL, GPT2, MODEL | {"model_type": "qwen2", "tie_word_embeddings": True}], ids=["llama", "gpt2", "tied"]
)
def test_a_merged_model_says_what_the_adapted_one_says(config: dict[str, Any], tmp_path: Path) -> None:
    base = plain(config)
    without = scores(base)
    model = moved(base)
    merged = adapter.merge_adapter(model)
    assert type(merged) is type(base) and float((scores(model) - without).abs().max()) > 0.01
    assert float((scores(merged) - scores(model)).abs().max()) < 1e-5
    merged.save_pretrained(tmp_path)
    assert torch.equal(scores(AutoModelForCausalLM.from_pretrained(tmp_path)), scores(merged))
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data *= -0.5
    assert adapter.merge_adapter(model, merged) is merged and float((scores(merged) - scores(model)).abs().max()) < 1e-5


def test_what_the_adapter_leaves_alone_is_held_once() -> None:
    model = moved(plain(), LoraConfig(rank=2, target_modules=["q_proj"]))
    mine = {p.data_ptr() for p in model.parameters()}
    assert {n for n, p in adapter.merge_adapter(model).named_parameters() if p.data_ptr() not in mine} == {
        "model.layers.0.self_attn.q_proj.weight"
    }


def test_the_reference_is_the_base_and_nothing_is_copied() -> None:
    base = plain()
    frozen = copy.deepcopy(base)
    model = moved(base)
    held = ReferencePolicy.from_model(model, temperature=1.0)
    batch = next(ROWS.iter_batches([0, 1], max_tokens=1000))
    assert torch.equal(held.compute_logprobs(batch), ReferencePolicy.from_model(frozen, temperature=1.0).compute_logprobs(batch))
    assert {id(p) for p in held.policy.parameters()} == {id(p) for p in model.parameters()} and held.state_dict() is None
    subject = learner(model, beta=0.1)
    metrics = subject.update([group([1.0, 0.0])])
    assert metrics["kl"] > 0
    with pytest.raises(ConfigError, match="ref_model_sync_steps=0"):
        learner(moved(plain()), beta=0.1, ref_model_sync_steps=1)


def test_the_sampler_says_how_likely_the_trainer_finds_it() -> None:
    model = moved(plain())
    subject = learner(model)
    sampler = HFSampler()
    sampler.update_from_model(subject.gather_model(), 0)
    requests = [Request([1, 6, 4, 11, 2], 6, seed) for seed in range(8)]
    said = sampler.sample(requests, SamplingParams())
    tokens = [[1, 6, 4, 11, 2, *c.tokens] for c in said]
    rows = TokenRows(tokens, [[False] * 5 + [True] * (len(t) - 5) for t in tokens])
    ours = Policy(model)(next(rows.iter_batches(range(8), max_tokens=1000))).logprobs.detach()
    assert torch.allclose(ours, torch.tensor([x for c in said for x in c.logprobs]), atol=1e-5)
    held = sampler.model
    subject.update([group([1.0, 0.0, 1.0, 0.0])])
    sampler.update_from_model(subject.gather_model(), 1)
    assert sampler.model is held and float((scores(held) - scores(model)).abs().max()) < 1e-5


LORA: dict[str, Any] = {
    "model": {"config": MODEL, "lora": {"rank": 4, "target_modules": ["q_proj", "v_proj", "down_proj"]}},
    "train": {"steps": 4, "learning_rate": 3e-2, "minibatches_per_step": 2},
    "log": {"save_every": 2},
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "ahead"),
    [({"name": "grpo", "beta": 0.05}, 0), ({"name": "ppo"}, 0), ({"name": "grpo", "beta": 0.05}, 1)],
    ids=["grpo", "ppo", "ahead"],
)
def test_a_run_with_an_adapter_resumes_to_the_bit(tmp_path: Path, algorithm: dict[str, Any], ahead: int) -> None:
    rollout = {"prompts_per_step": 4, "num_generations": 4, "max_staleness": ahead}
    config, whole, cut = tiny_run(**LORA, algorithm=algorithm, rollout=rollout), tmp_path / "whole", tmp_path / "cut"
    train(config, out=whole, console=Console(file=io.StringIO()))
    shutil.copytree(whole, cut, symlinks=True)
    shutil.rmtree(cut / "checkpoints" / "step-000004")
    (cut / "report.json").unlink()
    told = io.StringIO()
    train(config, out=cut, resume=True, console=Console(file=told, width=200))
    assert "rank 4, alpha 8, next to q_proj, v_proj, down_proj" in told.getvalue()
    for name in ("metrics.jsonl", "episodes.jsonl"):
        assert (whole / name).read_text() == (cut / name).read_text()
    ends = [torch.load(home / "checkpoints" / "last" / "learner.pt", weights_only=True)["adapter"] for home in (whole, cut)]
    assert ends[0].keys() == ends[1].keys() and all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])
    base, last = (load_file(whole / place / "model.safetensors") for place in ("base", "checkpoints/last"))
    changed = {name.split(".")[-2] for name in base if not torch.equal(base[name], last[name])}
    assert changed == {"q_proj", "v_proj", "down_proj"} and base.keys() == last.keys() and not (whole / "reference").exists()
    rows = list(read_jsonl(whole / "metrics.jsonl"))
    apart = [row["sampling/logp_difference_max"] for row in rows]
    assert apart[0] < 1e-5 and (max(apart) > 1e-3 if ahead else max(apart) < 1e-5)  # the adapter of the step before sampled
    assert "kl" not in rows[-1] or rows[-1]["kl"] > 0


def test_each_checkpoint_has_the_adapter_as_peft_reads_it(tmp_path: Path) -> None:
    import peft

    run = tmp_path / "run"
    train(tiny_run(model={"config": MODEL, "lora": {"rank": 2}}, log={"save_every": 1, "save_total_limit": None}), out=run)
    assert [place.name for place in sorted((run / "checkpoints").glob("step-*"))] == [f"step-{step:06d}" for step in range(3)]
    last = run / "checkpoints" / "last"
    together = peft.PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(run / "base"), str(last / "adapter")).eval()
    merged = AutoModelForCausalLM.from_pretrained(last).eval()
    ids = torch.tensor([TOKENS[0]])
    with torch.no_grad():
        assert torch.allclose(together(ids).logits, merged(ids).logits, atol=1e-5)
        assert not torch.allclose(together(ids).logits, AutoModelForCausalLM.from_pretrained(run / "base")(ids).logits, atol=1e-5)


def test_what_cannot_be_is_said_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"model.lora.rank: input should be greater than or equal to 1, got 0"):
        load_config("quickstart", ["model.lora.rank=0"])
    with pytest.raises(ConfigError, match=r"no key 'model.lora.rang'; did you mean 'model.lora.rank'"):
        load_config("quickstart", ["model.lora.rang=8"])
    with pytest.raises(ConfigError, match=r"'q_prj', which is not a linear layer .*; did you mean 'q_proj'\? Allowed: down_proj"):
        wrong = {"config": MODEL, "lora": {"rank": 1, "target_modules": ["v_proj", "q_prj"]}}
        train(tiny_run(model=wrong), out=tmp_path / "a", console=Console(file=io.StringIO()))
    assert not (tmp_path / "a").exists()
    with pytest.raises(ConfigError, match="'lm_head', which is not"):
        adapter.check_lora_config(plain(), LoraConfig(rank=1, target_modules=["lm_head"]))
    monkeypatch.setitem(__import__("sys").modules, "peft", None)
    with pytest.raises(MissingExtra, match=r"pip install -e '.*\[lora\]'"):
        adapter.check_lora_config(plain(), LoraConfig(rank=1))


def test_under_deepspeed_there_is_no_adapter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Accelerator, "distributed_type", DistributedType.DEEPSPEED)
    monkeypatch.setattr(
        "rlvr.training.processes.configure_deepspeed", lambda accelerator, config: None
    )  # there is no plugin in this process
    with pytest.raises(ConfigError, match=r"under DeepSpeed weights cannot have an adapter; launch with fsdp2\.yaml"):
        train(tiny_run(**LORA), out=tmp_path / "a", console=Console(file=io.StringIO()))


@pytest.mark.slow
def test_an_adapter_learns_from_a_stored_run(tmp_path: Path) -> None:
    train(tiny_run(), out=tmp_path / "first", console=Console(file=io.StringIO()))
    config = load_config(
        "dpo", [f"data.run={tmp_path / 'first'}", "model.lora.rank=2", "train.steps=1", "train.warmup_steps=0", "eval.tasks=5"]
    )
    assert config.model.path == str(tmp_path / "first" / "checkpoints" / "last") and config.model.lora == LoraConfig(rank=2)
    train(config, out=tmp_path / "second", console=Console(file=io.StringIO()))
    base, last = (load_file(tmp_path / "second" / place / "model.safetensors") for place in ("base", "checkpoints/last"))
    assert torch.equal(base["lm_head.weight"], last["lm_head.weight"])
    assert not torch.equal(base["model.layers.0.mlp.up_proj.weight"], last["model.layers.0.mlp.up_proj.weight"])
