"""Does the simulation know how long a step of a real cluster takes? It is fitted to one run and compared with others. Needs Ray.

    python benchmarks/scale/fitted.py [--steps 12] [--rollout_workers 2 3] [--k 0 1] [--each-s 0.04] python benchmarks/scale/fitted.py
    --run runs/mine --rollout_workers 8 32 128 --k 0 1 2

First form: small sums are trained on a cluster of two nodes of this machine, with one collector. Engine, loop, weights and Ray are
real; the verifier waits for each character of an answer, so that calls have a tail and take no processor from each other. From this run
are read: the lengths of its groups, the seconds of a call by the length of its longest answer, of an update, and of loading weights. With
these the simulation predicts runs with more rollout_workers and other staleness, which are then done. One JSON line each; the bar is 15 %.

Second form: what a run of yours, sampled with `cluster`, would take with other numbers. Calls of a run that is fitted must be sampled one
after the other in each collector, as `hf` does. Exit code 1 if a prediction is too far off.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
from _engines import Known, Speed
from _world import Rule, Setup, World

from rlvr.task import Task, Verdict
from rlvr.verifiers.numeric import Numeric

BAR = 0.15
SMALL = [
    "env={name: arithmetic, levels: ['1+1', '2+2'], show_steps: true, verifier: {name: 'FILE:Slow', each_s: EACH}}",
    "rollout.prompts_per_step=8", "sft_warmup.max_steps=100", "sft_warmup.batch_size=32", "eval.tasks=0",
]  # fmt: skip


class Slow(Numeric):
    """A verifier that takes as long as an engine that samples the answer would.

    >>> Slow().verify(Task(({"role": "user", "content": "2+2="},), "4", id="sums/0"), "#### 4").score
    1.0
    """

    def __init__(self, each_s: float = 0.0) -> None:
        super().__init__(extractor="hash")
        self.each_s = each_s

    def verify(self, task: Task, answer: str) -> Verdict:
        """Wait for each character, then compare."""
        time.sleep(self.each_s * len(answer))
        return super().verify(task, answer)


@dataclass(frozen=True, slots=True)
class Fitted:
    """What was read from a run.

    >>> Fitted(1.0, 0.1, ((3, 5),), 0.02, 0.5, 0.1).step_s
    1.0
    """

    step_s: float
    overhead_s: float
    """Of a call, whatever its length."""
    lengths: tuple[tuple[int, ...], ...]
    token_s: float
    train_s: float
    load_s: float

    def setup(self, rollout_workers: int, groups: int) -> Setup:
        """The same work for another number of rollout_workers."""
        members = len(self.lengths[0])
        speed = Speed(floor=self.token_s, each=0.0, kv=0.0, prefill=self.overhead_s / members)
        times = {"train_s": self.train_s, "load_s": self.load_s}
        return Setup(rollout_workers, groups, members, prompt=1, room=1, lengths=Known(self.lengths), speed=speed, **times)


def later(rows: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
    """Without the first third, in which a run starts."""
    return rows[len(rows) // 3 :]


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def fitted(run: Path, rollout_workers: int) -> Fitted:
    """Read a run that had so many rollout_workers."""
    groups, longest = defaultdict[str, list[int]](list), defaultdict[int, list[int]](list)
    for row in rows_of(run / "episodes.jsonl"):
        groups[row["group"]].append(sum(row["action_mask"]))
    for name, lengths in groups.items():
        longest[int(name.split(":")[0])].append(max(lengths))
    timed = [row for row in later(rows_of(run / "timings.jsonl")) if "cluster/sampling_fraction" in row]
    if not timed:
        raise SystemExit(
            f"{run} has no step in its second two thirds with times of rollout_workers (cluster/sampling_fraction in timings.jsonl)"
        )
    spent = [row["cluster/sampling_fraction"] * row["step_time"] * rollout_workers for row in timed]
    known = [longest[row["step"]] for row in timed]
    ends = numpy.array([[sum(calls), len(calls)] for calls in known], float)
    token_s, overhead_s = numpy.linalg.lstsq(ends, numpy.array(spent), rcond=None)[0]
    if token_s <= 0 or overhead_s < 0:  # too few lengths to tell the two apart
        token_s, overhead_s = sum(spent) / ends[:, 0].sum(), 0.0
    train_s = statistics.mean(row["step_time"] - row["time/wait_for_batch"] for row in timed)
    load_s = statistics.mean(row["cluster/loading_fraction"] * row["step_time"] for row in timed)
    step_s = statistics.mean(row["step_time"] for row in timed)
    return Fitted(step_s, float(overhead_s), tuple(tuple(each) for each in groups.values()), float(token_s), train_s, load_s)


def predicted(found: Fitted, rollout_workers: int, k: int, groups: int) -> float:
    """Seconds of a step, by the simulation."""
    rule, setup = Rule(f"k = {k}", k=k), found.setup(rollout_workers, groups)
    return statistics.mean(World(setup, rule, steps=24, seed=seed).run().step_s() for seed in range(8))


def measured(out: Path, rollout_workers: int, k: int, args: argparse.Namespace) -> float:
    """Seconds of a step, of a real run."""
    import equal

    small = [line.replace("FILE", str(Path(__file__).resolve())).replace("EACH", str(args.each_s)) for line in SMALL]
    overrides = [*small, f"train.steps={args.steps}", f"rollout.max_staleness={k}", "cluster.backup_task_fraction=0"]
    asked = {
        "recipe": "quickstart",
        "overrides": overrides,
        "rollout_workers": rollout_workers,
        "out": str(out),
        "resume": False,
        "seed": 0,
    }
    equal.run(asked | {"kills": 0, "freezes": 0, "node_kills": 0, "every": 1.0}, 0, args.limit_s)
    return statistics.mean(row["step_time"] for row in later(rows_of(out / "timings.jsonl")))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, help="a run folder; its rollout_workers are those of its recipe")
    parser.add_argument("--rollout_workers", type=int, nargs="+", default=[2, 3])
    parser.add_argument("--k", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--each-s", type=float, default=0.04, help="what the verifier waits for each character")
    parser.add_argument("--limit-s", type=float, default=540.0)
    args = parser.parse_args()
    os.environ["RLVR_EQUAL"] = str(os.getpid())
    passed = True
    with tempfile.TemporaryDirectory() as folder:
        run, had = args.run or Path(folder, "one"), 1
        if args.run is None:
            measured(run, 1, 0, args)
        else:
            from rlvr.config.config import load_config

            had = load_config(str(run / "config.yaml"), []).cluster.rollout_workers  # type: ignore[union-attr]
        found = fitted(run, had)
        groups = len(found.lengths) // len(rows_of(run / "metrics.jsonl"))
        told = {name: round(getattr(found, name), 4) for name in ("step_s", "token_s", "overhead_s", "train_s", "load_s")}
        print(json.dumps({"fitted": str(args.run or "one collector, k = 0"), "groups_a_step": groups, **told}), flush=True)
        for rollout_workers, k in [(count, k) for k in args.k for count in args.rollout_workers]:
            row: dict[str, Any] = {
                "rollout_workers": rollout_workers,
                "k": k,
                "predicted_s": round(predicted(found, rollout_workers, k, groups), 3),
            }
            if args.run is None:
                real_s = measured(Path(folder, f"{rollout_workers}-{k}"), rollout_workers, k, args)
                row |= {"measured_s": round(real_s, 3), "ratio": round(row["predicted_s"] / real_s, 3)}
                passed = passed and abs(row["ratio"] - 1) <= BAR
            print(json.dumps(row), flush=True)
    if args.run is None:
        print(json.dumps({"passed": passed, "bar": BAR}))
    sys.exit(not passed)


if __name__ == "__main__":
    main()
