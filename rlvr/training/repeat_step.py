"""Repeat one recorded step of a run from the checkpoint before it, and compare it with the log line by line.

If batches are prefetched, the checkpoint holds the completions of the next steps; then these steps are repeated, and one more step with
newly sampled completions.

A run that cannot be repeated on this machine (other versions, another accelerator, a sampler without a seed) can still be resumed, but
its results will not be bitwise identical.
"""

from __future__ import annotations

import math
import operator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from accelerate import Accelerator
from rich.console import Console

from rlvr.config.config import RunConfig
from rlvr.errors import CheckFailed, NotFound
from rlvr.runs.folder_owner import create_owned_folder, remove_folder, remove_orphaned_folders
from rlvr.runs.run_log import RunLog, read_jsonl, read_metrics
from rlvr.training import checkpoint
from rlvr.training.callbacks import RunLogWriter
from rlvr.training.components import ComponentBuilder, build_components
from rlvr.training.processes import run_on_main
from rlvr.training.trainer import Trainer

SCRATCH_PREFIX = "rlvr-again-"
COMPARE_TOLERANCE = 0.01
"""The absolute and relative tolerance of numbers in a run that is not deterministic."""


def repeat_one_step(
    config: RunConfig, accelerator: Accelerator, folder: Path, component_builder: ComponentBuilder = build_components
) -> str:
    """Repeat the first recorded step after a checkpoint; return a summary, or raise CheckFailed if it differs."""
    place = run_on_main(accelerator, lambda: find_repeatable_checkpoint(folder))
    with ExitStack() as stack:
        remove_orphaned_folders(SCRATCH_PREFIX)
        scratch = create_owned_folder(SCRATCH_PREFIX)
        stack.callback(remove_folder, scratch)
        log = RunLog(scratch, is_writer=accelerator.is_main_process)
        stack.callback(log.close)
        trainer = Trainer(
            config, out=folder, resume=True, accelerator=accelerator, component_builder=component_builder, repeat_from=place,
            callbacks=[RunLogWriter(log)], console=Console(quiet=True),
        )  # fmt: skip
        with trainer:
            done = trainer.num_completed_steps
            steps = run_on_main(accelerator, lambda: find_recorded_next_steps(folder, done, config.rollout.max_staleness + 1))
            for _ in steps:
                trainer.step()
            exact = trainer.components.is_bitwise_repeatable
        told = run_on_main(
            accelerator,
            lambda: "\n".join(
                check_step_is_repeated(folder, scratch, again, compare_episodes=config.log.episodes, is_bitwise=exact) for again in steps
            ),
        )
    accelerator.free_memory()
    return told


def find_repeatable_checkpoint(folder: Path) -> Path:
    """Find the newest checkpoint whose next step is in the logs."""
    recorded = {row["step"] for row in read_metrics(folder)}
    place = next((place for place in checkpoint.iter_complete_checkpoints(folder) if checkpoint.parse_step(place) + 1 in recorded), None)
    if place is None:
        raise NotFound(f"{folder} has no checkpoint with a recorded step after it, so there is nothing to compare; resume without --verify")
    return place


def find_recorded_next_steps(folder: Path, after_step: int, max_steps: int) -> list[int]:
    """Return those of the next `max_steps` steps that are in the logs."""
    return [row["step"] for row in read_metrics(folder) if after_step < row["step"] <= after_step + max_steps]


def check_step_is_repeated(folder: Path, repeated_folder: Path, step: int, *, compare_episodes: bool, is_bitwise: bool = True) -> str:
    """Compare the log lines of one step in two run folders, bitwise or up to rounding; return a summary, or raise CheckFailed if they
    differ.
    """
    before, again = (next(row for row in read_metrics(home) if row["step"] == step) for home in (folder, repeated_folder))
    same = operator.eq if is_bitwise else is_close
    differs = [key for key in sorted(before.keys() | again.keys()) if not same(before.get(key), again.get(key))]
    old, new = (_load_episodes(home, step) if compare_episodes else [] for home in (folder, repeated_folder))
    unlike = sum(not same(a, b) for a, b in zip(old, new, strict=False)) + abs(len(old) - len(new))
    if differs or unlike:
        how = (
            "compare versions.json with this machine" if is_bitwise else "without train.deterministic, rounding may change a sampled token"
        )
        raise CheckFailed(
            f"step {step} of {folder} cannot be repeated {'exactly' if is_bitwise else 'up to rounding'}: {unlike} of {len(old)} episodes "
            f"differ, and of its metrics {', '.join(differs) or 'none'}; {how}, or resume without --verify"
        )
    told = "exactly the same" if old == new and before == again else "the same up to rounding"
    return f"step {step} repeated: {len(new)} episodes and {len(again)} metrics are {told}"


def is_close(old: Any, new: Any) -> bool:
    """Return whether two logged values differ at most by rounding; strings, tokens and counts must be equal.

    >>> is_close({"loss": 0.5, "tokens": [3]}, {"loss": 0.5001, "tokens": [3]}), is_close([3], [4])
    (True, False)
    """
    if isinstance(old, dict) and isinstance(new, dict):
        return old.keys() == new.keys() and all(is_close(old[key], new[key]) for key in old)
    if isinstance(old, list) and isinstance(new, list):
        return len(old) == len(new) and all(map(is_close, old, new))
    if isinstance(old, float) and isinstance(new, float):
        return math.isclose(old, new, rel_tol=COMPARE_TOLERANCE, abs_tol=COMPARE_TOLERANCE)
    return bool(old == new)


def _load_episodes(folder: Path, step: int) -> list[Any]:
    return [row for row in read_jsonl(folder / "episodes.jsonl") if row["step"] == step]
