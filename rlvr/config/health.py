"""The section `health` of a configuration: when a run in trouble stops."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rlvr.config.section import Section


class HealthConfig(Section):
    """Bounds of a healthy run. They may differ in a run that is resumed.

    >>> HealthConfig().action
    'stop'
    """

    action: Literal["stop", "warn", "off"] = "stop"
    """What happens beyond a bound: the run stops with exit code 1, or prints a warning once, or nothing is checked."""
    patience: int = Field(default=5, ge=1)
    """The number of steps in a row that must be beyond max_unscored, or without a finite gradient, or beyond max_mismatch_kl."""
    max_unscored: float | None = Field(default=0.5, gt=0, le=1)
    """The largest fraction of a step's answers that may be without a score; null: no bound."""
    max_steps_without_gradient: int | None = Field(default=20, ge=1)
    """The largest number of steps in a row that change nothing although the tasks are not solved; null: no bound."""
    max_reward_drop: float | None = Field(default=0.5, gt=0, le=1)
    """The largest fall of the reward from its best steps, as a fraction of it, unless harder tasks or other scores explain it; null: no bound."""
    max_repetition: float | None = Field(default=0.7, gt=0, le=1)
    """The largest fraction of an answer's four-token sequences that it has said before, unless it was so at first; null: no bound."""
    max_mismatch_kl: float | None = Field(default=0.5, gt=0)
    """The largest divergence per token between the sampler and the trainer, unless it was so at first; null: no bound."""
