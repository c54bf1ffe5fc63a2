"""Does a long run with rollout_workers that die all the time stay as small as it began, and is everything sampled once? Needs Ray (extra `ray`).

    python benchmarks/scale/soak.py [--steps 2000] [--rollout_workers 2] [--every 25] [--limit-s 2700] [--keep DIR] [--compare]

Trains a toy model on sums, whose verifier takes a moment, with rollout_workers on a cluster of this machine, while the parent process
kills a random collector (SIGKILL) every `--every` seconds on average. Every few seconds the parent reads from the kernel: memory (RSS, and
PSS, which counts shared pages once), open handles and threads, of the run and of all that it started. The first third of the samples,
after a warm-up, is compared with the last third. The bars: no median of the run's own process grows by more than 10 %, none of Ray's
services by more than 25 %; each draw is in episodes.jsonl exactly once, with a score, under the version that the schedule says; nothing is
left running. Ray's reader of logs (`log`) is counted apart: it keeps two files open for each dead worker until it has 200 of them
(RAY_LOG_MONITOR_MAX_OPEN_FILES), so its bar is that it stays below these and its own. With `--compare` the run is repeated in one process
without rollout_workers, and all episodes and metrics must be equal. The last line is JSON. Exit code 1 if something is lost, or grows.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rlvr.task import Task, Verdict
from rlvr.verifiers.numeric import Numeric

MEMBERS, PROMPTS = 4, 2
SETTLED_S = 30.0
"""How long a collector is spared, so that on a loaded machine some of them get as far as to sample."""
LOOK_S, WARM_S, LEFT_S = 5.0, 60.0, 60.0
"""How often the processes are read, what is left out at the start, and how long they may take to end after the run."""
GROWS = {"run": 1.10, "services": 1.25}
"""How much the median of the last third may be above that of the first."""
LOG_HANDLES = 240
"""How many files Ray's reader of logs may have open."""
RUN: dict[str, Any] = {
    "seed": 0,
    "env": {"name": "arithmetic", "levels": ["1+1"], "verifier": {"name": f"{Path(__file__).resolve()}:Slow"}},
    "tokenizer": "chars:0123456789+-*=# \n",
    "model": {
        "config": {
            "model_type": "llama", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2,
            "num_key_value_heads": 2, "max_position_embeddings": 64,
        }
    },
    "sft_warmup": {"max_steps": 50, "batch_size": 32, "learning_rate": 3e-3},
    "rollout": {"prompts_per_step": PROMPTS, "num_generations": MEMBERS, "max_new_tokens": 6},
    "algorithm": {"name": "grpo"},
    "train": {"learning_rate": 3e-4},
    "eval": {"tasks": 0},
    "log": {"save_every": 100},
}  # fmt: skip


class Slow(Numeric):
    """A verifier that takes its time, so that rollout_workers are killed in the middle of their work.

    >>> Slow().verify(Task(({"role": "user", "content": "2+2="},), "4", id="sums/0"), "4").score
    1.0
    """

    def __init__(self, seconds: float = 0.0, **settings: Any) -> None:
        super().__init__(**settings)
        self.seconds = seconds

    def verify(self, task: Task, answer: str) -> Verdict:
        """Wait, then compare."""
        time.sleep(self.seconds)
        return super().verify(task, answer)


def child(args: Mapping[str, Any]) -> None:
    """The run."""
    from rlvr.cluster.training import train
    from rlvr.config.config import validate_config

    verifier = {**RUN["env"]["verifier"], "seconds": args["slow_s"]}
    settings = {"rollout_workers": args["rollout_workers"], "max_restarts_per_worker": 100_000}
    steps = {"train": {**RUN["train"], "steps": args["steps"]}}
    train(validate_config(RUN | steps | {"env": {**RUN["env"], "verifier": verifier}, "cluster": settings}, "soak"), out=args["out"])


# ---- what the kernel knows


