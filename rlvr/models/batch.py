"""Rows of tokens as tensors, divided into micro-batches by a token budget.

A loss uses flat vectors with one entry per *policy* token; prompts, environment tokens and padding have no entry. A micro-batch
stores where in the model's output each entry is predicted (`source_positions`), and its position in the flat vectors of the step
(`entry_positions`). So a loss does not depend on padding or packing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlvr.models.device_defaults import copy_to_device

Numbers = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Batch:
    """One micro-batch.

    >>> b = next(TokenRows([[5, 6, 2]], [[False, True, True]]).iter_batches([0], max_tokens=64))
    >>> b.input_ids.tolist(), b.source_positions.tolist(), b.targets.tolist()
    ([[5, 6]], [0, 1], [6, 2])
    """

    input_ids: Tensor
    """[rows, length], padded on the right; under causal attention no real token attends to the padding, so no mask is needed."""
    num_rows: int
    """The number of rows."""
    source_positions: Tensor
    """[entries], the position in `input_ids.view(-1)` whose output predicts each entry's token."""
    targets: Tensor
    """[entries], the token of each entry."""
    row_indices: Tensor
    """[entries], the row of each entry."""
    entry_positions: Tensor
    """[entries], each entry's position in the step's flat vectors; on the CPU, like these vectors."""
    layout: Any = None
    """The attention layout of packed tokens (see `rlvr.training.update.packing`); None for padded rows."""


class TokenRows:
    """The token rows of one step, with their action masks. Values per policy token are kept in flat vectors over all rows.

    >>> TokenRows([[5, 6, 2], [5, 7]], [[False, True, True], [False, True]]).num_policy_tokens
    3
    """

    def __init__(self, tokens: Sequence[Sequence[int]], action_masks: Sequence[Sequence[bool]]) -> None:
        self.tokens = [np.asarray(row, dtype=np.int64) for row in tokens]
        self.acted_positions = [np.flatnonzero(np.asarray(row, dtype=bool)) for row in action_masks]
        self.num_acted = np.array([len(p) for p in self.acted_positions], dtype=np.int64)
        self.entry_starts = np.concatenate([[0], np.cumsum(self.num_acted)])
        # the last policy token is only predicted: it and everything after it is not an input
        self.input_lengths = np.array([p[-1] if len(p) else 0 for p in self.acted_positions], dtype=np.int64)

    @property
    def num_policy_tokens(self) -> int:
        """The total number of policy tokens."""
        return int(self.entry_starts[-1])

    def flatten_policy_tokens(self, token_values: Sequence[Sequence[float]], dtype: torch.dtype = torch.float32) -> Tensor:
        """Flatten values per token to one entry per policy token."""
        parts = [np.asarray(row, dtype=np.float64)[p] for row, p in zip(token_values, self.acted_positions, strict=True)]
        return torch.from_numpy(np.concatenate([np.zeros(0), *parts])).to(dtype)  # also works without rows

    def repeat_per_policy_token(self, per_row: Sequence[float], dtype: torch.dtype = torch.float32) -> Tensor:
        """Repeat one number per row for each of its entries."""
        return torch.from_numpy(np.repeat(np.asarray(per_row, dtype=np.float64), self.num_acted)).to(dtype)

    def unflatten_policy_tokens(self, flat: Tensor) -> list[list[float]]:
        """Split a flat tensor of policy tokens into one list for each row, with 0.0 at all other tokens.

        The inverse of `flatten_policy_tokens`.
        """
        values = flat.detach().double().cpu().numpy()
        out = []
        for i, places in enumerate(self.acted_positions):
            row = np.zeros(len(self.tokens[i]))
            row[places] = values[self.entry_starts[i] : self.entry_starts[i + 1]]
            out.append(row.tolist())
        return out

    def iter_batches(self, row_indices: Sequence[int], *, max_tokens: int, device: torch.device | str = "cpu") -> Iterator[Batch]:
        """Yield the chosen rows as micro-batches of at most `max_tokens` computed tokens (a longer row is a micro-batch of its own)."""
        for rows in self.plan_batches(row_indices, max_tokens):
            yield self.build_padded_batch(rows, device)

    def plan_batches(self, row_indices: Sequence[int], max_tokens: int) -> list[list[int]]:
        """Group rows of similar length into micro-batches, to reduce padding."""
        order = sorted((i for i in row_indices if self.num_acted[i]), key=lambda i: (-int(self.input_lengths[i]), i))
        bins, widest = list[list[int]](), 0
        for i in order:
            if not bins or (len(bins[-1]) + 1) * widest > max_tokens:
                bins.append([])
                widest = max(1, int(self.input_lengths[i]))
            bins[-1].append(i)
        return bins

    def build_padded_batch(self, row_indices: Sequence[int], device: torch.device | str = "cpu") -> Batch:
        """Build one micro-batch from rows, padded on the right to the longest."""
        lengths = self.input_lengths[list(row_indices)]
        width = int(lengths.max())
        ids = np.zeros((len(row_indices), width), dtype=np.int64)
        for r, i in enumerate(row_indices):
            ids[r, : lengths[r]] = self.tokens[i][: lengths[r]]
        return self.build_batch(row_indices, ids, [r * width + self.acted_positions[i] - 1 for r, i in enumerate(row_indices)], device)

    def build_batch(
        self,
        row_indices: Sequence[int],
        token_ids: Numbers,
        predicting_positions: Sequence[Numbers],
        device: torch.device | str,
        layout: Any = None,
    ) -> Batch:
        """Build one micro-batch from rows, given the arranged tokens and the positions that predict each row's entries."""
        target = np.concatenate([self.tokens[i][self.acted_positions[i]] for i in row_indices])
        row = np.repeat(np.arange(len(row_indices)), self.num_acted[list(row_indices)])
        take = np.concatenate([np.arange(self.entry_starts[i], self.entry_starts[i + 1]) for i in row_indices])
        columns = (token_ids, np.concatenate(predicting_positions), target, row)
        ids_t, source_t, target_t, row_t = (copy_to_device(torch.from_numpy(column), device) for column in columns)
        return Batch(ids_t, len(row_indices), source_t, target_t, row_t, torch.from_numpy(take), layout)
