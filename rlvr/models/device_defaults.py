"""Device-dependent defaults: precision, tokens per forward pass, tiles of the output head, optimizer and copies.

All of these choices are printed before a run. A CPU has small caches and no kernels for packed rows; an accelerator has much memory, and
waits for the CPU at every launch and every copy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch

TokenBudget = int | Literal["auto"]


@dataclass(frozen=True, slots=True)
class DeviceDefaults:
    """The defaults of a kind of device.

    >>> get_device_defaults(torch.device("cpu")).tokens_per_microbatch
    4096
    """

    mixed_precision: Literal["no", "bf16"]
    tokens_per_microbatch: int
    max_head_logits: int
    """The maximum number of logits that the output head computes at a time."""
    fused_optimizer: bool
    """Use fused AdamW, without temporary tensors of the size of the weights."""
    tf32: bool
    """Products of float32 matrices in TensorFloat-32."""
    deterministic: bool
    stop_check_interval_tokens: int
    """The number of tokens between two stop checks of the hf sampler. Each check synchronizes with the device."""


CPU_DEFAULTS = DeviceDefaults(
    mixed_precision="no", tokens_per_microbatch=4096, max_head_logits=1 << 22,
    fused_optimizer=False, tf32=False, deterministic=True, stop_check_interval_tokens=1,
)  # fmt: skip


def get_device_defaults(device: torch.device) -> DeviceDefaults:
    """Return the defaults of a device. Sizes fit the cache of a CPU, or give few, large kernels on an accelerator."""
    if device.type == "cpu":
        return CPU_DEFAULTS
    cuda = device.type == "cuda"
    return DeviceDefaults(
        mixed_precision="bf16" if _supports_bf16(device) else "no",
        tokens_per_microbatch=16384,
        max_head_logits=1 << 28,
        fused_optimizer=cuda,
        tf32=cuda,
        deterministic=False,
        stop_check_interval_tokens=8,
    )


def _supports_bf16(device: torch.device) -> bool:
    """Return whether an accelerator supports bfloat16 in hardware; assumed True for planned, absent devices."""
    if device.type == "cuda":
        return not torch.cuda.is_available() or bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return device.type == "xpu"


def resolve_mixed_precision(requested: str, device: torch.device, dtype: str = "float32") -> str:
    """Resolve `train.mixed_precision`, given the device and the precision of the weights.

    >>> resolve_mixed_precision("auto", torch.device("cpu"))
    'no'
    """
    if requested != "auto":
        return requested
    return get_device_defaults(device).mixed_precision if dtype == "float32" else "no"


def resolve_microbatch_tokens(requested: TokenBudget, device: torch.device) -> int:
    """Resolve `train.max_tokens_per_microbatch` for a device.

    >>> resolve_microbatch_tokens("auto", torch.device("cpu")), resolve_microbatch_tokens(100, torch.device("cpu"))
    (4096, 100)
    """
    return get_device_defaults(device).tokens_per_microbatch if requested == "auto" else requested


def copy_to_device(tensor: torch.Tensor, device: torch.device | str) -> torch.Tensor:
    """Copy a tensor to a device; to CUDA asynchronously, from page-locked memory."""
    to_cuda = torch.device(device).type == "cuda"
    return tensor.pin_memory().to(device, non_blocking=True) if to_cuda else tensor.to(device)


def describe_precision(config: Any, device: torch.device, mixed_precision: str) -> str:
    """Describe the precision and the sizes of a run in one line; `auto` marks device defaults."""
    train, own = config.train, get_device_defaults(device)
    computed = {"no": config.model.dtype, "bf16": "bfloat16", "fp16": "float16"}[mixed_precision]
    parts = [f"weights in {config.model.dtype}", f"computed in {computed}" + (" (auto)" if train.mixed_precision == "auto" else "")]
    if own.tf32 and computed == "float32":
        parts.append("matrix products in TF32" if torch.get_float32_matmul_precision() != "highest" else "without TF32")
    if config.model.fp32_head and computed != "float32":
        parts.append("output head in float32")
    if device.type == "cpu":
        parts.append(f"{torch.get_num_threads()} threads")
    tokens = resolve_microbatch_tokens(train.max_tokens_per_microbatch, device)
    parts.append(f"{tokens:,} tokens a forward pass" + (" (auto)" if train.max_tokens_per_microbatch == "auto" else ""))
    return ", ".join(parts + (["fused AdamW"] if own.fused_optimizer else []))
