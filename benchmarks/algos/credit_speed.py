"""How long the credit of one step takes, for every algorithm. JSON lines; no model, no torch.

    python benchmarks/algos/credit_speed.py                        512 answers of 4,096 tokens, groups of 8
    python benchmarks/algos/credit_speed.py --only grpo ppo --repeat 5

`cpu_s` are the CPU seconds of the process in the fastest of the repeats, so another load on the machine changes them little; making the
episodes is not counted. The bar is 0.3 s. Exit code 1 if an algorithm is above it.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from typing import Any

import numpy as np

from rlvr.contracts.algorithm import TokenStats
from rlvr.episode import Episode, StopReason
from rlvr.registry.plugins import build, list_entries
from rlvr.task import Verdict

BAR_S = 0.3


def made_groups(answers: int, tokens: int, size: int) -> list[list[Episode]]:
    """Groups of long answers with random scores; the last of each group is marked as greedy."""
    dice = random.Random(0)
    groups = []
    for g in range(answers // size):
        group = []
        for k in range(size):
            reward = dice.choice([0.0, 0.5, 1.0])
            rewards = [0.0] * (tokens - 1) + [reward]
            meta = {"greedy": True} if k == size - 1 else {}
            acted = [False] * 16 + [True] * (tokens - 16)
            group.append(
                Episode(
                    f"t{g}",
                    f"g{g}",
                    [1] * tokens,
                    acted,
                    [0.0] * tokens,
                    rewards,
                    StopReason.TERMINATED,
                    verdict=Verdict(reward, ""),
                    meta=meta,
                )
            )
        groups.append(group)
    return groups


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--answers", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--only", nargs="*", default=[])
    asked = parser.parse_args()
    groups = made_groups(asked.answers, asked.tokens, asked.group)
    numbers: Any = [[np.full(asked.tokens, 0.1) for _ in group] for group in groups]
    everything = {name: numbers for name in ("old", "reference", "entropy", "values", "penalties")}
    slow = 0
    for entry in list_entries("algorithm"):
        if asked.only and entry.name not in asked.only:
            continue
        algorithm = build("algorithm", entry.name)
        scores = TokenStats(**{name: everything[name] for name in algorithm.credit_needs})
        spent = []
        for _ in range(asked.repeat):
            began = time.process_time()
            algorithm.credit(groups, scores)
            spent.append(time.process_time() - began)
        slow += min(spent) > BAR_S
        print(json.dumps({"algorithm": entry.name, "cpu_s": round(min(spent), 3), "fine": min(spent) <= BAR_S}), flush=True)
    return int(slow > 0)


if __name__ == "__main__":
    sys.exit(main())
