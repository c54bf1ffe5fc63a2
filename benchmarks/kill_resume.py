"""Does a run that was killed end like one that was not? kill -9 at 25 moments, `rlvr train --resume`, compare. One JSON line.

    python benchmarks/kill_resume.py --kills 25 [--ahead 1]

Each run is the real command line in a process of its own, forked from one that has torch loaded already. A thread in it
watches what the main thread is doing (and the one that samples ahead) and, at a random visit to the moment that is planned,
after a random pause, kills the process with SIGKILL; so every kind of moment is really hit. Every fourth resume is killed too.
The run has dynamic sampling, a curriculum, an adaptive KL and several minibatches a step. The control, a run with another
seed, must differ.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rlvr.cli import run

ROOT = Path(__file__).resolve().parents[1]
DEADLINE_S, ATTEMPTS = 600.0, 20
RECIPE = f"""
seed: 0
env: {{name: "{ROOT}/tests/worlds.py:Sums", below: 12}}
tokenizer: "chars:0123456789+="
model:
  config: {{model_type: llama, hidden_size: 32, intermediate_size: 64, num_hidden_layers: 1, num_attention_heads: 2,
           num_key_value_heads: 2, max_position_embeddings: 64}}
warmstart: {{steps: 5, batch_size: 16, learning_rate: 3.0e-3}}
rollout: {{prompts_per_step: 4, num_generations: 4, curriculum: {{by: carries, candidates: 3}}}}
algorithm: {{name: dapo, beta: 0.1, kl_target: 0.01, kl_horizon: 100, dynamic_sampling_rounds: 3, num_iterations: 2}}
train: {{steps: 8, learning_rate: 1.0e-3, minibatches_per_step: 2}}
eval: {{tasks: 10, every: 3}}
log: {{save_every: 2}}
"""
MOMENTS = {
    "making the folder": ("create", 1, 0.001),
    "warm start": ("supervise", 5, 0.002),
    "sampling": ("stream", 6, 0.005),
    "between minibatches": ("_learn", 24, 0.003),
    "writing the logs": ("_append", 4, 0.0),
    "writing a checkpoint": ("save", 5, 0.02),
    "evaluating": ("accuracy", 3, 0.02),
    "at the end": ("end", 1, 0.1),
}
"""Per moment: the function of ours that is running then, how often a run comes there, and the longest pause before the kill."""
OURS = (str(ROOT / "rlvr"),)


def stack_of(thread: int) -> list[FrameType]:
    """What a thread and the worker that samples ahead of it are doing, innermost first; our own code only."""
    workers = [other.ident for other in threading.enumerate() if other.name.startswith("ahead")]
    frames, found = sys._current_frames(), []
    for each in (thread, *workers):
        frame = frames.get(each or 0)
        while frame is not None:
            if frame.f_code.co_filename.startswith(OURS):
                found.append(frame)
            frame = frame.f_back
    return found


def at(moment: str, thread: int) -> FrameType | None:
    """The frame that shows the thread to be at the moment, or None."""
    name, stack = MOMENTS[moment][0], stack_of(thread)
    place = next((frame for frame in stack if frame.f_code.co_name == name), None)
    if place is None or (moment == "writing a checkpoint" and not place.f_code.co_filename.endswith("checkpoint.py")):
        return None
    if moment == "between minibatches":  # one optimizer step of this training step is done, another is not
        update = next(frame for frame in stack if frame.f_code.co_name == "update")
        return place if update.f_locals["descents"].moved else None
    return place


def die_at(moment: str, dice: random.Random, thread: int) -> None:
    """Kill this process at one of its visits to the moment."""
    _, visits, pause = MOMENTS[moment]
    wanted, seen, last = dice.randint(1, visits), 0, None
    while True:
        frame = at(moment, thread)
        if frame is not None and frame is not last:
            last, seen = frame, seen + 1
        if frame is not None and seen >= wanted:
            if pause:
                time.sleep(dice.uniform(0, pause))
            if (here := at(moment, thread) if pause else frame) is not None:
                print(f"killed at: {moment}, {here.f_code.co_name} line {here.f_lineno}", file=sys.stderr, flush=True)
                os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(min(0.0002, max(pause, 0.0001)))


def child(arguments: Sequence[str], log: Path, moment: str | None, dice: random.Random) -> int:
    """Run one command line in a process of its own; its exit code, -9 where it was killed."""
    process = os.fork()
    if process == 0:
        sink = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(sink, 1)
        os.dup2(sink, 2)
        sys.setswitchinterval(1e-4)
        if moment is not None:
            threading.Thread(target=die_at, args=(moment, dice, threading.get_ident()), daemon=True).start()
        code = run(arguments)
        sys.stderr.flush()
        os._exit(code)
    until = time.monotonic() + DEADLINE_S
    while time.monotonic() < until:
        done, status = os.waitpid(process, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    raise SystemExit(f"a run did not end in {DEADLINE_S:g} s; see {log}")


def outcome(folder: Path) -> dict[str, bytes]:
    """Everything that must come out the same: weights, the learner's and the questions' state, the lines of the logs."""
    last = folder / "checkpoints" / "last"
    files = [last / "model.safetensors", last / "learner.pt", folder / "metrics.jsonl", folder / "episodes.jsonl"]
    found = {path.name: path.read_bytes() for path in files}
    report = json.loads((folder / "report.json").read_text())
    return found | {"report.json": json.dumps({k: v for k, v in report.items() if k not in ("seconds", "run")}).encode()}


def main() -> None:
    """Kill, resume, compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=25)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--ahead", type=int, default=0, help="rollout.max_staleness of the runs")
    args = parser.parse_args()
    for heavy in ("rlvr.learn.train", "rlvr.samplers.hf"):  # before the first fork, so that no child pays for it
        importlib.import_module(heavy)
    began, dice = time.monotonic(), random.Random(args.seed)
    hit: Counter[str] = Counter()
    differing, same, killed_twice = [], 0, 0
    with tempfile.TemporaryDirectory(prefix="rlvr-kill-") as scratch:
        home = Path(scratch)
        recipe = home / "recipe.yaml"
        recipe.write_text(RECIPE.replace("prompts_per_step: 4,", f"prompts_per_step: 4, max_staleness: {args.ahead},"))
        for name, more in (("whole", ()), ("control", ("seed=1",))):
            if child(["train", str(recipe), *more, "--out", str(home / name)], home / f"{name}.log", None, dice):
                raise SystemExit((home / f"{name}.log").read_text())
        whole = outcome(home / "whole")
        plan = [list(MOMENTS)[k % len(MOMENTS)] for k in range(args.kills)]
        for k, moment in enumerate(plan):
            folder, log = home / f"run{k}", home / f"run{k}.log"
            command = ["train", str(recipe), "--out", str(folder)]
            for _ in range(ATTEMPTS):
                code = child(command, log, moment, dice)
                if code:
                    break
                shutil.rmtree(folder)  # it ended before its moment came: that is no kill
            else:
                print(f"{k + 1:3} not killed at: {moment}", file=sys.stderr, flush=True)
                continue
            hit[moment] += code == -signal.SIGKILL
            if k % 4 == 3:
                killed_twice += child([*command, "--resume"], log, dice.choice(list(MOMENTS)), dice) == -signal.SIGKILL
            code = child([*command, "--resume"], log, None, dice)
            found = outcome(folder) if code == 0 else {}
            wrong = [name for name, content in whole.items() if found.get(name) != content]
            same += not wrong
            if wrong:
                differing.append(f"{moment}: exit code {code}, {', '.join(wrong)}; {log.read_text()[-400:]}")
            where = next((line for line in log.read_text().splitlines() if line.startswith("killed at: ")), "died")
            print(f"{k + 1:3} {where}: {'DIFFERS' if wrong else 'same'}", file=sys.stderr, flush=True)
        control = sum(outcome(home / "control")[name] != content for name, content in whole.items())
    print(
        json.dumps(
            {
                "question": "does a run that was killed end like one that was not?",
                "max_staleness": args.ahead, "kills": sum(hit.values()), "planned": len(plan), "same_to_the_bit": same,
                "moments_hit": dict(hit), "resumes_killed_too": killed_twice, "differing": differing,
                "files_that_another_seed_changes": control,
                "seconds": round(time.monotonic() - began, 1),
            }
        )
    )  # fmt: skip
    sys.exit(0 if same == len(plan) == sum(hit.values()) and control >= 4 else 1)


if __name__ == "__main__":
    main()
