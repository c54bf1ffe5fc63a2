"""The sharded state of the optimizer and of a moving reference, in torch's distributed checkpoint format.

Each process reads and writes only its shard, and a run can be resumed with another number of processes.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from rlvr.training.distributed.group import get_control_group
from rlvr.training.update.sharded_tensors import get_local_shard, shard_like

SHARDED_FOLDER_NAME = "sharded"
"""The folder in a checkpoint."""


def _list_parameters(optimizer: Any) -> list[nn.Parameter]:
    """Return the parameters in the order of the optimizer's indices."""
    return [p for group in optimizer.param_groups for p in group["params"]]


def _collect_state_tensors(optimizer: Any, reference_weights: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
    """Collect all state tensors by name: moments by parameter index, and a moving reference."""
    found = {
        f"optimizer.{i}.{name}": value
        for i, p in enumerate(_list_parameters(optimizer))
        for name, value in optimizer.state.get(p, {}).items()
        if isinstance(value, Tensor)
    }
    return found | {f"reference.{name}": value.detach() for name, value in (reference_weights or {}).items()}


def write_sharded_state(folder: Path, optimizer: Any, reference_weights: Mapping[str, Tensor] | None = None) -> None:
    """Write the state, each process its shard. A collective operation."""
    with _suppress_warnings():
        save(
            _collect_state_tensors(optimizer, reference_weights),
            checkpoint_id=folder / SHARDED_FOLDER_NAME,
            process_group=get_control_group(),
            no_dist=get_control_group() is None,
        )


def read_sharded_state(
    folder: Path, optimizer: Any, reference_weights: Mapping[str, Tensor] | None = None, *, is_collective: bool = True
) -> None:
    """Read the state of `write_sharded_state` in place, with any number of processes. `is_collective`: all processes read together,
    each its shard.
    """
    _init_adam_state(optimizer)
    wanted = _collect_state_tensors(optimizer, reference_weights)
    saved = FileSystemReader(folder / SHARDED_FOLDER_NAME).read_metadata().state_dict_metadata
    group = get_control_group() if is_collective else None
    with _suppress_warnings():
        present = {name: value for name, value in wanted.items() if name in saved}
        load(present, checkpoint_id=folder / SHARDED_FOLDER_NAME, process_group=group, no_dist=group is None)
    for i, p in enumerate(_list_parameters(optimizer)):
        if not any(name.startswith(f"optimizer.{i}.") for name in saved):
            optimizer.state.pop(p)  # its optimizer state did not exist yet


def _init_adam_state(optimizer: Any) -> None:
    """Create zero moments in an Adam optimizer, so that a saved state can be read into them."""
    for p in _list_parameters(optimizer):
        moments = {name: torch.zeros_like(p.detach()) for name in ("exp_avg", "exp_avg_sq")}
        device = get_local_shard(p).device if optimizer.defaults.get("fused") else "cpu"
        optimizer.state[p] = {"step": torch.zeros((), dtype=torch.float32, device=device), **moments}


def load_full_state(optimizer: Any, state: Mapping[str, Any]) -> None:
    """Load the full state of an unsharded run into an optimizer whose parameters may be sharded."""
    parameters = _list_parameters(optimizer)
    part = {
        i: {name: shard_like(value, parameters[i]) if isinstance(value, Tensor) else value for name, value in entry.items()}
        for i, entry in state["state"].items()
    }
    optimizer.load_state_dict({**state, "state": part})


@contextmanager
def _suppress_warnings() -> Iterator[None]:
    """Suppress internal warnings of torch that users cannot fix."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
