"""How many bytes of micro-batches, attention masks included, are in memory during one optimizer step.

    python benchmarks/learn/step_memory.py                     the three sizes below
    python benchmarks/learn/step_memory.py --sizes small       one of them
    python benchmarks/learn/step_memory.py --json

64 prompts with 8 answers each, of log-normal lengths (sigma 0.8). All rows are packed (the learner pads them where
that computes hardly more). `together`: the sum over all micro-batches, which is what a step holds that makes them first. `at a
time`: the largest one. `kernel`: the same where a kernel for segments replaces masks, as on CUDA. No model is
needed: the numbers are those of tensors that exist.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator

import numpy as np
import torch

from rlvr.models.batch import Batch, TokenRows
from rlvr.models.varlen import attend_with_matmul
from rlvr.training.update import packing
from rlvr.training.update.packing import BucketLayout, PackingMode

SIZES = {"small": (500, 2048, 256, 4096), "medium": (1000, 4096, 256, 16384), "large": (4000, 16384, 512, 65536)}
"""The median and the cap of an answer, the prompt, and the tokens of a micro-batch."""
BAR = 1.0
"""Micro-batches in memory at a time, at most."""


def rows_of(median: int, cap: int, prompt: int, *, prompts: int = 64, answers: int = 8) -> TokenRows:
    """Random tokens with these lengths."""
    dice = np.random.default_rng(0)
    tokens, acted = [], []
    for _ in range(prompts):
        asked = dice.integers(0, 1000, prompt).tolist()
        for length in np.clip(dice.lognormal(np.log(median), 0.8, answers), 1, cap).astype(int):
            tokens.append(asked + dice.integers(0, 1000, length).tolist())
            acted.append([False] * prompt + [True] * int(length))
    return TokenRows(tokens, acted)


def tensors_of(batch: Batch) -> Iterator[torch.Tensor]:
    """Every tensor of a micro-batch."""
    yield from (batch.input_ids, batch.source, batch.target, batch.row, batch.take)
    layout = batch.layout
    if isinstance(layout, BucketLayout):
        yield from (layout.positions, layout.home)
        for bucket in layout.buckets:
            yield from (x for x in (bucket.query, bucket.keys, bucket.mask) if x is not None)
    elif layout is not None:
        yield from (x for x in (layout.positions, layout.keys, layout.lengths.queries, layout.lengths.keys) if x is not None)


def measured(rows: TokenRows, budget: int, how: PackingMode) -> dict[str, float]:
    """The bytes of all micro-batches of a step, and of the largest."""
    parts, _ = packing.plan_packed_batches(rows, range(len(rows.tokens)), budget)
    sizes = [sum(x.numel() * x.element_size() for x in tensors_of(packing.pack_rows(rows, part, "cpu", how))) for part in parts]
    return {"microbatches": len(sizes), "together_gb": sum(sizes) / 1e9, "at_a_time_gb": max(sizes) / 1e9}


def main() -> int:
    """Print a row for each size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--json", action="store_true", help="print one line of JSON per size")
    asked = parser.parse_args()
    for name in asked.sizes:
        median, cap, prompt, budget = SIZES[name]
        rows = rows_of(median, cap, prompt)
        masks, kernel = (measured(rows, budget, how) for how in (PackingMode(), PackingMode(attend_with_matmul)))
        row = {"size": name, **masks, "kernel_at_a_time_gb": kernel["at_a_time_gb"]}
        if asked.json:
            print(json.dumps(row))
        else:
            print(
                f"{name:8} {masks['microbatches']:4.0f} micro-batches: together {masks['together_gb']:7.2f} GB, at a time "
                f"{masks['at_a_time_gb']:5.2f} GB, with a kernel {1000 * kernel['at_a_time_gb']:6.2f} MB"
            )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
