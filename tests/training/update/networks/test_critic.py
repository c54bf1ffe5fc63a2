"""A critic with weights of its own: what it is asked, what it learns, its own clip and learning rate, and how it is resumed."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from accelerate import Accelerator

from rlvr.config.training import SeparateCriticConfig
from rlvr.errors import ConfigError
from rlvr.registry.plugins import build
from rlvr.training.update.learner import Learner, OptimizationSettings
from rlvr.training.update.networks.critic import Critic
from tests.fixtures.gradients import fixed_groups
from tests.fixtures.learning import tiny_model

OWN = SeparateCriticConfig(learning_rate=1e-2)


def learner_with(critic: SeparateCriticConfig | None, *, rate: float = 0.0, model: Any = None, **settings: Any) -> Learner:
    chosen = {"num_iterations": 1, "beta": 0.0, **settings}
    return Learner(
        model or tiny_model(), build("algorithm", "ppo", **{k: v for k, v in chosen.items() if k != "kl_in"}),
        OptimizationSettings(learning_rate=rate, separate_critic=critic), accelerator=Accelerator(cpu=True), total_steps=40,
    )  # fmt: skip


def weights_of(module: torch.nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten().clone() for p in module.parameters()])


def test_only_the_critic_moves_at_its_own_rate() -> None:
    learner = learner_with(OWN)
    model, critic = learner.policy.model, learner.policy.value
    assert isinstance(critic, Critic)
    before, start = weights_of(model), weights_of(critic)
    losses = [learner.update(fixed_groups())["value_loss"] for _ in range(30)]
    assert torch.equal(weights_of(model), before) and not torch.equal(weights_of(critic), start)
    assert losses[-1] < 0.7 * losses[0]
    assert all(p.grad is None or p.requires_grad for p in critic.parameters())
    assert not critic.body.model.get_output_embeddings().weight.requires_grad and critic.head.weight.requires_grad


def test_the_loss_of_the_critic_does_not_reach_the_policy() -> None:
    """With a shared trunk both losses train it; with weights of its own the policy's gradient is that of vf_coef=0."""
    norms = {}
    for own in (None, OWN):
        for coefficient in (0.0, 5.0):
            learner = learner_with(own, rate=1e-3, vf_coef=coefficient)
            assert learner.policy.value is not None
            head = learner.policy.value.head if isinstance(learner.policy.value, Critic) else learner.policy.value
            torch.manual_seed(1)
            torch.nn.init.normal_(head.weight)
            norms[own is None, coefficient] = learner.update(fixed_groups())["grad_norm"]
    assert norms[False, 0.0] == pytest.approx(norms[False, 5.0], rel=1e-5)
    assert norms[True, 5.0] > 1.5 * norms[True, 0.0]


def test_it_is_clipped_by_its_own_norm() -> None:
    small = Critic(tiny_model(), max_grad_norm=0.5)
    for parameter in small.parameters():
        parameter.grad = torch.ones_like(parameter)
    assert small.clip_gradient(3.0) == 3.0
    assert float(torch.cat([p.grad.flatten() for p in small.parameters() if p.grad is not None]).norm()) == pytest.approx(0.5, rel=1e-3)
    next(small.parameters()).grad = torch.full_like(next(small.parameters()), torch.inf)
    assert small.clip_gradient(3.0) == torch.inf


def test_a_resumed_run_has_the_same_critic() -> None:
    one, two = learner_with(OWN, rate=1e-3), learner_with(OWN, rate=1e-3)
    one.update(fixed_groups())
    two.policy.model.load_state_dict(one.policy.model.state_dict())
    two.load_state_dict(copy.deepcopy(one.state_dict()))
    assert one.policy.value is not None and two.policy.value is not None
    assert torch.equal(weights_of(one.policy.value), weights_of(two.policy.value))
    first, second = one.update(fixed_groups(1)), two.update(fixed_groups(1))
    assert first == second and torch.equal(weights_of(one.policy), weights_of(two.policy))


def test_an_algorithm_without_a_critic_refuses_it() -> None:
    with pytest.raises(ConfigError, match=r"train\.separate_critic is set, but the algorithm has no critic"):
        Learner(
            tiny_model(), build("algorithm", "grpo"), OptimizationSettings(separate_critic=OWN), accelerator=Accelerator(cpu=True), total_steps=1,
        )  # fmt: skip
