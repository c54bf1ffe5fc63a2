"""Attention over segments of different lengths without a mask: torch's `varlen_attn`, or the package flash_attn.

Both exist on CUDA for 16-bit dtypes. The causal mask is aligned to the end: the last query of a segment sees all its keys. So queries may
be an answer and keys its prompt and itself, and several answers can share a prompt.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from rlvr.models.device_defaults import copy_to_device


class SegmentBoundaries(NamedTuple):
    """The segment boundaries of packed queries and of packed keys.

    >>> build_segment_boundaries([2, 3], [2, 5], "cpu").key_offsets.tolist()
    [0, 2, 7]
    """

    query_offsets: Tensor
    """[segments + 1], the start of each segment, and the end; int32."""
    key_offsets: Tensor
    """[segments + 1], the start of each segment's keys, and the end; int32."""
    max_query_length: int
    max_key_length: int


class VarlenAttentionKernel(Protocol):
    """A function that computes attention over segments."""

    def __call__(
        self, query: Tensor, key: Tensor, value: Tensor, lengths: SegmentBoundaries, *, scale: float | None, window: int, softcap: float
    ) -> Tensor:
        """Compute attention of queries [tokens, heads, size]; keys and values may have fewer heads. `window` 0, `softcap` 0: none."""
        ...


def build_segment_boundaries(query_lengths: list[int], key_lengths: list[int], device: torch.device | str) -> SegmentBoundaries:
    """Build the segment boundaries in the format of the kernels."""
    ends = [
        copy_to_device(torch.tensor([0, *part], dtype=torch.int32).cumsum(0, dtype=torch.int32), device)
        for part in (query_lengths, key_lengths)
    ]
    return SegmentBoundaries(ends[0], ends[1], max(query_lengths, default=0), max(key_lengths, default=0))


def attend_with_torch(
    query: Tensor, key: Tensor, value: Tensor, lengths: SegmentBoundaries, *, scale: float | None, window: int, softcap: float
) -> Tensor:
    """Compute attention with torch's kernel, or with flash_attn if there is a soft cap."""
    if softcap and not importlib.util.find_spec("flash_attn"):
        raise NotImplementedError("its attention has a soft cap, which torch's varlen_attn lacks; `pip install flash-attn` brings one")
    if softcap:
        return _attend_with_flash_attn(query, key, value, lengths, scale=scale, window=window, softcap=softcap)
    attend: Any = importlib.import_module("torch.nn.attention.varlen").varlen_attn
    # before torch 2.12 there is no such keyword, and the kernel takes fewer heads of keys without being told
    grouped = {"enable_gqa": query.shape[1] != key.shape[1]} if "enable_gqa" in inspect.signature(attend).parameters else {}
    out: Tensor = attend(
        query, key, value, lengths.query_offsets, lengths.key_offsets, lengths.max_query_length, lengths.max_key_length,
        scale=scale, window_size=(window - 1, 0), **grouped,
    )  # fmt: skip
    return out


def _attend_with_flash_attn(
    query: Tensor, key: Tensor, value: Tensor, lengths: SegmentBoundaries, *, scale: float | None, window: int, softcap: float
) -> Tensor:
    """Compute attention with the kernel of flash_attn."""
    out: Tensor = importlib.import_module("flash_attn").flash_attn_varlen_func(
        query, key, value, lengths.query_offsets, lengths.key_offsets, lengths.max_query_length, lengths.max_key_length,
        softmax_scale=scale, causal=True, window_size=(window - 1, 0 if window else -1), softcap=softcap,
        deterministic=torch.are_deterministic_algorithms_enabled(),
    )  # fmt: skip
    return out


def attend_with_matmul(
    query: Tensor, key: Tensor, value: Tensor, lengths: SegmentBoundaries, *, scale: float | None, window: int, softcap: float
) -> Tensor:
    """Compute attention segment by segment with plain matrix products: the slow reference for testing kernels."""
    out = torch.empty_like(query)
    times = query.shape[1] // key.shape[1]
    bounds = zip(
        *(
            ends.tolist()
            for ends in (lengths.query_offsets[:-1], lengths.query_offsets[1:], lengths.key_offsets[:-1], lengths.key_offsets[1:])
        ),
        strict=True,
    )
    for a, b, c, d in bounds:
        keys, values = (x[c:d].repeat_interleave(times, 1) for x in (key, value))
        scores = torch.einsum("qhs,khs->hqk", query[a:b], keys) * (scale if scale is not None else query.shape[2] ** -0.5)
        scores = softcap * torch.tanh(scores / softcap) if softcap else scores
        place, seen = torch.arange(b - a, device=query.device)[:, None] + (d - c) - (b - a), torch.arange(d - c, device=query.device)
        hidden = (seen > place) | ((seen <= place - window) if window else (seen < 0))
        out[a:b] = torch.einsum("hqk,khs->qhs", scores.masked_fill(hidden, -torch.inf).softmax(-1), values)
    return out


def choose_kernel(device: torch.device, dtype: torch.dtype) -> tuple[VarlenAttentionKernel | None, str]:
    """Choose the kernel for packed rows on a device; return None and the reason if there is none."""
    if device.type != "cuda":
        return None, "only CUDA has kernels for it"
    if dtype not in (torch.bfloat16, torch.float16):
        return None, f"the kernels compute in bfloat16 or float16, not in {str(dtype).removeprefix('torch.')}"
    kernels: dict[str, VarlenAttentionKernel] = {"torch.nn.attention.varlen": attend_with_torch, "flash_attn": _attend_with_flash_attn}
    why = "neither torch.nn.attention.varlen nor flash_attn is installed"
    for name, kernel in kernels.items():
        try:
            importlib.import_module(name)
        except ImportError:
            continue
        if not (why := find_kernel_mismatch(kernel, device, dtype)):
            return kernel, ""
    return None, why


@torch.enable_grad()
def find_kernel_mismatch(kernel: VarlenAttentionKernel, device: torch.device, dtype: torch.dtype) -> str:
    """Compare a kernel and its gradients with plain products on random numbers; return '' if they agree, else the problem."""
    dice, lengths = torch.Generator().manual_seed(0), build_segment_boundaries([5, 3, 9, 1], [5, 8, 9, 6], device)
    query, key, value = (
        torch.randn(n, heads, 64, generator=dice).to(device, dtype).requires_grad_() for n, heads in ((18, 4), (28, 2), (28, 2))
    )
    inputs, (q, k, v) = [query, key, value], (x.detach().float().requires_grad_() for x in (query, key, value))
    slope = torch.randn(18, 4, 64, generator=dice).to(device)
    for window in (0, 3):
        how: dict[str, Any] = {"scale": 0.3, "window": window, "softcap": 0.0}
        try:
            out = kernel(query, key, value, lengths, **how).float()
            found = [out.detach(), *torch.autograd.grad(out, inputs, slope)]
        except Exception as error:  # each kernel raises its own error on an unsupported device
            return f"its kernel fails ({type(error).__name__}: {' '.join(str(error).split())[:160]})"
        truth = attend_with_matmul(q, k, v, lengths, **how)
        expected = [truth.detach(), *torch.autograd.grad(truth, [q, k, v], slope)]
        # 16 bits: about three digits of the largest number
        gap = max(float((a.float() - b).abs().max() / b.abs().max()) for a, b in zip(found, expected, strict=True))
        if not gap < 0.05:
            return f"its kernel differs from plain products by {gap:.2g}" + (f" with a window of {window}" if window else "")
    return ""
