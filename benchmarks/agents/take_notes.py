"""A tiny policy learns to take notes where its conversation does not fit its window; without trained notes it does not.

    python benchmarks/agents/take_notes.py                      three seeds, four settings of `context`; a JSON line for each run
    python benchmarks/agents/take_notes.py --seeds 1 --steps 10 --draw FILE.svg

Three pages are read one by one, the last and one before it with a mark, and the window holds two of them; the answer is both marks. Runs of one
seed begin with the same policy, have the same steps and differ in `context` alone. Held-out tasks have pairs of marks that no run is trained on,
and their answers are sampled. Bars: in each seed, with trained notes at least 85 % of them are right, with every other setting at most 65 %
(without old results the mark of the second page is still there, so half of the tasks can be solved). The recipes are in `notes/`.
Exit code 1 if a bar is missed.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

import yaml  # noqa: E402
from rich.console import Console  # noqa: E402

from benchmarks.algos._plot import Line, plotted  # noqa: E402
from rlvr.config.config import validate_config  # noqa: E402
from rlvr.runs.run_log import read_jsonl  # noqa: E402
from rlvr.training.train import train  # noqa: E402

RECIPES = Path(__file__).parent / "notes"
SETTINGS: dict[str, dict[str, Any]] = {
    "trained notes": {},
    "masked notes": {"train_summaries": False},
    "old results dropped": {"policy": "drop_old_results"},
    "no notes": {"policy": "none"},
}
COLOURS = dict(zip(SETTINGS, ("#1f4e8c", "#c0392b", "#d98c21", "#666666"), strict=True))
ENOUGH, MOST_OF_OTHERS = 0.85, 0.65


def load_recipe(name: str) -> dict[str, Any]:
    """Load a recipe; the environment is named by its whole path."""
    recipe: dict[str, Any] = yaml.safe_load((RECIPES / name).read_text("utf-8"))
    recipe["env"]["name"] = str(RECIPES / recipe["env"]["name"])
    return recipe


def teach(seed: int, folder: Path) -> dict[str, Any]:
    """Make the policy with which all runs of a seed begin."""
    recipe = load_recipe("warmup.yaml") | {"seed": seed, "eval": {"tasks": 0}}
    report = train(validate_config(recipe, "warmup"), out=folder, console=Console(file=io.StringIO()))
    return {"seed": seed, "setting": "warmup", "steps": report.steps, "seconds": round(report.seconds, 1)}


def run(seed: int, setting: str, policy: Path, folder: Path, steps: int) -> dict[str, Any]:
    """One run, and its held-out accuracy at each evaluation."""
    recipe = load_recipe("notes.yaml") | {"seed": seed, "model": {"path": str(policy)}}
    recipe["env"]["context"] |= SETTINGS[setting]
    recipe["train"]["steps"] = steps
    began = time.monotonic()
    report = train(validate_config(recipe, "notes"), out=folder, console=Console(file=io.StringIO()))
    rows = list(read_jsonl(folder / "metrics.jsonl"))
    held_out = [(0, report.accuracy_before)] + [(row["step"], row["eval/accuracy"]) for row in rows if "eval/accuracy" in row]
    return {
        "seed": seed,
        "setting": setting,
        "before": report.accuracy_before,
        "after": report.accuracy_after,
        "reward": round(sum(report.rewards[-5:]) / 5, 3),
        "steps": report.steps,
        "contaminated": report.held_out_contaminated,
        "masked_tokens": sum(row["tokens/masked"] for row in rows),
        "trained_tokens": sum(row["tokens/trained"] for row in rows),
        "held_out": held_out,
        "seconds": round(time.monotonic() - began, 1),
    }


def main() -> int:
    """Run all seeds with all settings."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="the seeds")
    parser.add_argument("--steps", type=int, default=load_recipe("notes.yaml")["train"]["steps"])
    parser.add_argument("--settings", nargs="+", choices=list(SETTINGS), default=list(SETTINGS))
    parser.add_argument("--out", type=Path, help="the folder of the runs, which are otherwise removed")
    parser.add_argument("--draw", type=Path, help="the picture: held-out accuracy over the steps")
    asked = parser.parse_args()
    runs = []
    with tempfile.TemporaryDirectory() as temporary:
        out = asked.out or Path(temporary)
        for seed in asked.seeds:
            warm = out / f"warmup-{seed}"
            print(json.dumps(teach(seed, warm)), flush=True)
            for setting in asked.settings:
                folder = out / f"{setting.replace(' ', '_')}-{seed}"
                runs.append(run(seed, setting, warm / "checkpoints" / "last", folder, asked.steps))
                print(json.dumps(runs[-1]), flush=True)
    if asked.draw is not None:
        lines = [
            Line(one["setting"], COLOURS[one["setting"]], ([step for step, _ in one["held_out"]],), [right for _, right in one["held_out"]])
            for one in runs
        ]
        plotted(lines, asked.draw, units=["step"], height="held-out accuracy")
    missed = [
        [one["setting"], one["seed"]]
        for one in runs
        if (one["after"] < ENOUGH if one["setting"] == "trained notes" else one["after"] > MOST_OF_OTHERS)
    ]
    print(json.dumps({"runs": len(runs), "missed": missed, "passed": not missed}))
    return int(bool(missed))


if __name__ == "__main__":
    raise SystemExit(main())
