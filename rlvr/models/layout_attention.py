"""Attention computed by a layout object, which defines where tokens are in memory.

The learner packs rows into one sequence; the sampler keeps a KV cache in slots. Both pass their layout to the model as the keyword
argument `rlvr_layout`, the model forwards it to this attention function, and the layout computes the output. Without a layout
(generation, evaluation) this is PyTorch's own attention. Requirements: the model forwards keyword arguments (the usual families do) and
has no other exchange between tokens. A sliding window or a soft cap needs a layout that supports it, and a model that passes it as an
argument. `try_enable_layout` tests all of this.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from typing import Any, Protocol, cast

import torch
from torch import Tensor
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

ATTENTION_NAME = "rlvr_layout"


class AttentionLayout(Protocol):
    """An object that computes attention for its own arrangement of tokens."""

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float | None) -> Tensor:
        """Compute attention: queries, keys and values are [rows, heads, length, size]; the output is [rows, length, heads, size].

        A layout that supports a sliding window or a soft cap names them in its attribute `shapes`, and receives them as keywords.
        """
        ...


def _compute_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    rlvr_layout: AttentionLayout | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Any]:
    """Compute attention with the layout, or with PyTorch's attention if there is none; registered in transformers as the attention
    function of models.
    """
    if rlvr_layout is None:
        return cast(tuple[Tensor, Any], sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs))
    shape = {name: kwargs[name] for name in ("sliding_window", "softcap", "s_aux", "position_bias") if kwargs.get(name) is not None}
    has_mask = attention_mask is not None and attention_mask.numel() > 1  # `build_layout_kwargs` passes one of a single number
    return _attend_with_layout(rlvr_layout, has_mask, module.layer_idx, query, key, value, kwargs.get("scaling"), **shape), None


def _attend_plain(layout: AttentionLayout, has_mask: bool, layer: int, *states: Tensor | float | None, **shape: Any) -> Tensor:
    missing = shape.keys() - getattr(layout, "shapes", set())
    if missing or has_mask:
        raise _build_unsupported_error(missing)
    attend: Callable[..., Tensor] = layout.attend
    return attend(layer, *states, **shape)


_attend_with_layout: Callable[..., Tensor] = torch.compiler.disable(_attend_plain)  # type: ignore[no-untyped-call]
"""Traced by torch.compile, a layout would be compiled again for every batch of another arrangement."""


def _build_unsupported_error(unsupported: Set[str]) -> NotImplementedError:
    if unsupported:
        return NotImplementedError(f"its attention has {' and '.join(sorted(unsupported))}, which this layout does not compute")
    return NotImplementedError("its attention has a mask of its own")


AttentionInterface.register(ATTENTION_NAME, _compute_attention)
AttentionMaskInterface.register(ATTENTION_NAME, sdpa_mask)


def build_layout_kwargs(layout: AttentionLayout, positions: Tensor) -> dict[str, Any]:
    """Build the keyword arguments of a model's forward pass with a layout."""
    # a 4-D mask prevents the model from building one; the layout needs none
    nothing = torch.zeros(1, 1, 1, 1, dtype=torch.bool, device=positions.device)
    return {"position_ids": positions, "attention_mask": nothing, "rlvr_layout": layout, "use_cache": False}


