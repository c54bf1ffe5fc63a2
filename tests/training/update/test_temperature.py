"""Supervised methods are of the model itself, at temperature 1, whatever temperature answers are sampled at."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from rlvr.algorithms.functions.preferences import select_best
from rlvr.episode import Episode
from rlvr.runs.run_log import read_jsonl
from rlvr.training.train import train
from rlvr.training.update.learner import Learner
from tests.fixtures.tiny import tiny_run

ROLLOUT = {"prompts_per_step": 4, "num_generations": 4, "temperature": 0.8}


def run(folder: Path, **changes: Any) -> dict[str, Any]:
    """One step; its numbers."""
    train(tiny_run(train={"steps": 1, "learning_rate": 1e-3}, **changes), out=folder, console=Console(file=io.StringIO()))
    return next(iter(read_jsonl(folder / "metrics.jsonl")))


def cross_entropy(folder: Path, episodes: Sequence[Episode]) -> tuple[float, float]:
    """The mean over the acted tokens by a plain forward pass of the first checkpoint, and the norm of its gradient."""
    model: Any = AutoModelForCausalLM.from_pretrained(folder / "checkpoints" / "step-000000").eval()
    count, loss = sum(e.num_policy_tokens for e in episodes), torch.zeros(())
    for e in episodes:
        logs = model(input_ids=torch.tensor([e.tokens]), use_cache=False).logits[0].log_softmax(-1)
        loss = loss - sum(logs[i - 1, e.tokens[i]] for i, on in enumerate(e.action_mask) if on) / count
    loss.backward()
    return float(loss.detach()), float(torch.stack([p.grad.norm() for p in model.parameters()]).norm())


@pytest.mark.parametrize(("name", "data"), [("sft", {}), ("best_of_n", None)])
def test_imitation_is_cross_entropy(name: str, data: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Episode] = []
    update = Learner.update_with_diagnostics

    def noted(self: Learner, groups: Any) -> Any:
        seen.extend(group[i] for group in groups if (i := select_best([e.reward for e in group])) is not None)
        return update(self, groups)

    monkeypatch.setattr(Learner, "update_with_diagnostics", noted)
    start = {"sft_warmup": {"max_steps": 60, "batch_size": 32, "learning_rate": 1e-2}} if data is None else {}
    row = run(tmp_path / "a", algorithm={"name": name}, data=data, rollout=ROLLOUT, **start)
    assert seen
    loss, norm = cross_entropy(tmp_path / "a", seen)
    assert row["loss"] == pytest.approx(loss, rel=1e-6) and row["grad_norm"] == pytest.approx(norm, rel=1e-5)
    assert "mismatch_kl" not in row  # the sampler's numbers are of another distribution


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dpo", "kto"])
def test_stored_preferences_do_not_depend_on_the_sampling_temperature(name: str, tmp_path: Path) -> None:
    train(tiny_run(rollout={"prompts_per_step": 8, "num_generations": 8}), out=tmp_path / "source", console=Console(file=io.StringIO()))
    found = []
    for temperature in (0.8, 1.0):
        folder = tmp_path / str(temperature)
        rollout = ROLLOUT | {"temperature": temperature}
        assert run(folder, algorithm={"name": name}, data={"run": str(tmp_path / "source")}, rollout=rollout)["grad_norm"] > 0
        found.append(load_file(folder / "checkpoints" / "last" / "model.safetensors"))
    assert all(torch.equal(found[0][key], found[1][key]) for key in found[0])
