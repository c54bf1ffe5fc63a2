"""Attention that a layout takes over: where tokens stand in memory is the caller's matter, and not the model's.

The learner packs rows into one line; the sampler keeps keys and values in slots. Either hands its layout to the model as the
keyword `rlvr_layout`, the model hands it on to this attention, and the layout answers. Without one (generation, evaluation)
this is PyTorch's own attention. It needs a model that hands keyword arguments through (the usual families do) and attends
to everything before (no sliding window, no soft cap on scores). `adopt` tries it out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

NAME = "rlvr_layout"


class Layout(Protocol):
    """Who knows what attends to what.

    >>> Layout.attend                                                           # doctest: +SKIP
    """

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float | None) -> Tensor:
        """Queries, keys and values are [rows, heads, length, size]; the output is [rows, length, heads, size]."""
        ...


def attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, rlvr_layout: Layout | None = None, **kwargs: Any
) -> tuple[Tensor, Any]:
    """What a model calls in place of PyTorch's attention."""
    if rlvr_layout is None:
        plain: tuple[Tensor, Any] = sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
        return plain
    if kwargs.get("sliding_window") or kwargs.get("softcap") or kwargs.get("s_aux") is not None or kwargs.get("position_bias") is not None:
        raise NotImplementedError("this layout needs plain causal attention")
    return rlvr_layout.attend(module.layer_idx, query, key, value, kwargs.get("scaling")), None


AttentionInterface.register(NAME, attention)
AttentionMaskInterface.register(NAME, sdpa_mask)


def handed(layout: Layout, positions: Tensor) -> dict[str, Any]:
    """What a model's forward pass is called with, beside the tokens."""
    # a mask of four dimensions is handed on as it is: the model builds none, and the layout needs none
    nothing = torch.zeros(1, 1, 1, 1, dtype=torch.bool, device=positions.device)
    return {"position_ids": positions, "attention_mask": nothing, "rlvr_layout": layout, "use_cache": False}


@torch.no_grad()
def adopt(model: Any, truth: Callable[[], Tensor], trial: Callable[[], Tensor]) -> str:
    """Let the model listen to layouts if `trial`, which uses one, gives what `truth` gives: '' then, else the reason why not."""
    before, training = str(getattr(model.config, "_attn_implementation", "unknown")), model.training
    if before not in ("sdpa", NAME):
        return f"its attention is {before!r}"
    model.eval()
    try:
        expected = truth()
        model.set_attn_implementation(NAME)
        if torch.allclose(trial(), expected, rtol=1e-3, atol=1e-3):
            return ""
        reason = "a few tokens do not come out as they should"
    except (NotImplementedError, AttributeError, TypeError, ValueError, RuntimeError) as error:
        reason = f"it refuses ({type(error).__name__}: {error})"
    finally:
        model.train(training)
    model.set_attn_implementation(before)
    return reason
