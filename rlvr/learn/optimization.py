"""Optimization: how the learner takes its steps."""

from __future__ import annotations

from dataclasses import dataclass

from rlvr.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Optimization:
    """How steps are taken. Batch sizes carry their unit in their name.

    >>> Optimization(learning_rate=1e-3).minibatches_per_step
    1
    """

    learning_rate: float = 1e-6
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    max_grad_norm: float = 1.0
    """0 leaves the gradient as it is."""
    lr_scheduler: str = "constant"
    warmup_steps: int = 0
    minibatches_per_step: int = 1
    """Into how many optimizer steps each pass over the episodes is cut."""
    max_tokens_per_microbatch: int = 4096
    """Speed and memory only; it cannot change the gradient."""
    gradient_checkpointing: bool = False

    def __post_init__(self) -> None:
        for name, low in (("learning_rate", 0), ("weight_decay", 0), ("max_grad_norm", 0), ("warmup_steps", 0)):
            if not getattr(self, name) >= low:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be {low} or more")
        for name in ("minibatches_per_step", "max_tokens_per_microbatch"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be at least 1")
