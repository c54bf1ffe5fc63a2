"""What does an update cost as the work doubles? One JSON line: tokens per CPU-second along three axes, four doublings each.

    python benchmarks/cost_scaling.py

Group size, answer length and vocabulary double from a small start, one at a time. `growth` is the cost of the last step of
an axis per trained token over that of its first: 1 is linear. Attention makes length, and the head makes vocabulary,
grow by nature (the work per token grows); group size must not.
"""

from __future__ import annotations

import json
import random
import statistics
import time
from typing import Any

import torch
from accelerate import Accelerator
from transformers import Qwen2Config, Qwen2ForCausalLM

from rlvr.episode import End, Episode
from rlvr.learn.learner import Learner, Optimization
from rlvr.registry import build

START = {"group": 4, "length": 16, "vocabulary": 500}
DOUBLINGS, PROMPTS, PROMPT, REPEATS = 4, 4, 16, 3


def learner_of(vocabulary: int) -> Learner:
    """A Qwen2 of two layers under GRPO."""
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=vocabulary, hidden_size=128, intermediate_size=384, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=4, max_position_embeddings=1024, tie_word_embeddings=True,
    )  # fmt: skip
    optimization = Optimization(learning_rate=1e-5, max_tokens_per_microbatch=4096)
    return Learner(Qwen2ForCausalLM(config), build("algorithm", "grpo"), optimization, accelerator=Accelerator(cpu=True), total_steps=99)


def groups_of(group: int, length: int, vocabulary: int) -> list[list[Episode]]:
    """Answers of the given length, with differing rewards."""
    dice, groups = random.Random(0), []
    acted, logs = [False] * PROMPT + [True] * length, [0.0] * (PROMPT + length)
    for g in range(PROMPTS):
        prompt = [dice.randrange(vocabulary) for _ in range(PROMPT)]
        members = []
        for _ in range(group):
            tokens = prompt + [dice.randrange(vocabulary) for _ in range(length)]
            members.append(Episode(f"t{g}", f"g{g}", tokens, acted, logs, [*logs[:-1], dice.random()], End.TERMINATED))
        groups.append(members)
    return groups


def cost(group: int, length: int, vocabulary: int) -> float:
    """Trained tokens per CPU-second of one update, the median of a few."""
    learner, groups = learner_of(vocabulary), groups_of(group, length, vocabulary)
    learner.update(groups)
    spent = []
    for _ in range(REPEATS):
        began = time.process_time()
        learner.update(groups)
        spent.append(time.process_time() - began)
    return PROMPTS * group * length / statistics.median(spent)


def main() -> None:
    """One axis at a time."""
    torch.set_num_threads(1)
    rows: dict[str, Any] = {}
    for axis in START:
        sizes = [START[axis] * 2**k for k in range(DOUBLINGS + 1)]
        speeds = [cost(**(START | {axis: size})) for size in sizes]
        rows[axis] = {"sizes": sizes, "tokens_per_cpu_second": [round(s) for s in speeds], "growth": round(speeds[0] / speeds[-1], 2)}
    print(json.dumps({"benchmark": "cost_scaling", **rows}))


if __name__ == "__main__":
    main()
