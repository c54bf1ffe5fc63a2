"""Compare the cost of one update with TRL's on the same batch. One JSON line: loss and gradient distance first, then memory and speed.

    python benchmarks/learn/update_vs_trl.py [--peer PYTHON] [--vocabulary 32000]                  on a CPU, in float32
    python benchmarks/learn/update_vs_trl.py --size 0.5b --device cuda --precision bf16            on one GPU; also 1.5b

The batch: some prompts, 8 answers each, lengths spread 1:8; a Qwen2 with random weights; GRPO, beta 0. Each side runs in a separate
process, alternating, and does loss, backward, clip and AdamW; ours also does the credit. TRL gets micro-batches of 8 rows if a size says
so, ours as many tokens. Memory is the peak during updates, less what was in use before them. `share_of_peak` is 6 operations per weight
and token of the rows, as a share of what a large matrix product reaches on the same device. Exit code 1 if the gradients do not agree.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "_peers"))

import peer_trl
from update_work import GENERATIONS, SIZES, Job
from vs_trl_work import reset_peak, resident

ROUNDS, REPEATS = 3, 3
CLOSE = {"fp32": 1e-4, "bf16": 5e-2}
"""The largest distance of two gradients that are equal except for rounding."""


def ours(job: Job, model: Any, rows: list[dict[str, Any]]) -> Any:
    """A function that does one update and returns its loss."""
    from accelerate import Accelerator

    from rlvr.episode import Episode, StopReason
    from rlvr.registry.plugins import build
    from rlvr.training.update.learner import Learner, OptimizationSettings

    groups = []
    for g in range(len(rows) // GENERATIONS):
        members = []
        for row in rows[g * GENERATIONS : (g + 1) * GENERATIONS]:
            n, t = len(row["prompt"]), len(row["said"])
            acted, paid = [False] * n + [True] * t, [0.0] * (n + t - 1) + [row["reward"]]
            members.append(Episode(f"t{g}", f"g{g}", row["prompt"] + row["said"], acted, [0.0] * (n + t), paid, StopReason.TERMINATED))
        groups.append(members)
    accelerator = Accelerator(cpu=job.device == "cpu", mixed_precision="bf16" if job.precision == "bf16" else "no")
    optimization = OptimizationSettings(learning_rate=1e-4, max_tokens_per_microbatch=SIZES[job.size].tokens_at_once)
    learner = Learner(model, build("algorithm", "grpo"), optimization, accelerator=accelerator, total_steps=100)
    return lambda: learner.update(groups)["loss"]


def trl(job: Job, model: Any, rows: list[dict[str, Any]]) -> Any:
    """The same with TRL's own loss."""
    import torch
    from datasets import Dataset
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast
    from trl import GRPOConfig, GRPOTrainer

    size = SIZES[job.size]
    words = Tokenizer(models.WordLevel({"<pad>": 0, "<eos>": 1, "<unk>": 2, "a": 3}, unk_token="<unk>"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")
    config = GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=job.device == "cpu", report_to="none", beta=0.0, loss_type="grpo",
        bf16=job.precision == "bf16", gradient_checkpointing=False, per_device_train_batch_size=size.rows_at_once,
        num_generations=GENERATIONS, max_completion_length=size.longest, learning_rate=1e-4,
    )  # fmt: skip
    data = Dataset.from_dict({"prompt": ["a"] * len(rows)})
    trainer = GRPOTrainer(
        model, reward_funcs=lambda completions, **_: [0.0] * len(completions), args=config, train_dataset=data, processing_class=tokenizer
    )
    model.train()
    parts = range(0, len(rows), size.rows_at_once)
    trainer.current_gradient_accumulation_steps = len(parts)
    ids = torch.zeros(len(rows), size.longest, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for i, row in enumerate(rows):
        ids[i, : len(row["said"])], mask[i, : len(row["said"])] = torch.tensor(row["said"]), 1
    rewards = torch.tensor([row["reward"] for row in rows]).view(-1, GENERATIONS)
    advantages = ((rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-4)).flatten()
    prompts = torch.tensor([row["prompt"] for row in rows])
    whole = {"prompt_ids": prompts, "prompt_mask": torch.ones_like(prompts), "completion_ids": ids, "completion_mask": mask}
    whole = {name: column.to(job.device) for name, column in (whole | {"advantages": advantages}).items()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.0)

    def update() -> float:
        added = 0.0
        for start in parts:
            inputs = {name: column[start : start + size.rows_at_once] for name, column in whole.items()}
            with trainer.accelerator.autocast():
                loss = trainer._compute_loss(model, inputs | {"num_items_in_batch": whole["completion_mask"].sum()})
            loss.backward()
            added += float(loss.detach())
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return added

    return update


class Memory:
    """MiB that updates need beyond what was in use before them: of the process on a CPU, of the allocator on a GPU."""

    def __init__(self, device: str) -> None:
        self.device = device
        if device == "cpu":
            self.before = reset_peak()
        else:
            import torch

            torch.cuda.reset_peak_memory_stats()
            self.before = torch.cuda.memory_allocated() / 2**20

    def peak(self) -> float:
        """The peak since this was created."""
        if self.device == "cpu":
            return resident("VmHWM") - self.before
        import torch

        return torch.cuda.max_memory_allocated() / 2**20 - self.before


def settled(job: Job) -> float:
    """The time, after the device has finished its work."""
    if job.device != "cpu":
        import torch

        torch.cuda.synchronize()
    return time.perf_counter()


def fastest(job: Job) -> float:
    """Operations per second of a large matrix product in this precision, measured now."""
    import torch

    n = 1536 if job.device == "cpu" else 8192
    a = torch.ones(n, n, device=job.device, dtype=torch.bfloat16 if job.precision == "bf16" else torch.float32)
    times = []
    for _ in range(8):
        began = settled(job)
        a @ a
        times.append(settled(job) - began)
    return 2 * n**3 / min(times)


def child(side: str, job: Job, out: str) -> None:
    """One side: its first gradient to a file, its figures to standard output."""
    import torch

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "2")))
    model, rows = job.model(), job.batch()
    update = {"ours": ours, "trl": trl}[side](job, model, rows)
    kept: list[Any] = []
    clip = torch.nn.utils.clip_grad_norm_

    def note(parameters: Any, *args: Any, **kwargs: Any) -> Any:
        parameters = list(parameters)
        if not kept:
            kept.append(torch.cat([p.grad.float().flatten().cpu() for p in parameters if p.grad is not None]))
        return clip(parameters, *args, **kwargs)

    torch.nn.utils.clip_grad_norm_ = note
    loss = update()
    torch.save(kept.pop(), out)
    kept.append(None)
    memory, seconds, cpu = Memory(job.device), [], []
    for _ in range(REPEATS):
        began, spent = settled(job), time.process_time()
        update()
        seconds.append(settled(job) - began)
        cpu.append(time.process_time() - spent)
    told = {"loss": loss, "seconds": seconds, "cpu": cpu, "peak_mb": memory.peak(), "operations_per_s": fastest(job)}
    print(json.dumps(told | {"weights": sum(p.numel() for p in model.parameters())}))


