"""The section `train` of a configuration: the optimizer, the steps and the precision."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator

from rlvr.config.section import Section
from rlvr.errors import format_suggestion
from rlvr.plugin_files import FILE_PLUGIN_PATTERN

LR_SCHEDULERS = ("constant", "constant_with_warmup", "linear", "cosine", "cosine_with_restarts", "polynomial", "inverse_sqrt")
"""The learning rate schedules of transformers that need only the warmup and the number of steps."""


class SeparateCriticConfig(Section):
    """A critic with weights of its own, for PPO: a copy of the policy as it was at the start.

    >>> SeparateCriticConfig(learning_rate=1e-4).max_grad_norm
    1.0
    """

    learning_rate: float = Field(ge=0)
    """The learning rate, which follows the policy's schedule."""
    max_grad_norm: float = Field(default=1.0, gt=0, allow_inf_nan=True)  # the critic's gradient is clipped to this norm


ENDLESS_SCHEDULERS = ("constant", "constant_with_warmup", "inverse_sqrt")
"""The schedules of the learning rate that do not depend on the number of steps."""


class TrainConfig(Section):
    """The optimizer and the number of steps, with TRL's names.

    >>> TrainConfig(steps=100, learning_rate=1e-3).minibatches_per_step
    1
    """

    steps: int = Field(default=100, ge=1)  # training steps, each on prompts_per_step * num_generations completions
    learning_rate: float = Field(default=1e-5, ge=0)
    """The learning rate of AdamW. `rlvr train FILE`, and a run without a recipe in Python, set 1e-6 if it is not given."""
    weight_decay: float = Field(default=0.0, ge=0)
    """The weight decay of AdamW, for all weights that are trained."""
    max_grad_norm: float = Field(default=1.0, gt=0, allow_inf_nan=True)  # the gradient is clipped to this norm
    separate_critic: SeparateCriticConfig | None = None
    """Train a critic that is a model of its own; unset: a linear head on the policy's hidden states. The head shares the policy's optimizer
    and gradient clipping."""
    lr_scheduler: str = "constant"
    """The learning rate schedule of transformers: constant, constant_with_warmup, linear, cosine, cosine_with_restarts, polynomial or inverse_sqrt;
    or your own, path/to/file.py:function: `f(step, total_steps)` returns the fraction of learning_rate, with step from 0."""
    warmup_steps: int = Field(default=0, ge=0)  # linear warmup, under every schedule; the first step has 1 / warmup_steps of the rate
    minibatches_per_step: int = Field(default=1, ge=1)  # optimizer steps per training step
    max_tokens_per_microbatch: int | Literal["auto"] = "auto"
    """The maximum number of tokens per forward pass; auto: 4096 on a CPU, 16384 on an accelerator. Affects only speed and memory."""
    gradient_checkpointing: bool = False  # less memory for activations, and about a third more time
    mixed_precision: Literal["auto", "no", "bf16", "fp16"] = "auto"
    """The precision of autocast in training; auto: bf16 for float32 weights on an accelerator that supports bf16, otherwise no."""
    deterministic: bool | Literal["auto"] = "auto"
    """Use deterministic kernels; auto: True on a CPU, where this costs nothing, and False on an accelerator. If True, then
    rollout.sync_turns is True too, unless that is set."""
    collective_timeout_s: float = Field(default=1800.0, gt=0)
    """The timeout of collective operations between processes; after it the run is aborted."""

    @field_validator("lr_scheduler")
    @classmethod
    def _check_scheduler(cls, value: str) -> str:
        if value not in LR_SCHEDULERS and not FILE_PLUGIN_PATTERN.fullmatch(value):
            raise ValueError(
                f"{value!r} is not a schedule; {format_suggestion(value, LR_SCHEDULERS)}; or your own: path/to/file.py:function"
            )
        return value

    @field_validator("max_tokens_per_microbatch", mode="before")
    @classmethod
    def _check_token_budget(cls, value: Any) -> Any:
        if value != "auto" and not (type(value) is int and value >= 1):
            raise ValueError(f"it is {value!r}, and must be a whole number of tokens from 1 on, or auto")
        return value

    @field_validator("mixed_precision", mode="before")
    @classmethod
    def _accept_unquoted_no(cls, value: Any) -> Any:
        return "no" if value is False else value  # YAML reads an unquoted `no` as false
