"""The section `train` of a configuration: the optimizer, the steps and the precision."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator

from rlvr.config.section import Section
from rlvr.errors import suggest

SCHEDULES = ("constant", "constant_with_warmup", "linear", "cosine", "cosine_with_restarts", "polynomial", "inverse_sqrt")
"""The schedules of transformers that need only the warmup and the number of steps."""


class CriticConfig(Section):
    """A critic with weights of its own, for PPO: a copy of the policy as it was at the start.

    >>> CriticConfig(learning_rate=1e-4).max_grad_norm
    1.0
    """

    learning_rate: float = Field(ge=0)
    """Under the schedule of the policy's learning rate."""
    max_grad_norm: float = Field(default=1.0, gt=0, allow_inf_nan=True)  # the critic's gradient is clipped to this norm


class TrainConfig(Section):
    """The optimizer and the number of steps; names as in TRL, batch sizes with their unit.

    >>> TrainConfig(steps=100, learning_rate=1e-3).minibatches_per_step
    1
    """

    steps: int = Field(default=100, ge=1)  # in each, prompts_per_step * num_generations answers are sampled and trained on
    learning_rate: float = Field(default=1e-5, ge=0)  # of AdamW
    weight_decay: float = Field(default=0.0, ge=0)  # of AdamW, for all weights that are trained
    max_grad_norm: float = Field(default=1.0, gt=0, allow_inf_nan=True)  # the gradient is clipped to this norm
    critic: CriticConfig | None = None
    """Unset: the critic is a linear head on the policy's own hidden states, and shares its optimizer and its clipping."""
    lr_scheduler: str = "constant"  # or constant_with_warmup, linear, cosine, cosine_with_restarts, polynomial, inverse_sqrt
    warmup_steps: int = Field(default=0, ge=0)  # of rising learning rate, under every schedule; the first step is at 1 / warmup_steps
    minibatches_per_step: int = Field(default=1, ge=1)  # into how many optimizer steps the answers of a step are divided
    max_tokens_per_microbatch: int | Literal["auto"] = "auto"
    """How many tokens one forward pass takes. Affects only speed and memory; auto: 4096 on a CPU, 16384 on an accelerator."""
    gradient_checkpointing: bool = False  # less memory for activations, and about a third more time
    mixed_precision: Literal["auto", "no", "bf16", "fp16"] = "auto"
    """auto: bf16 on an accelerator that computes in it, for float32 weights; otherwise no."""
    deterministic: bool | None = None
    """Only kernels that give the same bits each time, and rollout.lockstep unless that is set. Unset: on a CPU, where the kernels
    cost nothing, and not on an accelerator."""
    process_timeout_s: float = Field(default=1800.0, gt=0)
    """With several processes: how long one waits for another before the run is aborted."""

    @field_validator("lr_scheduler")
    @classmethod
    def _known(cls, value: str) -> str:
        if value not in SCHEDULES:
            raise ValueError(f"{value!r} is not a schedule; {suggest(value, SCHEDULES)}")
        return value

    @field_validator("max_tokens_per_microbatch", mode="before")
    @classmethod
    def _tokens(cls, value: Any) -> Any:
        if value != "auto" and not (type(value) is int and value >= 1):
            raise ValueError(f"it is {value!r}, and must be a whole number of tokens from 1 on, or auto")
        return value

    @field_validator("mixed_precision", mode="before")
    @classmethod
    def _unquoted(cls, value: Any) -> Any:
        return "no" if value is False else value  # YAML reads an unquoted `no` as false
