"""What a device gets, and how exactly a run on it can be repeated. No accelerator is needed: choices depend on the device's kind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from rlvr.models import device_defaults as defaults
from rlvr.models.determinism import requires_determinism
from rlvr.models.device_defaults import (
    CPU_DEFAULTS,
    copy_to_device,
    describe_precision,
    get_device_defaults,
    resolve_microbatch_tokens,
    resolve_mixed_precision,
)
from rlvr.training.update.optimization import OptimizationSettings
from rlvr.training.update.reward_model_trainer import RewardModelTrainer
from tests.fixtures.tiny import tiny_run

ROOT = Path(__file__).parents[2]
CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.fixture
def hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: True)


def test_a_cpu_gets_what_it_always_had() -> None:
    assert get_device_defaults(CPU) is CPU_DEFAULTS
    assert (resolve_mixed_precision("auto", CPU), resolve_microbatch_tokens("auto", CPU), CPU_DEFAULTS.max_head_logits) == (
        "no",
        4096,
        1 << 22,
    )
    assert not (CPU_DEFAULTS.fused_optimizer or CPU_DEFAULTS.tf32)


def test_an_accelerator_gets_bf16_large_batches_and_a_fused_optimizer(hopper: None, monkeypatch: pytest.MonkeyPatch) -> None:
    found = get_device_defaults(CUDA)
    assert (resolve_mixed_precision("auto", CUDA), resolve_microbatch_tokens("auto", CUDA), found.max_head_logits) == (
        "bf16",
        16384,
        1 << 28,
    )
    assert found.fused_optimizer and not found.deterministic
    assert resolve_mixed_precision("no", CUDA) == "no" and resolve_microbatch_tokens(100, CUDA) == 100  # what is asked for is taken
    assert resolve_mixed_precision("auto", CUDA, "bfloat16") == "no"  # weights in 16 bits need no autocast
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation)
    assert resolve_mixed_precision("auto", CUDA) == "no"  # a card that only emulates it


def test_the_optimizer_is_fused_where_the_device_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.nn.Parameter(torch.zeros(1))
    assert OptimizationSettings().build_optimizer([weight], 1)[0].param_groups[0]["fused"] is None
    assert OptimizationSettings().build_optimizer([weight], 1, fused=True)[0].param_groups[0]["fused"] is True
    monkeypatch.setattr(defaults, "CPU_DEFAULTS", replace(defaults.CPU_DEFAULTS, tokens_per_microbatch=7, fused_optimizer=True))
    trainer = RewardModelTrainer(torch.nn.Linear(1, 1), OptimizationSettings(), total_steps=1, device="cpu")
    assert trainer.optimizer.param_groups[0]["fused"] is True and trainer.max_tokens_per_microbatch == 7


def test_copies_to_cuda_are_pinned_and_not_waited_for(hopper: None, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    class Host(torch.Tensor):
        def pin_memory(self) -> Host:  # type: ignore[override]
            seen.append("pinned")
            return self

        def to(self, *args: Any, **kwargs: Any) -> Host:
            seen.append((*args, kwargs))
            return self

    numbers = torch.zeros(2).as_subclass(Host)
    copy_to_device(numbers, CUDA)
    assert seen == ["pinned", (CUDA, {"non_blocking": True})]
    seen.clear()
    copy_to_device(numbers, "cpu")
    assert seen == [("cpu", {})]


def test_the_banner_tells_what_was_chosen_and_by_whom(hopper: None) -> None:
    config = tiny_run()
    assert describe_precision(config, CPU, "no") == (
        f"weights in float32, computed in float32 (auto), {torch.get_num_threads()} threads, 4,096 tokens a forward pass (auto)"
    )
    told_there = describe_precision(config, CUDA, "bf16")
    assert "computed in bfloat16 (auto)" in told_there and "16,384 tokens" in told_there and "fused AdamW" in told_there
    plain = describe_precision(tiny_run(train={"mixed_precision": "no", "max_tokens_per_microbatch": 100}), CUDA, "no")
    assert "computed in float32, without TF32, 100 tokens a forward pass" in plain


def test_to_the_bit_only_where_it_holds() -> None:
    plain, asked, waived = (tiny_run(train={"deterministic": value}) for value in ("auto", True, False))
    assert [requires_determinism(config, CPU) for config in (plain, asked, waived)] == [True, True, False]
    assert [requires_determinism(config, CUDA) for config in (plain, asked, waived)] == [False, True, False]


READY = """
import json, os, torch
torch.cuda.is_bf16_supported = lambda including_emulation=True: True
from rlvr.models.determinism import DETERMINISTIC_ENVIRONMENT, configure_device
from tests.fixtures.tiny import tiny_run
configure_device(tiny_run({more}), torch.device("{device}"))
found = {{name: os.environ.get(name) for name in DETERMINISTIC_ENVIRONMENT}}
print(json.dumps([found, torch.are_deterministic_algorithms_enabled(), torch.get_float32_matmul_precision()]))
"""


@pytest.mark.parametrize(
    ("device", "more", "deterministic", "products"),
    [
        ("cuda", 'train={"deterministic": True}', True, "high"),
        ("cuda", "", False, "high"),
        ("cuda", 'train={"mixed_precision": "no"}', False, "highest"),
        ("cpu", 'train={"deterministic": True}', False, "highest"),
    ],
)
def test_what_a_device_needs_is_set_before_it_starts(device: str, more: str, deterministic: bool, products: str) -> None:
    """In a process of its own. What the user has set stays; a CPU needs nothing; exact float32 stays exact where it was asked for."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "NCCL_ALGO": "Tree"}
    code = READY.format(device=device, more=more)
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    found, kernels, precision = json.loads(done.stdout)
    assert found["NCCL_ALGO"] == "Tree" and (kernels, precision) == (deterministic, products)
    assert (found["CUBLAS_WORKSPACE_CONFIG"], found["VLLM_BATCH_INVARIANT"]) == ((":4096:8", "1") if deterministic else (None, None))
