"""Attach to a policy what is computed beside it: the divergence from a teacher, and a critic of its own. Most runs have neither."""

from __future__ import annotations

from typing import Any

from rlvr.contracts.algorithm import Algorithm
from rlvr.learn.update.networks.critic import Critic
from rlvr.learn.update.networks.divergence import Divergence
from rlvr.learn.update.optimization import Optimization
from rlvr.learn.update.policy import Policy
from rlvr.learn.update.reference import Reference


def attach(policy: Policy, teacher: Reference | None, algorithm: Algorithm, optimization: Optimization) -> Critic | None:
    """Give the policy what the algorithm and the settings ask for; return its critic, if that has weights of its own."""
    if algorithm.needs_divergence and teacher is not None:
        policy.divergence = Divergence(teacher, algorithm.needs_divergence).fitted(policy)
    if optimization.critic is None:
        return None
    critic = Critic(policy.model, max_grad_norm=optimization.critic.max_grad_norm)
    policy.value = critic
    return critic


def parameters_of(policy: Policy, optimization: Optimization) -> list[Any]:
    """What the optimizer trains; a critic of its own has its own learning rate."""
    trained = [p for p in policy.parameters() if p.requires_grad]
    if optimization.critic is None or policy.value is None:
        return trained
    own = {id(p) for p in policy.value.parameters()}
    both: tuple[list[Any], list[Any]] = [p for p in trained if id(p) not in own], [p for p in trained if id(p) in own]
    return [{"params": both[0]}, {"params": both[1], "lr": optimization.critic.learning_rate}]
