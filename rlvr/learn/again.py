"""Does a run repeat itself? One recorded step, done once more from the checkpoint before it and compared line by line.

A run that does not repeat itself on this machine (other versions, another accelerator, a sampler that is not seeded) can
still be resumed, but not to the bit; better to know before than after.
"""

from __future__ import annotations

import json
import tempfile
from contextlib import ExitStack
from pathlib import Path

from rlvr.config import RunConfig
from rlvr.errors import CheckFailed, NotFound
from rlvr.learn import checkpoint
from rlvr.learn.crew import assemble, enlist
from rlvr.learn.one_step import one_step
from rlvr.runlog import RunLog, rows_of


def repeat_one_step(config: RunConfig, folder: Path) -> str:
    """Repeat the first step after a checkpoint that the logs still hold; what was compared, or CheckFailed."""
    recorded = {row["step"]: row for row in rows_of(folder / "metrics.jsonl")}
    place = next((place for place in checkpoint.whole_ones(folder) if _step(place) + 1 in recorded), None)
    if place is None:
        raise NotFound(f"{folder} has no checkpoint with a recorded step after it, so there is nothing to compare; resume without --verify")
    step = _step(place)
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rlvr-again-")))
        crew = assemble(config, folder, stack, weights=place)
        state, _ = checkpoint.read(place)
        enlist(crew, folder, resumed=True).load_state_dict(state)
        crew.sampler.load(crew.accelerator.unwrap_model(crew.model), step)
        log = RunLog(scratch)
        stack.callback(log.close)
        one_step(crew, log, step)
        again = next(iter(rows_of(scratch / "metrics.jsonl")))
        episodes = list(rows_of(scratch / "episodes.jsonl")) if config.log.episodes else []
    differs = [key for key in sorted(recorded[step + 1].keys() | again.keys()) if recorded[step + 1].get(key) != again.get(key)]
    before = [row for row in rows_of(folder / "episodes.jsonl") if row["step"] == step + 1] if config.log.episodes else []
    unlike = sum(json.dumps(a) != json.dumps(b) for a, b in zip(before, episodes, strict=False)) + abs(len(before) - len(episodes))
    if differs or unlike:
        raise CheckFailed(
            f"step {step + 1} of {folder} does not repeat itself: {unlike} of {len(before)} episodes differ, and of its metrics "
            f"{', '.join(differs) or 'none'}; compare versions.json with this machine, or resume without --verify"
        )
    return f"step {step + 1} repeated: {len(episodes)} episodes and {len(again)} metrics are the same to the last digit"


def _step(place: Path) -> int:
    return int(place.name.removeprefix("step-"))
