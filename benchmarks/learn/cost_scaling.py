"""Measure the cost of an update as the work doubles. One JSON line: CPU-seconds along three axes, four doublings each.

    python benchmarks/learn/cost_scaling.py

Group size, answer length and vocabulary double from a small start, one at a time. `per_doubling` is the cost ratio of each doubling:
2 is linear. Group size and length double the tokens; length also makes attention look further back. The vocabulary keeps
the number of tokens and doubles the output head, so its ratio must stay under 2 and comes near 2 only if the head is
most of the work. The sizes alternate, and the minimum of several updates counts, so that other load on the machine matters little.
"""

from __future__ import annotations

import itertools
import json
import random
import time
from typing import Any

import torch
from accelerate import Accelerator
from transformers import Qwen2Config, Qwen2ForCausalLM

from rlvr.episode import Episode, StopReason
from rlvr.registry.plugins import build
from rlvr.training.update.learner import Learner, OptimizationSettings
from rlvr.training.update.malloc_settings import keep_freed_memory

START = {"group": 4, "length": 16, "vocabulary": 500}
DOUBLINGS, PROMPTS, PROMPT, REPEATS = 4, 4, 16, 5


def learner_of(vocabulary: int) -> Learner:
    """A Qwen2 of two layers under GRPO."""
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=vocabulary, hidden_size=128, intermediate_size=384, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=4, max_position_embeddings=1024, tie_word_embeddings=True,
    )  # fmt: skip
    optimization = OptimizationSettings(learning_rate=1e-5)
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
            members.append(Episode(f"t{g}", f"g{g}", tokens, acted, logs, [*logs[:-1], dice.random()], StopReason.TERMINATED))
        groups.append(members)
    return groups


def costs(axis: str) -> dict[str, Any]:
    """The cheapest update at each size of one axis."""
    sizes = [START[axis] * 2**k for k in range(DOUBLINGS + 1)]
    work = [START | {axis: size} for size in sizes]
    sides = [(learner_of(w["vocabulary"]), groups_of(**w)) for w in work]
    spent: list[list[float]] = [[] for _ in sizes]
    for _ in range(1 + REPEATS):
        for (learner, groups), seconds in zip(sides, spent, strict=True):
            began = time.process_time()
            learner.update(groups)
            seconds.append(time.process_time() - began)
    least = [min(seconds[1:]) for seconds in spent]
    growth = [round(b / a, 2) for a, b in itertools.pairwise(least)]
    tokens = [PROMPTS * w["group"] * w["length"] for w in work]
    speed = [round(n / s) for n, s in zip(tokens, least, strict=True)]
    return {"sizes": sizes, "tokens_per_cpu_second": speed, "per_doubling": growth, "worst": max(growth)}


def main() -> None:
    """Measure one axis at a time."""
    torch.set_num_threads(1)
    keep_freed_memory()  # as every run on a CPU does
    print(json.dumps({"benchmark": "cost_scaling", "linear": 2.0, **{axis: costs(axis) for axis in START}}))


if __name__ == "__main__":
    main()
