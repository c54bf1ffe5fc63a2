"""Kill training runs with SIGKILL while sandbox boxes are open, resume them, and compare them with an undisturbed run. One JSON line.

    python benchmarks/rollout/kill_with_boxes.py --kills 10 [--sandbox docker]

Each run is the real command line in a separate process. In every turn of its conversations Python runs in the conversation's own box; the
world writes a line to a file at each event. The parent reads that file and kills the run at a random event, after a random pause, while
boxes are open. Then the run is resumed. Compared with the undisturbed run, bit by bit: the weights, the learner's state, metrics, report,
and the episodes but for the seconds that calls took. Counted after the resumed run has ended: containers, processes and folders that
belonged to the killed one. The control, a run with another seed, must differ. Exit code 1 if anything differs or is left.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from rlvr.cli.commands import run_command
from rlvr.runs.folder_owner import get_owner_label
from tests.fixtures.boxed import EVENTS, LEFT, descendants, happenings, left, timeless

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 600.0
SANDBOXES = {"docker": "docker", "process": "{name: process, trusted: true}"}
RECIPE = f"""
seed: 0
env: {{name: "{ROOT}/tests/fixtures/boxed.py:Adds", sandbox: SANDBOX}}
tokenizer: "chars:0123456789+="
model:
  config: {{model_type: llama, hidden_size: 32, intermediate_size: 64, num_hidden_layers: 1, num_attention_heads: 2,
           num_key_value_heads: 2, max_position_embeddings: 128}}
rollout: {{prompts_per_step: 4, num_generations: 4, sync_turns: true}}
algorithm: grpo
train: {{steps: 3, learning_rate: 1.0e-3}}
eval: {{tasks: 4}}
log: {{save_every: 1}}
"""


def started(arguments: Sequence[str], log: Path, events: Path) -> int:
    """A command line in a process of its own; returns its id."""
    process = os.fork()
    if process == 0:
        os.environ[EVENTS] = str(events)
        sink = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(sink, 1)
        os.dup2(sink, 2)
        code = run_command(arguments)
        sys.stderr.flush()
        os._exit(code)
    return process


def ended(process: int, log: Path) -> int:
    """Its exit code, -9 if it was killed."""
    until = time.monotonic() + DEADLINE_S
    while time.monotonic() < until:
        done, status = os.waitpid(process, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    raise SystemExit(f"a run did not end in {DEADLINE_S:g} s; see {log}")


def killed(process: int, events: Path, wanted: int, pause: float) -> dict[str, Any] | None:
    """Kill it `pause` seconds after its call number `wanted` has begun. What it had open then; None if it ended before."""
    until = time.monotonic() + DEADLINE_S
    while happenings(events, "call") < wanted:
        if os.waitpid(process, os.WNOHANG)[0]:
            return None
        if time.monotonic() > until:
            raise SystemExit(f"call {wanted} never came")
        time.sleep(0.001)
    time.sleep(pause)
    label, below = get_owner_label(process), list(descendants(process))
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    return {
        "label": label,
        "processes": below,
        "boxes": happenings(events, "open") - happenings(events, "close"),
        "in_calls": happenings(events, "call") - happenings(events, "heard"),
    }


def outcome(folder: Path) -> dict[str, Any]:
    """Everything that must be equal."""
    last = folder / "checkpoints" / "last"
    found: dict[str, Any] = {path.name: path.read_bytes() for path in (last / "model.safetensors", last / "learner.pt")}
    found["metrics.jsonl"] = (folder / "metrics.jsonl").read_bytes()
    found["episodes.jsonl"] = [timeless(json.loads(line)) for line in (folder / "episodes.jsonl").read_text().splitlines()]
    report = json.loads((folder / "report.json").read_text())
    return found | {"report.json": {key: value for key, value in report.items() if key not in ("seconds", "run")}}


def main() -> None:
    """Kill, resume, compare, count."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--sandbox", default="docker", choices=SANDBOXES)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    for heavy in ("rlvr.training.train", "rlvr.samplers.hf"):  # before the first fork, so that no child imports them again
        importlib.import_module(heavy)
    began, dice = time.monotonic(), random.Random(options.seed)
    kills, differing = list[dict[str, Any]](), list[str]()
    with tempfile.TemporaryDirectory(prefix="kill-with-boxes-") as scratch:
        home = Path(scratch)
        recipe = home / "recipe.yaml"
        recipe.write_text(RECIPE.replace("SANDBOX", SANDBOXES[options.sandbox]))
        for name, more in (("whole", ()), ("control", ("seed=1",))):
            log = home / f"{name}.log"
            if ended(started(["train", str(recipe), *more, "--out", str(home / name)], log, home / f"{name}.events"), log):
                raise SystemExit(log.read_text())
        whole, calls = outcome(home / "whole"), happenings(home / "whole.events", "call")
        for k in range(options.kills):
            folder, log, events = home / f"run{k}", home / f"run{k}.log", home / f"run{k}.events"
            command = ["train", str(recipe), "--out", str(folder)]
            kill = killed(started(command, log, events), events, dice.randint(1, calls - 1), dice.uniform(0, 0.005))
            if kill is None:
                differing.append(f"kill {k}: the run ended before it")
                continue
            kill["at_once"] = left(kill["label"], kill["processes"])
            code = ended(started([*command, "--resume"], log, home / f"run{k}.again"), log)
            kill["left"] = left(kill["label"], kill["processes"])
            found = outcome(folder) if code == 0 else {}
            if wrong := [name for name, content in whole.items() if found.get(name) != content]:
                differing.append(f"kill {k}: exit code {code}, {', '.join(wrong)}; {log.read_text()[-600:]}")
            kills.append(kill)
            print(
                f"{k + 1:3} {kill['boxes']} boxes open, {kill['in_calls']} in calls, at once {kill['at_once']}, then {kill['left']}", end=""
            )
            print(": DIFFERS" if wrong else ": same", file=sys.stdout, flush=True)
        control = sum(outcome(home / "control")[name] != content for name, content in whole.items())
    line = {
        "question": "does a run that was killed with open boxes end like an undisturbed one, with nothing left?",
        "sandbox": options.sandbox, "kills": len(kills), "planned": options.kills,
        "same_to_the_bit": len(kills) - sum("exit code" in told for told in differing),
        "boxes_open_at_the_kill": sum(kill["boxes"] for kill in kills),
        "kills_with_open_boxes": sum(kill["boxes"] > 0 for kill in kills),
        "kills_in_a_call": sum(kill["in_calls"] > 0 for kill in kills),
        "left_after_the_next_start": {what: sum(kill["left"][what] for kill in kills) for what in LEFT},
        "left_right_after_the_kill": {what: sum(kill["at_once"][what] for kill in kills) for what in LEFT},
        "differing": differing, "files_that_another_seed_changes": control, "seconds": round(time.monotonic() - began, 1),
    }  # fmt: skip
    print(json.dumps(line))
    clean = not any(line["left_after_the_next_start"].values())  # type: ignore[attr-defined]
    sys.exit(0 if clean and not differing and line["kills_with_open_boxes"] == options.kills and control >= 4 else 1)


if __name__ == "__main__":
    main()
