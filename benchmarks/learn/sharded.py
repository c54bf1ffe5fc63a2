"""FSDP2 on gloo processes of one CPU: precision, memory, start, and the loss of a process.

    python -m benchmarks.learn.sharded --processes 4                      everything
    python -m benchmarks.learn.sharded --parts kill --processes 4

    shards    bf16 against float32, two steps against one process, tensors that are whole at once, LoRA, experts
    start     a model four times larger than a process may hold (RLIMIT_DATA), in --start-processes
    kill      kill -9 of one process in mid-step: what the others say and when; the resumed run against an undisturbed one

Prints one JSON line for each part. A part that misses its bar ends with exit code 1, after the others have run.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from rlvr.runs.folder_owner import temporary_folder
from tests.fixtures.tiny import tiny_run
from tests.training.peers.launch import ROOT, ended, started

MODULE = "tests.training.update.shards"
LOST = "waited for another process that exited or did not answer"
DEADLINE_S = 20.0


def shards(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    """The parts of tests/training/update/shards.py, on more processes."""
    alone(folder, "alone")
    found = told(args.processes, folder, 900.0)
    errors = found["precision"]["logprobs"]
    bars = {
        "log-probabilities in float32": found["precision"]["dtypes"] == ["torch.float32"],
        "error below 4 times autocast's": errors["ours"] < 4 * errors["autocast"],
        "steps of one process": max(found["updates"][kind]["weights"] for kind in ("plain", "reference")) < 1e-5,
        "one whole tensor": max(found["stream"][kind]["most"] for kind in ("hand-over", "checkpoint", "resume")) <= 1,
        "resumed": found["stream"]["same"],
        "adapter": found["adapters"]["weights"] < 1e-6,
    }
    return {"bars": bars, **found}


def start(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    """A model four times larger than a process may hold."""
    alone(folder, "large")
    # glibc would keep the memory of layers that were freed, in pieces too small for the next ones
    found = told(args.start_processes, folder, 900.0, "start", MALLOC_MMAP_THRESHOLD_="65536")["start"]
    return {"bars": {"whole it does not fit": bool(found["whole"]), "sharded it starts": found["scores_finite"]}, **found}


def kill(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Kill one process in mid-step, look at the others, resume, and compare with an undisturbed run."""
    recipe = folder / "run.yaml"
    train = {"steps": 6, "learning_rate": 1e-3, "collective_timeout_s": DEADLINE_S}
    changes: dict[str, Any] = {"algorithm": {"name": "grpo", "beta": 0.05}, "log": {"save_every": 2}, "sft_warmup": None, "train": train}
    recipe.write_text(tiny_run(**changes).dump())

    def run(name: str, *more: str) -> list[subprocess.Popen[str]]:
        return started(args.processes, "tests.training.fsdp2", [str(recipe), "--out", str(folder / name), *more], folder / f"{name} said")

    undisturbed = ended(run("whole"), 300.0)
    processes, lines = run("cut"), folder / "cut" / "metrics.jsonl"
    until = time.monotonic() + 300.0
    while not lines.exists() or lines.read_text().count("\n") < 3:
        if time.monotonic() > until:
            raise TimeoutError("the run took no third step in 300 s")
        time.sleep(0.005)
    processes[-1].send_signal(signal.SIGKILL)
    began = time.monotonic()
    codes = ended(processes[:-1], DEADLINE_S + 60.0)
    waited = time.monotonic() - began
    processes[-1].wait()
    words = [LOST in (folder / "cut said" / f"{rank}.out").read_text() for rank in range(args.processes - 1)]
    killed_at = lines.read_text().count("\n")
    resumed = ended(run("cut", "--resume"), 300.0)
    ours, theirs = (load_file(folder / name / "checkpoints" / "last" / "model.safetensors") for name in ("whole", "cut"))
    change = torch.cat([(ours[name].double() - theirs[name].double()).flatten() for name in ours]).norm()
    apart = float(change / torch.cat([weight.double().flatten() for weight in ours.values()]).norm())
    bars = {
        "undisturbed and resumed runs end well": not any(undisturbed) and not any(resumed),
        "an error in words in each other process": all(words) and all(code == 3 for code in codes),
        "within the deadline": waited < DEADLINE_S,
        "the run of an undisturbed one": apart < 1e-6,
    }
    return {
        "bars": bars,
        "killed_after_step": killed_at,
        "waited_s": round(waited, 1),
        "deadline_s": DEADLINE_S,
        "codes": codes,
        "apart": apart,
    }


def alone(folder: Path, part: str) -> None:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "ACCELERATE_USE_CPU": "true"}
    subprocess.run([sys.executable, "-m", MODULE, str(folder), part], cwd=ROOT, env=environment, check=True, timeout=600)


def told(processes: int, folder: Path, timeout_s: float, *parts: str, **environment: str) -> dict[str, Any]:
    codes = ended(started(processes, MODULE, [str(folder), *parts], folder / "said", **environment), timeout_s)
    if any(codes):
        raise RuntimeError(f"exit codes {codes}: " + (folder / "said" / "0.out").read_text()[-2000:])
    found: dict[str, Any] = json.loads((folder / "found.json").read_text())
    return found


PARTS: dict[str, Callable[[Path, argparse.Namespace], dict[str, Any]]] = {"shards": shards, "start": start, "kill": kill}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--start-processes", type=int, default=6, help="more than 4, or even the shards could not be held")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    args = parser.parse_args()
    failed = False
    for name in args.parts:
        with temporary_folder("rlvr-sharded-") as folder:
            try:
                row = PARTS[name](folder, args)
            except Exception as error:  # the other parts still run
                row = {"bars": {"it runs": False}, "error": f"{type(error).__name__}: {error}"[:2000]}
        failed = failed or not all(row["bars"].values())
        print(json.dumps({"part": name, **row}), flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
