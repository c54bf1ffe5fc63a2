"""Sampling without a KV cache: every step recomputes every row from its first token, in a plain forward pass.

For models whose state no cache class here supports. It is slow, but correct for every model.
"""

from __future__ import annotations

from collections.abc import Sequence
from inspect import signature
from typing import Any

import torch
from torch import Tensor

MAX_FORWARD_TOKENS = 8192
"""Most tokens of one forward pass; affects only memory and speed."""


class RecomputingCache:
    """Has the interface of `SlotCache`, but keeps token ids only and recomputes each row at every step."""

    can_add_rows = False

    def __init__(self, model: Any) -> None:
        self.model, self.rows = model, list[Tensor]()
        self.logits_arguments = {"logits_to_keep": 1} if "logits_to_keep" in signature(model.forward).parameters else {}

    def add_rows(self, prompts: Sequence[Sequence[int]], prompt_indices: Sequence[int], *, first_row: int, max_rows: int) -> None:
        """Start rows from `first_row` on, one for each entry of `prompt_indices`, with that prompt without its last token; nothing is
        computed yet.
        """
        assert not first_row and max_rows, "rows can only be added to an empty batch"
        self.rows = [torch.tensor(prompts[owner][:-1], dtype=torch.long, device=self.model.device) for owner in prompt_indices]

    def step(self, token_B: Tensor, position_B: Tensor) -> Tensor:
        """Add one token to each row and return the logits of the next. Rows of equal length are batched, so none is padded."""
        self.rows = [torch.cat([row, token]) for row, token in zip(self.rows, token_B[:, None], strict=True)]
        found: dict[int, Tensor] = {}
        for length in sorted({len(row) for row in self.rows}):
            alike = [place for place, row in enumerate(self.rows) if len(row) == length]
            together = max(1, MAX_FORWARD_TOKENS // length)
            for first in range(0, len(alike), together):
                part = alike[first : first + together]
                ids = torch.stack([self.rows[place] for place in part])
                logits = self.model(input_ids=ids, use_cache=False, **self.logits_arguments).logits[:, -1].float()
                found |= dict(zip(part, logits, strict=True))
        return torch.stack([found[place] for place in range(len(self.rows))])

    def compact(self, num_kept: int, target_rows: Tensor, source_rows: Tensor) -> None:
        """Move the rows `source_rows` to the indices `target_rows`; keep the first `num_kept` rows."""
        for hole, mover in zip(target_rows.tolist(), source_rows.tolist(), strict=True):
            self.rows[hole] = self.rows[mover]
        del self.rows[num_kept:]
