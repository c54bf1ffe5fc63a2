"""Compare a whole training step with TRL's. One JSON line: sampling, verification and update, ours against its GRPO trainer.

    python benchmarks/learn/vs_trl.py [tiny-fixed tiny-geometric smollm2] [--peer PYTHON] [--repeats 5]
    python benchmarks/learn/vs_trl.py tiny-fixed --neighbour    the same beside a program that keeps one core busy

Both sides load the same weights and tokenizer, get the same prompts, write answers of the same lengths with Hugging Face
models in float32 on the same number of threads, give the same rewards, and train with GRPO, beta 0. Each runs in a separate process and
takes one step on request, alternating; two steps of each warm up. Before anything is timed, loss and gradient of
both are compared on one batch. TRL gets a separate environment, created on the first run.
Exit code 1 if both sides do not do the same work.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "_peers"))

import peer_trl
import update_vs_trl
from vs_trl_ours import configuration
from vs_trl_work import ALPHABET, WORKLOADS

PEERS = Path(__file__).resolve().parents[1] / "_peers"
WARM_UP = 2
PHASES = ("seconds", "sample", "verify", "update", "cpu")


class Side:
    """One of the two processes, waiting for a request."""

    def __init__(self, python: str, script: str, arguments: list[str], log: Path, threads: int, **environment: str) -> None:
        path = f"{PEERS.parents[1]}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
        ours = {"PYTHONPATH": path, "OMP_NUM_THREADS": f"{threads}", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
        ours |= environment
        self.log = log
        self.steps: list[dict[str, Any]] = []
        self.process = subprocess.Popen(
            [python, str(PEERS / script), *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log.open("w"), text=True,
            env=os.environ | ours,
        )  # fmt: skip
        self.hear()

    def hear(self) -> dict[str, Any]:
        """The next line it writes."""
        assert self.process.stdout
        for line in self.process.stdout:
            if line.startswith("{"):
                return dict(json.loads(line))
        status = self.process.wait()
        why = " (killed: was there enough memory?)" if status == -signal.SIGKILL else ""
        raise SystemExit(f"{self.log.name} exited with status {status}{why}:\n{self.log.read_text()[-3000:]}")

    def tell(self, what: str) -> dict[str, Any]:
        """Send a request and return the reply."""
        assert self.process.stdin
        self.process.stdin.write(f"{what}\n")
        self.process.stdin.flush()
        return self.hear()

    def step(self) -> None:
        """Take one step."""
        self.steps.append(self.tell("go"))

    def close(self) -> None:
        """Stop it."""
        self.process.kill()
        self.process.wait()


def quartiles(numbers: list[float]) -> list[float]:
    """Lower quartile, median, upper quartile."""
    return [round(x, 3) for x in statistics.quantiles(numbers, n=4, method="inclusive")]


@contextlib.contextmanager
def neighbour(busy: bool) -> Iterator[None]:
    """Another program that keeps one core busy."""
    if not busy:
        yield
        return
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as other:
        os.sched_setaffinity(other.pid, {min(os.sched_getaffinity(0))})
        try:
            yield
        finally:
            other.kill()


def measure(name: str, peer: str, model: str, repeats: int, threads: int, folder: Path, *, spinning: bool) -> dict[str, Any]:
    """Both sides, alternating."""
    config = folder / f"{name}.json"
    config.write_text(json.dumps(configuration(name, model)))
    started = [str(config), str(folder / f"{name}-run")]
    waiting = {} if spinning else {"OMP_WAIT_POLICY": "passive"}  # what `rlvr train` sets for itself
    sides = {
        "ours": Side(sys.executable, "vs_trl_ours.py", started, folder / f"{name}-ours.log", threads, **waiting),
        "trl": Side(peer, "vs_trl_peer.py", [name, model], folder / f"{name}-trl.log", threads),
    }
    try:
        for _ in range(WARM_UP + repeats):
            for side in sides.values():
                side.step()
    finally:
        for side in sides.values():
            side.close()
    written = [[step["tokens"] for step in side.steps] for side in sides.values()]
    if written[0] != written[1]:
        raise SystemExit(f"{name}: the two sides did not write the same number of tokens, so their times cannot be compared: {written}")
    row: dict[str, Any] = {"workload": name}
    for key, side in sides.items():
        timed = side.steps[WARM_UP:]
        row[key] = {phase: quartiles([step[phase] for step in timed]) for phase in PHASES}
        row[key]["peak_mb"] = round(max(step["peak_mb"] for step in side.steps))
        row[key]["tokens_per_cpu_second"] = round(sum(s["tokens"] for s in timed) / sum(s["cpu"] for s in timed))
    pairs = list(zip(*(side.steps[WARM_UP:] for side in sides.values()), strict=True))
    row["times_faster"] = quartiles([theirs["seconds"] / mine["seconds"] for mine, theirs in pairs])
    row["times_faster_cpu"] = quartiles([theirs["cpu"] / mine["cpu"] for mine, theirs in pairs])
    row["peak_ratio"] = round(row["ours"]["peak_mb"] / row["trl"]["peak_mb"], 2)
    return row


def tiny(folder: Path) -> str:
    """A Qwen2 of 0.86 million parameters with a character tokenizer."""
    from rlvr.config.config import ModelConfig
    from rlvr.mdp.tokenizers import load_tokenizer
    from rlvr.models.model_loading import load_model, to_transformers_tokenizer

    tokenizer = load_tokenizer(f"chars:{ALPHABET}")
    sizes = {"hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = {"model_type": "qwen2", "max_position_embeddings": 256, "tie_word_embeddings": True, **sizes}
    load_model(ModelConfig(config=config), tokenizer).save_pretrained(folder)
    to_transformers_tokenizer(tokenizer).save_pretrained(folder)
    return str(folder)


def smollm2(peer: str) -> str:
    """SmolLM2-135M, unpacked once."""
    folder = peer_trl.HOME.parent / "smollm2-135m"
    if not (folder / "tokenizer.json").exists():
        subprocess.run([peer, str(PEERS / "vs_trl_peer.py"), "--convert", str(folder)], check=True, stdout=sys.stderr)
    return str(folder)


def main() -> None:
    """Refuse to measure if the gradients do not agree."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", default=list(WORKLOADS), metavar="WORKLOAD", help=", ".join(WORKLOADS))
    parser.add_argument("--peer", help="a Python interpreter with trl==1.16.0; created if not given")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2, help="of each side; on a busy machine take 1 and read the CPU-seconds")
    parser.add_argument("--neighbour", action="store_true", help="beside a program that keeps one core busy")
    parser.add_argument("--spinning", action="store_true", help="our threads wait as torch's do by default, not as in `rlvr train`")
    options = parser.parse_args()
    if unknown := set(options.workloads) - set(WORKLOADS):
        parser.error(f"no workload {unknown.pop()!r}; available: {', '.join(WORKLOADS)}")
    peer = peer_trl.interpreter(options.peer)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        agreement = update_vs_trl.agreement(peer, 1000, folder)
        if not agreement["gradient_distance"] < 1e-4:
            raise SystemExit(f"loss and gradient do not agree, so the times cannot be compared: {agreement}")
        models = {"tiny": lambda: tiny(folder / "tiny"), "smollm2": lambda: smollm2(peer)}
        made = {name: models[WORKLOADS[name].model]() for name in options.workloads}
        load, settings = os.getloadavg()[0], (options.repeats, options.threads, folder)
        with neighbour(options.neighbour):
            rows = [measure(name, peer, model, *settings, spinning=options.spinning) for name, model in made.items()]
    told = {"threads": options.threads, "neighbour": options.neighbour, "spinning": options.spinning, "load": load}
    print(json.dumps({"benchmark": "vs_trl", "agreement": agreement, **told, "rows": rows}))


if __name__ == "__main__":
    main()
