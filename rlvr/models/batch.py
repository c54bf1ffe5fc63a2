"""Rows of tokens as tensors, divided into micro-batches by a token budget.

A loss uses flat vectors with one entry per *policy* token; prompts, environment tokens and padding have no entry. A micro-batch
stores where in the model's output each entry is predicted (`source_positions`), and its position in the flat vectors of the step
(`entry_positions`). So a loss does not depend on padding or packing, nor on how a row that is a tree is laid out: padded, each branch is
a line of its own, and each token is an entry of one line only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rlvr.episode import Segment, find_leaves, find_path
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


class Line(NamedTuple):
    """A sequence that the model computes in a padded batch: a row, or one branch of a row that is a tree.

    >>> Line(0, np.arange(3), np.array([1, 2]), np.array([0, 1])).row
    0
    """

    row: int
    inputs: Numbers
    """The positions in the row of the tokens that are inputs, in order."""
    sources: Numbers
    """The places in `inputs` whose output predicts an entry."""
    entries: Numbers
    """Which entries of the row these are."""


class TokenRows:
    """The token rows of one step, with their action masks. Values per policy token are kept in flat vectors over all rows.

    A row may be a tree of `segments`, as an `Episode` is: the tokens of a segment then follow those of its parent.

    >>> TokenRows([[5, 6, 2], [5, 7]], [[False, True, True], [False, True]]).num_policy_tokens
    3
    """

    def __init__(
        self, tokens: Sequence[Sequence[int]], action_masks: Sequence[Sequence[bool]], segments: Sequence[Sequence[Segment]] | None = None
    ) -> None:
        self.tokens = [np.asarray(row, dtype=np.int64) for row in tokens]
        self.acted_positions = [np.flatnonzero(np.asarray(row, dtype=bool)) for row in action_masks]
        self.num_acted = np.array([len(p) for p in self.acted_positions], dtype=np.int64)
        self.entry_starts = np.concatenate([[0], np.cumsum(self.num_acted)])
        # the last policy token is only predicted: it and everything after it is not an input
        self.input_lengths = np.array([p[-1] if len(p) else 0 for p in self.acted_positions], dtype=np.int64)
        self.segments: dict[int, Sequence[Segment]] = {i: own for i, own in enumerate(segments or ()) if own}
        """The segments of the rows that are trees."""
        for i in self.segments:
            self.input_lengths[i] = sum(end - start for start, end in self.input_ranges[i])

    @cached_property
    def input_ranges(self) -> dict[int, list[tuple[int, int]]]:
        """The range of each segment that is an input: up to its last token that predicts an entry or that a later one needs."""
        return {i: self._find_input_ranges(i) for i in self.segments}

    def _find_input_ranges(self, row: int) -> list[tuple[int, int]]:
        segments, acted = self.segments[row], self.acted_positions[row]
        edges = [*(segment.start for segment in segments), len(self.tokens[row])]
        needs_all, found = [False] * len(segments), [(0, 0)] * len(segments)
        for number in reversed(range(len(segments))):  # a child comes after its parent
            start, end = edges[number], edges[number + 1]
            own = acted[(acted >= start) & (acted < end)]
            needed = end if needs_all[number] else int(own[-1]) if len(own) else start
            found[number] = (start, needed)
            if (needs_all[number] or len(own)) and segments[number].parent >= 0:
                needs_all[segments[number].parent] = True
        return found

    def get_prompt_length(self, row: int) -> int:
        """Return the number of tokens before the first entry of a row; in a tree only those before its first fork."""
        first = int(self.acted_positions[row][0])
        return min([first, *(segment.start for segment in self.segments.get(row, ())[1:2])])

    def find_predecessors(self, row: int) -> Numbers:
        """Return the position in the row of the token before each entry, whose output predicts it."""
        before = self.acted_positions[row] - 1
        segments = self.segments.get(row, ())
        ends = [*(segment.start for segment in segments[1:]), len(self.tokens[row])]
        for segment in segments:
            if segment.parent >= 0:
                before[before == segment.start - 1] = ends[segment.parent] - 1
        return before

    def build_lines(self, row: int) -> list[Line]:
        """Return the sequences that a padded batch computes for a row: the row itself, or the branches of a tree that have an entry of
        their own.
        """
        acted = self.acted_positions[row]
        if row not in self.segments:
            return [Line(row, np.arange(self.input_lengths[row]), acted - 1, np.arange(len(acted)))]
        lines, done = list[Line](), np.zeros(len(acted), dtype=bool)
        for leaf in find_leaves(self.segments[row]):
            path = np.concatenate([np.arange(a, b) for a, b in find_path(self.segments[row], leaf, len(self.tokens[row]))])
            place = np.full(len(self.tokens[row]), -1)
            place[path] = np.arange(len(path))
            [mine] = np.nonzero(~done & (place[acted] >= 0))
            if len(mine):
                done[mine] = True
                sources = place[acted[mine]] - 1
                lines.append(Line(row, path[: sources[-1] + 1], sources, mine))
        return lines

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
        shapes = {i: self._measure_lines(i) for i in row_indices if self.num_acted[i]}
        order = sorted(shapes, key=lambda i: (-shapes[i][1], i))
        bins, widest, lines = list[list[int]](), 0, 0
        for i in order:
            count, width = shapes[i]
            if not bins or (lines + count) * widest > max_tokens:
                bins.append([])
                widest, lines = max(1, width), 0
            bins[-1].append(i)
            lines += count
        return bins

    def _measure_lines(self, row: int) -> tuple[int, int]:
        """Return the number of lines of a row in a padded batch, and the length of the longest."""
        if row not in self.segments:
            return 1, int(self.input_lengths[row])
        lines = self.build_lines(row)
        return len(lines), max(len(line.inputs) for line in lines)

    def count_padded_tokens(self, row_indices: Sequence[int]) -> int:
        """Return the number of tokens that a padded batch of these rows computes."""
        shapes = [self._measure_lines(i) for i in row_indices]
        return sum(count for count, _ in shapes) * max(1, *(width for _, width in shapes))

    def build_padded_batch(self, row_indices: Sequence[int], device: torch.device | str = "cpu") -> Batch:
        """Build one micro-batch from rows, padded on the right to the longest line."""
        lines = [line for i in row_indices for line in self.build_lines(i)]
        width = max(len(line.inputs) for line in lines)
        ids = np.zeros((len(lines), width), dtype=np.int64)
        sources = {i: np.zeros(self.num_acted[i], dtype=np.int64) for i in row_indices}
        for r, line in enumerate(lines):
            ids[r, : len(line.inputs)] = self.tokens[line.row][line.inputs]
            sources[line.row][line.entries] = r * width + line.sources
        return self.build_batch(row_indices, ids, [sources[i] for i in row_indices], device)

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
