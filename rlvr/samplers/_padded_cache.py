"""Cache for models with special attention (a soft cap, a mask of its own), based on the cache of transformers.

Prompts are padded on the left, and all completions use the same columns, so no row can be added while others are being sampled.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer


class PaddedCache:
    """Left-padded cache with the interface of `SlotCache`, for models that `SlotCache` does not support."""

    can_add_rows = False

    def __init__(self, model: Any) -> None:
        self.model = model
        self.cache: Any = None
        self.mask_BL = torch.zeros(0, 0, dtype=torch.long)

    def add_rows(self, prompts: Sequence[Sequence[int]], prompt_indices: Sequence[int], *, first_row: int, max_rows: int) -> None:
        """Start one row for each entry of `prompt_indices`, with that prompt prefilled.

        The last token of a prompt is not prefilled. Only an empty batch takes rows.
        """
        assert not first_row and max_rows, "rows can only be added to an empty batch"
        device, width = self.model.device, max(map(len, prompts)) - 1
        self.cache = DynamicCache(config=self.model.config)
        owner_B = torch.tensor(prompt_indices, device=device)
        mask_PL = torch.zeros(len(prompts), width, dtype=torch.long)
        ids_PL = torch.zeros_like(mask_PL)
        for row, prompt in enumerate(prompts):
            if len(prompt) > 1:
                ids_PL[row, 1 - len(prompt) :], mask_PL[row, 1 - len(prompt) :] = torch.tensor(prompt[:-1]), 1
        ids_PL, mask_PL = ids_PL.to(device), mask_PL.to(device)
        self.mask_BL = mask_PL[owner_B]
        if width:
            seen_PL = mask_PL.clone()
            seen_PL[:, -1] = 1  # a padding-only row is masked later; here it must attend to something, or it becomes NaN
            positions_PL = (mask_PL.cumsum(1) - 1).clamp(min=0)
            self.model(
                input_ids=ids_PL, attention_mask=seen_PL, position_ids=positions_PL, past_key_values=self.cache, use_cache=True,
                logits_to_keep=1,
            )  # fmt: skip
            self.cache.batch_select_indices(owner_B)

    @property
    def supports_all_layers(self) -> bool:
        """Whether every layer stores only keys and values: padding would leak into any other state."""
        return bool(self.cache.layers) and all(
            type(layer) in (DynamicLayer, DynamicSlidingWindowLayer) and layer.get_seq_length() for layer in self.cache.layers
        )

    def step(self, token_B: Tensor, position_B: Tensor) -> Tensor:
        """Append one token to each row; return the logits of the next token."""
        self.mask_BL = torch.cat([self.mask_BL, self.mask_BL.new_ones(len(token_B), 1)], dim=1)
        output = self.model(
            input_ids=token_B[:, None], attention_mask=self.mask_BL, position_ids=position_B[:, None], past_key_values=self.cache,
            use_cache=True,
        )  # fmt: skip
        return output.logits[:, -1].float()

    def compact(self, num_kept: int, target_rows: Tensor, source_rows: Tensor) -> None:
        """Move the rows `source_rows` to the indices `target_rows`; keep the first `num_kept` rows."""
        order = torch.arange(num_kept, device=target_rows.device)
        order[target_rows] = source_rows
        self.mask_BL = self.mask_BL[order]
        self.cache.batch_select_indices(order)
