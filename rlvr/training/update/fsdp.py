"""FSDP2: weights, gradients and optimizer state are sharded over the processes and never complete in one of them.

    shard_policy             shards a policy with or without weights
    FolderWeightLoader       loads shards from a Hugging Face folder; each process reads only its rows
    MainProcessWeightLoader  loads shards from the main process, one tensor at a time

The models are created on the meta device, which takes no memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor

from rlvr.models.device import get_trainer_precision
from rlvr.models.safetensors_files import TensorFolderReader
from rlvr.training.update import lora_adapter as adapter
from rlvr.training.update.policy import Policy, has_no_weights
from rlvr.training.update.reference import ReferencePolicy
from rlvr.training.update.sharded_tensors import copy_to_shards, get_local_shard, get_local_slices, reshard

MIXED_PRECISION_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
WeightLoader = Callable[[nn.Module], None]
"""Loads the shards of a model, as a collective operation."""


def is_sharded(module: nn.Module) -> bool:
    """Return whether a module's weights are sharded over processes."""
    return any(isinstance(p, DTensor) for p in module.parameters())


def _build_mixed_precision_policy(precision: str) -> MixedPrecisionPolicy:
    """Build a policy that computes in a precision, reduces gradients in float32, and does not cast outputs.

    accelerate's default policy casts outputs too, and log-probabilities in bfloat16 have steps of 0.03.

    >>> policy = _build_mixed_precision_policy("bf16")
    >>> policy.reduce_dtype, policy.output_dtype
    (torch.float32, None)
    """
    return MixedPrecisionPolicy(param_dtype=MIXED_PRECISION_DTYPES.get(precision), reduce_dtype=torch.float32, output_dtype=None)


def get_compute_precision(model: Any, accelerator: Accelerator) -> str:
    """Return the compute precision of a model; a sharded model uses mixed precision also on a CPU."""
    lower = MIXED_PRECISION_DTYPES.get(accelerator.mixed_precision) if accelerator.is_fsdp2 else None
    return str(lower).removeprefix("torch.") if lower else get_trainer_precision(model, accelerator.mixed_precision, accelerator.device)


def shard_policy(
    policy: Policy, accelerator: Accelerator, weight_loader: WeightLoader | None = None, *, keep_root_gathered: bool = True
) -> None:
    """Shard a policy in place. Weights that it has are distributed over the processes; `weight_loader` loads the others.

    With `fp32_head`, embedding, last norm and head are gathered in the precision of the weights. `keep_root_gathered`: embedding and head
    stay gathered between forward and backward pass; not needed for a reference.
    """
    plugin: Any = accelerator.state.fsdp_plugin
    offload = plugin.cpu_offload if isinstance(plugin.cpu_offload, CPUOffloadPolicy) else None
    settings: dict[str, Any] = {"mesh": init_device_mesh(accelerator.device.type, (accelerator.num_processes,))}
    settings |= {"offload_policy": offload} if offload else {}
    layers, root = (
        _build_mixed_precision_policy(accelerator.mixed_precision),
        _build_mixed_precision_policy("no" if policy.fp32_head else accelerator.mixed_precision),
    )
    own = _move_to_meta(policy)
    names = set(getattr(policy, "_no_split_modules", None) or ())
    for layer in [module for module in policy.modules() if type(module).__name__ in names]:
        fully_shard(layer, reshard_after_forward=plugin.reshard_after_forward, mp_policy=layers, **settings)
    fully_shard(policy, mp_policy=root, **settings, reshard_after_forward=None if keep_root_gathered else True)
    _allocate_shards(policy, torch.device("cpu") if offload else accelerator.device)
    with torch.no_grad():
        for name, tensor in policy.named_parameters():
            if name in own:
                copy_to_shards(tensor, own.pop(name))
    register_fsdp_forward_method(policy, "run_with_weights")
    if weight_loader is not None:
        weight_loader(policy.model)
    policy.run_with_weights(policy.detect_logit_transform)


