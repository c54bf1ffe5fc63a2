"""What does a training run cost with ten times the prompts? One JSON line: CPU-seconds, peak memory and the run folder.

    python benchmarks/ten_times.py [--prompts 16] [--steps 8] [--times 10]

Three runs of the quickstart's model, each in a process of its own: a small one, one with ten times the prompts in every step, and one
with ten times the steps. `cpu` and `log` say how many times as much the larger run took: ten is linear. What a run costs whatever its
length (a run of one prompt) is measured in the same process and taken off. Memory has to stay where it was with more steps; with more
prompts in a step it may grow by what their episodes hold. Checkpoints are as large whatever the number of prompts.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from vs_trl_work import reset_peak, resident, say

SETTINGS = {"rollout.num_generations": 8, "train.warmup_steps": 0, "eval.tasks": 1, "log.save_every": 2, "warmstart": "null"}


def measured(place: Path, prompts: int, steps: int) -> dict[str, float]:
    """Train in a fresh process; what it used, and what it left."""
    command = [sys.executable, __file__, "--one", str(place), "--prompts", str(prompts), "--steps", str(steps)]
    paths = f"{Path(__file__).parent.parent}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": paths})
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def one(place: Path, prompts: int, steps: int) -> None:
    """The process of one run: first runs of a single prompt, to import what there is and to know what any run costs; then the run."""
    train_one(place / "first", 1, 1)
    least = train_one(place / "least", 1, 1)
    before = reset_peak()
    spent = train_one(place / "run", prompts, steps)
    checkpoints = size_of(place / "run" / "checkpoints")
    say(
        cpu_seconds=spent - least, peak_mb=resident("VmHWM") - before, checkpoints_mb=checkpoints,
        log_mb=size_of(place / "run") - size_of(place / "least") - checkpoints + size_of(place / "least" / "checkpoints"),
    )  # fmt: skip


def train_one(place: Path, prompts: int, steps: int) -> float:
    """Train as `rlvr train quickstart` does; the CPU-seconds it took."""
    from rich.console import Console

    from rlvr.config import load
    from rlvr.learn.train import train

    overrides = SETTINGS | {"rollout.prompts_per_step": prompts, "train.steps": steps}
    began = time.process_time()
    train(load("quickstart", [f"{key}={value}" for key, value in overrides.items()]), out=place, console=Console(quiet=True))
    return time.process_time() - began


def size_of(folder: Path) -> float:
    """MiB of the files below a folder; a link counts nothing."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink()) / 2**20


def main() -> None:
    """The runs one after another."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=16, help="in a step of the small run")
    parser.add_argument("--steps", type=int, default=8, help="of the small run")
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    prompts, steps, times = options.prompts, options.steps, options.times
    if options.one:
        return one(options.one, prompts, steps)
    with tempfile.TemporaryDirectory() as home:
        small = measured(Path(home) / "small", prompts, steps)
        larger = {
            "prompts_per_step": measured(Path(home) / "wide", prompts * times, steps),
            "steps": measured(Path(home) / "long", prompts, steps * times),
        }
    row: dict[str, Any] = {"benchmark": "ten_times", "times": times, "small": rounded(small)}
    for axis, found in larger.items():
        cpu, log = found["cpu_seconds"] / small["cpu_seconds"], found["log_mb"] / small["log_mb"]
        row[axis] = rounded(found) | {
            "cpu": round(cpu, 1),
            "log": round(log, 1),
            "more_peak_mb": round(found["peak_mb"] - small["peak_mb"]),
        }
    print(json.dumps(row))


def rounded(found: dict[str, float]) -> dict[str, float]:
    """Figures as they are told."""
    return {key: round(value, 2) for key, value in found.items()}


if __name__ == "__main__":
    main()
