"""How long a checkpoint holds training up: written at once, and copied and written by a thread. One JSON line.

    python benchmarks/checkpoint_wait.py                     60 million weights with their moments: 0.7 GB
    python benchmarks/checkpoint_wait.py --millions 10

Both write the same files with the functions of the training loop; between them the pages of earlier files are flushed. Bar: the copy takes
at most half of the time of the write (of which the disk is the smaller part where files fit its cache).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
import transformers
from transformers import LlamaConfig, LlamaForCausalLM

from rlvr.training import checkpoint
from rlvr.training.checkpoint import CheckpointWriter, Progress
from rlvr.training.update.malloc_settings import keep_freed_memory

BAR = 0.5
LAYER = 3_146_752
"""Weights of one layer of this shape."""


def model_of(millions: int) -> Any:
    """A Llama with about so many weights."""
    shape: dict[str, Any] = {"hidden_size": 512, "intermediate_size": 1365, "num_attention_heads": 8, "vocab_size": 1000}
    return LlamaForCausalLM(LlamaConfig(num_hidden_layers=max(1, round(millions * 1e6 / LAYER)), **shape))


def main() -> int:
    """Print both times; exit code 1 above the bar."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--millions", type=int, default=60)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    transformers.utils.logging.disable_progress_bar()
    keep_freed_memory()  # as a run on a CPU does
    model = model_of(args.millions)
    state = {"optimizer": [torch.zeros_like(p) for p in model.parameters() for _ in range(2)]}
    held, written, at_once = [], [], []
    with tempfile.TemporaryDirectory(prefix="rlvr-checkpoint-") as home:
        folder = Path(home)

        def write(step: int, weights: Any, kept: Any) -> None:
            partial = checkpoint.create_partial_folder(folder, step)
            model.save_pretrained(partial, state_dict=weights)
            checkpoint.publish_checkpoint(partial, None, kept, Progress(step))

        for k in range(args.repeats):
            os.sync()
            began = time.perf_counter()
            write(2 * k, model.state_dict(), checkpoint.add_random_state(state))
            at_once.append(time.perf_counter() - began)
            os.sync()
            with CheckpointWriter(timeout_s=600) as writer:
                began = time.perf_counter()
                weights, kept = checkpoint.copy_to_host((model.state_dict(), checkpoint.add_random_state(state)))
                writer.start(2 * k + 1, lambda k=k, weights=weights, kept=kept: write(2 * k + 1, weights, kept))  # type: ignore[misc]
                held.append(time.perf_counter() - began)
                writer.wait()
                written.append(time.perf_counter() - began)
    size = checkpoint.count_tensor_bytes(model.state_dict(), state)
    share = min(held) / min(at_once)
    told = {"gb": size / 1e9, "at_once_s": min(at_once), "held_s": min(held), "written_s": min(written), "share": share, "bar": BAR}
    print(json.dumps({"benchmark": "checkpoint_wait"} | {name: round(value, 3) for name, value in told.items()}))
    return int(share > BAR)


if __name__ == "__main__":
    raise SystemExit(main())