def shard_frozen_model(frozen: ReferencePolicy, policy: Policy, accelerator: Accelerator, weight_loader: WeightLoader | None) -> None:
    """Shard a frozen model like the policy. Without `weight_loader`, one without weights becomes a copy of the current policy."""
    if frozen.adapted_model is not None:
        frozen.policy = policy  # with its adapter disabled
        return
    start = partial(_copy_shards, source_policy=policy) if has_no_weights(frozen.policy) else None
    shard_policy(frozen.policy, accelerator, weight_loader or start, keep_root_gathered=False)


def prepare_with_accelerate(policy: Policy, optimizer: Any, accelerator: Accelerator) -> tuple[Any, Any]:
    """Prepare policy and optimizer with accelerate; an already sharded policy is unchanged."""
    if accelerator.is_fsdp2:
        return policy, accelerator.prepare_optimizer(optimizer)
    wrapped: tuple[Any, Any] = accelerator.prepare(policy, optimizer)
    return wrapped


def _move_to_meta(module: nn.Module) -> dict[str, Tensor]:
    """Move all parameters to the meta device, keeping ties, and return those that had values. Buffers stay."""
    held = dict(module.named_parameters())  # kept alive, so that no id is reused
    blank = {id(p): nn.Parameter(torch.empty_like(p, device="meta"), requires_grad=p.requires_grad) for p in held.values()}
    for part in module.modules():
        for name, p in part._parameters.items():
            if p is not None:
                part._parameters[name] = blank[id(p)]
    return {name: p.detach() for name, p in held.items() if p.device.type != "meta"}


def _allocate_shards(module: nn.Module, device: torch.device) -> None:
    """Allocate memory for each shard; buffers keep their values."""
    kept = {name: buffer.to(device, copy=True) for name, buffer in module.named_buffers(remove_duplicate=False)}
    module.to_empty(device=device)
    for name, buffer in module.named_buffers(remove_duplicate=False):
        buffer.copy_(kept[name])


def load_full_weights(module: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Load full weights into a module that may be sharded."""
    for name, parameter in module.named_parameters():
        copy_to_shards(parameter, state[name])


class FolderWeightLoader:
    """Loads shards from a Hugging Face folder: each process reads only its rows.

    >>> FolderWeightLoader.for_model(model, "checkpoints/last")  # doctest: +SKIP
    """

    def __init__(self, folder: TensorFolderReader) -> None:
        self.folder = folder

    @classmethod
    def for_model(cls, model: nn.Module, folder: Any) -> FolderWeightLoader | None:
        """Create a loader if the folder has the model's tensors by name; return None if transformers must convert them."""
        found = TensorFolderReader(folder)
        return cls(found) if found.has_tensors({name: tensor.shape for name, tensor, _ in adapter.list_base_model_tensors(model)}) else None

    def __call__(self, model: nn.Module) -> None:
        """Load the shards."""
        with torch.no_grad():
            for name, tensor, _ in adapter.list_base_model_tensors(model):
                get_local_shard(tensor).copy_(self.folder.read_slice(name, get_local_slices(tensor)))


class MainProcessWeightLoader:
    """Loads shards from weights in the main process, one tensor at a time.

    >>> MainProcessWeightLoader(dict(model.named_parameters()))  # doctest: +SKIP
    """

    def __init__(self, weights: Mapping[str, Tensor] | None) -> None:
        self.weights = dict(weights or {})

    def __call__(self, model: nn.Module) -> None:
        """Load the shards; the source weights are freed one by one."""
        with torch.no_grad():
            for name, tensor, _ in adapter.list_base_model_tensors(model):
                mine = get_local_shard(tensor)
                like: dict[str, Any] = {"dtype": tensor.dtype, "device": mine.device}
                sent = self.weights.pop(name).to(**like) if self.weights else torch.empty(tensor.shape, **like)
                if isinstance(tensor, DTensor):
                    mine.copy_(distribute_tensor(sent, tensor.device_mesh, tensor.placements).to_local())
                else:
                    torch.distributed.broadcast(sent, src=0)
                    mine.copy_(sent)


def _copy_shards(model: nn.Module, source_policy: Policy) -> None:
    """Copy the weights of an identically sharded policy into a model."""
    reshard(source_policy)
    with torch.no_grad():
        for mine, theirs in zip(model.parameters(), source_policy.model.parameters(), strict=True):
            get_local_shard(mine).copy_(get_local_shard(theirs))
