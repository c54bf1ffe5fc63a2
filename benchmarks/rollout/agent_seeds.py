"""Train the recipe `agent_quickstart` on several seeds, with its tool and without, and plot the rewards of all runs in one picture.

    python benchmarks/rollout/agent_seeds.py --out runs/seeds [--seeds 0 1 2] [--picture agent_reward.png] [-- a.b=v ...]

One run after another, each in a separate process. A run that is finished in --out already is not repeated. One JSON line a run, with its
CPU-seconds. Exit code 1 if a seed has less than 85 % with the tool, or 30 % or more without it.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

from rlvr.runs.report import compute_trailing_mean
from rlvr.runs.run_log import read_jsonl

WITH, WITHOUT = "tool", "alone"
COLOURS = ("#1f4e8c", "#b5541c", "#3c7a3c", "#7a3c7a", "#6b6b6b")


def trained(out: Path, seed: int, kind: str, settings: list[str]) -> dict[str, Any]:
    """The result of one run, which is trained unless it is there already."""
    place, result = out / f"{kind}-{seed}", out / f"{kind}-{seed}.json"
    if not result.exists():
        extra = ["env.tools=[]"] if kind == WITHOUT else []
        command = [
            sys.executable,
            "-m",
            "rlvr",
            "train",
            "agent_quickstart",
            f"seed={seed}",
            *extra,
            *settings,
            "--out",
            str(place),
            "--json",
        ]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        result.write_text(json.dumps({**json.loads(done.stdout.splitlines()[-1]), "cpu_seconds": round(spent, 1)}) + "\n")
    return {"seed": seed, "kind": kind, **json.loads(result.read_text())}


def plotted(out: Path, runs: list[dict[str, Any]], path: Path) -> None:
    """The reward of each step, as the mean of five steps: a solid line with the tool, a dotted one without."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    seeds = sorted({run["seed"] for run in runs})
    for run in runs:
        rewards = [row["reward"] for row in read_jsonl(out / f"{run['kind']}-{run['seed']}" / "metrics.jsonl")]
        colour, style = COLOURS[seeds.index(run["seed"]) % len(COLOURS)], "-" if run["kind"] == WITH else ":"
        name = f"seed {run['seed']}, {'with the calculator' if run['kind'] == WITH else 'without'}"
        axes.plot(range(1, len(rewards) + 1), compute_trailing_mean(rewards, 5), color=colour, linestyle=style, linewidth=2, label=name)
    axes.set(xlabel="step", ylabel="mean reward of the last 5 steps", ylim=(-0.02, 1.02), xlim=(1, None))
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    figure.legend(frameon=False, loc="outside lower center", ncols=2, fontsize=9)
    figure.savefig(path, dpi=130)


def main() -> None:
    """Train, print, plot."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="a folder for the run folders")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--picture", type=Path, help="where to write the picture")
    parser.add_argument("settings", nargs="*", default=[], metavar="a.b=v", help="settings of the recipe to replace, after --")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    runs = []
    for kind in (WITH, WITHOUT):
        for seed in options.seeds:
            runs.append(trained(options.out, seed, kind, options.settings))
            print(json.dumps(runs[-1]), flush=True)
    if options.picture:
        plotted(options.out, runs, options.picture)
    good = [run["accuracy_after"] >= 0.85 if run["kind"] == WITH else run["accuracy_after"] < 0.3 for run in runs]
    raise SystemExit(not all(good))


if __name__ == "__main__":
    main()
