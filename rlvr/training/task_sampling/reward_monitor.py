"""Reward monitoring: canary tasks, and an audit verifier on a sample of the answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlvr.config.rollout import RolloutConfig
from rlvr.contracts import Environment
from rlvr.episode import Episode
from rlvr.rollout.rollout_request import RolloutRequest
from rlvr.task import Task
from rlvr.training.task_sampling.audit_monitor import AuditVerifierMonitor
from rlvr.training.task_sampling.canary import CanaryTasks


class CanaryAndAuditMonitor:
    """Combines canary tasks and the audit monitor; either may be inactive.

    >>> import rlvr
    >>> CanaryAndAuditMonitor(rlvr.make_env("arithmetic"), canary_fraction=0.01, max_rewarded_canaries=3, seed=0).pop_metrics()
    {'canary/scored': 0.0, 'canary/rewarded': 0.0, 'canary/rewarded_total': 0.0}
    """

    def __init__(self, environment: Environment, *, canary_fraction: float, max_rewarded_canaries: int, seed: int) -> None:
        self.canaries = CanaryTasks(environment, fraction=canary_fraction, max_rewarded=max_rewarded_canaries, seed=seed)
        self.audit_monitor = AuditVerifierMonitor()

    def make_canary_requests(
        self, tasks: Sequence[tuple[int, Task]], *, step: int, first_group_number: int, num_regular_completions: int
    ) -> list[list[RolloutRequest]]:
        """Make the canary requests of one sampling round."""
        return self.canaries.make_requests(
            tasks, step=step, first_group_number=first_group_number, num_regular_completions=num_regular_completions
        )

    def observe_groups(self, groups: Sequence[Sequence[Episode]], canary_groups: Sequence[Sequence[Episode]]) -> None:
        """Process the episodes of a round, and those of its canaries."""
        self.audit_monitor.observe_groups(groups)
        self.canaries.observe_groups(canary_groups)

    def pop_metrics(self) -> dict[str, float]:
        """Return the metrics of a step, and reset its counters."""
        return self.canaries.pop_metrics() | self.audit_monitor.metrics()

    def raise_if_too_many_rewarded(self, metrics: Mapping[str, Any]) -> None:
        """Raise CheckFailed if too many canaries were rewarded."""
        self.canaries.raise_if_too_many_rewarded(metrics)

    def state_dict(self) -> dict[str, Any]:
        """Return the state for the checkpoint."""
        return {"canaries": self.canaries.state_dict(), "audit": self.audit_monitor.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state from `state_dict`."""
        self.canaries.load_state_dict(state["canaries"])
        self.audit_monitor.load_state_dict(state["audit"])


def build_reward_hacking_monitor(config: RolloutConfig, environment: Environment, *, seed: int) -> CanaryAndAuditMonitor | None:
    """Build the reward monitor of a run; None if none is configured."""
    if not config.canary_fraction and not getattr(environment.verifier, "has_audit_component", False):
        return None
    return CanaryAndAuditMonitor(
        environment, canary_fraction=config.canary_fraction, max_rewarded_canaries=config.max_rewarded_canaries, seed=seed
    )