def born(pid: int) -> tuple[int, int, str]:
    """The parent of a process, when it began, and its state; ProcessLookupError if it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
    except OSError as error:
        raise ProcessLookupError(pid) from error
    return int(fields[1]), int(fields[19]), fields[0]


def age(pid: int) -> float:
    """For how many seconds a process has run."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) - born(pid)[1] / os.sysconf("SC_CLK_TCK")


def below(root: int) -> list[int]:
    """A process and all that it started, directly or not."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            children.setdefault(born(int(path.name))[0], []).append(int(path.name))
        except ProcessLookupError:
            continue
    found = [root]
    for pid in found:
        found += children.get(pid, [])
    return found


def measured(pid: int) -> dict[str, float]:
    """Memory in MB, open handles and threads of a process."""
    rolled = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/smaps_rollup").read_text("utf-8").splitlines()[1:])
    memory = {name: int(rolled[key].split()[0]) / 1024 for name, key in (("rss", "Rss"), ("pss", "Pss"))}
    return memory | {"handles": len(os.listdir(f"/proc/{pid}/fd")), "threads": len(os.listdir(f"/proc/{pid}/task"))}


def called(pid: int) -> str:
    """The command line of a process."""
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace").strip()


class Watch:
    """Reads the processes of a run, and kills rollout_workers.

    >>> Watch(pid, every_s=15, seed=0).look()                                               # doctest: +SKIP
    """

    def __init__(self, pid: int, every_s: float, seed: int) -> None:
        self.pid, self.every_s, self.chance = pid, every_s, random.Random(seed)
        self.seen = dict[int, int]()
        """Every process that was there: when it began."""
        self.samples: list[dict[str, dict[str, float]]] = []
        self.kills, self.began = 0, time.monotonic()
        self._next = self.began + WARM_S / 2

    def look(self) -> None:
        """Take a sample, and kill a collector if it is time."""
        sums = {"run": Counter[str](), "services": Counter[str](), "log": Counter[str](), "rollout_workers": Counter[str]()}
        rollout_workers = []
        for pid in below(self.pid):
            try:
                self.seen.setdefault(pid, born(pid)[1])
                name = called(pid)
                marks = (("rollout_workers", "ray::_RolloutActor"), ("log", "log_monitor.py"))
                role = "run" if pid == self.pid else next((role for role, mark in marks if mark in name), "services")
                found = measured(pid)
            except (OSError, ProcessLookupError, KeyError):
                continue
            sums[role].update({**found, "processes": 1})
            if role == "rollout_workers" and age(pid) > SETTLED_S:
                rollout_workers.append(pid)
        if sums["run"] and time.monotonic() - self.began > WARM_S:
            self.samples.append({role: dict(counts) for role, counts in sums.items()})
        if rollout_workers and time.monotonic() > self._next:
            self._next = time.monotonic() + self.chance.uniform(0.5, 1.5) * self.every_s
            os.kill(self.chance.choice(rollout_workers), signal.SIGKILL)
            self.kills += 1

    def left(self) -> list[str]:
        """The processes of the run that are still there."""
        found = []
        for pid, began in self.seen.items():
            try:
                _, birth, state = born(pid)
                if birth == began and state != "Z":
                    found.append(f"{pid} {called(pid)[:80]}")
            except (OSError, ProcessLookupError):
                continue
        return found


def thirds(samples: Sequence[Mapping[str, Mapping[str, float]]]) -> Iterator[tuple[str, str, float, float]]:
    """Role, what was measured, and its median in the first and in the last third. Of rollout_workers: by process, since they come and go."""
    size = max(1, len(samples) // 3)
    for role in ("run", "services", "log", "rollout_workers"):
        for what in ("rss", "pss", "handles", "threads", "processes"):
            medians = []
            for part in (samples[:size], samples[-size:]):
                share = role == "rollout_workers" and what != "processes"
                values = [sample[role][what] / (sample[role]["processes"] if share else 1) for sample in part if what in sample[role]]
                medians.append(statistics.median(values) if values else 0.0)
            yield role, what, medians[0], medians[1]


# ---- what the run folder says


def rows_of(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as file:
        yield from map(json.loads, file)


def once_each(folder: Path, steps: int) -> dict[str, int]:
    """How many groups are not there exactly once, answers without a score, and answers of another version than the schedule's."""
    members, faults, versions = Counter[str](), 0, 0
    for row in rows_of(folder / "episodes.jsonl"):
        members[row["group"]] += 1
        faults += (row["verdict"] or {}).get("score") is None
        versions += row["policy_version"] != row["step"] - 1
    expected = {f"{step}:{place}": MEMBERS for step in range(1, steps + 1) for place in range(PROMPTS)}
    wrong = sum(members[name] != expected.get(name) for name in expected.keys() | members.keys())
    return {"answers": members.total(), "groups_not_once": wrong, "without_score": faults, "other_version": versions}


