"""KV cache with one row (slot) per running completion, in preallocated memory.

Rows 0 to n - 1 are live, so every step computes live rows only. When a row finishes, the last live row moves to its slot;
a waiting request takes the slot after the last one. Each row has its own length: nothing is padded, and everything beyond the
length is masked. Query heads that share a key are placed along the query's length dimension, so no key is copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from rlvr.models.layout_attention import build_layout_kwargs

GROWTH_FACTOR = 1.5
PREFILL_TOKENS = 4096
"""Most prompt tokens of one prefill pass; affects only memory and speed."""


class SlotCache:
    """KV cache of a model with several completions in progress."""

    can_add_rows = True
    """Whether rows may be added while others are being sampled."""

    def __init__(self, model: Any) -> None:
        self.model, self.width = model, 0
        self.keys, self.values = list[Tensor](), list[Tensor]()
        self.prefill_target: tuple[int, Tensor] | None = None
        """During prefill: the first target slot, and the prompt index of each slot from there on."""
        self.row_B = self.position_B = torch.zeros(0, dtype=torch.long)
        self.masks = dict[int, Tensor]()
        """Attention masks of this step, [rows, width], by the sliding window of the layer; 0: none."""
        self.rows = 0
        self.lengths = np.zeros(0, dtype=np.int64)
        """Number of tokens of each row, kept on the CPU so that no step waits for the device."""

    def add_rows(self, prompts: Sequence[Sequence[int]], prompt_indices: Sequence[int], *, first_row: int, max_rows: int) -> None:
        """Prefill each prompt without its last token, and start rows from `first_row` on: one for each entry of `prompt_indices`, with
        that prompt.
        """
        self.rows, longest = max_rows, max(map(len, prompts)) - 1
        self.lengths = np.append(self.lengths[:first_row], [len(prompts[owner]) - 1 for owner in prompt_indices])
        self._reserve_length(first_row, longest)
        together = max(1, PREFILL_TOKENS // max(1, longest))
        for first in range(0, len(prompts), together):
            here = [owner - first for owner in prompt_indices if first <= owner < first + together]
            self._prefill(prompts[first : first + together], here, first_row)
            first_row += len(here)

    def _prefill(self, prompts: Sequence[Sequence[int]], owners: Sequence[int], start: int) -> None:
        longest, device = max(map(len, prompts)) - 1, self.model.device
        if longest < 1:
            return
        ids_PL = torch.zeros(len(prompts), longest, dtype=torch.long)
        for row, prompt in enumerate(prompts):  # padded on the right: causal attention never reads the padding
            ids_PL[row, : len(prompt) - 1] = torch.tensor(prompt[:-1])
        self.prefill_target = start, torch.tensor(owners, device=device)
        positions = torch.arange(longest, device=device)[None]
        self.model(input_ids=ids_PL.to(device), logits_to_keep=1, **build_layout_kwargs(self, positions))
        self.prefill_target = None

    def copy_prompt(self, source: int, *, start: int, count: int, length: int) -> None:
        """Copy the prompt of another slot, which has the same prompt, to `count` slots from `start` on."""
        self.lengths = np.append(self.lengths[:start], [length] * count)
        for memory in (*self.keys, *self.values):
            memory[start : start + count, :, :length] = memory[source, :, :length]

    def step(self, token_B: Tensor, position_B: Tensor) -> Tensor:
        """Append one token to each of the first rows; return the logits of the next token."""
        rows = len(token_B)
        self.lengths = self.lengths[:rows] + 1
        self._reserve_length(rows, int(self.lengths.max()))
        self.row_B, self.position_B = torch.arange(rows, device=token_B.device), position_B
        self.masks = {}
        output = self.model(input_ids=token_B[:, None], **build_layout_kwargs(self, position_B[:, None]))
        return output.logits[:, -1].float()

    def compact(self, num_kept: int, target_rows: Tensor, source_rows: Tensor) -> None:
        """Move the rows `source_rows` to the indices `target_rows`; keep the first `num_kept` rows."""
        for memory in (*self.keys, *self.values):
            memory[target_rows] = memory[source_rows]
        self.lengths[target_rows.cpu().numpy()] = self.lengths[source_rows.cpu().numpy()]
        self.lengths = self.lengths[:num_kept]

    shapes = {"sliding_window"}

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float | None, sliding_window: int = 0) -> Tensor:
        """Compute attention of one layer: of new tokens to their own rows, or, during prefill, of prompts to themselves."""
        if layer == len(self.keys):
            for memory, new in ((self.keys, key), (self.values, value)):
                memory.append(new.new_zeros(self.rows, new.shape[1], self.width, new.shape[3]))  # zeros, because 0 times NaN is not 0
        keys, values = self.keys[layer], self.values[layer]
        if self.prefill_target is not None:
            start, owner_B = self.prefill_target
            slots, length = slice(start, start + len(owner_B)), key.shape[2]
            keys[slots, :, :length], values[slots, :, :length] = key[owner_B], value[owner_B]
            near = self._make_sliding_window_mask(length, sliding_window, query.device) if 0 < sliding_window < length else None
            causal = near is None and length > 1
            seen = scaled_dot_product_attention(query, key, value, attn_mask=near, is_causal=causal, scale=scale, enable_gqa=True)
            return seen.transpose(1, 2).contiguous()
        mask_BW = self._get_step_mask(sliding_window, key.dtype)
        rows, width = mask_BW.shape
        keys[self.row_B, :, self.position_B], values[self.row_B, :, self.position_B] = key[:, :, 0], value[:, :, 0]
        shared = query.reshape(rows, key.shape[1], -1, query.shape[3])
        seen = scaled_dot_product_attention(
            shared, keys[:rows, :, :width], values[:rows, :, :width], attn_mask=mask_BW[:, None, None], scale=scale
        )
        return seen.reshape(rows, 1, query.shape[1], -1)

    def _get_step_mask(self, window: int, dtype: torch.dtype) -> Tensor:
        """Return the mask of a step: 0 where a row's new token attends to its own tokens, else minus infinity."""
        if window not in self.masks:
            place = torch.arange(int(self.lengths.max()), device=self.position_B.device)
            hidden_BW = place > self.position_B[:, None]
            if window:
                hidden_BW |= place <= self.position_B[:, None] - window
            self.masks[window] = torch.zeros_like(hidden_BW, dtype=dtype).masked_fill_(hidden_BW, -torch.inf)
        return self.masks[window]

    @staticmethod
    def _make_sliding_window_mask(length: int, window: int, device: torch.device) -> Tensor:
        """Return which prompt token attends to which, under a sliding window."""
        back = torch.arange(length, device=device)[:, None] - torch.arange(length, device=device)
        return (back >= 0) & (back < window)

    def _reserve_length(self, num_live: int, width: int) -> None:
        """Reserve memory for longer rows; keep the first `num_live` rows."""
        if width <= self.width:
            return
        old, self.width = self.width, max(16, int(width * GROWTH_FACTOR))
        if self.keys:
            self._grow(num_live, old)

    def _grow(self, live: int, old: int) -> None:
        for memories in (self.keys, self.values):
            for layer, memory in enumerate(memories):
                memories[layer] = memory.new_zeros(*memory.shape[:2], self.width, memory.shape[3])
                memories[layer][:live, :, :old] = memory[:live]
