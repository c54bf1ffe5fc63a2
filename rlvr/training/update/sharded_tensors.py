"""Operations on single tensors that may be sharded: gather, slice, and copy into shards."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset


def gather_full(tensor: Tensor) -> Tensor:
    """Gather a full tensor. A collective operation."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def get_local_slices(like: Tensor) -> tuple[slice, ...]:
    """Return the slices of the full tensor that this process holds."""
    if not isinstance(like, DTensor):
        return tuple(slice(0, n) for n in like.shape)
    shape, first = compute_local_shape_and_global_offset(like.shape, like.device_mesh, like.placements)
    return tuple(slice(a, a + n) for a, n in zip(first, shape, strict=True))


def get_local_shard(tensor: Tensor) -> Tensor:
    """Return the local shard of a tensor; changing it changes the tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def copy_to_shards(tensor: Tensor, value: Tensor) -> None:
    """Copy a full value into a tensor that may be sharded; each process copies its own shard, without communication."""
    with torch.no_grad():
        get_local_shard(tensor).copy_(value[get_local_slices(tensor)] if value.ndim else value)


def shard_like(value: Tensor, parameter: Tensor) -> Tensor:
    """Shard a full tensor like the given parameter."""
    if not isinstance(parameter, DTensor) or value.shape != parameter.shape:
        return value
    mine = torch.empty_like(get_local_shard(parameter), dtype=value.dtype)
    mine.copy_(value[get_local_slices(parameter)])
    return DTensor.from_local(
        mine, parameter.device_mesh, parameter.placements, run_check=False, shape=parameter.shape, stride=parameter.stride()
    )


def reshard(module: nn.Module) -> None:
    """Reshard all parameters; a forward pass without a backward pass leaves some gathered."""
    for part in module.modules():
        if isinstance(part, FSDPModule):
            part.reshard()