def digest(folder: Path) -> list[str]:
    weights = (folder / "checkpoints" / "last" / "model.safetensors").resolve()
    return [hashlib.sha256(path.read_bytes()).hexdigest() for path in (folder / "episodes.jsonl", folder / "metrics.jsonl", weights)]


# ---- the soak


def started(args: Mapping[str, Any]) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, __file__, "--child", json.dumps(args)], start_new_session=True)


def soaked(args: Mapping[str, Any], every_s: float, limit_s: float) -> tuple[Watch, dict[str, Any]]:
    """The run with deaths; returns what was seen, and how it ended."""
    process = started(args)
    watch = Watch(process.pid, every_s, seed=0)
    try:
        while process.poll() is None and time.monotonic() - watch.began < limit_s:
            watch.look()
            time.sleep(LOOK_S)
    finally:
        in_time = process.poll() is not None
        if not in_time:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(60)
    ended = time.monotonic()
    while watch.left() and time.monotonic() - ended < LEFT_S:
        time.sleep(1)
    told = {"in_time": in_time, "status": process.returncode, "seconds": round(ended - watch.began), "kills": watch.kills}
    return watch, told | {"left_running": watch.left(), "ended_after_s": round(time.monotonic() - ended, 1)}


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--rollout_workers", type=int, default=2)
    parser.add_argument("--every", type=float, default=25.0, help="mean seconds between two deaths")
    parser.add_argument("--slow-s", type=float, default=0.7, help="how long a verdict takes; it decides how long the run takes")
    parser.add_argument("--limit-s", type=float, default=2700.0)
    parser.add_argument("--keep", type=Path, help="where the run folders stay; else they are removed")
    parser.add_argument("--compare", action="store_true", help="repeat the run without rollout_workers, and compare to the bit")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.child:
        child(json.loads(args.child))
        return
    with tempfile.TemporaryDirectory() as scratch:
        home = args.keep or Path(scratch)
        asked = {"steps": args.steps, "slow_s": args.slow_s, "rollout_workers": args.rollout_workers, "out": str(home / "soak")}
        watch, told = soaked(asked, args.every, args.limit_s)
        (home / "samples.json").write_text(json.dumps(watch.samples), "utf-8")
        flat = True
        for role, what, first, last in thirds(watch.samples):
            grows = last / first if first else 1.0
            small = role == "log" and what == "handles" and last <= LOG_HANDLES
            flat = flat and (what == "processes" or small or grows <= GROWS.get(role, 1.25))
            print(f"{role:10}  {what:9}  {first:9.1f} -> {last:9.1f}  ({grows:.3f})", flush=True)
        report = told | {"steps": args.steps, "samples": len(watch.samples), "flat": flat} | once_each(home / "soak", args.steps)
        if args.compare:
            asked |= {"rollout_workers": 0, "slow_s": 0.0, "out": str(home / "alone")}
            report["equal"] = not started(asked).wait(args.limit_s) and digest(home / "soak") == digest(home / "alone")
        broken = report["groups_not_once"] + report["without_score"] + report["other_version"] + len(report["left_running"])
        report["passed"] = not told["status"] and flat and not broken and report.get("equal", True)
        print(json.dumps(report), flush=True)
    sys.exit(not report["passed"])


if __name__ == "__main__":
    main()
