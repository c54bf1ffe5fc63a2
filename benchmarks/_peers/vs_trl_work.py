"""The workload of `vs_trl.py`, given to both sides in plain Python: prompts, lengths and rewards of every step."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWX"
"""The alphabet; with four special tokens the vocabulary has 64."""


@dataclass(frozen=True)
class Work:
    """One workload.

    >>> WORKLOADS["tiny-fixed"].cap
    64
    """

    model: str
    prompts: int
    generations: int
    cap: int
    geometric: bool

    def lengths(self, step: int) -> list[int]:
        """The length of each answer of a step, end token included: always the cap, or geometric with a quarter of it as the mean."""
        dice = random.Random(f"lengths {step}")
        if not self.geometric:
            return [self.cap] * (self.prompts * self.generations)
        return [min(self.cap, 1 + int(dice.expovariate(4 / self.cap))) for _ in range(self.prompts * self.generations)]

    def prompts_of(self, step: int) -> list[str]:
        """The questions of a step: random characters, or word problems built from templates."""
        dice = random.Random(f"prompts {step}")
        if self.model == "tiny":
            return ["".join(dice.choice(ALPHABET) for _ in range(30)) for _ in range(self.prompts)]
        return [QUESTION.format(*(dice.randrange(2, 90) for _ in range(4))) for _ in range(self.prompts)]


QUESTION = (
    "A bakery sells {} loaves of bread in the morning and {} in the afternoon. Each loaf costs {} dollars, and the baker "
    "spends {} dollars on flour every day. How much money does the bakery keep at the end of the day? Answer with a number."
)
WORKLOADS = {
    "tiny-fixed": Work("tiny", 32, 8, 64, geometric=False),
    "tiny-geometric": Work("tiny", 32, 8, 64, geometric=True),
    "smollm2": Work("smollm2", 4, 8, 48, geometric=False),
}


def reward(text: str) -> float:
    """The share of characters below 'e': it differs within a group, so that every row has a gradient."""
    return sum(c < "e" for c in text) / max(len(text), 1)


def say(**figures: Any) -> None:
    """Send one line to the parent."""
    print(json.dumps(figures), flush=True)


def resident(field: str) -> float:
    """MiB of this process: VmRSS now, and VmHWM, the peak since the last reset."""
    line = next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith(field + ":"))
    return int(line.split()[1]) / 1024


def reset_peak() -> float:
    """Reset the peak; returns the memory in use now."""
    Path("/proc/self/clear_refs").write_text("5")
    return resident("VmRSS")
