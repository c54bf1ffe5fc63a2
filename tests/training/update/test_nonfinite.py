"""A gradient, a loss or a KL that is not finite: the step moves nothing and says so, and the run goes on."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from rich.console import Console

from rlvr.algorithms.base.policy_gradient import PolicyGradient
from rlvr.config.config import ModelConfig
from rlvr.mdp.tokenizers import load_tokenizer
from rlvr.models.reward_model import build_reward_model
from rlvr.registry.plugins import build
from rlvr.runs.run_log import read_jsonl
from rlvr.training.train import train
from rlvr.training.update.learner import Learner, OptimizationSettings
from rlvr.training.update.reward_model_trainer import RewardModelTrainer
from tests.fixtures.learning import tiny_model
from tests.fixtures.tiny import MODEL, tiny_run
from tests.training.update.test_learner import group, learner, weights


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """In the second step either the gradient overflows, or the trainer's own log-probabilities do."""
    losses, calls = PolicyGradient.compute_token_losses, [0]

    def spoilt(self: Any, inputs: Any) -> Any:
        calls[0] += 1
        if calls[0] != 2:
            return losses(self, inputs)
        if request.param == "scores":
            return losses(self, replace(inputs, logprobs=inputs.logprobs * math.nan))
        inputs.logprobs.register_hook(lambda gradient: gradient * math.inf)
        return losses(self, inputs)

    monkeypatch.setattr(PolicyGradient, "compute_token_losses", spoilt)


@pytest.mark.usefixtures("broken")
@pytest.mark.parametrize("broken", ["gradient", "scores"], indirect=True)
def test_one_step_that_is_not_finite_does_not_end_the_run(tmp_path: Path) -> None:
    screen = io.StringIO()
    algorithm = {"name": "grpo", "beta": 0.1, "kl_target": 0.01, "kl_horizon": 100, "entropy_coef": 0.01}
    changes = {"algorithm": algorithm, "train": {"steps": 4, "learning_rate": 1e-2, "lr_scheduler": "linear"}, "log": {"save_every": 1}}
    train(tiny_run(**changes), out=tmp_path / "a", console=Console(file=screen, width=200))
    rows = [row for row in read_jsonl(tmp_path / "a" / "metrics.jsonl") if "loss" in row]
    assert [row["step/nonfinite_minibatches"] for row in rows] == [0, 1, 0, 0] and [row["optimizer_steps"] for row in rows] == [1, 0, 1, 1]
    assert "was not finite" in screen.getvalue()
    assert all(row["grad_norm"] > 0 and "policy_loss" in row and "kl" in row for row in rows if not row["step/nonfinite_minibatches"])
    assert all(math.isfinite(row["beta"]) for row in rows) and rows[-1]["beta"] != rows[1]["beta"]
    rates = [row["learning_rate"] for row in rows]
    assert rates[0] > rates[1] == rates[2] > rates[3], "a step that moved nothing moves no schedule"


def test_means_are_over_the_steps_that_moved() -> None:
    whole, halved = learner(), learner(parts=2)
    descend, calls = halved._backward_and_step, [0]

    def spoilt(rows: Any, chosen: Any, loss_of: Any, **kwargs: Any) -> tuple[float, float]:
        calls[0] += 1
        factor = math.nan if calls[0] == 1 else 1.0
        return descend(rows, chosen, lambda *batch: loss_of(*batch) * factor, **kwargs)

    halved._backward_and_step = spoilt  # type: ignore[method-assign, assignment]
    data = [group([1.0, 0.0, 1.0, 0.0], f"g{k}") for k in range(2)]
    metrics = halved.update(data)
    assert (metrics["step/nonfinite_minibatches"], metrics["optimizer_steps"]) == (1, 1) and metrics["grad_norm"] > 0
    assert whole.update(data).keys() >= metrics.keys()


