"""Sharded: weights and optimizer state that lie cut up over several processes (FSDP2), put together and cut up again.

A checkpoint holds everything in one piece, so it does not depend on how many processes wrote it.
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
    """Whether a module's weights are spread over processes."""
    return any(isinstance(p, DTensor) for p in module.parameters())


def put_together(state: Any) -> Any:
    """Any nesting of tensors, those that were cut up made whole. All processes come here at once."""
    return tree_map(lambda x: x.full_tensor() if isinstance(x, DTensor) else x, state)


def cut_like(value: Tensor, parameter: Tensor) -> Tensor:
    """A whole tensor, cut up as a parameter of its shape is."""
    if isinstance(parameter, DTensor) and value.shape == parameter.shape:
        return distribute_tensor(value.to(parameter.device), parameter.device_mesh, parameter.placements)
    return value


def load_weights(module: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Whole weights into a module that may be cut up."""
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(cut_like(state[name], parameter))


def load_optimizer(optimizer: Any, state: Mapping[str, Any]) -> None:
    """A whole optimizer state into an optimizer whose parameters may be cut up."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    cut = {
        i: {name: cut_like(value, parameters[i]) if isinstance(value, Tensor) else value for name, value in entry.items()}
        for i, entry in state["state"].items()
    }
    optimizer.load_state_dict({**state, "state": cut})


def whole_model(model: Any, spare: Any = None) -> Any:
    """A plain copy of a sharded model with its present weights; into `spare`, an earlier copy, where there is one."""
    weights = put_together(model.state_dict())
    if spare is None:
        parameter = next(model.parameters())
        with torch.random.fork_rng(devices=[]):  # the weights it is born with are random and thrown away
            spare = AutoModelForCausalLM.from_config(copy.deepcopy(model.config), dtype=parameter.dtype).to(parameter.device)
    spare.load_state_dict(weights)
    return spare
