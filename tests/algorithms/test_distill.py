"""Distillation: the gradient of every form against a dense formula, with another model as the teacher, in any arrangement of the rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from torch import Tensor

from rlvr.episode import Episode, StopReason
from rlvr.errors import ConfigError
from rlvr.models import device_defaults as defaults
from rlvr.registry.plugins import build
from rlvr.training.update.learner import Learner, OptimizationSettings
from tests.fixtures.gradients import apart, fixed_groups, gradient
from tests.fixtures.learning import sample, tiny_model

HEAT = 0.8
FULL = ("reverse_kl", "forward_kl", "jsd")


def learner_with(model: Any, teacher: Any, settings: dict[str, Any], *, budget: int = 8192, **more: Any) -> Learner:
    algorithm = build("algorithm", "distill", **settings)
    return Learner(
        model, algorithm, OptimizationSettings(learning_rate=1e-2, max_tokens_per_microbatch=budget, **more), accelerator=Accelerator(cpu=True),
        total_steps=30, frozen_models={"reference": teacher}, temperature=HEAT,
    )  # fmt: skip


def answers() -> list[list[Episode]]:
    return [[e for e in group if not e.meta] for group in fixed_groups()]


def logs_of(model: Any, e: Episode) -> Tensor:
    """[tokens that the policy chose, vocabulary]"""
    logits = model(input_ids=torch.tensor([e.tokens]), use_cache=False).logits[0] / HEAT
    return logits.log_softmax(-1)[[t - 1 for t, on in enumerate(e.action_mask) if on]]


def dense(model: Any, teacher: Any, kind: str, weight: float) -> Tensor:
    """The gradient of the formula of `rlvr show algorithm distill`, row by row, without a verifier."""
    parts = []
    for e in (e for group in answers() for e in group if e.is_scored):
        p, q = logs_of(model, e), logs_of(teacher, e).detach()
        chosen = torch.tensor([t for t, on in zip(e.tokens, e.action_mask, strict=True) if on])[:, None]
        m = ((p.exp() + q.exp()) / 2).log()
        new, old = p.gather(1, chosen)[:, 0], p.detach().gather(1, chosen)[:, 0]
        parts.append(weight * {
            "sampled": -(new - old).exp() * (q.gather(1, chosen)[:, 0] - old),
            "reverse_kl": (p.exp() * (p - q)).sum(-1),
            "forward_kl": (q.exp() * (q - p)).sum(-1),
            "jsd": ((p.exp() * (p - m)).sum(-1) + (q.exp() * (q - m)).sum(-1)) / 2,
        }[kind])  # fmt: skip
    torch.autograd.backward(torch.cat(parts).mean())
    found = torch.cat([p.grad.flatten() for p in model.parameters()])
    model.zero_grad()
    return found


@pytest.mark.parametrize("budget", [8192, 24])
@pytest.mark.parametrize("kind", ["sampled", *FULL])
def test_the_gradient_is_that_of_the_formula(kind: str, budget: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The teacher is another model with more layers; a tile of the vocabulary's logits has three tokens."""
    monkeypatch.setattr(defaults, "get_device_defaults", lambda device: replace(defaults.CPU_DEFAULTS, max_head_logits=24))
    model, teacher = tiny_model(1, layers=1), tiny_model(2, layers=2, hidden=16)
    expected = dense(model, teacher, kind, 0.7)
    found = gradient(learner_with(model, teacher, {"divergence": kind, "teacher_weight": 0.7}, budget=budget), answers())
    assert apart(found, expected) < 1e-5 and expected.norm() > 1e-3


@pytest.mark.parametrize("kind", ["sampled", "reverse_kl"])
def test_the_verifier_is_added(kind: str) -> None:
    """advantage=grpo: the gradient is the sum of the teacher's and that of GRPO over all tokens."""
    teacher = tiny_model(2, layers=2)

    def of(name: str, **settings: Any) -> Tensor:
        learner = learner_with(tiny_model(1), teacher, {})
        learner = Learner(
            tiny_model(1), build("algorithm", name, **settings), OptimizationSettings(), accelerator=Accelerator(cpu=True), total_steps=1,
            frozen_models={"reference": teacher} if name == "distill" else {}, temperature=HEAT,
        )  # fmt: skip
        return gradient(learner, answers())

    alone = dense(tiny_model(1), teacher, kind, 1.0)
    verified = of("grpo", loss_aggregation="token-mean")
    both = of("distill", divergence=kind, advantage="grpo")
    assert apart(both, alone + verified) < 1e-5 and apart(both, alone) > 0.1


@pytest.mark.parametrize("kind", ["sampled", "reverse_kl"])
def test_several_optimizer_steps_train_on_what_the_teacher_said_at_first(kind: str) -> None:
    model = tiny_model(1)
    learner = learner_with(model, tiny_model(2), {"divergence": kind, "num_iterations": 2}, minibatches_per_step=2)
    metrics = learner.update(answers())
    assert metrics["optimizer_steps"] == 4 and metrics["step/skipped_minibatches"] == 0
    assert ("kl" in metrics) == (kind == "sampled")


def written(number: int, prompt: list[int], said: list[int], logs: list[float]) -> Episode:
    acted = [False] * len(prompt) + [True] * len(said)
    zeros = [0.0] * len(acted)
    return Episode(
        str(number), str(number), [*prompt, *said], acted, [0.0, 0.0, *(min(0.0, x) for x in logs)], zeros, StopReason.TERMINATED
    )


@pytest.mark.parametrize("kind", ["sampled", *FULL])
def test_the_policy_comes_to_write_as_the_teacher_does(kind: str) -> None:
    """The teacher is sure of what it says; no answer is ever scored."""
    teacher, model = tiny_model(2, hidden=16), tiny_model(1)
    with torch.no_grad():
        teacher.get_output_embeddings().weight.mul_(30)
    dice, learner = torch.Generator().manual_seed(0), learner_with(model, teacher, {"divergence": kind})

    def gap() -> float:
        prompts = torch.tensor([[a, b] for a in range(8) for b in range(8)])
        p, q = (m(input_ids=prompts, use_cache=False).logits[:, -1].div(HEAT).log_softmax(-1).detach() for m in (model, teacher))
        return float((p.exp() * (p - q)).sum(-1).mean())

    before = gap()
    for _ in range(30):
        prompts = torch.randint(0, 8, (64, 2), generator=dice).tolist()
        said, logs = sample(model, prompts, 2, dice)
        learner.update([[written(i, *one)] for i, one in enumerate(zip(prompts, said, logs, strict=True))])
    assert gap() < before / 3


def test_what_cannot_be_compared_is_refused() -> None:
    with pytest.raises(ConfigError, match="8 logits and the teacher 9; use"):
        learner_with(tiny_model(1), tiny_model(2, vocabulary=9), {"divergence": "jsd"})
    with pytest.raises(ConfigError, match="is a KL to the teacher already"):
        build("algorithm", "distill", divergence="jsd", beta=0.1)
    with pytest.raises(ConfigError, match="llowed: forward_kl, jsd, reverse_kl, sampled"):
        build("algorithm", "distill", divergence="kl")
    with pytest.raises(ConfigError, match="dynamic_sampling_rounds=1"):
        build("algorithm", "distill", advantage="grpo", dynamic_sampling_rounds=3)
