"""Is a run the same, however many rollout_workers sample for it, and whatever happens to them? Needs Ray (extra `ray`).

    python benchmarks/scale/equal.py [--recipe agent_quickstart] [--whole] [--rollout_workers 1 2 3] [--set a.b=c ...]
        [--kills 0] [--freezes 0] [--node-kills 0] [--driver-kills 0]

Trains a recipe for 20 steps, by default the quickstart with fewer prompts and easier sums (`--whole`: as it is). First in one process of
this machine (`cluster.rollout_workers=0`), then with rollout_workers on a local cluster of two nodes (`ray.cluster_utils.Cluster`).
Compares all of episodes.jsonl (but for the seconds of tool calls) and metrics.jsonl, and the final weights, to the bit. With `--kills N`,
N rollout_workers are killed (SIGKILL) at random moments; `--freezes` stops them (SIGSTOP), `--node-kills` ends further nodes,
`--driver-kills` kills the run itself, which is then resumed. One JSON line for each run; the bar is that all are equal, that no process
is left, and that no answer is without a score. Exit code 1 if a run differs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

SMALL = [
    "env={name: arithmetic, levels: ['1+1'], show_steps: true, verifier: {name: numeric, extractor: hash}}", "train.steps=20", "log.save_every=5",
    "rollout.prompts_per_step=8", "sft_warmup.max_steps=100", "sft_warmup.batch_size=32", "eval.tasks=64",
]  # fmt: skip
WHOLE = ["train.steps=20", "log.save_every=5"]
OBJECTS = 100 << 20


class Trouble:
    """Does harm to rollout_workers at random moments."""

    def __init__(self, cluster: Any, args: Mapping[str, Any]) -> None:
        self.cluster, self.chance = cluster, random.Random(args["seed"])
        self.todo = ["kill"] * args["kills"] + ["freeze"] * args["freezes"] + ["node"] * args["node_kills"]
        self.chance.shuffle(self.todo)
        self.every, self.done, self.actors = args["every"], list[str](), list[Any]()
        self.frozen_at, self.noticed = dict[str, float](), list[float]()

    def begin(self) -> None:
        """Watch the transport of the run, and begin."""
        from rlvr.cluster import ray_transport as actors

        trouble = self

        class Watched(actors.RayTransport):
            def __init__(self, *given: Any) -> None:
                super().__init__(*given)
                trouble.actors.append(self)

            def kill_worker(self, worker: str) -> None:
                if worker in trouble.frozen_at:
                    trouble.noticed.append(time.monotonic() - trouble.frozen_at.pop(worker))
                super().kill_worker(worker)

        actors.RayTransport = Watched  # type: ignore[misc]
        threading.Thread(target=self.run, daemon=True).start()

    def run(self) -> None:
        """Do all of it, one after the other."""
        while self.todo:
            time.sleep(self.chance.uniform(0.2, 1.8) * self.every)
            places = dict(self.actors[0]._locations) if self.actors else {}
            if not places:
                continue
            worker = self.chance.choice(sorted(places))
            what = self.todo.pop()
            try:
                if what == "kill":
                    os.kill(places[worker]["pid"], signal.SIGKILL)
                elif what == "freeze":
                    os.kill(places[worker]["pid"], signal.SIGSTOP)
                    self.frozen_at[worker] = time.monotonic()
                else:
                    self.cluster.remove_node(self.cluster.list_all_nodes()[-1], allow_graceful=False)
            except (ProcessLookupError, AssertionError):
                self.todo.append(what)
                continue
            self.done.append(f"{what} {worker}")


def child(args: Mapping[str, Any]) -> None:
    """One run, in this process."""
    from rlvr.cluster.training import train
    from rlvr.config.config import load_config

    config = load_config(args["recipe"], [*args["overrides"], f"cluster.rollout_workers={args['rollout_workers']}"])
    cluster, trouble = None, None
    if args["rollout_workers"]:
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        import ray
        from ray.cluster_utils import Cluster

        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 4, "object_store_memory": OBJECTS, "include_dashboard": False})
        for _ in range(1 + args["node_kills"]):  # those that are ended are there from the start: Ray starts nodes in the main thread only
            cluster.add_node(num_cpus=4, object_store_memory=OBJECTS)
        ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
        trouble = Trouble(cluster, args)
        trouble.begin()
    began = time.monotonic()
    train(config, out=args["out"], resume=args["resume"])
    told = {"seconds": round(time.monotonic() - began, 1)}
    if trouble is not None:
        told |= {"done": trouble.done, "noticed_s": [round(s, 1) for s in trouble.noticed]}
        told |= {"not_done": trouble.todo}
    Path(args["out"], "told.json").write_text(json.dumps(told), "utf-8")
    if cluster is not None:
        ray.shutdown()
        cluster.shutdown()


def started(args: Mapping[str, Any]) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, __file__, "--child", json.dumps(args)], start_new_session=True)


def run(args: Mapping[str, Any], driver_kills: int, limit_s: float) -> dict[str, Any]:
    """One run in a process of its own, killed and resumed so often."""
    chance, args = random.Random(args["seed"]), dict(args)
    for _ in range(driver_kills):
        process = started(args)
        time.sleep(chance.uniform(1, 3) * args["every"] * 5)
        process.kill()
        process.wait(60)
        cleaned()
        args["resume"] = True
    process = started(args)
    try:
        process.wait(limit_s)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(60)
            cleaned()
    if process.returncode:
        raise SystemExit(f"a run failed with exit status {process.returncode}: {args}")
    return dict(json.loads(Path(args["out"], "told.json").read_text("utf-8")))


def left_over() -> list[int]:
    """The processes of Ray that are still there; those of others on this machine are named by their session."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            command = (path / "cmdline").read_bytes()
            mine = b"RLVR_EQUAL=" + str(os.getpid()).encode() in (path / "environ").read_bytes()
        except OSError:
            continue
        if mine and (b"ray" in command):
            found.append(int(path.name))
    return found


