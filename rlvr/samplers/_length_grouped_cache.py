"""Cache for models with a recurrent or convolutional state that the cache of transformers stores.

A state cannot skip padding, so nothing is padded: prompts of equal length form a group with a cache of its own, and all rows of a group
are always equally long. Each step computes one token per row, group by group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

STATELESS_LAYER_KINDS = {"mlp", "moe"}
"""Kinds of layers without a state: they compute each token independently."""


@dataclass(slots=True)
class LengthGroup:
    """Rows of equal length with their cache.

    >>> LengthGroup(None, [0, 3]).rows
    [0, 3]
    """

    cache: Any
    rows: list[int]
    """Indices of its rows among all rows, in the order of the cache."""


class LengthGroupedCache:
    """A cache like `SlotCache` that batches rows of equal length, for models with a recurrent state.

    The cache of transformers must store that state.
    """

    can_add_rows = False

    def __init__(self, model: Any) -> None:
        self.model, self.groups = model, list[LengthGroup]()
        known = signature(model.forward).parameters
        self.cache_argument = next((name for name in ("past_key_values", "cache_params") if name in known), "past_key_values")
        """Name of the cache argument of the model's forward pass."""
        self.logits_arguments = {"logits_to_keep": 1} if "logits_to_keep" in known else {}

    def add_rows(self, prompts: Sequence[Sequence[int]], prompt_indices: Sequence[int], *, first_row: int, max_rows: int) -> None:
        """Start one row for each entry of `prompt_indices`, with that prompt prefilled.

        The last token of a prompt is not prefilled. Only an empty batch takes rows.
        """
        assert not first_row and max_rows, "rows can only be added to an empty batch"
        self.groups = []
        for length in sorted({len(prompts[owner]) for owner in prompt_indices}):
            lane = LengthGroup(
                DynamicCache(config=self.model.config), [row for row, owner in enumerate(prompt_indices) if len(prompts[owner]) == length]
            )
            if length > 1:
                place = {owner: k for k, owner in enumerate(dict.fromkeys(prompt_indices[row] for row in lane.rows))}
                ids = torch.tensor([list(prompts[owner][:-1]) for owner in place], device=self.model.device)
                self._forward(ids, torch.arange(length - 1, device=ids.device)[None], lane.cache)
                lane.cache.reorder_cache(torch.tensor([place[prompt_indices[row]] for row in lane.rows], device=ids.device))
            self.groups.append(lane)

    def step(self, token_B: Tensor, position_B: Tensor) -> Tensor:
        """Append one token to each row; return the logits of the next token."""
        found: dict[int, Tensor] = {}
        for lane in self.groups:
            logits = self._forward(token_B[lane.rows][:, None], position_B[lane.rows][:, None], lane.cache)
            found |= dict(zip(lane.rows, logits, strict=True))
        return torch.stack([found[row] for row in range(len(token_B))])

    def _forward(self, ids: Tensor, positions: Tensor, cache: Any) -> Tensor:
        extra = {"position_ids": positions} if self.cache_argument == "past_key_values" else {}  # other caches track positions themselves
        out = self.model(input_ids=ids, use_cache=True, **{self.cache_argument: cache}, **extra, **self.logits_arguments)
        logits: Tensor = out.logits[:, -1].float()
        return logits

    @property
    def supports_all_layers(self) -> bool:
        """Whether every layer stores its state in these caches: a state kept elsewhere would be lost, or shared by groups."""
        config = self.model.config.get_text_config()
        kinds = getattr(config, "layers_block_type", None) or [""] * config.num_hidden_layers
        caches = [zip(kinds, lane.cache.layers, strict=True) for lane in self.groups if len(lane.cache.layers) == len(kinds)]
        return len(caches) == len(self.groups) > 0 and all(
            kind in STATELESS_LAYER_KINDS or _has_state(layer) for cache in caches for kind, layer in cache
        )

    def compact(self, num_kept: int, target_rows: Tensor, source_rows: Tensor) -> None:
        """Move the rows `source_rows` to the indices `target_rows`; keep the first `num_kept` rows."""
        source = list(range(num_kept))
        for hole, mover in zip(target_rows.tolist(), source_rows.tolist(), strict=True):
            source[hole] = mover
        now = {old: new for new, old in enumerate(source)}
        for lane in self.groups:
            kept = [k for k, row in enumerate(lane.rows) if row in now]
            if kept and len(kept) < len(lane.rows):
                lane.cache.reorder_cache(torch.tensor(kept, device=self.model.device))
            lane.rows = [now[lane.rows[k]] for k in kept]
        self.groups = [lane for lane in self.groups if lane.rows]


def _has_state(layer: Any) -> bool:
    """Return whether a cache layer is filled: a recurrent state, keys and values, or both if the layer has both."""
    states = getattr(layer, "has_previous_state", None)
    recurrent = any(states.values()) if isinstance(states, dict) else bool(states)
    attended = not hasattr(layer, "keys") or bool(layer.get_seq_length())
    return attended and (recurrent or states is None)
