"""Pack rows into one sequence without padding, and compute the shared prompt of a group only once.

All tokens of a micro-batch are in one sequence. Rows with the same prompt share it: the prompt is a separate segment, and each answer is
a segment that attends to the prompt and, causally, to itself. Positions continue after the prompt. A row that is a tree has a segment for
each of its own, which attends to all that it continues, so each of its tokens is computed once. Attention uses a variable-length kernel if
there is one (CUDA, 16 bits). Otherwise it runs over buckets of segments of similar length, so that no full attention mask is
needed. `find_packing_mismatch` tests whether a model supports it; if not, padded rows are used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rlvr.episode import find_path
from rlvr.models.batch import Batch, Numbers, TokenRows
from rlvr.models.device_defaults import copy_to_device
from rlvr.models.layout_attention import try_enable_layout
from rlvr.models.varlen import SegmentBoundaries, VarlenAttentionKernel, build_segment_boundaries, choose_kernel

MIN_SHARED_PROMPT_TOKENS = 4
MAX_PACKED_TOKEN_FRACTION = 0.9
"""Rows are packed if that computes less than this fraction of the tokens of padded rows."""


class SegmentBucket(NamedTuple):
    """Segments of similar length, as positions in the packed sequence.

    >>> SegmentBucket._fields
    ('query', 'keys', 'mask')
    """

    query: Tensor
    """[segments, length]"""
    keys: Tensor
    """[segments, prompt + length]"""
    mask: Tensor | None
    """[segments, 1, length, prompt + length], 0 or minus infinity; None for plain causal attention."""


@dataclass(slots=True, eq=False)  # torch.compile would compile again for each new content of a named tuple or a frozen class
class BucketLayout:
    """An attention layout that uses PyTorch's attention over buckets of segments.

    >>> sorted(BucketLayout.shapes)
    ['sliding_window']
    """

    positions: Tensor
    """[1, tokens]"""
    buckets: list[SegmentBucket]
    output_positions: Tensor
    """[tokens], the index of each token's output in the concatenated outputs of the buckets."""
    buckets_by_window: dict[int, list[SegmentBucket]]
    """A cache of the buckets with sliding-window masks, by window length."""
    shapes: ClassVar[frozenset[str]] = frozenset({"sliding_window"})
    """The attention options that this layout supports."""

    def get_windowed_buckets(self, window: int) -> list[SegmentBucket]:
        """Return the buckets with the mask of a sliding window, if the window is shorter than a row."""
        if window not in self.buckets_by_window:
            hides = window <= int(self.positions.max())
            self.buckets_by_window[window] = [
                b._replace(mask=_add_sliding_window_mask(b, self.positions[0], window)) if hides else b for b in self.buckets
            ]
        return self.buckets_by_window[window]

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float | None, sliding_window: int = 0) -> Tensor:
        """Compute attention over buckets, with the outputs in packed order."""
        q, k, v = query[0].to(value.dtype), key[0].to(value.dtype), value[0]  # under autocast, rotary embeddings upcast q and k
        if k.shape[0] != q.shape[0]:
            k, v = (x.repeat_interleave(q.shape[0] // x.shape[0], 0) for x in (k, v))
        parts = []
        for bucket in self.get_windowed_buckets(sliding_window) if sliding_window else self.buckets:
            segments, length = bucket.query.shape
            mask = None if bucket.mask is None else bucket.mask.to(q.dtype)
            mine, keys, values = (
                x.index_select(1, where.reshape(-1)).view(x.shape[0], segments, -1, x.shape[-1]).transpose(0, 1)
                for x, where in ((q, bucket.query), (k, bucket.keys), (v, bucket.keys))
            )
            seen = torch.nn.functional.scaled_dot_product_attention(
                mine, keys, values, attn_mask=mask, is_causal=mask is None and length > 1, scale=scale
            )
            parts.append(seen.transpose(1, 2).reshape(segments * length, *seen.shape[1:2], seen.shape[-1]))
        return torch.cat(parts).index_select(0, self.output_positions)[None]


@dataclass(slots=True, eq=False)
class SegmentLayout:
    """An attention layout that uses a variable-length kernel, without a mask.

    >>> sorted(SegmentLayout.shapes)
    ['sliding_window', 'softcap']
    """

    positions: Tensor
    """[1, tokens]"""
    keys: Tensor | None
    """The positions of the keys of each segment: its prompt, and itself; None if no prompt is shared."""
    lengths: SegmentBoundaries
    kernel: VarlenAttentionKernel
    shapes: ClassVar[frozenset[str]] = frozenset({"sliding_window", "softcap"})
    """The attention options that this layout supports."""

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float | None, sliding_window: int = 0, softcap: float = 0.0
    ) -> Tensor:
        """Compute attention of all segments at once, in packed order."""
        q, k, v = (x[0].to(value.dtype).transpose(0, 1) for x in (query, key, value))
        if self.keys is not None:
            k, v = (x.index_select(0, self.keys) for x in (k, v))
        return self.kernel(q, k, v, self.lengths, scale=scale, window=sliding_window, softcap=softcap)[None]


class PackedSegment(NamedTuple):
    """One segment of a packed sequence: its start, its length, and what it continues.

    >>> PackedSegment(start=4, length=3, context=((0, 4),)).context_length
    4
    """

    start: int
    length: int
    context: tuple[tuple[int, int], ...] = ()
    """The start and the length of each stretch before it that it attends to: its prompt, or in a tree all that it continues."""

    @property
    def context_length(self) -> int:
        """The number of tokens before it that it attends to."""
        return sum(length for _, length in self.context)

    def list_context(self) -> Numbers:
        """Return the positions that it attends to, besides its own."""
        return np.concatenate([np.zeros(0, dtype=np.int64), *(np.arange(start, start + length) for start, length in self.context)])


class PackingMode(NamedTuple):
    """How a learner packs rows: with a kernel, in buckets, or not at all, and why not.

    >>> PackingMode(padding_reason="its tokens influence each other outside of attention").kernel is None
    True
    """

    kernel: VarlenAttentionKernel | None = None
    """The variable-length kernel; None for buckets with masks."""
    dtype: torch.dtype = torch.float32
    """The precision of computation and masks."""
    padding_reason: str = ""
    """Why rows are padded; empty if they can be packed."""
    no_kernel_reason: str = ""
    """Why buckets are used instead of a kernel."""


BUCKET_PACKING = PackingMode()


def group_by_prompt(rows: TokenRows, row_indices: Sequence[int]) -> list[tuple[int, list[int]]]:
    """Group the chosen rows by prompt; return each group with the number of its shared prompt tokens."""
    found: dict[bytes, list[int]] = {}
    for i in row_indices:
        if rows.num_acted[i]:
            found.setdefault(rows.tokens[i][: rows.get_prompt_length(i)].tobytes(), []).append(i)
    prompts = [(rows.get_prompt_length(members[0]), members) for members in found.values()]
    return [(prompt if len(members) > 1 and prompt >= MIN_SHARED_PROMPT_TOKENS else 0, members) for prompt, members in prompts]


def plan_packed_batches(rows: TokenRows, row_indices: Sequence[int], max_tokens: int) -> tuple[list[list[int]], int]:
    """Group rows into micro-batches within a token budget; also return how many tokens these compute.

    Rows of one prompt are together, and a micro-batch computes a shared prompt once.
    """
    bins, room, computed = list[list[int]](), 0, 0
    for shared, members in sorted(group_by_prompt(rows, row_indices), key=lambda item: -max(int(rows.input_lengths[i]) for i in item[1])):
        known = 0  # the first row of a family includes the prompt
        for i in sorted(members, key=lambda i: (-int(rows.input_lengths[i]), i)):
            cost = int(rows.input_lengths[i]) - known
            if not bins or cost > room:
                bins.append([])
                room, cost = max_tokens, int(rows.input_lengths[i])
            bins[-1].append(i)
            room, computed, known = room - cost, computed + cost, shared
    return bins, computed


def plan_batches(
    rows: TokenRows, row_indices: Sequence[int], max_tokens: int, mode: PackingMode
) -> tuple[list[list[int]], Callable[..., Batch]]:
    """Return the rows of each micro-batch, and the function that builds one: packed if that is possible and saves work."""
    parts = rows.plan_batches(row_indices, max_tokens)
    if parts and not mode.padding_reason:
        packed, computed = plan_packed_batches(rows, row_indices, max_tokens)
        width = sum(map(rows.count_padded_tokens, parts))
        # a kernel always saves work: for padded rows, transformers synchronizes with the device to detect packing
        if mode.kernel is not None or computed / width < MAX_PACKED_TOKEN_FRACTION:
            return packed, partial(pack_rows, rows, mode=mode)
    return parts, rows.build_padded_batch


def pack_rows(rows: TokenRows, row_indices: Sequence[int], device: torch.device | str = "cpu", mode: PackingMode = BUCKET_PACKING) -> Batch:
    """Build a micro-batch from the chosen rows as one packed sequence."""
    line, positions, pieces = list[Numbers](), list[Numbers](), list[PackedSegment]()
    source, end = dict[int, Numbers](), 0

    def append(tokens: Numbers, context: Sequence[tuple[int, int]]) -> Numbers:
        """Append a segment that attends to stretches before it; return its positions in the sequence."""
        nonlocal end
        pieces.append(PackedSegment(end, len(tokens), tuple(context)))
        line.append(tokens)
        positions.append(pieces[-1].context_length + np.arange(len(tokens)))
        end += len(tokens)
        return np.arange(end - len(tokens), end)

    for shared, members in group_by_prompt(rows, row_indices):
        prompt = append(rows.tokens[members[0]][:shared], ()) if shared else np.arange(0)
        for i in members:
            place = np.zeros(len(rows.tokens[i]), dtype=np.int64)  # where each token of the row is in the sequence
            place[:shared] = prompt
            for (first, last), context in _list_pieces(rows, i, shared):
                place[first:last] = append(rows.tokens[i][first:last], [(int(place[a]), b - a) for a, b in context])
            source[i] = place[rows.find_predecessors(i)]
    at = copy_to_device(torch.from_numpy(np.concatenate(positions)[None]), device)
    layout = _build_bucket_layout(pieces, at, mode.dtype) if mode.kernel is None else _build_segment_layout(pieces, at, mode.kernel)
    return rows.build_batch(row_indices, np.concatenate(line)[None], [source[i] for i in row_indices], device, layout)


def _list_pieces(rows: TokenRows, row: int, shared: int) -> Iterator[tuple[tuple[int, int], list[tuple[int, int]]]]:
    """Yield the ranges of a row that are inputs, without its shared prompt, each with the ranges of the row that it continues."""
    if row not in rows.segments:
        if rows.input_lengths[row] > shared:
            yield (shared, int(rows.input_lengths[row])), [(0, shared)] if shared else []
        return
    segments = rows.segments[row]
    for segment, (start, end) in zip(segments, rows.input_ranges[row], strict=True):
        first = max(start, shared)
        if first < end:
            before = [*(find_path(segments, segment.parent, len(rows.tokens[row])) if segment.parent >= 0 else ()), (start, first)]
            split = [part for a, b in before for part in ((a, min(b, shared)), (max(a, shared), b))]
            yield (first, end), [(a, b) for a, b in split if a < b]


def _build_segment_layout(segments: list[PackedSegment], positions: Tensor, kernel: VarlenAttentionKernel) -> SegmentLayout:
    """Build the layout of all segments in packed order, each with the keys of what it continues before its own."""
    device, keys = positions.device, None
    if any(p.context for p in segments):
        ranges = [part for p in segments for part in (p.list_context(), np.arange(p.start, p.start + p.length))]
        keys = copy_to_device(torch.from_numpy(np.concatenate(ranges)), device)
    lengths = build_segment_boundaries([p.length for p in segments], [p.context_length + p.length for p in segments], device)
    return SegmentLayout(positions, keys, lengths, kernel)


def _build_bucket_layout(segments: list[PackedSegment], positions: Tensor, dtype: torch.dtype) -> BucketLayout:
    """Build the layout of segments in buckets, with the index of each token's output."""
    home, device = np.zeros(positions.shape[1], dtype=np.int64), positions.device
    buckets, offset = [], 0
    waiting = sorted(segments, key=lambda p: (bool(p.context), -p.length, p.start))
    while waiting:
        width, shares = waiting[0].length, bool(waiting[0].context)
        members = [p for p in waiting if 4 * p.length >= 3 * width and bool(p.context) == shares]
        waiting = waiting[len(members) :]
        for r, p in enumerate(members):
            home[p.start : p.start + p.length] = offset + r * width + np.arange(p.length)
        buckets.append(_build_bucket(members, width, device, dtype))
        offset += len(members) * width
    return BucketLayout(positions, buckets, copy_to_device(torch.from_numpy(home), device), {})


def _add_sliding_window_mask(bucket: SegmentBucket, positions: Tensor, window: int) -> Tensor:
    """Add a sliding window to the mask of a bucket: a token sees itself and the `window` - 1 tokens before it."""
    queries, keys = positions[bucket.query], positions[bucket.keys]
    hidden = (queries[:, :, None] - keys[:, None, :] >= window)[:, None]
    if bucket.mask is not None:
        return bucket.mask.masked_fill(hidden, -torch.inf)
    length = bucket.query.shape[1]
    hidden = hidden | torch.ones(length, length, dtype=torch.bool, device=positions.device).triu(1)
    return torch.zeros(hidden.shape, device=positions.device).masked_fill_(hidden, -torch.inf)


def _build_bucket(members: list[PackedSegment], width: int, device: torch.device, dtype: torch.dtype) -> SegmentBucket:
    context = [p.list_context() for p in members]
    prompt = max(map(len, context))
    start, length, shared = (
        np.array(column)[:, None]
        for column in zip(*((p.start, p.length, len(before)) for p, before in zip(members, context, strict=True)), strict=True)
    )
    query = start + np.minimum(np.arange(width), length - 1)
    where = copy_to_device(torch.from_numpy(query), device)
    if not prompt:
        return SegmentBucket(where, where, None)
    keys = np.concatenate([np.stack([before[np.minimum(np.arange(prompt), len(before) - 1)] for before in context]), query], 1)
    # in the compute dtype, because a boolean mask would be converted in every layer and kept for the backward pass
    mask = torch.zeros(len(members), 1, width, prompt + width, device=device, dtype=dtype)
    beyond = torch.arange(prompt, device=device) >= copy_to_device(torch.from_numpy(shared), device)
    mask[..., :prompt].masked_fill_(beyond[:, None, None, :], -torch.inf)
    mask[..., prompt:].masked_fill_(torch.ones(width, width, dtype=torch.bool, device=device).triu(1), -torch.inf)
    return SegmentBucket(where, copy_to_device(torch.from_numpy(keys), device), mask)


def find_packing_mismatch(
    model: Any, compute_logprobs: Any, mode: PackingMode = BUCKET_PACKING, compute_dtype: torch.dtype | None = None
) -> str:
    """Compare packed and single rows on a few tokens; return '' if they agree, else the reason for padding.

    `compute_dtype`: the compute precision of `compute_logprobs`; None: that of the weights.
    """
    vocabulary = model.get_input_embeddings().weight.shape[0]
    tokens = [[(7 * j + 3) % vocabulary for j in range(6)] + [(5 * k + j) % vocabulary for j in range(2 + k)] for k in range(4)]
    rows = TokenRows(tokens, [[False] * 6 + [True] * (len(t) - 6) for t in tokens])
    device = next(model.parameters()).device

    def truth() -> Tensor:
        return torch.cat([compute_logprobs(next(rows.iter_batches([i], max_tokens=1, device=device))).logprobs for i in range(4)])

    return try_enable_layout(model, truth, lambda: compute_logprobs(pack_rows(rows, range(4), device, mode)).logprobs, compute_dtype)


def choose_packing(policies: Sequence[Any], device: torch.device, precision: str, autocast: Callable[[], Any] | None) -> PackingMode:
    """Choose how rows are packed: with the device's kernel if the models support it, with buckets, or not at all.

    `autocast` None: the policies compute in this precision without autocast.
    """
    dtype: torch.dtype = getattr(torch, precision)
    kernel, masked = choose_kernel(device, dtype)
    reason = ""
    for how in ([PackingMode(kernel, dtype)] if kernel is not None else []) + [PackingMode(None, dtype)]:
        computed = dtype if autocast is None or how.kernel is not None else None
        with autocast() if autocast is not None and how.kernel is not None else nullcontext():
            reason = next(
                filter(
                    None,
                    (policy.run_with_weights(partial(find_packing_mismatch, policy.model, policy, how, computed)) for policy in policies),
                ),
                "",
            )
        if not reason:
            return how._replace(no_kernel_reason=masked)
        masked = reason
    return PackingMode(dtype=dtype, padding_reason=reason)
