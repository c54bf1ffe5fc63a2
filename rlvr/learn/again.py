"""Repeat one recorded step of a run from the checkpoint before it, and compare it with the log line by line.

If batches are prefetched, the checkpoint holds the completions of the next steps; then these steps are repeated, and one more step with
newly sampled completions.

A run that cannot be repeated on this machine (other versions, another accelerator, a sampler without a seed) can still be resumed, but
its results will not be bitwise identical.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from accelerate import Accelerator

from rlvr.config.config import RunConfig
from rlvr.errors import CheckFailed, NotFound
from rlvr.learn import checkpoint
from rlvr.learn.ahead import look_ahead
from rlvr.learn.collect import carry
from rlvr.learn.crew import Crew, assemble, taken_back
from rlvr.learn.one_step import one_step
from rlvr.learn.processes import by_main
from rlvr.runs.owner import clear_away, own_folder, sweep
from rlvr.runs.runlog import RunLog, rows_of

SCRATCH = "rlvr-again-"
ROUNDING = 0.01
"""The absolute and relative tolerance of numbers in a run that is not deterministic."""


def repeat_one_step(config: RunConfig, accelerator: Accelerator, folder: Path, crew_from: Callable[..., Crew] = assemble) -> str:
    """Repeat the first recorded step after a checkpoint; return a summary, or raise CheckFailed if it differs."""
    place = by_main(accelerator, lambda: repeatable(folder))
    with ExitStack() as stack:
        sweep(SCRATCH)
        scratch = own_folder(SCRATCH)
        stack.callback(clear_away, scratch)
        crew = crew_from(config, accelerator, stack, weights=place)
        ahead = look_ahead(crew, stack)
        carry(crew)
        step = taken_back(crew, folder, place).step
        log = RunLog(scratch, writes=accelerator.is_main_process)
        stack.callback(log.close)
        steps = by_main(accelerator, lambda: recorded_after(folder, step, config.rollout.max_staleness + 1))
        for again in steps:
            one_step(crew, log, again - 1, ahead)
        told = by_main(
            accelerator,
            lambda: "\n".join(compared(folder, scratch, again, episodes=config.log.episodes, exact=crew.exact) for again in steps),
        )
    accelerator.free_memory()
    return told


def repeatable(folder: Path) -> Path:
    """Find the newest checkpoint whose next step is in the logs."""
    recorded = {row["step"] for row in rows_of(folder / "metrics.jsonl")}
    place = next((place for place in checkpoint.whole_ones(folder) if checkpoint.step_of(place) + 1 in recorded), None)
    if place is None:
        raise NotFound(f"{folder} has no checkpoint with a recorded step after it, so there is nothing to compare; resume without --verify")
    return place


def recorded_after(folder: Path, step: int, most: int) -> list[int]:
    """Return those of the next `most` steps that are in the logs."""
    return [row["step"] for row in rows_of(folder / "metrics.jsonl") if step < row["step"] <= step + most]


def compared(folder: Path, scratch: Path, step: int, *, episodes: bool, exact: bool = True) -> str:
    """Compare one step's log lines in two run folders; `exact`: bitwise, otherwise up to rounding."""
    before, again = (next(row for row in rows_of(home / "metrics.jsonl") if row["step"] == step) for home in (folder, scratch))
    same = operator.eq if exact else near
    differs = [key for key in sorted(before.keys() | again.keys()) if not same(before.get(key), again.get(key))]
    old, new = (_episodes(home, step) if episodes else [] for home in (folder, scratch))
    unlike = sum(not same(a, b) for a, b in zip(old, new, strict=False)) + abs(len(old) - len(new))
    if differs or unlike:
        how = "compare versions.json with this machine" if exact else "without train.deterministic, rounding may change a sampled token"
        raise CheckFailed(
            f"step {step} of {folder} cannot be repeated {'exactly' if exact else 'up to rounding'}: {unlike} of {len(old)} episodes "
            f"differ, and of its metrics {', '.join(differs) or 'none'}; {how}, or resume without --verify"
        )
    told = "exactly the same" if old == new and before == again else "the same up to rounding"
    return f"step {step} repeated: {len(new)} episodes and {len(again)} metrics are {told}"


def near(old: Any, new: Any) -> bool:
    """Return whether two logged values differ at most by rounding; strings, tokens and counts must be equal.

    >>> near({"loss": 0.5, "tokens": [3]}, {"loss": 0.5001, "tokens": [3]}), near([3], [4])
    (True, False)
    """
    if isinstance(old, dict) and isinstance(new, dict):
        return old.keys() == new.keys() and all(near(old[key], new[key]) for key in old)
    if isinstance(old, list) and isinstance(new, list):
        return len(old) == len(new) and all(map(near, old, new))
    if isinstance(old, float) and isinstance(new, float):
        return math.isclose(old, new, rel_tol=ROUNDING, abs_tol=ROUNDING)
    return bool(old == new)


def _episodes(folder: Path, step: int) -> list[Any]:
    return [row for row in rows_of(folder / "episodes.jsonl") if row["step"] == step]
