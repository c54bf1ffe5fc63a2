"""How fast does a small policy reach its teacher: with the teacher, with the verifier, or with both?

    OMP_NUM_THREADS=1 python -m benchmarks.algos.distillation --teacher runs/quickstart/checkpoints/last --out runs/distil \
        [--seeds 0 1 2] [--kinds grpo sampled reverse_kl forward_kl both] [--picture docs/pictures/distillation.svg]

The teacher is the model of a finished run on the same task (`rlvr train quickstart`, or a run of `benchmarks.algos.curves` for `--task
reverse`). The student has about 100,000 parameters. Each seed has one warmup, from which every kind continues with the same
batches. The learning rates differ: a teacher's advantage at every token bears a higher one than a score for each answer. One run after
another, each in a process of its own; a run that is finished in --out is not repeated. One JSON line a run: `steps`, `cpu` and
`seconds` until the held-out accuracy is within --near of the teacher's, null if it never is. The CPU seconds and the seconds of the
clock are those of sampling, judging and learning; measurements, start and warmup are not counted. Another load on the machine
changes the seconds of the clock, so the CPU seconds (with one thread) are compared. Exit code 1 unless every kind with the teacher is
there before `grpo` in every seed, in steps and in CPU seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.algos._plot import Line, plotted
from rlvr.runs.run_log import read_jsonl

STUDENT = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 4, "max_position_embeddings": 64,
}  # fmt: skip
REVERSE: dict[str, Any] = {
    "env": {"name": "copy_reverse", "length": 5, "letters": "abcdefgh"}, "tokenizer": "chars:abcdefgh>", "eval.tasks": 300,
    "rollout.prompts_per_step": 32, "rollout.max_new_tokens": 8, "train.lr_scheduler": "constant",
}  # fmt: skip
"""Write five letters backwards: a task that is learned in a minute."""
TASKS: dict[str, dict[str, Any]] = {"quickstart": {"train.lr_scheduler": "constant", "eval.tasks": 300}, "reverse": REVERSE}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "grpo": ("GRPO, verifier only", {"name": "grpo"}),
    "sampled": ("teacher, sampled tokens", {"name": "distill"}),
    "reverse_kl": ("teacher, whole vocabulary", {"name": "distill", "divergence": "reverse_kl"}),
    "forward_kl": ("teacher, whole vocabulary, forward", {"name": "distill", "divergence": "forward_kl"}),
    "both": ("teacher and verifier", {"name": "distill", "advantage": "grpo"}),
}
COLOURS = {"grpo": "#b5541c", "sampled": "#1f4e8c", "reverse_kl": "#3c7a3c", "forward_kl": "#1c8a8a", "both": "#7a3c7a"}


def run(folder: Path, settings: dict[str, Any]) -> Path:
    """Train the quickstart with some settings changed, unless that is done already."""
    if not (folder / "report.json").exists():
        said = [f"{key}={json.dumps(value)}" for key, value in settings.items()]
        command = [sys.executable, "-m", "benchmarks.algos._timed", "train", "quickstart", *said, "--out", str(folder), "--json"]
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    return folder


def measured(folder: Path, goal: float) -> dict[str, Any]:
    """The curve of a run, and when its accuracy reached the goal for the first time."""
    clock, cpu = 0.0, 0.0
    curve: list[tuple[int, float, float, float]] = [(0, 0.0, 0.0, json.loads((folder / "report.json").read_text())["accuracy_before"])]
    lines = (read_jsonl(folder / name) for name in ("metrics.jsonl", "timings.jsonl", "cpu.jsonl"))
    for row, times, spent in zip(*lines, strict=True):
        clock += times["time/wait_for_batch"] + times["time/update"]
        cpu += spent["cpu"]
        if "eval/accuracy" in row:
            curve.append((row["step"], cpu, clock, row["eval/accuracy"]))
    there = next((point for point in curve if point[-1] >= goal), (None,) * 4)
    steps, cpu_s, seconds = (value if value is None else round(value, 1) for value in there[:3])
    return {"steps": steps, "cpu": cpu_s, "seconds": seconds, "last": curve[-1][-1], "best": max(p[-1] for p in curve), "curve": curve}


def main() -> int:
    """Train, print, plot."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--teacher", type=Path, required=True, help="the folder of the teacher's model; its run has the accuracy")
    parser.add_argument("--task", choices=tuple(TASKS), default="quickstart", help="reverse: five letters backwards, in a minute a run")
    parser.add_argument("--out", type=Path, required=True, help="a folder for the run folders")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--kinds", nargs="+", choices=tuple(KINDS), default=["grpo", "sampled", "reverse_kl", "both"])
    parser.add_argument("--steps", type=int, default=400, help="steps of a run with the teacher")
    parser.add_argument("--alone", type=int, default=400, help="steps of GRPO without it")
    parser.add_argument("--rate", type=float, default=1e-3, help="the learning rate with the teacher")
    parser.add_argument("--scheduler", default="constant", help="the schedule of that rate; GRPO's is constant: it still learns at its end")
    parser.add_argument("--rate-alone", type=float, default=3e-4, help="that of GRPO: the quickstart's; at 1e-3 its reward falls to 0")
    parser.add_argument("--minibatches", type=int, default=1, help="optimizer steps in each step with the teacher")
    parser.add_argument("--minibatches-alone", type=int, default=1, help="and of GRPO")
    parser.add_argument("--until", type=float, default=0.25, help="the greedy accuracy at which the warmup of the student ends")
    parser.add_argument("--every", type=int, default=20, help="steps between two measurements of the accuracy")
    parser.add_argument("--near", type=float, default=0.03, help="how far below the teacher's accuracy counts as reached")
    parser.add_argument("--picture", type=Path)
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    teacher = json.loads((asked.teacher.parent.parent / "report.json").read_text())["accuracy_after"]
    goal, runs = teacher - asked.near, list[dict[str, Any]]()
    for seed in asked.seeds:
        model = {"config": STUDENT}
        once = {
            "seed": seed,
            "model": model,
            "train.steps": 1,
            "train.learning_rate": 0.0,
            "eval.tasks": 0,
            "sft_warmup.target_accuracy": asked.until,
        }
        first = run(asked.out / f"start-{seed}", TASKS[asked.task] | once)
        for kind in asked.kinds:
            settings: dict[str, Any] = TASKS[asked.task] | {
                "seed": seed, "model": {"path": str(first / "checkpoints" / "last")}, "sft_warmup": None, "algorithm": KINDS[kind][1],
                "train.steps": asked.alone if kind == "grpo" else asked.steps,
                "train.learning_rate": asked.rate_alone if kind == "grpo" else asked.rate, "eval.every": asked.every,
                "train.minibatches_per_step": asked.minibatches_alone if kind == "grpo" else asked.minibatches,
            }  # fmt: skip
            if kind != "grpo":
                settings |= {"frozen_models": {"reference": str(asked.teacher)}, "train.lr_scheduler": asked.scheduler}
            runs.append({"seed": seed, "kind": kind, **measured(run(asked.out / f"{kind}-{seed}", settings), goal)})
            print(json.dumps({key: value for key, value in runs[-1].items() if key != "curve"}), flush=True)
    if asked.picture:
        lines = [Line(KINDS[one["kind"]][0], COLOURS[one["kind"]], (steps, cpu), reached)
                 for one in runs for steps, cpu, _, reached in [zip(*one["curve"], strict=True)]]  # fmt: skip
        levels = (("the teacher", teacher, "--"), ("counted as reached", goal, ":"))
        plotted(lines, asked.picture, units=("step", "CPU seconds of training"), height="held-out accuracy", levels=levels)
    alone, never = {one["seed"]: one for one in runs if one["kind"] == "grpo"}, float("inf")
    pairs = [(one, alone[one["seed"]]) for one in runs if one["kind"] != "grpo" and one["seed"] in alone]
    return int(any((one[key] or never) >= (grpo[key] or never) for one, grpo in pairs for key in ("steps", "cpu")))


if __name__ == "__main__":
    sys.exit(main())
