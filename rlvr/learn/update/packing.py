"""Pack rows into one sequence without padding, and compute the shared prompt of a group only once.

All tokens of a micro-batch are in one sequence. Rows with the same prompt share it: the prompt is a separate segment, and each answer is a
segment that attends to the prompt and, causally, to itself. Positions continue after the prompt.
Attention uses a variable-length kernel if there is one (CUDA, 16 bits). Otherwise it runs over buckets of segments of similar length, so
that no full attention mask is needed. `find_packing_mismatch` tests whether a model supports it; if not, padded rows are used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rlvr.model.attention import adopt
from rlvr.model.batch import Batch, Numbers, Rows
from rlvr.model.defaults import copied
from rlvr.model.varlen import Kernel, Lengths, kernel_for, lengths_of

SHORTEST_SHARED_PROMPT = 4
PACK_BELOW = 0.9
"""Rows are packed if that computes less than this fraction of the tokens of padded rows."""


class Bucket(NamedTuple):
    """Segments of similar length, as positions in the packed sequence.

    >>> Bucket._fields
    ('query', 'keys', 'mask')
    """

    query: Tensor
    """[segments, length]"""
    keys: Tensor
    """[segments, prompt + length]"""
    mask: Tensor | None
    """[segments, 1, length, prompt + length], 0 or minus infinity; None for plain causal attention."""


class Buckets(NamedTuple):
    """An attention layout that uses PyTorch's attention over buckets of segments.

    >>> Buckets._fields
    ('positions', 'buckets', 'home', 'windowed', 'shapes')
    """

    positions: Tensor
    """[1, tokens]"""
    buckets: list[Bucket]
    home: Tensor
    """[tokens], the index of each token's output in the concatenated outputs of the buckets."""
    windowed: dict[int, list[Bucket]]
    """A cache of the buckets with sliding-window masks, by window length."""
    shapes: frozenset[str] = frozenset({"sliding_window"})
    """The attention options that this layout supports."""

    def under(self, window: int) -> list[Bucket]:
        """Return the buckets with the mask of a sliding window, if the window is shorter than a row."""
        if window not in self.windowed:
            hides = window <= int(self.positions.max())
            self.windowed[window] = [b._replace(mask=narrowed(b, self.positions[0], window)) if hides else b for b in self.buckets]
        return self.windowed[window]

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float | None, sliding_window: int = 0) -> Tensor:
        """Compute attention over buckets, with the outputs in packed order."""
        q, k, v = query[0].to(value.dtype), key[0].to(value.dtype), value[0]  # under autocast, rotary embeddings upcast q and k
        if k.shape[0] != q.shape[0]:
            k, v = (x.repeat_interleave(q.shape[0] // x.shape[0], 0) for x in (k, v))
        parts = []
        for bucket in self.under(sliding_window) if sliding_window else self.buckets:
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
        return torch.cat(parts).index_select(0, self.home)[None]


class Segments(NamedTuple):
    """An attention layout that uses a variable-length kernel, without a mask.

    >>> Segments._fields
    ('positions', 'keys', 'lengths', 'kernel', 'shapes')
    """

    positions: Tensor
    """[1, tokens]"""
    keys: Tensor | None
    """The positions of the keys of each segment: its prompt, and itself; None if no prompt is shared."""
    lengths: Lengths
    kernel: Kernel
    shapes: frozenset[str] = frozenset({"sliding_window", "softcap"})
    """The attention options that this layout supports."""

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float | None, sliding_window: int = 0, softcap: float = 0.0
    ) -> Tensor:
        """Compute attention of all segments at once, in packed order."""
        q, k, v = (x[0].to(value.dtype).transpose(0, 1) for x in (query, key, value))
        if self.keys is not None:
            k, v = (x.index_select(0, self.keys) for x in (k, v))
        return self.kernel(q, k, v, self.lengths, scale=scale, window=sliding_window, softcap=softcap)[None]


class Piece(NamedTuple):
    """One segment of a packed sequence: its start, its length, and the prompt that it continues.

    >>> Piece(start=4, length=3, prompt_start=0, prompt=4).prompt
    4
    """

    start: int
    length: int
    prompt_start: int = 0
    prompt: int = 0


class Packing(NamedTuple):
    """The packing mode of a learner's rows.

    >>> Packing(padded="its tokens influence each other outside of attention").kernel is None
    True
    """

    kernel: Kernel | None = None
    """The variable-length kernel; None for buckets with masks."""
    dtype: torch.dtype = torch.float32
    """The precision of computation and masks."""
    padded: str = ""
    """Why rows are padded; empty if they can be packed."""
    masked: str = ""
    """Why buckets are used instead of a kernel."""


BUCKETS = Packing()


def families(rows: Rows, chosen: Sequence[int]) -> list[tuple[int, list[int]]]:
    """Group the chosen rows by prompt; return each group with the number of its shared prompt tokens."""
    found: dict[bytes, list[int]] = {}
    for i in chosen:
        if rows.trained[i]:
            found.setdefault(rows.tokens[i][: rows.places[i][0]].tobytes(), []).append(i)
    prompts = [(int(rows.places[members[0]][0]), members) for members in found.values()]
    return [(prompt if len(members) > 1 and prompt >= SHORTEST_SHARED_PROMPT else 0, members) for prompt, members in prompts]


def plan(rows: Rows, chosen: Sequence[int], budget: int) -> tuple[list[list[int]], int]:
    """Group rows into micro-batches within a token budget, with rows of one prompt together; also return the number of computed tokens."""
    bins, room, computed = list[list[int]](), 0, 0
    for shared, members in sorted(families(rows, chosen), key=lambda item: -max(int(rows.inputs[i]) for i in item[1])):
        known = 0  # the first row of a family includes the prompt
        for i in sorted(members, key=lambda i: (-int(rows.inputs[i]), i)):
            cost = int(rows.inputs[i]) - known
            if not bins or cost > room:
                bins.append([])
                room, cost = budget, int(rows.inputs[i])
            bins[-1].append(i)
            room, computed, known = room - cost, computed + cost, shared
    return bins, computed


def arranged(rows: Rows, chosen: Sequence[int], budget: int, how: Packing) -> tuple[list[list[int]], Callable[..., Batch]]:
    """Return the rows of each micro-batch, and the function that builds one: packed if that is possible and saves work."""
    parts = rows.plan(chosen, budget)
    if parts and not how.padded:
        packed, computed = plan(rows, chosen, budget)
        width = sum(len(part) * max(1, int(rows.inputs[part].max())) for part in parts)
        # a kernel always saves work: for padded rows, transformers synchronizes with the device to detect packing
        if how.kernel is not None or computed / width < PACK_BELOW:
            return packed, partial(pack, rows, how=how)
    return parts, rows.padded


def pack(rows: Rows, chosen: Sequence[int], device: torch.device | str = "cpu", how: Packing = BUCKETS) -> Batch:
    """Build a micro-batch from the chosen rows as one packed sequence."""
    line, positions, pieces = list[Numbers](), list[Numbers](), list[Piece]()
    source, end = dict[int, Numbers](), 0
    for shared, members in families(rows, chosen):
        begin = end
        # first the prompt, if it is shared; then the own part of each row
        for i, first, last in [(members[0], 0, shared), *((i, shared, int(rows.inputs[i])) for i in members)]:
            if last > first:
                line.append(rows.tokens[i][first:last])
                positions.append(np.arange(first, last))
                pieces.append(Piece(end, last - first, begin, first))
            before = rows.places[i] - 1
            source[i] = np.where(before < shared, begin + before, end + before - shared)
            end += last - first
    place = copied(torch.from_numpy(np.concatenate(positions)[None]), device)
    layout = buckets_of(pieces, place, how.dtype) if how.kernel is None else segments_of(pieces, place, how.kernel)
    return rows.laid(chosen, np.concatenate(line)[None], [source[i] for i in chosen], device, layout)


def segments_of(pieces: list[Piece], positions: Tensor, kernel: Kernel) -> Segments:
    """Build the layout of all segments in packed order, each with the keys of its prompt before its own."""
    device, keys = positions.device, None
    if any(p.prompt for p in pieces):
        ranges = [np.arange(a, a + n) for p in pieces for a, n in ((p.prompt_start, p.prompt), (p.start, p.length))]
        keys = copied(torch.from_numpy(np.concatenate(ranges)), device)
    lengths = lengths_of([p.length for p in pieces], [p.prompt + p.length for p in pieces], device)
    return Segments(positions, keys, lengths, kernel)


def buckets_of(pieces: list[Piece], positions: Tensor, dtype: torch.dtype) -> Buckets:
    """Build the layout of segments in buckets, with the index of each token's output."""
    home, device = np.zeros(positions.shape[1], dtype=np.int64), positions.device
    buckets, offset = [], 0
    waiting = sorted(pieces, key=lambda p: (bool(p.prompt), -p.length, p.start))
    while waiting:
        width, shares = waiting[0].length, bool(waiting[0].prompt)
        members = [p for p in waiting if 4 * p.length >= 3 * width and bool(p.prompt) == shares]
        waiting = waiting[len(members) :]
        for r, p in enumerate(members):
            home[p.start : p.start + p.length] = offset + r * width + np.arange(p.length)
        buckets.append(_bucket(members, width, device, dtype))
        offset += len(members) * width
    return Buckets(positions, buckets, copied(torch.from_numpy(home), device), {})


def narrowed(bucket: Bucket, positions: Tensor, window: int) -> Tensor:
    """Add a sliding window to the mask of a bucket: a token sees itself and the `window` - 1 tokens before it."""
    queries, keys = positions[bucket.query], positions[bucket.keys]
    hidden = (queries[:, :, None] - keys[:, None, :] >= window)[:, None]
    if bucket.mask is not None:
        return bucket.mask.masked_fill(hidden, -torch.inf)
    length = bucket.query.shape[1]
    hidden = hidden | torch.ones(length, length, dtype=torch.bool, device=positions.device).triu(1)
    return torch.zeros(hidden.shape, device=positions.device).masked_fill_(hidden, -torch.inf)


def _bucket(members: list[Piece], width: int, device: torch.device, dtype: torch.dtype) -> Bucket:
    prompt = max(p.prompt for p in members)
    steps, before = np.arange(width), np.arange(prompt)
    start, length, first, shared = (np.array(column)[:, None] for column in zip(*members, strict=True))
    query = start + np.minimum(steps, length - 1)
    where = copied(torch.from_numpy(query), device)
    if not prompt:
        return Bucket(where, where, None)
    keys = np.concatenate([first + np.minimum(before, shared - 1), query], 1)
    # in the compute dtype, because a boolean mask would be converted in every layer and kept for the backward pass
    mask = torch.zeros(len(members), 1, width, prompt + width, device=device, dtype=dtype)
    beyond = torch.arange(prompt, device=device) >= copied(torch.from_numpy(shared), device)
    mask[..., :prompt].masked_fill_(beyond[:, None, None, :], -torch.inf)
    mask[..., prompt:].masked_fill_(torch.ones(width, width, dtype=torch.bool, device=device).triu(1), -torch.inf)
    return Bucket(where, copied(torch.from_numpy(keys), device), mask)


def fits(model: Any, score: Any, how: Packing = BUCKETS, computed: torch.dtype | None = None) -> str:
    """Compare packed and single rows on a few tokens; return '' if they agree, else the reason for padding.

    `computed`: the compute precision of `score`; None: that of the weights.
    """
    vocabulary = model.get_input_embeddings().weight.shape[0]
    tokens = [[(7 * j + 3) % vocabulary for j in range(6)] + [(5 * k + j) % vocabulary for j in range(2 + k)] for k in range(4)]
    rows = Rows(tokens, [[False] * 6 + [True] * (len(t) - 6) for t in tokens])
    device = next(model.parameters()).device

    def truth() -> Tensor:
        return torch.cat([score(next(rows.batches([i], budget=1, device=device))).logprobs for i in range(4)])

    return adopt(model, truth, lambda: score(pack(rows, range(4), device, how)).logprobs, computed)


def packing_for(policies: Sequence[Any], device: torch.device, precision: str, autocast: Callable[[], Any] | None) -> Packing:
    """Choose how rows are packed: with the device's kernel if the models support it, with buckets, or not at all.

    `autocast` None: the policies compute in this precision without autocast.
    """
    dtype: torch.dtype = getattr(torch, precision)
    kernel, masked = kernel_for(device, dtype)
    reason = ""
    for how in ([Packing(kernel, dtype)] if kernel is not None else []) + [Packing(None, dtype)]:
        computed = dtype if autocast is None or how.kernel is not None else None
        with autocast() if autocast is not None and how.kernel is not None else nullcontext():
            reason = next(filter(None, (policy.look(partial(fits, policy.model, policy, how, computed)) for policy in policies)), "")
        if not reason:
            return how._replace(masked=masked)
        masked = reason
    return Packing(dtype=dtype, padded=reason)
