"""A training run whose local vLLM engines are killed (kill -9) in the middle of rollouts, against one that is left alone.

    python benchmarks/rollout/killed_engines.py --out /tmp/killed --engines 2 --steps 4 --kills 2

Prints one JSON line: whether all tokens are equal, whether all logged log-probabilities are and how far apart they are, the
same for the trained weights, how often an engine was killed, and the seconds of both runs. Exit code 1 if the runs are not equal, up
to 1e-4 in log-probabilities and weights. Engines need vLLM; its CPU build does.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from safetensors.torch import load_file

from rlvr.config.config import validate_config
from rlvr.contracts import Completion, RequestQueue, SamplingParams
from rlvr.runs.run_log import read_jsonl
from rlvr.samplers._local.engine_plan import SHARED_MEMORY
from rlvr.samplers._local.engines import LocalEngines
from rlvr.samplers._local.process_group import list_group_processes
from rlvr.training.train import train

MODEL = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "max_position_embeddings": 128,
}  # fmt: skip


def config_of(engines: int, steps: int, width: int) -> Any:
    """A run of a small model on sums."""
    sampler = {"name": "vllm", "placement": "local", "engines": engines, "kv_cache_gb": 0.1, "max_num_seqs": 16} | {
        "tensor_parallel_size": width
    }
    return validate_config(
        {
            "env": {"name": "arithmetic"}, "tokenizer": "chars:0123456789+-*=() ", "model": {"config": MODEL},
            "sft_warmup": {"steps": 5, "batch_size": 16}, "algorithm": {"name": "grpo"}, "eval": {"tasks": 8},
            "rollout": {"prompts_per_step": 8, "num_generations": 8, "max_new_tokens": 32, "sampler": sampler},
            "train": {"steps": steps, "learning_rate": 1e-3}, "log": {"save_every": steps},
        },
        "killed",
    )  # fmt: skip


def run_of(folder: Path, config: Any, kills: int) -> tuple[float, int, list[str]]:
    """Train; in the first `kills` rollouts, an engine with requests is killed after the fifth completion."""
    serve, killed, there = LocalEngines.serve, list[int](), set(SHARED_MEMORY.iterdir())

    def disturbed(self: LocalEngines, feed: RequestQueue, sampling: SamplingParams) -> Iterator[tuple[int, Completion] | None]:
        ended, before = 0, len(killed)
        for given in serve(self, feed, sampling):
            ended += given is not None
            busy = [slot.process.pid for slot in self.slots if slot.load.running and slot.process is not None]
            if ended == 5 and before < kills and len(killed) == before and busy:
                engine = busy[before % len(busy)]
                workers = sorted(pid for pid, tracks in list_group_processes(engine).items() if pid != engine and not tracks)
                killed.append(workers[-1] if workers else engine)
                os.kill(killed[-1], signal.SIGKILL)
            yield given

    LocalEngines.serve = disturbed  # type: ignore[method-assign]
    began = time.monotonic()
    try:
        train(config, out=folder, console=Console(quiet=True))
    finally:
        LocalEngines.serve = serve  # type: ignore[method-assign]
    left = [path.name for path in SHARED_MEMORY.iterdir() if path not in there]
    return time.monotonic() - began, len(killed), left


def main() -> int:
    """Both runs, and how far apart they are."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--engines", type=int, default=2)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--kills", type=int, default=2)
    parser.add_argument("--width", type=int, default=1, help="tensor_parallel_size; above 1 a worker of an engine is killed")
    asked = parser.parse_args()
    config = config_of(asked.engines, asked.steps, asked.width)
    calm_s, _, _ = run_of(asked.out / "calm", config, 0)
    killed_s, killed, left = run_of(asked.out / "killed", config, asked.kills)
    calm, other = (list(read_jsonl(asked.out / name / "episodes.jsonl")) for name in ("calm", "killed"))
    pairs = [(a, b) for one, two in zip(calm, other, strict=True) for a, b in zip(one["logprobs"], two["logprobs"], strict=False)]
    weights = [load_file(asked.out / name / "checkpoints" / "last" / "model.safetensors") for name in ("calm", "killed")]
    found = {
        "episodes": len(calm),
        "kills": killed,
        "tokens_equal": [row["tokens"] for row in calm] == [row["tokens"] for row in other],
        "logprobs_equal_as_logged": all(a == b for a, b in pairs),
        "logprobs_apart": max(abs((a or 0) - (b or 0)) for a, b in pairs),
        "weights_apart": max(float((weights[0][name] - weights[1][name]).abs().max()) for name in weights[0]),
        "left_in_shared_memory": left,
        "seconds": [round(calm_s, 1), round(killed_s, 1)],
    }
    met = found["kills"] == asked.kills and found["tokens_equal"] and found["logprobs_apart"] < 1e-4 and found["weights_apart"] < 1e-4
    print(json.dumps(found | {"met": met}))
    return int(not met)


if __name__ == "__main__":
    sys.exit(main())
