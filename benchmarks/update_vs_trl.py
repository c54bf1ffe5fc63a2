"""Is one update cheaper than TRL's on the same batch? One JSON line: loss and gradient distance first, then memory and speed.

    python benchmarks/update_vs_trl.py [--peer PYTHON] [--vocabulary 32000]

The batch: 4 prompts of 32 tokens, 8 answers each, lengths spread 1:8; a Qwen2 of two layers; GRPO, beta 0, float32.
Each side runs in a process of its own, in turns, and does loss, backward, clip and AdamW; ours also does the credit.
Memory is the peak of the process during updates, less what it held before them.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import peer_trl

VOCABULARIES = (1_000, 32_000, 150_000)
PROMPTS, GENERATIONS, PROMPT, SHORTEST, LONGEST = 4, 8, 32, 16, 128
ROUNDS, REPEATS = 3, 3


def batch(vocabulary: int) -> list[dict[str, Any]]:
    """The fixed batch as plain lists; rewards differ inside each group, so every row has a gradient."""
    dice, rows = random.Random(0), []
    for _ in range(PROMPTS):
        prompt = [dice.randrange(4, vocabulary) for _ in range(PROMPT)]
        for k in range(GENERATIONS):
            length = round(SHORTEST * (LONGEST / SHORTEST) ** (k / (GENERATIONS - 1)))
            rows.append({"prompt": prompt, "said": [dice.randrange(4, vocabulary) for _ in range(length)], "reward": dice.random()})
    return rows


def model_of(vocabulary: int) -> Any:
    """The same weights on both sides."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    return Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=vocabulary, hidden_size=128, intermediate_size=384, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=4, max_position_embeddings=256, tie_word_embeddings=True,
        )
    )  # fmt: skip


def ours(model: Any, rows: list[dict[str, Any]]) -> Any:
    """A function that does one update and gives its loss."""
    from accelerate import Accelerator

    from rlvr.episode import End, Episode
    from rlvr.learn.learner import Learner, Optimization
    from rlvr.registry import build

    groups = []
    for g in range(PROMPTS):
        members = []
        for row in rows[g * GENERATIONS : (g + 1) * GENERATIONS]:
            n, t = len(row["prompt"]), len(row["said"])
            acted, paid = [False] * n + [True] * t, [0.0] * (n + t - 1) + [row["reward"]]
            members.append(Episode(f"t{g}", f"g{g}", row["prompt"] + row["said"], acted, [0.0] * (n + t), paid, End.TERMINATED))
        groups.append(members)
    learner = Learner(
        model, build("algorithm", "grpo"), Optimization(learning_rate=1e-4), accelerator=Accelerator(cpu=True), total_steps=100
    )
    return lambda: learner.update(groups)["loss"]


def trl(model: Any, rows: list[dict[str, Any]]) -> Any:
    """The same with TRL's own loss."""
    import torch
    from datasets import Dataset
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast
    from trl import GRPOConfig, GRPOTrainer

    words = Tokenizer(models.WordLevel({"<pad>": 0, "<eos>": 1, "<unk>": 2, "a": 3}, unk_token="<unk>"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")
    config = GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, report_to="none", beta=0.0, loss_type="grpo", bf16=False, gradient_checkpointing=False,
        per_device_train_batch_size=len(rows), num_generations=GENERATIONS, max_completion_length=LONGEST, learning_rate=1e-4,
    )  # fmt: skip
    data = Dataset.from_dict({"prompt": ["a"] * len(rows)})
    trainer = GRPOTrainer(
        model, reward_funcs=lambda completions, **_: [0.0] * len(completions), args=config, train_dataset=data, processing_class=tokenizer
    )
    model.train()
    trainer.current_gradient_accumulation_steps = 1
    ids = torch.zeros(len(rows), LONGEST, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for i, row in enumerate(rows):
        ids[i, : len(row["said"])], mask[i, : len(row["said"])] = torch.tensor(row["said"]), 1
    rewards = torch.tensor([row["reward"] for row in rows]).view(-1, GENERATIONS)
    advantages = ((rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-4)).flatten()
    prompts = torch.tensor([row["prompt"] for row in rows])
    inputs = {
        "prompt_ids": prompts, "prompt_mask": torch.ones_like(prompts), "completion_ids": ids, "completion_mask": mask,
        "advantages": advantages, "num_items_in_batch": mask.sum(),
    }  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.0)

    def update() -> float:
        loss = trainer._compute_loss(model, inputs)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return float(loss.detach())

    return update


def resident(field: str) -> float:
    """MiB of this process: VmRSS now, VmHWM at its highest since the last reset."""
    line = next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith(field + ":"))
    return int(line.split()[1]) / 1024