def cleaned() -> None:
    """After the driver of a cluster was killed: end what the cluster's own nodes left."""
    for pid in left_over():
        os.kill(pid, signal.SIGKILL)


def digest(folder: Path) -> dict[str, str]:
    """What must be equal: all episodes and metrics, and the weights."""
    weights = (folder / "checkpoints" / "last" / "model.safetensors").resolve()
    found = {"episodes": timeless(folder / "episodes.jsonl"), "metrics": (folder / "metrics.jsonl").read_bytes()}
    return {name: hashlib.sha256(data).hexdigest()[:16] for name, data in [*found.items(), ("weights", weights.read_bytes())]}


def timeless(path: Path) -> bytes:
    """The episodes without the seconds that tools took, which differ from run to run."""
    rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    for result in (
        result for row in rows for heard in (row.get("session") or {}).get("step_results", ()) for result in heard.get("tool_results", ())
    ):
        result.pop("seconds", None)
    return json.dumps(rows).encode()


def faults(folder: Path) -> int:
    """How many answers have no score by a fault of the infrastructure."""
    rows = map(json.loads, (folder / "episodes.jsonl").read_text("utf-8").splitlines())
    return sum((row.get("verdict") or {}).get("fault") == "infra" or row.get("stop_reason") == "failed" for row in rows)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="quickstart")
    parser.add_argument("--whole", action="store_true", help="the recipe as it is, but for 20 steps")
    parser.add_argument("--rollout_workers", type=int, nargs="+", default=[1, 2, 3])
    for name in ("kills", "freezes", "node-kills", "driver-kills"):
        parser.add_argument(f"--{name}", type=int, default=0)
    parser.add_argument("--every", type=float, default=2.0, help="mean seconds between two of them")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit-s", type=float, default=540.0)
    parser.add_argument("--set", nargs="*", default=[], help="overrides of the recipe")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.child:
        child(json.loads(args.child))
        return
    os.environ["RLVR_EQUAL"] = str(os.getpid())
    harm = {"kills": args.kills, "freezes": args.freezes, "node_kills": args.node_kills, "every": args.every, "seed": args.seed}
    passed, first = True, None
    with tempfile.TemporaryDirectory() as folder:
        for count in [0, *args.rollout_workers]:
            out = Path(folder, f"rollout_workers-{count}")
            overrides = [*(WHOLE if args.whole else SMALL), "cluster={max_restarts_per_worker: 50}", *args.set]
            asked = {"recipe": args.recipe, "overrides": overrides, "rollout_workers": count, "out": str(out), "resume": False, **harm}
            told = run(asked, args.driver_kills if count else 0, args.limit_s)
            found = digest(out)
            first = first or found
            row = {"rollout_workers": count, "equal": found == first, "faults": faults(out), "left_over": len(left_over()), **told, **found}
            print(json.dumps(row), flush=True)
            passed = passed and row["equal"] and not row.get("not_done") and not row["faults"] and not row["left_over"]
    print(json.dumps({"passed": passed}))
    sys.exit(not passed)


if __name__ == "__main__":
    main()
