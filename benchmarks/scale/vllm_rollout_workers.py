"""Rollout workers with vLLM engines: does a run with them learn, does it repeat itself, and is a stale engine refused? Needs Ray and vLLM.

    python benchmarks/scale/vllm_rollout_workers.py [--steps 10] [--rollout_workers 2] [--staleness 1] [--runs 2] [--set a.b=c ...]

Trains a small model on easy sums, with `{name: vllm, placement: colocated}` inside each of two rollout_workers on a local cluster of two nodes:
engine and rollout in one process, weights loaded in place and checked by the sampler's own probe. The run is done twice, and its episodes
are compared token by token. One JSON line for each run: the reward of each step, the ages of the tokens, what a collector says that is
asked for another version than it has. The bar: no failed episode, the refusal, and the reward of the last three steps above that of the
first three. Whether a second run has the same tokens is reported, and not part of the bar: an engine on a GPU promises it only with
VLLM_BATCH_INVARIANT=1.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

MODEL = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "max_position_embeddings": 128,
}  # fmt: skip
OBJECTS = 100 << 20
LIMIT_S = 900.0


def recipe(args: argparse.Namespace) -> dict[str, Any]:
    """The run."""
    return {
        "seed": 0,
        "env": {"name": f"{Path(__file__).resolve().parents[2] / 'tests' / 'fixtures' / 'worlds.py'}:Sums", "below": 4},
        "tokenizer": "chars:0123456789+=",
        "model": {"config": MODEL},
        "sft_warmup": {"steps": 20, "batch_size": 32, "learning_rate": 3e-3},
        "rollout": {
            "prompts_per_step": 64,
            "num_generations": 8,
            "max_staleness": args.staleness,
            "sampler": {"name": "vllm", "kv_cache_gb": 0.25, "max_num_seqs": 32, "enforce_eager": True},
        },
        "algorithm": {"name": "grpo"},
        "train": {"steps": args.steps, "learning_rate": 3e-4, "minibatches_per_step": 8},
        "eval": {"tasks": 16},
        "cluster": {"rollout_workers": args.rollout_workers, "startup_timeout_s": 300},
    }


def child(given: dict[str, Any]) -> None:
    """One run, in this process."""
    import ray
    from ray.cluster_utils import Cluster

    from rlvr.cluster import ray_transport as actors
    from rlvr.cluster.scheduler_commands import DispatchTask
    from rlvr.cluster.training import train
    from rlvr.config.config import validate_config
    from rlvr.config.overrides import apply_overrides
    from rlvr.contracts import SamplingParams

    made = list[Any]()

    class Watched(actors.RayTransport):
        def __init__(self, *asked: Any) -> None:
            super().__init__(*asked)
            made.append(self)

        def close(self) -> None:
            if self._actors:  # it is closed twice
                told["stale"] = refusal(self)
            super().close()

    def refusal(transport: Any) -> str:
        actor = next(iter(transport._actors.values()))
        try:
            ray.get(actor.run_task.remote(DispatchTask("stale", "", 10**6, 1), [], SamplingParams(), 0), timeout=60)
        except ray.exceptions.RayTaskError as error:
            return f"{type(error.cause).__name__}: {error.cause}"
        return "answered"

    told = dict[str, Any]()
    actors.RayTransport = Watched  # type: ignore[misc]
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "object_store_memory": OBJECTS, "include_dashboard": False})
    cluster.add_node(num_cpus=2, object_store_memory=OBJECTS)
    ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
    try:
        began = time.monotonic()
        train(validate_config(apply_overrides(given["recipe"], given["set"]), "the benchmark"), out=given["out"])
        told["seconds"] = round(time.monotonic() - began, 1)
        Path(given["out"], "told.json").write_text(json.dumps(told), "utf-8")
    finally:
        ray.shutdown()
        cluster.shutdown()


def run(given: dict[str, Any]) -> dict[str, Any]:
    """One run in a process of its own."""
    process = subprocess.Popen([sys.executable, __file__, "--child", json.dumps(given)], start_new_session=True)
    try:
        process.wait(LIMIT_S)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(60)
    if process.returncode:
        raise SystemExit(f"a run failed with exit status {process.returncode}")
    return dict(json.loads(Path(given["out"], "told.json").read_text("utf-8")))


def rows(folder: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / name).read_text("utf-8").splitlines()]


def told_of(folder: Path) -> dict[str, Any]:
    """What its files say."""
    steps = [row for row in rows(folder, "metrics.jsonl") if "reward" in row]
    ages = [{name.removeprefix("staleness/"): value for name, value in row.items() if name.startswith("staleness/")} for row in steps]
    failed = sum(row.get("end") == "failed" for row in rows(folder, "episodes.jsonl"))
    apart = max((row.get("sampling/logp_difference_max", 0.0) for row in steps), default=0.0)
    return {"reward": [round(row["reward"], 3) for row in steps], "ages": ages, "failed": failed, "logp_difference_max": apart}


def compared(one: Path, other: Path) -> dict[str, Any]:
    """How many tokens of two runs differ."""
    pairs = list(zip(rows(one, "episodes.jsonl"), rows(other, "episodes.jsonl"), strict=True))
    tokens = sum(len(a["tokens"]) for a, _ in pairs)
    wrong = sum(
        sum(x != y for x, y in zip(a["tokens"], b["tokens"], strict=False)) + abs(len(a["tokens"]) - len(b["tokens"])) for a, b in pairs
    )
    return {"episodes": len(pairs), "tokens": tokens, "tokens_that_differ": wrong, "rows_equal": sum(a == b for a, b in pairs)}


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--rollout_workers", type=int, default=2)
    parser.add_argument("--staleness", type=int, default=1)
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("--set", nargs="*", default=[], help="overrides of the recipe")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.child:
        child(json.loads(args.child))
        return
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that a run is ended too
    passed, folders = True, list[Path]()
    with tempfile.TemporaryDirectory() as folder:
        for number in range(args.runs):
            folders.append(Path(folder, str(number)))
            row = run({"recipe": recipe(args), "set": args.set, "out": str(folders[-1])}) | told_of(folders[-1])
            print(json.dumps(row), flush=True)
            learned = mean(row["reward"][-3:]) > mean(row["reward"][:3])
            passed = passed and learned and not row["failed"] and row["stale"].startswith("SamplerError: asked for answers of version")
        if args.runs > 1:
            print(json.dumps(compared(folders[0], folders[1])), flush=True)
    print(json.dumps({"passed": passed}))
    sys.exit(not passed)


if __name__ == "__main__":
    main()
