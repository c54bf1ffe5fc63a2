"""The state of a learner in a checkpoint, without the model's weights: tensors and plain values only.

Sharded state is written separately, by `optimizer_state.write_sharded_state`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from rlvr.training.update import fsdp as sharded
from rlvr.training.update import optimizer_state
from rlvr.training.update.sharded_tensors import gather_full, reshard


def collect_state(learner: Any) -> dict[str, Any]:
    """Collect the learner's unsharded state."""
    policy = learner.accelerator.unwrap_model(learner.policy)
    if learner.is_sharded:
        reshard(policy)
    version, numbers, gauss = learner.random.getstate()
    return {
        "optimizer": learner.optimizer.state_dict() | ({"state": {}} if learner.is_sharded else {}),
        "scheduler": learner.scheduler.state_dict(),
        "algorithm": dict(learner.algorithm.state_dict()),
        "random": [version, list(numbers), gauss],
        "critic": None if policy.value is None else {name: gather_full(p.detach()) for name, p in policy.value.state_dict().items()},
        "reference": None if learner.is_sharded else get_moving_reference(learner),
        "scaler": None if learner.accelerator.scaler is None else learner.accelerator.scaler.state_dict(),
    }


def restore_state(learner: Any, saved: Mapping[str, Any], sharded_state_folder: Path | None) -> None:
    """Restore a learner's state, which may have been saved by another number of processes, sharded or not."""
    policy = learner.accelerator.unwrap_model(learner.policy)
    optimizer_state.load_full_state(learner.optimizer, saved["optimizer"])
    if sharded_state_folder is not None and (sharded_state_folder / optimizer_state.SHARDED_FOLDER_NAME).is_dir():
        optimizer_state.read_sharded_state(
            sharded_state_folder, learner.optimizer, get_moving_reference(learner), is_collective=learner.is_sharded
        )
    learner.scheduler.load_state_dict(saved["scheduler"])
    learner.algorithm.load_state_dict(saved["algorithm"])
    version, numbers, gauss = saved["random"]
    learner.random.setstate((version, tuple(numbers), gauss))
    if policy.value is not None:
        sharded.load_full_weights(policy.value, saved["critic"])
    if learner.reference is not None:
        learner.reference.load_state_dict(saved["reference"])
    if learner.accelerator.scaler is not None and (scale := saved.get("scaler")):  # checkpoints of earlier versions have none
        learner.accelerator.scaler.load_state_dict(scale)


def get_moving_reference(learner: Any) -> dict[str, Tensor] | None:
    """Return the reference's weights if they change; a frozen one is saved once in the run folder, or lies where `frozen_models` says."""
    if learner.reference is None or not learner.algorithm.traits.syncs_reference:
        return None
    if learner.is_sharded:
        reshard(learner.reference.policy)
    weights: dict[str, Tensor] | None = learner.reference.state_dict()
    return weights
