"""Determinism: whether a run is bitwise repeatable, and the setup of the device before its first kernel.

On a CPU the same program with the same number of threads gives the same bits. On CUDA, atomic additions, split reductions and the
choice of algorithms by speed change the bits each time, unless deterministic kernels are requested, which are slower.
"""

from __future__ import annotations

import os

import torch

from rlvr.config.config import RunConfig
from rlvr.models.cpu_threads import count_cores
from rlvr.models.device_defaults import get_device_defaults, resolve_mixed_precision

DETERMINISTIC_ENVIRONMENT = {
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",  # cuBLAS reduces in a fixed order
    "FLASH_ATTENTION_DETERMINISTIC": "1",
    "NCCL_ALGO": "Ring",  # otherwise the order of sums over GPUs depends on speed
    "VLLM_BATCH_INVARIANT": "1",  # a completion does not depend on the batch composition
}
"""Environment variables that libraries read at startup, set before the device is used. Existing values are kept."""


def requires_determinism(config: RunConfig, device: torch.device) -> bool:
    """Return whether a run must be bitwise deterministic: by default on a CPU, where it costs nothing."""
    asked = config.train.deterministic
    return get_device_defaults(device).deterministic if asked == "auto" else asked


def configure_device(config: RunConfig, device: torch.device) -> None:
    """Configure threads, determinism and matmul precision of the device, before anything is computed."""
    if device.type == "cpu":
        if count_cores() < torch.get_num_threads():  # more threads would exhaust the CPU quota and stall
            torch.set_num_threads(count_cores())
        return
    if requires_determinism(config, device):
        for name, value in DETERMINISTIC_ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        torch.backends.cudnn.benchmark = False
        torch.use_deterministic_algorithms(True, warn_only=True)  # a kernel without a deterministic form is named in a warning
    if device.type == "cuda":
        # cuDNN plans attention anew for every shape that it has not seen, which takes up to two seconds, and each batch has new ones
        torch.backends.cuda.enable_cudnn_sdp(False)
    # float32 runs keep exact float32, because the sampler's probabilities are compared with it
    mixed = (
        resolve_mixed_precision(config.train.mixed_precision, device, config.model.dtype) != "no"
        or config.reward_model_training is not None
    )
    if get_device_defaults(device).tf32 and mixed and not config.model.fp32_head:
        torch.set_float32_matmul_precision("high")