def run_side(side: str, python: str, job: Job, folder: Path) -> dict[str, Any]:
    """One side in a separate process."""
    command = [python, __file__, "--child", side, "--out", str(folder / f"{side}.pt")]
    command += [word for name, value in asdict(job).items() for word in (f"--{name}", str(value))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    if done.returncode:
        raise SystemExit(f"{side} failed:\n{done.stderr[-2000:]}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def distance(mine: dict[str, Any], theirs: dict[str, Any], folder: Path) -> dict[str, float]:
    """The distance between the two sides' losses and gradients."""
    import torch

    ours, trls = (torch.load(folder / f"{side}.pt", weights_only=True) for side in ("ours", "trl"))
    return {
        "loss_difference": abs(mine["loss"] - theirs["loss"]),
        "gradient_distance": float((ours - trls).norm() / trls.norm()),
    }


def agreement(peer: str, vocabulary: int, folder: Path) -> dict[str, float]:
    """Loss and gradient of both on the fixed batch."""
    job = Job("tiny", vocabulary)
    return distance(run_side("ours", sys.executable, job, folder), run_side("trl", peer, job, folder), folder)


def compare(peer: str, job: Job, folder: Path) -> dict[str, Any]:
    """Both sides, alternating; ratios above 1 are in our favour."""
    found: dict[str, list[dict[str, Any]]] = {"ours": [], "trl": []}
    for _ in range(ROUNDS):
        for side, python in (("ours", sys.executable), ("trl", peer)):
            found[side].append(run_side(side, python, job, folder))
    best = {
        side: {key: statistics.median(x for run in runs for x in run[key]) for key in ("seconds", "cpu")} for side, runs in found.items()
    }
    peak = {side: max(run["peak_mb"] for run in runs) for side, runs in found.items()}
    rows = job.batch()
    work = 6 * found["ours"][0]["weights"] * sum(len(row["prompt"]) + len(row["said"]) for row in rows)
    reach = max(run["operations_per_s"] for run in found["ours"])
    return {
        **asdict(job),
        **distance(found["ours"][0], found["trl"][0], folder),
        "speed_ratio": round(best["trl"]["seconds"] / best["ours"]["seconds"], 2),
        "cpu_ratio": round(best["trl"]["cpu"] / best["ours"]["cpu"], 2),
        "peak_ratio": round(peak["ours"] / peak["trl"], 2),
        "peak_mb": round(peak["ours"]),
        "peak_mb_trl": round(peak["trl"]),
        "tokens_per_second": round(sum(len(row["said"]) for row in rows) / best["ours"]["seconds"]),
        "share_of_peak": {side: round(work / best[side]["seconds"] / reach, 3) for side in best},
    }


def main() -> None:
    """Refuse to measure if the gradients do not agree."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", help="a Python interpreter with trl==1.16.0; created if not given")
    parser.add_argument("--size", choices=SIZES, default="tiny")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--precision", choices=CLOSE, default="fp32")
    parser.add_argument("--vocabulary", type=int, help="its size; by default that of the model size")
    parser.add_argument("--child", choices=("ours", "trl"), help=argparse.SUPPRESS)
    parser.add_argument("--out", help=argparse.SUPPRESS)
    options = parser.parse_args()
    vocabularies = (options.vocabulary,) if options.vocabulary else SIZES[options.size].vocabularies
    jobs = [Job(options.size, vocabulary, options.device, options.precision) for vocabulary in vocabularies]
    if options.child:
        child(options.child, jobs[0], options.out)
        return
    peer = peer_trl.interpreter(options.peer)
    with tempfile.TemporaryDirectory() as folder:
        rows = [compare(peer, job, Path(folder)) for job in jobs]
    agree = all(row["gradient_distance"] < CLOSE[row["precision"]] and math.isfinite(row["loss_difference"]) for row in rows)
    print(json.dumps({"benchmark": "update_vs_trl", "gradients_agree": agree, "rows": rows}))
    if not agree:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
