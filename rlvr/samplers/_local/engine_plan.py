"""Plan the local engines of a trainer: number, devices, and the folder for their weights."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlvr.errors import ConfigError

SHARED_MEMORY = Path("/dev/shm")
"""Shared memory, which all processes of a machine see as files."""


@dataclass(frozen=True, slots=True)
class EnginePlan:
    """Number and devices of the local engines.

    >>> EnginePlan(num_engines=2, gpus=("2", "3")).get_devices(1)
    ('3',)
    """

    num_engines: int = 1
    gpus: tuple[str, ...] | None = None
    """Devices of all engines, one after another; None: they see the trainer's devices."""

    def get_devices(self, number: int) -> tuple[str, ...] | None:
        """Return the devices of one engine."""
        if self.gpus is None:
            return None
        each = len(self.gpus) // self.num_engines
        return self.gpus[number * each : (number + 1) * each]


def choose_parent_of_weights_folder(model: Any) -> Path:
    """Return where to make the folder for weights: in shared memory, if they fit there twice; else in the folder for temporary files."""
    needed = 0 if isinstance(model, str) else 2 * sum(weight.numel() * weight.element_size() for weight in model.parameters())
    roomy = SHARED_MEMORY.is_dir() and os.access(SHARED_MEMORY, os.W_OK) and shutil.disk_usage(SHARED_MEMORY).free > needed
    return SHARED_MEMORY if roomy else Path(tempfile.gettempdir())


def clear_shared_memory(engines_folder: Path, name: str = "") -> None:
    """Remove the shared memory of killed engines, or of one; vLLM's CPU build names it after the folder of the engine."""
    for left in SHARED_MEMORY.glob(f"{engines_folder.name}-{name}*"):
        left.unlink(missing_ok=True)


def plan_engines(engines: int | None, gpus: Sequence[int] | None, tensor_parallel_size: int, device: Any) -> EnginePlan:
    """Plan the engines of this process: on its share of `gpus` if several processes train, or all on the trainer's `device`.

    >>> plan_engines(None, [2, 3], 1, None)
    EnginePlan(num_engines=2, gpus=('2', '3'))
    """
    visible = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    if gpus is None:
        if getattr(device, "type", "cpu") != "cuda":
            return EnginePlan(engines or 1)
        if tensor_parallel_size > 1:
            raise ConfigError(f"tensor_parallel_size is {tensor_parallel_size}; name the GPUs of the engines, for example gpus: [0, 1]")
        own = device.index or 0
        return EnginePlan(engines or 1, (visible[own] if visible else str(own),) * (engines or 1))
    rank, ranks = int(os.environ.get("LOCAL_RANK", 0)), int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    if len(gpus) % (ranks * tensor_parallel_size) or (engines is not None and engines * tensor_parallel_size * ranks != len(gpus)):
        each = f"{engines or 'some'} engines of {tensor_parallel_size} for each of {ranks} training processes"
        raise ConfigError(f"gpus has {len(gpus)} entries, which cannot be {each}; name as many GPUs as they need, or start servers")
    if visible and max(gpus) >= len(visible):
        raise ConfigError(f"gpus is {list(gpus)}, but this process sees {len(visible)} GPUs, counted from 0")
    mine = len(gpus) // ranks
    names = [visible[gpu] if visible else str(gpu) for gpu in gpus[rank * mine : (rank + 1) * mine]]
    return EnginePlan(mine // tensor_parallel_size, tuple(names))
