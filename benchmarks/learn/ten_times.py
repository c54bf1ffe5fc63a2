"""Measure the cost of a training run with ten times the prompts. One JSON line: CPU-seconds, peak memory and the run folder.

    python benchmarks/learn/ten_times.py [--prompts 8] [--steps 8] [--times 10]

Runs of the quickstart's model, each in a separate process: a small one, and ones with five and ten times the prompts in every step,
and with five and ten times the steps. Fixed costs drop out of `bend`: the cost of a prompt in the last half,
divided by that in the first half; 1 is linear. Memory must not grow with more steps; with more prompts in a
step it may grow by the size of their episodes. The size of checkpoints does not depend on the number of prompts.
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

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "_peers"))

from vs_trl_work import reset_peak, resident, say

SETTINGS = {"rollout.num_generations": 8, "train.warmup_steps": 0, "eval.tasks": 1, "log.save_every": 2, "sft_warmup": "null"}


def measured(place: Path, prompts: int, steps: int) -> dict[str, float]:
    """Train in a fresh process; returns what it used, and its outputs."""
    command = [sys.executable, __file__, "--one", str(place), "--prompts", str(prompts), "--steps", str(steps)]
    paths = f"{Path(__file__).resolve().parents[2]}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": paths})
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def one(place: Path, prompts: int, steps: int) -> None:
    """The process of one run: first a run of a single prompt, to import everything; then the run."""
    train_one(place / "first", 1, 1)
    before = reset_peak()
    spent = train_one(place / "run", prompts, steps)
    checkpoints = size_of(place / "run" / "checkpoints")
    log = size_of(place / "run") - checkpoints
    say(cpu_seconds=spent, peak_mb=resident("VmHWM") - before, log_mb=log, checkpoints_mb=checkpoints)


def train_one(place: Path, prompts: int, steps: int) -> float:
    """Train as `rlvr train quickstart` does; returns the CPU-seconds."""
    from rich.console import Console

    from rlvr.config.config import load_config
    from rlvr.training.train import train

    overrides = SETTINGS | {"rollout.prompts_per_step": prompts, "train.steps": steps}
    began = time.process_time()
    train(load_config("quickstart", [f"{key}={value}" for key, value in overrides.items()]), out=place, console=Console(quiet=True))
    return time.process_time() - began


def size_of(folder: Path) -> float:
    """MiB of the files below a folder; links are not counted."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink()) / 2**20


def axis(runs: list[dict[str, float]], sizes: list[int]) -> dict[str, Any]:
    """The runs of one axis, and how linear the cost is."""
    row: dict[str, Any] = {key: [round(run[key], 2) for run in runs] for key in runs[0]}
    for key in ("cpu_seconds", "log_mb"):
        first, last = ((runs[i + 1][key] - runs[i][key]) / (sizes[i + 1] - sizes[i]) for i in (0, 1))
        row[f"bend_{key}"] = round(last / first, 2)
    return row


def main() -> None:
    """Run them one after another."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=8, help="in a step of the small run")
    parser.add_argument("--steps", type=int, default=8, help="of the small run")
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    prompts, steps = options.prompts, options.steps
    if options.one:
        return one(options.one, prompts, steps)
    sizes = [1, max(2, options.times // 2), options.times]
    with tempfile.TemporaryDirectory() as home:
        small = measured(Path(home) / "small", prompts, steps)
        wide = [small, *(measured(Path(home) / f"wide-{k}", prompts * k, steps) for k in sizes[1:])]
        long = [small, *(measured(Path(home) / f"long-{k}", prompts, steps * k) for k in sizes[1:])]
    print(json.dumps({"benchmark": "ten_times", "times": sizes, "prompts_per_step": axis(wide, sizes), "steps": axis(long, sizes)}))


if __name__ == "__main__":
    main()
