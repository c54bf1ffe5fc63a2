"""Gather and shard weights and optimizer state that are spread over several processes (FSDP2).

A checkpoint holds the gathered state, so it does not depend on the number of processes that wrote it.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.utils._pytree import tree_map
from transformers import AutoModelForCausalLM


def is_sharded(module: nn.Module) -> bool:
    """Whether a module's weights are sharded over processes."""
    return any(isinstance(p, DTensor) for p in module.parameters())


def put_together(state: Any) -> Any:
    """Gather the sharded tensors in any nesting. All processes call it together."""
    return tree_map(lambda x: x.full_tensor() if isinstance(x, DTensor) else x, state)


def cut_like(value: Tensor, parameter: Tensor) -> Tensor:
    """A whole tensor, sharded like the given parameter."""
    if isinstance(parameter, DTensor) and value.shape == parameter.shape:
        return distribute_tensor(value.to(parameter.device), parameter.device_mesh, parameter.placements)
    return value


def load_weights(module: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Load whole weights into a module that may be sharded."""
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(cut_like(state[name], parameter))


def load_optimizer(optimizer: Any, state: Mapping[str, Any]) -> None:
    """Load a whole optimizer state into an optimizer whose parameters may be sharded."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    cut = {
        i: {name: cut_like(value, parameters[i]) if isinstance(value, Tensor) else value for name, value in entry.items()}
        for i, entry in state["state"].items()
    }
    optimizer.load_state_dict({**state, "state": cut})


def whole_model(model: Any, spare: Any = None) -> Any:
    """A plain copy of a sharded model with its current weights; written into `spare`, an earlier copy, if given."""
    weights = put_together(model.state_dict())
    if spare is None:
        parameter = next(model.parameters())
        with torch.random.fork_rng(devices=[]):  # its initial weights are random and replaced
            spare = AutoModelForCausalLM.from_config(copy.deepcopy(model.config), dtype=parameter.dtype).to(parameter.device)
    spare.load_state_dict(weights)
    return spare