def child(side: str, vocabulary: int, out: str) -> None:
    """One side: its first gradient to a file, its figures to standard output."""
    import torch

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "2")))
    model, rows = model_of(vocabulary), batch(vocabulary)
    update = {"ours": ours, "trl": trl}[side](model, rows)
    kept: list[Any] = []
    clip = torch.nn.utils.clip_grad_norm_

    def note(parameters: Any, *args: Any, **kwargs: Any) -> Any:
        parameters = list(parameters)
        if not kept:
            kept.append(torch.cat([p.grad.flatten().clone() for p in parameters if p.grad is not None]))
        return clip(parameters, *args, **kwargs)

    torch.nn.utils.clip_grad_norm_ = note
    loss = update()
    torch.save(kept.pop(), out)
    kept.append(None)
    Path("/proc/self/clear_refs").write_text("5")
    before, seconds, cpu = resident("VmRSS"), [], []
    for _ in range(REPEATS):
        began, spent = time.perf_counter(), time.process_time()
        update()
        seconds.append(time.perf_counter() - began)
        cpu.append(time.process_time() - spent)
    print(json.dumps({"loss": loss, "seconds": seconds, "cpu": cpu, "peak_mb": resident("VmHWM") - before}))


def run_side(side: str, python: str, vocabulary: int, folder: Path) -> dict[str, Any]:
    """One side in a process of its own."""
    command = [python, __file__, "--child", side, "--vocabulary", str(vocabulary), "--out", str(folder / f"{side}.pt")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    if done.returncode:
        raise SystemExit(f"{side} failed:\n{done.stderr[-2000:]}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def distance(mine: dict[str, Any], theirs: dict[str, Any], folder: Path) -> dict[str, float]:
    """How far the two sides' losses and gradients are apart."""
    import torch

    ours, trls = (torch.load(folder / f"{side}.pt", weights_only=True) for side in ("ours", "trl"))
    return {
        "loss_difference": abs(mine["loss"] - theirs["loss"]),
        "gradient_distance": float((ours - trls).norm() / trls.norm()),
    }


def agreement(peer: str, vocabulary: int, folder: Path) -> dict[str, float]:
    """Loss and gradient of both on the fixed batch."""
    mine, theirs = run_side("ours", sys.executable, vocabulary, folder), run_side("trl", peer, vocabulary, folder)
    return distance(mine, theirs, folder)


def compare(peer: str, vocabulary: int, folder: Path) -> dict[str, float]:
    """Both sides in turns; ratios above 1 speak for us."""
    found: dict[str, list[dict[str, Any]]] = {"ours": [], "trl": []}
    for _ in range(ROUNDS):
        for side, python in (("ours", sys.executable), ("trl", peer)):
            found[side].append(run_side(side, python, vocabulary, folder))
    best = {
        side: {key: statistics.median(x for run in runs for x in run[key]) for key in ("seconds", "cpu")} for side, runs in found.items()
    }
    peak = {side: max(run["peak_mb"] for run in runs) for side, runs in found.items()}
    return {
        "vocabulary": vocabulary,
        **distance(found["ours"][0], found["trl"][0], folder),
        "speed_ratio": round(best["trl"]["seconds"] / best["ours"]["seconds"], 2),
        "cpu_ratio": round(best["trl"]["cpu"] / best["ours"]["cpu"], 2),
        "peak_ratio": round(peak["ours"] / peak["trl"], 2),
        "peak_mb": round(peak["ours"]),
        "peak_mb_trl": round(peak["trl"]),
        "tokens_per_second": round(sum(len(r["said"]) for r in batch(vocabulary)) / best["ours"]["seconds"]),
    }


def main() -> None:
    """Refuse to time anything whose gradients do not agree."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", help="a Python interpreter with trl==1.16.0; made if not given")
    parser.add_argument("--child", choices=("ours", "trl"))
    parser.add_argument("--vocabulary", type=int)
    parser.add_argument("--out")
    options = parser.parse_args()
    if options.child:
        child(options.child, options.vocabulary, options.out)
        return
    peer = peer_trl.interpreter(options.peer)
    with tempfile.TemporaryDirectory() as folder:
        rows = [compare(peer, v, Path(folder)) for v in ([options.vocabulary] if options.vocabulary else VOCABULARIES)]
    agree = all(row["gradient_distance"] < 1e-4 and math.isfinite(row["loss_difference"]) for row in rows)
    print(json.dumps({"benchmark": "update_vs_trl", "gradients_agree": agree, "rows": rows}))
    if not agree:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
