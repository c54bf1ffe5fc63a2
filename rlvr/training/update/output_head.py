"""The output head: from hidden states to the log-probability of each chosen token, in tiles.

No [tokens, vocabulary] tensor is kept: logits are computed for a tile of tokens, and again in the backward pass. In a lower
precision only the operands are rounded: logits and the gradient of the head are accumulated in float32.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from rlvr.models import device_defaults as defaults
from rlvr.models.compiled_layers import run_compiled_or_plain, uses_compiled_layers_here
from rlvr.samplers._sampling_support import LogitMask

FP32_ACCUMULATION_DEVICES = {"cuda"}
"""Devices with a matmul of 16-bit operands and float32 output; elsewhere the rounded operands are upcast first."""


class LogitTransform(NamedTuple):
    """The transform of the head's output to logits: cap * tanh(scale * output / cap).

    >>> LogitTransform().scale
    1.0
    """

    scale: float = 1.0
    softcap: float = 0.0
    """0: no soft cap."""

    def __call__(self, output: Tensor) -> Tensor:
        """Compute the logits."""
        logits = output if self.scale == 1.0 else output * self.scale
        return self.softcap * torch.tanh(logits / self.softcap) if self.softcap else logits


IDENTITY_TRANSFORM = LogitTransform()
FULL_PRECISION_DTYPES = (torch.float32, torch.float64)


class TiledLogprobs(torch.autograd.Function):
    """Computes log softmax(logits / temperature) at the targets in tiles, and recomputes the logits in the backward pass."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, temperature: float, tile_size: int, entropy: bool,
        transform: LogitTransform, dtype: torch.dtype, logit_mask: LogitMask | None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """Compute log-probabilities and, if requested, entropies, in float32. `dtype`: the precision of the operands."""
        logprobs = torch.empty(len(hidden), dtype=_accumulation_dtype(hidden.dtype), device=hidden.device)
        norms = torch.empty_like(logprobs)
        entropies = torch.zeros_like(logprobs)
        with _no_autocast(hidden):
            matrix = _round_operand(weight, dtype)
            ctx.is_compiled = uses_compiled_layers_here() and bias is None and logit_mask is None and not entropy
            for a in range(0, len(hidden), tile_size):
                part = slice(a, a + tile_size)
                if ctx.is_compiled:
                    product = _compute_product(_round_operand(hidden[part], dtype), matrix)
                    logprobs[part], norms[part] = run_compiled_or_plain(_score_tile, product, target[part], temperature, transform)
                    continue
                logits = _compute_logits(_round_operand(hidden[part], dtype), matrix, bias, temperature, transform)
                logits = logits if logit_mask is None else logit_mask(logits, part)
                norms[part] = logits.logsumexp(-1)
                logprobs[part] = logits.gather(1, target[part, None]).squeeze(1) - norms[part]
                if entropy:
                    logs = logits.sub_(norms[part, None])  # normalized first, because raw logits have large rounding errors
                    entropies[part] = -(logs.exp() * logs).sum(-1)
        ctx.save_for_backward(hidden, weight, bias, target, norms, entropies)
        ctx.temperature, ctx.tile_size, ctx.entropy, ctx.transform, ctx.dtype, ctx.logit_mask = (
            temperature,
            tile_size,
            entropy,
            transform,
            dtype,
            logit_mask,
        )
        return logprobs, entropies

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        """Compute gradients: that of log p is onehot - p, that of the entropy H is -p (log p + H). Logits are recomputed."""
        with _no_autocast(grad_outputs[0]):
            return *TiledLogprobs._backward(ctx, *grad_outputs), None, None, None, None, None, None, None

    @staticmethod
    def _backward(ctx: Any, grad_logprobs: Tensor, grad_entropies: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        hidden, weight, bias, target, norms, _ = ctx.saved_tensors
        wants_hidden, wants_weight, wants_bias = ctx.needs_input_grad[:3]
        grad_hidden = torch.empty_like(hidden) if wants_hidden else None
        grad_weight = torch.zeros_like(weight, dtype=_accumulation_dtype(weight.dtype)) if wants_weight else None
        grad_bias = torch.zeros_like(bias, dtype=_accumulation_dtype(bias.dtype)) if bias is not None and wants_bias else None
        matrix = _round_operand(weight, ctx.dtype)
        for a in range(0, len(hidden), ctx.tile_size):
            part = slice(a, a + ctx.tile_size)
            states = _round_operand(hidden[part], ctx.dtype)
            if ctx.is_compiled:
                product, slopes = _compute_product(states, matrix), grad_logprobs[part]
                grad = run_compiled_or_plain(
                    _differentiate_tile, product, target[part], norms[part], slopes, ctx.temperature, ctx.transform, ctx.dtype
                )
            else:
                logits = _compute_logits(states, matrix, bias, ctx.temperature, ctx.transform)
                grad = TiledLogprobs._differentiate_logits(ctx, part, logits, grad_logprobs, grad_entropies)
            if grad_bias is not None:
                grad_bias += grad.sum(0)
            grad = _round_operand(grad, ctx.dtype)
            if grad_hidden is not None:
                grad_hidden[part] = _matmul_fp32(grad, matrix).to(hidden.dtype)
            if grad_weight is not None:
                grad_weight += _matmul_fp32(grad.t(), states)
        cast_weight = None if grad_weight is None else grad_weight.to(weight.dtype)
        cast_bias = None if grad_bias is None or bias is None else grad_bias.to(bias.dtype)
        return grad_hidden, cast_weight, cast_bias

    @staticmethod
    def _differentiate_logits(ctx: Any, part: slice, logits: Tensor, grad_logprobs: Tensor, grad_entropies: Tensor) -> Tensor:
        """Compute the gradient of the head's output for a tile, in place where that is possible."""
        _, _, _, target, norms, entropies = ctx.saved_tensors
        slope_of_cap = 1 - (logits * (ctx.temperature / ctx.transform.softcap)) ** 2 if ctx.transform.softcap else None
        logits = logits if ctx.logit_mask is None else ctx.logit_mask(logits, part)
        logs = logits.sub_(norms[part, None])
        probs = logs.exp()
        if ctx.entropy:
            slope = probs * (logs + entropies[part, None]) * -grad_entropies[part, None]
            grad = slope.addcmul_(probs, -grad_logprobs[part, None])
        else:
            grad = probs.mul_(-grad_logprobs[part, None])
        grad.scatter_add_(1, target[part, None], grad_logprobs[part, None])
        if ctx.temperature != 1.0:  # each pass over a tile costs as much as reading and writing it
            grad.div_(ctx.temperature)
        if slope_of_cap is not None:
            grad.mul_(slope_of_cap)
        if ctx.transform.scale != 1.0:
            grad.mul_(ctx.transform.scale)
        return grad


def _score_tile(product: Tensor, target: Tensor, temperature: float, transform: LogitTransform) -> tuple[Tensor, Tensor]:
    """Compute log-probabilities and normalizers of a tile. To be compiled: its logits are then read, and never written."""
    logits = transform(product) / temperature
    norms = logits.logsumexp(-1)
    return logits.gather(1, target[:, None]).squeeze(1) - norms, norms


def _differentiate_tile(
    product: Tensor, target: Tensor, norms: Tensor, slopes: Tensor, temperature: float, transform: LogitTransform, dtype: torch.dtype
) -> Tensor:
    """Compute the gradient of the head's output for a tile. To be compiled: one pass that reads the output and writes the gradient."""
    logits = transform(product) / temperature
    is_target = torch.arange(product.shape[1], device=product.device) == target[:, None]
    grad = (is_target.to(logits.dtype) - (logits - norms[:, None]).exp()) * slopes[:, None] * (transform.scale / temperature)
    if transform.softcap:
        grad = grad * (1 - (logits * (temperature / transform.softcap)) ** 2)
    return grad.to(dtype)


def _accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def _no_autocast(tensor: Tensor) -> AbstractContextManager[Any]:
    kind = tensor.device.type
    return torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext()


def _round_operand(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Round a tensor to the operand precision, in the dtype in which the device multiplies it."""
    rounded = tensor.to(dtype)
    return rounded if rounded.device.type in FP32_ACCUMULATION_DEVICES else rounded.to(_accumulation_dtype(dtype))


def _matmul_fp32(a: Tensor, b: Tensor) -> Tensor:
    """Compute a matrix product with float32 accumulation and output, also for 16-bit operands."""
    return a @ b if a.dtype in FULL_PRECISION_DTYPES else torch.mm(a, b, out_dtype=torch.float32)


def _compute_product(states: Tensor, matrix: Tensor, bias: Tensor | None = None) -> Tensor:
    if states.dtype in FULL_PRECISION_DTYPES:
        return nn.functional.linear(states, matrix, None if bias is None else bias.to(states.dtype))
    product = _matmul_fp32(states, matrix.t())
    return product if bias is None else product.add_(bias)


def _compute_logits(states: Tensor, matrix: Tensor, bias: Tensor | None, temperature: float, transform: LogitTransform) -> Tensor:
    logits = transform(_compute_product(states, matrix, bias))
    return logits if temperature == 1.0 else logits / temperature


def compute_token_logprobs(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, *,
    temperature: float = 1.0, tile_size: int = 0, entropy: bool = False, logit_transform: LogitTransform = IDENTITY_TRANSFORM, fp32_operands: bool = False,
    logit_mask: LogitMask | None = None,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Compute the log-probability of each target, and the entropy if requested.

    `tile_size` 0: the device's default tile size. `fp32_operands`: float32 operands, ignoring autocast. `logit_mask`: removes tokens that could
    not be sampled.
    """
    if tile_size or fp32_operands or not _fits_cpu_cache(hidden, weight):
        return _compute_tiled_logprobs(
            hidden,
            weight,
            bias,
            target,
            temperature,
            tile_size,
            entropy,
            logit_transform,
            _get_head_dtype(hidden, fp32_operands=fp32_operands),
            logit_mask,
        )
    logits = nn.functional.linear(hidden, weight, bias)
    if logit_transform != IDENTITY_TRANSFORM or temperature != 1.0:
        logits = logit_transform(logits) / temperature
    logits = logits if logit_mask is None else logit_mask(logits, slice(None))
    return compute_full_logprobs(logits, target, entropy=entropy)


def _fits_cpu_cache(hidden: Tensor, weight: Tensor) -> bool:
    """Return whether all logits fit the cache of a CPU and are computed in the precision of the weights."""
    plain = weight.device.type == "cpu" and weight.dtype == hidden.dtype in FULL_PRECISION_DTYPES and not torch.is_autocast_enabled("cpu")
    return plain and len(hidden) * len(weight) <= defaults.CPU_DEFAULTS.max_head_logits


def _compute_tiled_logprobs(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, temperature: float, tile_size: int, entropy: bool, logit_transform: LogitTransform,
    dtype: torch.dtype, logit_mask: LogitMask | None = None,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Compute log-probabilities, and entropies if requested, in tiles. `dtype`: the precision of the operands."""
    size = tile_size or max(1, defaults.get_device_defaults(hidden.device).max_head_logits // weight.shape[0])
    logprobs, entropies = TiledLogprobs.apply(hidden, weight, bias, target, temperature, size, entropy, logit_transform, dtype, logit_mask)
    return logprobs, entropies if entropy else None


def _get_head_dtype(hidden: Tensor, *, fp32_operands: bool) -> torch.dtype:
    """Return the precision of the head's operands: that of autocast, or of the hidden states."""
    kind = hidden.device.type
    if fp32_operands or hidden.dtype == torch.float64:
        return _accumulation_dtype(hidden.dtype)
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else hidden.dtype


def compute_full_logprobs(logits: Tensor, target: Tensor, *, entropy: bool) -> tuple[Tensor, Tensor | None]:
    """Compute log-probabilities, and entropies if requested, from full logits at the final temperature, with autograd."""
    logs = logits.log_softmax(-1)
    chosen = logs.gather(1, target[:, None]).sum(1)  # a sum over one element, because FSDP warns about a view
    return chosen, -(logs.exp() * logs).sum(-1) if entropy else None


def get_trunk(model: Any) -> Any:
    """Return the model without its output head (also under an adapter wrapper)."""
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    return inner.base_model


@torch.no_grad()
def detect_logit_transform(model: Any, token_ids: Tensor) -> LogitTransform | None:
    """Detect the logit transform of a model on a few tokens; None if it is unknown, or the head is not a linear layer.

    The head's output is replaced by known numbers, because those of a new model are too small to reveal a soft cap.
    """
    head, config = model.get_output_embeddings(), model.config.get_text_config()
    try:
        states = getattr(get_trunk(model)(input_ids=token_ids, use_cache=False), "last_hidden_state", None)
    except TypeError:  # the trunks of some old families accept fewer arguments
        return None
    if type(head) is not nn.Linear or states is None:
        return None
    probe, seen = torch.linspace(-100, 100, head.out_features, device=token_ids.device), list[Tensor]()

    def shaped(values: Tensor) -> Tensor:
        def swap(module: Any, args: Any, output: Tensor) -> Tensor:
            seen.append(args[0])
            return values.to(output.dtype).expand_as(output)

        hook = head.register_forward_hook(swap)
        try:
            out: Tensor = model(input_ids=token_ids, use_cache=False).logits[0, -1].float()
        finally:
            hook.remove()
        return out

    found, small = shaped(probe), shaped(probe * 1e-3)
    if seen[0].shape != states.shape or not torch.allclose(seen[0], states, rtol=1e-3, atol=1e-5):
        return None
    scale = float((small * probe).sum() / (1e-3 * probe.square().sum()))
    known = (1.0, 1.0 / (getattr(config, "logits_scaling", None) or 1.0), getattr(config, "logit_scale", None) or 1.0)
    transform = LogitTransform(
        min(known, key=lambda value: abs(value - scale)), float(getattr(config, "final_logit_softcapping", None) or 0.0)
    )
    room = 1e-4 if head.weight.dtype in FULL_PRECISION_DTYPES else 1e-2
    return transform if torch.allclose(transform(probe), found, rtol=room, atol=room * float(found.abs().max())) else None
