"""Decoder layers compiled with `torch.compile`, one compiled function for all layers of a model, and the tiles of its output head.

Norm, rotary embedding, gate and residual of a layer are fused into a few kernels. Attention is not compiled: it is computed by a layout
(`rlvr.models.layout_attention`) in Python. Compiled layers are used only inside `use_compiled_layers`, in the learner's forward pass. The
sampler runs the same model with new shapes at every token, and would trigger recompilation.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from types import MethodType
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from transformers.modeling_layers import GradientCheckpointingLayer

T = TypeVar("T")
FP32_TOLERANCE, LOW_PRECISION_TOLERANCE = 1e-5, 0.05
"""The tolerance of log-probabilities, relative to the largest: in float32, and in 16 bits."""
COMPILE_BACKEND = "inductor"
_USE_COMPILED: ContextVar[bool] = ContextVar("rlvr_compiled_layers", default=False)
_COMPILED: dict[Callable[..., Any], Callable[..., Any]] = {}
_FAILURES: dict[Callable[..., Any], str] = {}
"""The functions that failed to compile, and why; they run uncompiled."""


@contextmanager
def use_compiled_layers() -> Iterator[None]:
    """Use compiled layers in this block."""
    before = _USE_COMPILED.set(True)
    try:
        yield
    finally:
        _USE_COMPILED.reset(before)


def uses_compiled_layers_here() -> bool:
    """Return whether this code runs inside `use_compiled_layers`."""
    return _USE_COMPILED.get()


def select_forward(layer: nn.Module) -> Callable[..., Any]:
    """Return the forward function of a layer, compiled or not. A recomputation in the backward pass uses the same one."""
    plain: Callable[..., Any] = type(layer).forward
    if not _USE_COMPILED.get() or not getattr(layer, "rlvr_compiled", False):
        return plain
    return partial(run_compiled_or_plain, plain)


def run_compiled_or_plain(function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Run a function compiled, or as it is if its compilation has failed."""
    if function in _FAILURES:
        return function(*args, **kwargs)
    if function not in _COMPILED:
        _COMPILED[function] = torch.compile(function, dynamic=True, backend=COMPILE_BACKEND)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # internal warnings of torch
            found: T = _COMPILED[function](*args, **kwargs)
            return found
    except Exception as error:
        if not type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
            raise
        _FAILURES[function] = f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
        return function(*args, **kwargs)


def _forward(self: Any, *args: Any, **kwargs: Any) -> Any:
    return select_forward(self)(self, *args, **kwargs)


def try_compile_layers(model: nn.Module, compute_logprobs: Callable[[], Tensor], precision: str = "no") -> str:
    """Compile the decoder layers of a model; return '', or the reason why they stay uncompiled.

    `compute_logprobs` computes some log-probabilities, with autocast to `precision`; they are compared with and without compilation,
    and differentiated once.
    """
    layers: list[Any] = [layer for layer in model.modules() if isinstance(layer, GradientCheckpointingLayer)]
    if not layers:
        return f"a {type(model).__name__} has no known decoder layers"
    with torch.no_grad():
        truth = compute_logprobs().float()
    for layer in layers:
        layer.rlvr_compiled = True
        if "forward" not in vars(layer):  # otherwise gradient checkpointing has set it, and calls `select_forward` itself
            layer.forward = MethodType(_forward, layer)  # bound: a copy of the model gets its own
    wide = precision == "no" and next(model.parameters()).dtype == torch.float32
    reason = _find_compile_mismatch(model, layers, compute_logprobs, truth, FP32_TOLERANCE if wide else LOW_PRECISION_TOLERANCE)
    if reason:
        for layer in layers:
            layer.rlvr_compiled = False
    return reason


def _find_compile_mismatch(model: nn.Module, layers: list[Any], score: Callable[[], Tensor], expected: Tensor, tolerance: float) -> str:
    held = {name: weight.grad for name, weight in model.named_parameters()}
    try:
        with use_compiled_layers(), torch.enable_grad():
            found = score()
            found.sum().backward()  # type: ignore[no-untyped-call]
    except Exception as error:  # each backend and each family fails in its own way
        return f"compiling its layers fails ({type(error).__name__}: {' '.join(str(error).split())[:160]})"
    finally:
        for name, weight in model.named_parameters():
            weight.grad = held[name]
    if failed := next((_FAILURES[type(layer).forward] for layer in layers if type(layer).forward in _FAILURES), ""):
        return f"compiling its layers fails ({failed})"
    gap = float((found.detach().float() - expected).abs().max())
    if not gap <= tolerance * (1 + float(expected.abs().max())):
        return f"with compiled layers its log-probabilities differ by {gap:.2g}"
    return ""
