"""Kill a training run at 25 moments with SIGKILL, resume it, and compare it with an undisturbed run. One JSON line.

    python benchmarks/learn/kill_resume.py --kills 25 [--ahead 1]

Each run is the real command line in a separate process, forked from one that has torch loaded already. It traces every call of its
threads and, at a random visit to the planned moment, after a random pause, kills itself with SIGKILL while it is still there; so every
kind of moment is really tested. Every fourth resume is killed too. The run has dynamic sampling, a curriculum, an adaptive KL and several
minibatches in each step. The control, a run with another seed, must differ. Exit code 1 if a resumed run differs, or a moment was not hit.
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

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from rlvr.cli.commands import run_command

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S, ATTEMPTS = 600.0, 20
RECIPE = f"""
seed: 0
env: {{name: "{ROOT}/tests/fixtures/worlds.py:Sums", below: 12}}
tokenizer: "chars:0123456789+="
model:
  config: {{model_type: llama, hidden_size: 32, intermediate_size: 64, num_hidden_layers: 1, num_attention_heads: 2,
           num_key_value_heads: 2, max_position_embeddings: 64}}
sft_warmup: {{max_steps: 5, batch_size: 16, learning_rate: 3.0e-3}}
rollout: {{prompts_per_step: 4, num_generations: 4, curriculum: {{meta_key: carries, candidates_per_task: 3}}}}
algorithm: {{name: dapo, beta: 0.1, kl_target: 0.01, kl_horizon: 100, dynamic_sampling_rounds: 3, num_iterations: 2}}
train: {{steps: 8, learning_rate: 1.0e-3, minibatches_per_step: 2}}
eval: {{tasks: 10, every: 3}}
log: {{save_every: 2}}
"""
MOMENTS = {
    "making the folder": ("create", 1, 0.001),
    "warm start": ("train_supervised", 5, 0.002),
    "sampling": ("stream_from_queue", 200, 0.001),
    "between minibatches": ("_take_optimizer_step", 12, 0.01),
    "writing the logs": ("_append", 16, 0.0005),
    "copying a checkpoint": ("save", 5, 0.02),
    "writing a checkpoint": ("publish_checkpoint", 5, 0.02),
    "evaluating": ("evaluate", 3, 0.02),
    "at the end": ("_finish", 1, 0.1),
}
"""For each moment: the function that runs then, how often a run gets there, and the longest pause before the kill."""
OURS = str(ROOT / "rlvr")


def shows(moment: str, frame: FrameType) -> bool:
    """Whether the called function is the one of the moment."""
    code = frame.f_code
    if code.co_name != MOMENTS[moment][0] or not code.co_filename.startswith(OURS):
        return False
    if moment == "between minibatches":  # one optimizer step of this training step is done, another is not
        caller = frame.f_back
        return caller is not None and bool(caller.f_locals["descents"].num_steps)
    return code.co_filename.endswith({"copying a checkpoint": "trainer.py", "writing a checkpoint": "checkpoint.py"}.get(moment, ""))


def die_at(moment: str, dice: random.Random) -> None:
    """Have this process killed at one of its visits to the moment, in any thread."""
    _, visits, pause = MOMENTS[moment]
    wanted, seen, inside = dice.randint(1, visits), 0, set[FrameType]()

    def kill(frame: FrameType) -> None:
        if frame in inside:
            print(f"killed at: {moment}, {frame.f_code.co_name} line {frame.f_lineno}", file=sys.stderr, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)

    def told(frame: FrameType, event: str, _: object) -> None:
        nonlocal seen
        if event == "return":
            inside.discard(frame)
        elif event == "call" and shows(moment, frame):
            seen += 1
            inside.add(frame)
            if seen >= wanted:
                timer = threading.Timer(dice.uniform(0, pause), kill, (frame,))
                timer.daemon = True
                timer.start()

    threading.setprofile(told)
    sys.setprofile(told)


def child(arguments: Sequence[str], log: Path, moment: str | None, dice: random.Random) -> int:
    """Run one command line in a separate process; returns its exit code, -9 if it was killed."""
    process = os.fork()
    if process == 0:
        sink = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(sink, 1)
        os.dup2(sink, 2)
        if moment is not None:
            die_at(moment, dice)
        code = run_command(arguments)
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
    """Everything that must be equal: weights, the learner's and the questions' state, the lines of the logs."""
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
    for heavy in ("rlvr.training.train", "rlvr.samplers.hf"):  # before the first fork, so that no child imports them again
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
                shutil.rmtree(folder)  # it finished before its moment: not killed
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
            where = next((line for line in log.read_text().splitlines() if line.startswith("killed at: ")), f"{moment}: died")
            print(f"{k + 1:3} {where}: {'DIFFERS' if wrong else 'same'}", file=sys.stderr, flush=True)
        control = sum(outcome(home / "control")[name] != content for name, content in whole.items())
    print(
        json.dumps(
            {
                "question": "does a killed and resumed run end like an undisturbed one?",
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
