"""Recomputed: no stored state. Every step computes every row from its first token on, as a plain forward pass does.

For models whose state is supported by neither `Slots` nor `Padded` (a recurrence, a convolution). Slow, but correct for all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from inspect import signature
from typing import Any

import torch
from torch import Tensor

TOKENS_AT_ONCE = 8192
"""How many tokens are computed at a time: affects memory and speed only."""


class Recomputed:
    """The counterpart of `Slots` for models with a state of their own.

    >>> Recomputed(model).refills                                               # doctest: +SKIP
    False
    """

    refills = False

    def __init__(self, model: Any) -> None:
        self.model, self.rows = model, list[Tensor]()
        self.last = {"logits_to_keep": 1} if "logits_to_keep" in signature(model.forward).parameters else {}

    def fill(self, prompts: Sequence[Sequence[int]], owners: Sequence[int], *, start: int, rows: int) -> None:
        """Start a row for each owner with its prompt without the last token."""
        assert not start and rows, "no row can be added"
        self.rows = [torch.tensor(prompts[owner][:-1], dtype=torch.long, device=self.model.device) for owner in owners]

    def step(self, token_B: Tensor, position_B: Tensor) -> Tensor:
        """Append one token to each row; returns the logits of the next. Rows of one length are computed together, so none is padded."""
        self.rows = [torch.cat([row, token]) for row, token in zip(self.rows, token_B[:, None], strict=True)]
        found: dict[int, Tensor] = {}
        for length in sorted({len(row) for row in self.rows}):
            alike = [place for place, row in enumerate(self.rows) if len(row) == length]
            together = max(1, TOKENS_AT_ONCE // length)
            for first in range(0, len(alike), together):
                part = alike[first : first + together]
                ids = torch.stack([self.rows[place] for place in part])
                logits = self.model(input_ids=ids, use_cache=False, **self.last).logits[:, -1].float()
                found |= dict(zip(part, logits, strict=True))
        return torch.stack([found[place] for place in range(len(self.rows))])

    def close_up(self, left: int, holes: Tensor, movers: Tensor) -> None:
        """Move the rows `movers` to the places `holes`; the first `left` rows remain."""
        for hole, mover in zip(holes.tolist(), movers.tolist(), strict=True):
            self.rows[hole] = self.rows[mover]
        del self.rows[left:]
