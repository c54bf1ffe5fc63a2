"""Repeat one recorded step of a run from the checkpoint before it, and compare it with the log line by line.

Where batches are sampled ahead, the checkpoint holds the answers of the next steps; then those steps are repeated, and one more
with newly sampled answers.

A run that cannot be repeated on this machine (other versions, another accelerator, a sampler without a seed) can still be
resumed, but its results will not be bit-identical.
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path

from accelerate import Accelerator

from rlvr.config.config import RunConfig
from rlvr.errors import CheckFailed, NotFound
from rlvr.learn import checkpoint
from rlvr.learn.ahead import look_ahead
from rlvr.learn.crew import assemble, taken_back
from rlvr.learn.one_step import one_step
from rlvr.learn.processes import by_main
from rlvr.runs.owner import clear_away, own_folder, sweep
from rlvr.runs.runlog import RunLog, rows_of

SCRATCH = "rlvr-again-"


def repeat_one_step(config: RunConfig, accelerator: Accelerator, folder: Path) -> str:
    """Repeat the first step after a checkpoint that is still in the logs; return what was compared, or raise CheckFailed."""
    place = by_main(accelerator, lambda: repeatable(folder))
    with ExitStack() as stack:
        sweep(SCRATCH)
        scratch = own_folder(SCRATCH)
        stack.callback(clear_away, scratch)
        crew = assemble(config, accelerator, stack, weights=place)
        ahead = look_ahead(crew, stack)
        step = taken_back(crew, folder, place).step
        log = RunLog(scratch, writes=accelerator.is_main_process)
        stack.callback(log.close)
        steps = by_main(accelerator, lambda: recorded_after(folder, step, config.rollout.max_staleness + 1))
        for again in steps:
            one_step(crew, log, again - 1, ahead)
        told = by_main(accelerator, lambda: "\n".join(compared(folder, scratch, again, episodes=config.log.episodes) for again in steps))
    accelerator.free_memory()
    return told


def repeatable(folder: Path) -> Path:
    """The newest checkpoint whose next step is in the logs."""
    recorded = {row["step"] for row in rows_of(folder / "metrics.jsonl")}
    place = next((place for place in checkpoint.whole_ones(folder) if checkpoint.step_of(place) + 1 in recorded), None)
    if place is None:
        raise NotFound(f"{folder} has no checkpoint with a recorded step after it, so there is nothing to compare; resume without --verify")
    return place


def recorded_after(folder: Path, step: int, most: int) -> list[int]:
    """Which of the next `most` steps are in the logs."""
    return [row["step"] for row in rows_of(folder / "metrics.jsonl") if step < row["step"] <= step + most]


def compared(folder: Path, scratch: Path, step: int, *, episodes: bool) -> str:
    """Compare one step's lines in two run folders."""
    before, again = (next(row for row in rows_of(home / "metrics.jsonl") if row["step"] == step) for home in (folder, scratch))
    differs = [key for key in sorted(before.keys() | again.keys()) if before.get(key) != again.get(key)]
    old, new = (_episodes(home, step) if episodes else [] for home in (folder, scratch))
    unlike = sum(a != b for a, b in zip(old, new, strict=False)) + abs(len(old) - len(new))
    if differs or unlike:
        raise CheckFailed(
            f"step {step} of {folder} cannot be repeated exactly: {unlike} of {len(old)} episodes differ, and of its metrics "
            f"{', '.join(differs) or 'none'}; compare versions.json with this machine, or resume without --verify"
        )
    return f"step {step} repeated: {len(new)} episodes and {len(again)} metrics are exactly the same"


def _episodes(folder: Path, step: int) -> list[str]:
    return [json.dumps(row) for row in rows_of(folder / "episodes.jsonl") if row["step"] == step]
