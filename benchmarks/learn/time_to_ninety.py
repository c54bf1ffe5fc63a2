"""Measure the time until nine in ten held-out answers are right: ours and TRL's GRPO on the quickstart, from the same warm start.

    python -m benchmarks.learn.time_to_ninety [--seeds 3] [--peer PYTHON] [--threads 2] [--warm DIR]

One JSON line for each seed, and one for all. Both train with the recipe's own settings on the same questions and rewards, ten steps each,
alternating; the clock of a side runs only during its steps. After every ten the weights are saved and judged here, greedily, on
held-out tasks.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "_peers"))

import peer_trl
from learning_matrix import components_of, warm_up
from vs_trl import Side

ENOUGH, EVERY, JUDGED = 0.9, 10, 500


def plan(components: Any, warm: Path) -> dict[str, Any]:
    """The recipe for the peer: its settings, and the questions of every step with their answers."""
    settings, train = components.config.rollout, components.config.train
    tasks = components.task_sampler.task_order.load_tasks(0, train.steps * settings.prompts_per_step)
    return {
        "model": str(warm), "prompts": settings.prompts_per_step, "generations": settings.num_generations,
        "cap": settings.max_new_tokens, "steps": train.steps, "learning_rate": train.learning_rate,
        "warmup_steps": train.warmup_steps, "lr_scheduler": train.lr_scheduler,
        "tasks": [{"prompt": list(task.prompt), "answer": str(task.reference)} for _, task in tasks],
    }  # fmt: skip


def judged(components: Any, weights: Path) -> float:
    """Held-out accuracy of saved weights."""
    from transformers import AutoModelForCausalLM

    from rlvr.training.held_out import evaluate_split

    components.sampler.load_model(AutoModelForCausalLM.from_pretrained(weights).eval(), 0)
    return evaluate_split(components, "test", JUDGED) or 0.0


def race(seed: int, peer: str, threads: int, warm: Path, folder: Path) -> dict[str, Any]:
    """Run both sides from one warm start until each is good enough or out of steps."""
    from rlvr.models.model_loading import to_transformers_tokenizer

    if not (warm / "model.safetensors").is_file():
        warm_up(seed, warm)
    with ExitStack() as stack:
        components = components_of(seed, stack, warm=warm)
        to_transformers_tokenizer(components.tokenizer).save_pretrained(warm)
        told = plan(components, warm)
        (folder / "trl.json").write_text(json.dumps(told))
        (folder / "ours.json").write_text(json.dumps(components.config.model_dump(mode="json")))
        sides = {
            "ours": Side(sys.executable, "vs_trl_ours.py", [str(folder / "ours.json"), str(folder / "run")], folder / "ours.log", threads),
            "trl": Side(peer, "time_to_ninety_peer.py", [str(folder / "trl.json")], folder / "trl.log", threads),
        }
        for side in sides.values():
            stack.callback(side.close)
        curves: dict[str, list[float]] = {name: [judged(components, warm)] for name in sides}
        while racing := [n for n in sides if curves[n][-1] < ENOUGH and len(sides[n].steps) < told["steps"]]:
            for name in racing:
                for _ in range(EVERY):
                    sides[name].step()
                sides[name].tell(f"save {folder / name}")
                curves[name].append(judged(components, folder / name))
        row: dict[str, Any] = {"seed": seed}
        for name, side in sides.items():
            spent = {key: round(sum(step[key] for step in side.steps), 1) for key in ("seconds", "cpu")}
            row[name] = {"steps": len(side.steps), **spent, "reached": curves[name][-1] >= ENOUGH, "accuracy": curves[name]}
        return row | {key: round(row["trl"][key] / row["ours"][key], 2) for key in ("seconds", "cpu")}


def main() -> None:
    """Run one comparison for each seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--peer", help="a Python interpreter with trl==1.16.0; created if not given")
    parser.add_argument("--threads", type=int, default=2, help="of each side; on a busy machine take 1 and read the CPU-seconds")
    parser.add_argument("--warm", type=Path, help="the folder in which the seeds' warm starts are stored and reused")
    options = parser.parse_args()
    peer, rows = peer_trl.interpreter(options.peer), []
    for seed in range(options.seeds):
        with tempfile.TemporaryDirectory() as place:
            warm = (options.warm or Path(place) / "warm") / str(seed)
            rows.append(race(seed, peer, options.threads, warm, Path(place)))
        print(json.dumps(rows[-1]), flush=True)
    medians = {key: statistics.median(row[key] for row in rows) for key in ("seconds", "cpu")}
    print(json.dumps({"benchmark": "time_to_ninety", "threads": options.threads, "times_faster": medians}))


if __name__ == "__main__":
    main()