class SelfOnlyLayout:
    """A layout in which every token attends only to itself; it records the layers that attended. Used to test models.

    >>> SelfOnlyLayout().attending_layers
    set()
    """

    def __init__(self) -> None:
        self.attending_layers: set[int] = set()
        self.windowed_layers: set[int] = set()
        """The layers that passed a sliding window."""

    shapes = {"sliding_window", "softcap"}

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float | None, **shape: Any) -> Tensor:
        """Return the value of the token itself."""
        self.attending_layers.add(layer)
        if shape.get("sliding_window"):
            self.windowed_layers.add(layer)
        return value.repeat_interleave(query.shape[1] // value.shape[1], 1).transpose(1, 2).contiguous()


@torch.enable_grad()
def find_mixing_outside_attention(model: Any) -> str:
    """Find out whether tokens of a model influence each other outside of attention; return the reason, or '' if they do not.

    A state along the sequence (a convolution, a recurrence) would leak from one packed row into the next, and would be lost
    between two sampling steps. In a new model its effect on the output is small, so the gradient is tested: with every token
    attending only to itself, the gradient of one token's logits with respect to another token must be exactly 0.
    """
    layout, kept = SelfOnlyLayout(), list[Tensor]()

    def keep(module: Any, args: Any, output: Tensor) -> Tensor:
        kept.append(output.detach().requires_grad_())
        return kept[-1]

    embedding = model.get_input_embeddings()
    device, length, here = next(model.parameters()).device, 6, 3
    ids = (torch.arange(length, device=device)[None] * 7 + 3) % embedding.weight.shape[0]
    hook = embedding.register_forward_hook(keep)
    try:
        logits = model(input_ids=ids, **build_layout_kwargs(layout, torch.arange(length, device=device)[None])).logits
    finally:
        hook.remove()
    config = model.config.get_text_config()
    layers = config.num_hidden_layers
    if silent := sorted(set(range(layers)) - layout.attending_layers):
        return f"{len(silent)} of its {layers} layers (such as {silent[0]}) do not call the attention function as a layout needs it"
    if unnamed := [layer for layer, kind in enumerate(_get_layer_attention_kinds(config)) if kind and layer not in layout.windowed_layers]:
        return f"its layer {unnamed[0]} hides distant tokens ({_get_layer_attention_kinds(config)[unnamed[0]]}) without passing the window as an argument"
    [slopes] = torch.autograd.grad(logits[0, here].float().square().sum(), kept[:1])
    elsewhere = [place for place in range(length) if place != here and bool((slopes[0, place] != 0).any())]
    return "its tokens influence each other outside of attention (a convolution or a recurrent state)" if elsewhere else ""


def _get_layer_attention_kinds(config: Any) -> list[str]:
    """Return, for each layer, the kind of its attention if it is local, else ''.

    A window may be longer than the few tokens that a model is tested with, so it is read from the configuration.
    """
    kinds = getattr(config, "layer_types", None) or []
    return [kind if "sliding" in kind or "chunk" in kind or "local" in kind else "" for kind in kinds]


def are_close(actual: Tensor, expected: Tensor, dtype: torch.dtype) -> bool:
    """Return whether two computations of log-probabilities or logits agree up to rounding in the model's precision."""
    room = 1e-5 if dtype in (torch.float32, torch.float64) else 1e-2
    return bool(torch.allclose(actual, expected, rtol=0.0, atol=room * (1 + float(expected.abs().max()))))


@torch.no_grad()
def try_enable_layout(
    model: Any, compute_expected: Callable[[], Tensor], compute_with_layout: Callable[[], Tensor], dtype: torch.dtype | None = None
) -> str:
    """Enable layouts in the model if `compute_with_layout`, which uses one, agrees with `compute_expected`; return '', or the reason why
    not.

    `dtype`: the precision of the computation, if it is not that of the weights.
    """
    before, training = str(getattr(model.config, "_attn_implementation", "unknown")), model.training
    if before not in ("sdpa", ATTENTION_NAME):
        return f"its attention is {before!r}"
    model.eval()
    try:
        expected = compute_expected()
        model.set_attn_implementation(ATTENTION_NAME)
        reason = find_mixing_outside_attention(model)
        if not reason and not are_close(compute_with_layout(), expected, dtype or model.dtype):
            reason = "its results differ in a test on a few tokens"
    except Exception as error:  # each family fails in its own way, and then uses the slower path
        reason = f"it fails ({type(error).__name__}: {error})"
    finally:
        model.train(training)
    if reason:
        model.set_attn_implementation(before)
    return reason
