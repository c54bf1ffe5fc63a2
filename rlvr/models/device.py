"""The device and the precision in which a model computes.

Training leaves this to accelerate; `rlvr eval` and `rlvr doctor` use a model without a trainer.
"""

from __future__ import annotations

import gc
import os
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from rlvr.errors import ConfigError

TRUE_VALUES = {"1", "true", "yes", "on", "y", "t"}


def find_accelerator() -> torch.device | None:
    """Return the accelerator that torch uses on this machine; None without one."""
    return torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None


def resolve_device(name: str | None = None) -> torch.device:
    """Return the device with this name; None: the accelerator, or the CPU without one or if ACCELERATE_USE_CPU is set.

    >>> resolve_device("cpu")
    device(type='cpu')
    """
    if name is None:
        found = find_accelerator()
        return torch.device("cpu") if found is None or os.environ.get("ACCELERATE_USE_CPU", "").lower() in TRUE_VALUES else found
    try:
        asked = torch.device(name)
        torch.empty(0, device=asked)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        found = find_accelerator()
        there = f"cpu and {found.type}" if found else "cpu"
        raise ConfigError(f"device is {name!r}, which this machine does not have; it has {there}") from error
    return asked


def autocast_to(model: Any, precision: str | None) -> AbstractContextManager[Any]:
    """Autocast to a precision, as training with `mixed_precision` does; None: the precision of the weights."""
    if precision is None or getattr(torch, precision) == model.dtype:
        return nullcontext()
    return torch.autocast(model.device.type, dtype=getattr(torch, precision))


def get_trainer_precision(model: Any, mixed_precision: str, device: torch.device) -> str:
    """Return the compute precision of a trainer, for its sampler too; on a CPU the precision of the weights.

    >>> from types import SimpleNamespace
    >>> get_trainer_precision(SimpleNamespace(dtype=torch.float32), "bf16", torch.device("cuda"))
    'bfloat16'
    """
    lower = {"bf16": "bfloat16", "fp16": "float16"}.get(mixed_precision)
    if lower is None or device.type == "cpu":
        return str(model.dtype).removeprefix("torch.")
    return lower


def free_cached_memory() -> None:
    """Return torch's cached memory to the device, so that another allocator can use it."""
    gc.collect()
    if (found := find_accelerator()) is not None:
        getattr(torch, found.type).empty_cache()


def restore_and_get_device_rng_state(state_to_restore: torch.Tensor | None = None) -> torch.Tensor | None:
    """Return the random state of the accelerator, if there is one; restore `state_to_restore` first if given."""
    if (found := find_accelerator()) is None:
        return None
    module: Any = getattr(torch, found.type)
    if state_to_restore is not None:
        module.set_rng_state(state_to_restore.clone())
    current: torch.Tensor = module.get_rng_state()
    return current
