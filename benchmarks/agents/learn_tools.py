"""A tiny policy learns to use the tool of a real agent program, whose library is unmodified; without the tool it does not.

    pip install openai-agents                                    what is needed besides the project
    python benchmarks/agents/learn_tools.py                      three seeds, two agents; a JSON line for each run
    python benchmarks/agents/learn_tools.py --seeds 1 --steps 10 --draw FILE.svg

A question names a card; a card names the next one, or has the answer, and up to three must be read. The agent is a program of the package
openai-agents: the library runs the loop, offers its tool, reads the policy's calls, runs them, and calls the policy through the gateway. A warmup
without an agent teaches how cards are followed, and to guess in place of 60 % of the calls. Runs of one seed begin with the same policy, have the
same steps and differ in the agent's tool alone. Held-out tasks have answers that no run is trained on, and are answered by sampling. Bars: in each
seed, with the tool at most 35 % of them are right before training and at least 85 % after it; without the tool at most 5 % after it.
The recipes are in `tools/`. Exit code 1 if a bar is missed.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
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

RECIPES = Path(__file__).parent / "tools"
AGENTS = {"with the tool": "read_cards", "without the tool": "answer_alone"}
COLOURS = dict(zip(AGENTS, ("#1f4e8c", "#c0392b"), strict=True))
ENOUGH, MOST_BEFORE, MOST_ALONE = 0.85, 0.35, 0.05


def load_recipe(name: str) -> dict[str, Any]:
    """Load a recipe."""
    recipe: dict[str, Any] = yaml.safe_load((RECIPES / name).read_text("utf-8"))
    return recipe


def teach(seed: int, folder: Path) -> dict[str, Any]:
    """Make the policy with which all runs of a seed begin."""
    recipe = load_recipe("warmup.yaml") | {"seed": seed, "eval": {"tasks": 0}}
    recipe["env"]["name"] = str(RECIPES / recipe["env"]["name"])
    report = train(validate_config(recipe, "warmup"), out=folder, console=Console(file=io.StringIO()))
    return {"seed": seed, "agent": "warmup", "steps": report.steps, "seconds": round(report.seconds, 1)}


def run(seed: int, agent: str, policy: Path, folder: Path, steps: int) -> dict[str, Any]:
    """One run, and its held-out accuracy at each evaluation."""
    recipe = load_recipe("tools.yaml") | {"seed": seed, "model": {"path": str(policy)}}
    recipe["env"]["env"]["name"] = str(RECIPES / recipe["env"]["env"]["name"])
    recipe["env"]["function"] = f"{RECIPES / 'agent.py'}:{AGENTS[agent]}"
    recipe["train"]["steps"] = steps
    began = time.monotonic()
    report = train(validate_config(recipe, "tools"), out=folder, console=Console(file=io.StringIO()))
    rows = list(read_jsonl(folder / "metrics.jsonl"))
    held_out = [(0, report.accuracy_before)] + [(row["step"], row["eval/accuracy"]) for row in rows if "eval/accuracy" in row]
    return {
        "seed": seed,
        "agent": agent,
        "before": report.accuracy_before,
        "after": report.accuracy_after,
        "reward": round(sum(report.rewards[-5:]) / 5, 3),
        "steps": report.steps,
        "contaminated": report.held_out_contaminated,
        "trained_tokens": sum(row["tokens/trained"] for row in rows),
        "held_out": held_out,
        "seconds": round(time.monotonic() - began, 1),
    }


def has_missed(one: dict[str, Any]) -> bool:
    """Whether a run has missed its bar."""
    if AGENTS[one["agent"]] == "read_cards":
        return bool(one["after"] < ENOUGH or one["before"] > MOST_BEFORE)
    return bool(one["after"] > MOST_ALONE)


def draw(runs: list[dict[str, Any]], path: Path) -> None:
    """Draw the held-out accuracy over the steps. Marks show where it was measured, and that the lines at 0 are there, on the axis."""
    import matplotlib

    lines = [
        Line(one["agent"], COLOURS[one["agent"]], ([step for step, _ in one["held_out"]],), [right for _, right in one["held_out"]])
        for one in runs
    ]
    with matplotlib.rc_context({"lines.marker": "o", "lines.markersize": 5}):
        plotted(lines, path, units=["step"], height="held-out accuracy")


def main() -> int:
    """Run all seeds with all agents."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="the seeds")
    parser.add_argument("--steps", type=int, default=load_recipe("tools.yaml")["train"]["steps"])
    parser.add_argument("--agents", nargs="+", choices=list(AGENTS), default=list(AGENTS))
    parser.add_argument("--out", type=Path, help="the folder of the runs, which are otherwise removed")
    parser.add_argument("--draw", type=Path, help="the picture: held-out accuracy over the steps")
    asked = parser.parse_args()
    if importlib.util.find_spec("agents") is None:
        parser.error("the package openai-agents is not installed; install it with `pip install openai-agents`")
    print(json.dumps({"openai-agents": importlib.metadata.version("openai-agents")}), flush=True)
    runs = []
    with tempfile.TemporaryDirectory() as temporary:
        out = asked.out or Path(temporary)
        for seed in asked.seeds:
            warm = out / f"warmup-{seed}"
            print(json.dumps(teach(seed, warm)), flush=True)
            for agent in asked.agents:
                folder = out / f"{agent.replace(' ', '_')}-{seed}"
                runs.append(run(seed, agent, warm / "checkpoints" / "last", folder, asked.steps))
                print(json.dumps(runs[-1]), flush=True)
    if asked.draw is not None:
        draw(runs, asked.draw)
    missed = [[one["agent"], one["seed"]] for one in runs if has_missed(one)]
    print(json.dumps({"runs": len(runs), "missed": missed, "passed": not missed}))
    return int(bool(missed))


if __name__ == "__main__":
    raise SystemExit(main())
