"""Reward monitoring: canary tasks, and an audit verifier on a sample of the answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlvr.config.rollout import RolloutConfig
from rlvr.contracts import Environment
from rlvr.episode import Episode
from rlvr.learn.questions.divergence import Divergence
from rlvr.learn.questions.honeypots import Honeypots
from rlvr.rollout.draws import Draw
from rlvr.task import Task


class Watch:
    """Combines canary tasks and the audit monitor; either may be inactive.

    >>> Watch(environment, share=0.01, most=3, seed=0).figures()                              # doctest: +SKIP
    {'honeypots/asked': 0.0, 'honeypots/paid': 0.0, 'honeypots/paid_so_far': 0.0}
    """

    def __init__(self, environment: Environment, *, share: float, most: int, seed: int) -> None:
        self.honeypots = Honeypots(environment, share=share, most=most, seed=seed)
        self.divergence = Divergence()

    def draws(self, asked: Sequence[tuple[int, Task]], *, step: int, first: int, answers: int) -> list[list[Draw]]:
        """Make the canary requests of one sampling round."""
        return self.honeypots.draws(asked, step=step, first=first, answers=answers)

    def seen(self, groups: Sequence[Sequence[Episode]], opened: Sequence[Sequence[Episode]]) -> None:
        """Process the episodes of a round, and those of its canaries."""
        self.divergence.seen(groups)
        self.honeypots.opened(opened)

    def figures(self) -> dict[str, float]:
        """Return the metrics of a step, and reset its counters."""
        return self.honeypots.figures() | self.divergence.figures()

    def check(self, row: Mapping[str, Any]) -> None:
        """Raise CheckFailed if too many canaries were rewarded."""
        self.honeypots.check(row)

    def state_dict(self) -> dict[str, Any]:
        """Return the state for the checkpoint."""
        return {"honeypots": self.honeypots.state_dict(), "divergence": self.divergence.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state from `state_dict`."""
        self.honeypots.load_state_dict(state["honeypots"])
        self.divergence.load_state_dict(state["divergence"])


def watch_for(config: RolloutConfig, environment: Environment, *, seed: int) -> Watch | None:
    """Build the reward monitor of a run; None if none is configured."""
    if not config.honeypots and not getattr(environment.verifier, "shadows", False):
        return None
    return Watch(environment, share=config.honeypots, most=config.honeypot_limit, seed=seed)