def test_what_is_not_finite_is_left_out_of_the_record_too() -> None:
    subject = learner("rloo")
    with torch.no_grad():
        subject.policy.model.lm_head.weight[0, 0] = float("nan")
    learned = subject.update_with_diagnostics([group([1.0, 0.0, 0.5])])
    assert learned.metrics["step/nonfinite_minibatches"] == 1 and "kl" not in learned.metrics
    json.dumps([learned.metrics, learned.advantages, learned.log_ratios], allow_nan=False)
    assert learned.advantages == [[[], [], []]] and learned.log_ratios == [[None, None, None]]


def test_a_reward_model_goes_on_too() -> None:
    model = build_reward_model(ModelConfig(config=MODEL), load_tokenizer("chars:0123456789+="), 0)
    subject = RewardModelTrainer(model, OptimizationSettings(learning_rate=1e-2), total_steps=3, device="cpu")
    hook = next(subject.scorer.parameters()).register_hook(lambda gradient: gradient * math.inf)
    rows = [subject.train_on_pairs([([5, 6], [5, 7], 0.0)])]
    hook.remove()
    rows.append(subject.train_on_pairs([([5, 6], [5, 7], 0.0)]))
    json.dumps(rows, allow_nan=False)
    assert [row["step/nonfinite_minibatches"] for row in rows] == [1, 0] and rows[1]["grad_norm"] > 0


# ---- a scaled loss (fp16)


@pytest.fixture
def scaled() -> Iterator[Accelerator]:
    """What accelerate makes of mixed_precision=fp16 on a GPU, with a scale of the loss that overflows at first."""
    AcceleratorState._reset_state(reset_partial_state=True)
    yield with_scale(2.0**30)
    AcceleratorState._reset_state(reset_partial_state=True)


def with_scale(scale: float) -> Accelerator:
    accelerator = Accelerator(cpu=True)
    accelerator.native_amp, accelerator.state._mixed_precision = True, "fp16"
    accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    return accelerator


def scale_of(accelerator: Accelerator) -> float:
    assert accelerator.scaler is not None
    return float(accelerator.scaler.get_scale())


def learner_with(accelerator: Accelerator, name: str = "grpo") -> Learner:
    optimization = OptimizationSettings(learning_rate=1e-2, lr_scheduler="linear")
    return Learner(tiny_model(), build("algorithm", name), optimization, accelerator=accelerator, total_steps=100, max_new_tokens=4)


def test_a_loss_that_was_scaled_too_far_is_scaled_less(scaled: Accelerator) -> None:
    subject, data = learner_with(scaled), [group([1.0, 0.0, 1.0, 0.0])]
    found: list[dict[str, float]] = []
    before = weights(subject)
    while len(found) < 30 and (not found or found[-1]["step/nonfinite_minibatches"]):
        scale = scale_of(scaled)
        found.append(subject.update(data))
        if found[-1]["step/nonfinite_minibatches"]:
            assert scale_of(scaled) == scale / 2 and torch.equal(weights(subject), before)
    assert 1 < len(found) < 30 and not torch.equal(weights(subject), before)
    rates = [row["learning_rate"] for row in found]
    assert len(set(rates)) == 1 and subject.update(data)["learning_rate"] < rates[0]


def test_the_scale_survives_a_resume_and_an_older_checkpoint_has_none(scaled: Accelerator) -> None:
    subject, data = learner_with(scaled), [group([1.0, 0.0, 1.0, 0.0])]
    for _ in range(2):
        subject.update(data)
    held = subject.state_dict()
    assert held["scaler"]["scale"] == 2.0**28
    AcceleratorState._reset_state(reset_partial_state=True)
    again = with_scale(2.0**16)
    second = learner_with(again)
    second.load_state_dict({name: value for name, value in held.items() if name != "scaler"})
    assert scale_of(again) == 2.0**16
    second.load_state_dict(held)
    assert scale_of(again) == 2.0**28
    second.load_state_dict({**held, "scaler": None})
    assert scale_of(again) == 2.0**28
