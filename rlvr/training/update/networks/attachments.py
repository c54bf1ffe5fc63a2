"""Attach optional networks to a policy: the divergence from a teacher, and a separate critic."""

from __future__ import annotations

from typing import Any

from rlvr.contracts.algorithm import Algorithm
from rlvr.training.update.networks.critic import Critic
from rlvr.training.update.networks.teacher_divergence import TeacherDivergence
from rlvr.training.update.optimization import OptimizationSettings
from rlvr.training.update.policy import Policy
from rlvr.training.update.reference import ReferencePolicy


def attach_networks(
    policy: Policy, teacher: ReferencePolicy | None, algorithm: Algorithm, optimization: OptimizationSettings
) -> Critic | None:
    """Attach the networks that the algorithm and the settings require; return the separate critic, if there is one."""
    if algorithm.traits.divergence_kind and teacher is not None:
        policy.divergence = TeacherDivergence(teacher, algorithm.traits.divergence_kind).check_compatible(policy)
    if optimization.separate_critic is None:
        return None
    critic = Critic(policy.model, max_grad_norm=optimization.separate_critic.max_grad_norm)
    policy.value = critic
    return critic


def build_parameter_groups(policy: Policy, optimization: OptimizationSettings) -> list[Any]:
    """Build the optimizer's parameter groups; a separate critic has its own learning rate."""
    trained = [p for p in policy.parameters() if p.requires_grad]
    if optimization.separate_critic is None or policy.value is None:
        return trained
    own = {id(p) for p in policy.value.parameters()}
    both: tuple[list[Any], list[Any]] = [p for p in trained if id(p) not in own], [p for p in trained if id(p) in own]
    return [{"params": both[0]}, {"params": both[1], "lr": optimization.separate_critic.learning_rate}]
