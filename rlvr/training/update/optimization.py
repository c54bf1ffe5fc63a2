"""Settings of the optimizer: learning rate, schedule, clipping, batch sizes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim.lr_scheduler import LambdaLR
from transformers import get_scheduler

from rlvr.config.training import SeparateCriticConfig
from rlvr.contracts.algorithm import Algorithm
from rlvr.errors import ConfigError
from rlvr.models.device_defaults import TokenBudget
from rlvr.plugin_files import FILE_PLUGIN_PATTERN
from rlvr.registry.plugins import load_function_from_file


@dataclass(frozen=True, slots=True)
class OptimizationSettings:
    """The settings of the optimizer.

    >>> OptimizationSettings(learning_rate=1e-3).minibatches_per_step
    1
    """

    learning_rate: float = 1e-6
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    max_grad_norm: float = 1.0
    """0: no clipping."""
    lr_scheduler: str = "constant"
    warmup_steps: int = 0
    """The number of linear warmup steps, under every schedule; the learning rate is above 0 from the first step."""
    separate_critic: SeparateCriticConfig | None = None
    """The settings of a separate critic; None: a linear head on the policy's hidden states."""
    minibatches_per_step: int = 1
    """The number of optimizer steps per pass over the episodes."""
    max_tokens_per_microbatch: TokenBudget = "auto"
    """Affects only speed and memory, not the gradient; auto: by device."""
    gradient_checkpointing: bool = False

    def __post_init__(self) -> None:
        for name, low in (("learning_rate", 0), ("weight_decay", 0), ("max_grad_norm", 0), ("warmup_steps", 0)):
            if not getattr(self, name) >= low:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be {low} or more")
        for name in ("minibatches_per_step", "max_tokens_per_microbatch"):
            if getattr(self, name) != "auto" and getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be at least 1")

    def build_optimizer(self, parameters: Iterable[Any], total_steps: int, *, fused: bool = False) -> tuple[torch.optim.AdamW, LambdaLR]:
        """Build AdamW and the learning rate schedule, one of transformers or the user's, with a warmup that does not start at 0."""
        optimizer = torch.optim.AdamW(
            parameters, lr=self.learning_rate, betas=self.betas, weight_decay=self.weight_decay, fused=fused or None
        )
        ramp = self.warmup_steps
        if FILE_PLUGIN_PATTERN.fullmatch(self.lr_scheduler):
            share = _load_schedule(self.lr_scheduler, total_steps)
        else:
            usual: Any = get_scheduler(self.lr_scheduler, optimizer, num_warmup_steps=ramp, num_training_steps=max(1, total_steps))
            share, *_ = usual.lr_lambdas  # identical for all parameter groups
        return optimizer, LambdaLR(optimizer, lambda step: (step + 1) / ramp if step < ramp else share(step))

    def check_and_configure_algorithm(self, algorithm: Algorithm, max_new_tokens: int, *, has_adapter: bool, is_sharded: bool) -> None:
        """Configure the algorithm with the completion limit, and raise ConfigError for incompatible settings.

        `has_adapter`: an adapter is trained, and the model without it is the reference; `is_sharded`: the weights are sharded (FSDP2).
        """
        if algorithm.traits.one_optimizer_step and self.minibatches_per_step > 1:
            raise ConfigError(
                f"train.minibatches_per_step is {self.minibatches_per_step}; this algorithm takes one step per batch: set it to 1"
            )
        if has_adapter and algorithm.traits.needs_reference and algorithm.traits.syncs_reference:
            raise ConfigError(
                "algorithm.ref_model_sync_steps is set, but with model.lora the reference is the model without its adapter, which cannot "
                "follow the policy; set algorithm.ref_model_sync_steps=0"
            )
        if self.separate_critic is not None and not algorithm.traits.needs_value:
            raise ConfigError("train.separate_critic is set, but the algorithm has no critic; remove it, or use ppo")
        if self.separate_critic is not None and is_sharded:
            raise ConfigError(
                "train.separate_critic makes a second network, which sharded weights (FSDP2) do not allow yet; remove it, or launch without "
                "fsdp2.yaml"
            )
        if algorithm.traits.divergence_kind and is_sharded:
            raise ConfigError(
                f"algorithm.divergence={algorithm.traits.divergence_kind} compares whole vocabularies, which sharded weights (FSDP2) do not "
                "allow; set algorithm.divergence=sampled, or launch without fsdp2.yaml"
            )
        algorithm.set_completion_limit(max_new_tokens=max_new_tokens)


def _load_schedule(name: str, total_steps: int) -> Callable[[int], float]:
    """Load the user's schedule, whose errors name it."""
    function = load_function_from_file(name, "learning rate schedule")

    def compute_share(step: int) -> float:
        try:
            found = float(function(step, total_steps))
        except Exception as error:
            raise ConfigError(f"the schedule {name} raised {type(error).__name__} at step {step} of {total_steps}: {error}") from error
        if not math.isfinite(found) or found < 0:
            raise ConfigError(
                f"the schedule {name} returned {found} for step {step} of {total_steps}; it must return the fraction of train.learning_rate, "
                "0 or more"
            )
        return found

    return compute_share
