"""Encode the weights of the trainer for rollout workers, in buckets: as full copies or as deltas to the previous version.

Full: the bytes of all tensors, in the precision of the workers. Each bucket has a checksum; only one bucket exists at a time.

Delta: most weights of 2 bytes do not change in a step, because the update is smaller than half of their last bit. For each tensor, the
indices of the changed elements and the differences of their bits (mostly 1) are compressed. The checksum covers the result, so the weights
are exactly those of the trainer or raise an error. A worker needs all deltas since its version or since the last full copy. Weights of
float32 have no delta: an update changes nearly all of them.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch

from rlvr.errors import ConfigError, RlvrError
from rlvr.model.handover import lowered
from rlvr.scale.weights.parcels import Array, Bucket, Parcel, Part, checksum_of

BUCKET = 256 << 20
"""Maximum bytes of a bucket."""
WHOLE_EVERY = 20
"""With deltas, every how many versions a full copy is sent: a restarted worker loads at most so many versions."""
WORTH = 0.5
"""If a delta is larger than this share of a full copy, the full copy is sent."""
CHUNK = 1 << 26
"""Number of elements of a tensor that are compared at a time."""

# ---- sending


class Packer:
    """Encode each version of the weights of a model."""

    def __init__(self, way: str, precision: str, *, vectors: bool = True, bucket: int = BUCKET, every: int = WHOLE_EVERY) -> None:
        """`vectors`: whether vectors are converted to the precision too, not only matrices."""
        if way == "delta" and getattr(torch, precision).itemsize != 2:
            raise ConfigError(
                f"cluster.weights is delta, but rollout workers compute in {precision}, where an update changes nearly every weight; "
                "set model.dtype to bfloat16, or cluster.weights to whole"
            )
        self.way, self.precision, self.vectors, self.bucket, self.every = way, precision, vectors, bucket, every
        self._base, self._since = dict[str, Array](), 0
        """The last sent values of the tensors that deltas support, and the number of deltas since the last full copy."""

    def pack(self, model: Any) -> Parcel:
        """Encode the present weights. A full copy must be read before they change."""
        if self.way == "delta" and self._since < self.every - 1 and self._known(model):
            parts = list(self._changes(model))
            size, whole = sum(part.data.nbytes for part in parts), sum(tensor.nbytes for _, tensor in self._tensors(model))
            if size <= WORTH * whole:
                self._since += 1
                result = {name: zlib.crc32(_bytes(tensor).data) for name, tensor in self._tensors(model)}
                return Parcel(list(_filled(parts, self.bucket)), True, result, size)
        self._since = 0
        if self.way == "delta":
            self._base = {name: _bytes(tensor).view(np.int16).copy() for name, tensor in self._tensors(model) if tensor.itemsize == 2}
        whole = sum(tensor.nbytes for _, tensor in self._tensors(model))
        return Parcel(_filled(self._everything(model), self.bucket), size=whole)

    def _known(self, model: Any) -> bool:
        """Whether the tensors that deltas support have the names and sizes of the base; otherwise a full copy is needed."""
        sizes = {name: tensor.numel() for name, tensor in self._tensors(model) if tensor.itemsize == 2}
        return bool(sizes) and sizes == {name: len(old) for name, old in self._base.items()}

    def _tensors(self, model: Any) -> Iterator[tuple[str, torch.Tensor]]:
        """Iterate over the tensors as they are sent; tied tensors come once."""
        seen, same = set[int](), is_in(model, self.precision)
        for name, tensor in model.state_dict(keep_vars=True).items():
            if id(tensor) not in seen:
                seen.add(id(tensor))
                plain = tensor.detach()
                yield name, plain if same else computed(plain, self.precision, vectors=self.vectors)

    def _everything(self, model: Any) -> Iterator[Part]:
        for name, tensor in self._tensors(model):
            form, data = form_of(tensor), _bytes(tensor)
            for begin in range(0, len(data), self.bucket):
                yield Part(name, form, begin, data[begin : begin + self.bucket])

    def _changes(self, model: Any) -> Iterator[Part]:
        """Encode the changes to the base, and update the base. The few tensors without deltas are sent in full."""
        for name, tensor in self._tensors(model):
            form, data = form_of(tensor), _bytes(tensor)
            if tensor.itemsize != 2:
                yield Part(name, form, 0, data)
                continue
            new, old = data.view(np.int16), self._base[name]
            for begin in range(0, len(new), CHUNK):
                here = slice(begin, begin + CHUNK)
                if (at := np.flatnonzero(new[here] != old[here])).size:
                    coded, wide = _coded(at, new[here][at] - old[here][at])
                    yield Part(name, form, begin, coded, len(at), wide)
            old[:] = new


def computed(tensor: torch.Tensor, precision: str, *, vectors: bool) -> torch.Tensor:
    """Convert a tensor to the precision of the workers; without `vectors` only matrices."""
    dtype = getattr(torch, precision)
    return tensor.to(dtype) if vectors and tensor.is_floating_point() else lowered(tensor, precision)


def lower(model: Any, precision: str, *, vectors: bool) -> Any:
    """Convert a model in place to the precision in which weights are sent, and return it."""
    if is_in(model, precision):
        return model
    if vectors:
        return model.to(getattr(torch, precision))
    for weight in model.parameters():
        weight.data = lowered(weight.data, precision)
    return model


def is_in(model: Any, precision: str) -> bool:
    """Whether a model has a precision; then its tensors of other precisions are not converted."""
    return bool(getattr(torch, precision) == model.dtype)


def form_of(tensor: torch.Tensor) -> str:
    """Describe the type and the shape of a tensor.

    >>> form_of(torch.zeros(2, 3))
    'float32 [2, 3]'
    """
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


def _bytes(tensor: torch.Tensor) -> Array:
    """Return the memory of a tensor as bytes; a copy if it is on a device."""
    found: Array = tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return found


def _filled(parts: Iterable[Part], most: int) -> Iterator[Bucket]:
    """Group parts into buckets of at most so many bytes, unless one part is larger."""
    held, size = list[Part](), 0
    for part in parts:
        if held and size + part.data.nbytes > most:
            yield Bucket.of(held)
            held, size = [], 0
        held.append(part)
        size += part.data.nbytes
    if held:
        yield Bucket.of(held)


def _coded(at: Array, moves: Array) -> tuple[Array, int]:
    """Compress indices and differences: first all low bytes, then the higher bytes, which are nearly all 0."""
    gaps = np.diff(at, prepend=0)
    wide = next(size for size in (1, 2, 4) if gaps.max() < 1 << 8 * size)
    folded = (moves << 1) ^ (moves >> 15)  # -1 becomes 1, and 1 becomes 2
    columns = [part.view(np.uint8).reshape(len(at), -1).T for part in (gaps.astype(f"<u{wide}"), folded.astype("<i2"))]
    return np.frombuffer(zlib.compress(b"".join(column.tobytes() for column in columns), 1), np.uint8), wide


def _decoded(part: Part) -> tuple[Array, Array]:
    """Decode the indices and differences of `_coded`."""
    length = part.changed * (part.wide + 2)
    opened = zlib.decompressobj()
    try:
        plain = np.frombuffer(opened.decompress(part.data.data, max(1, length)), np.uint8)
    except zlib.error as error:
        raise RlvrError(f"the changes of {part.name} cannot be decompressed: {error}") from error
    if len(plain) != length or not opened.eof:
        raise RlvrError(f"the changes of {part.name} are not {part.changed:,} of {part.wide} and 2 bytes")
    edge = part.changed * part.wide
    gaps = np.ascontiguousarray(plain[:edge].reshape(part.wide, -1).T).view(f"<u{part.wide}").reshape(-1)
    folded = np.ascontiguousarray(plain[edge:].reshape(2, -1).T).view("<u2").reshape(-1)
    return np.cumsum(gaps, dtype=np.int64), (folded >> 1).astype(np.int16) ^ -(folded & 1).astype(np.int16)


# ---- receiving


def take_in(model: Any, parcels: Iterable[Parcel]) -> None:
    """Update a model to the version of the last parcel; RlvrError if its weights are not exactly those of the trainer.

    After an error the model mixes several versions and must not be used.
    """
    places: dict[str, torch.Tensor] = model.state_dict()
    desk = np.empty(0, np.uint8)
    result: Mapping[str, int] = {}
    for parcel in parcels:
        given = dict.fromkeys(places, 0)
        for bucket in parcel.buckets:
            if checksum_of(bucket.parts) != bucket.checksum:
                raise RlvrError(f"{len(bucket.parts)} parts of the weights arrived with a wrong checksum")
            for part in bucket.parts:
                if part.name not in places or form_of(places[part.name]) != part.form:
                    here = form_of(places[part.name]) if part.name in places else "no such tensor"
                    raise RlvrError(f"the weights that were sent are those of another model: {part.name} is {part.form}, here {here}")
                if part.changed:
                    _change(places[part.name], part)
                    continue
                if part.begin != given[part.name] or part.begin + part.data.nbytes > places[part.name].nbytes:
                    size = f"{part.data.nbytes:,} bytes from {part.begin:,} where byte {given[part.name]:,} of {places[part.name].nbytes:,}"
                    raise RlvrError(f"the parts of {part.name} do not follow each other: {size} comes next")
                given[part.name] += part.data.nbytes
                desk = _write(places[part.name], part, desk)
        if others := parcel.result.keys() - places.keys():
            raise RlvrError(f"the weights that were sent are those of another model: it has {min(others)}, and here is no such tensor")
        _check_whole(places, given | {name: places[name].nbytes for name in parcel.result})
        result = parcel.result
    for name, checksum in result.items():
        if zlib.crc32(_bytes(places[name]).data) != checksum:
            raise RlvrError(f"{name} has a wrong checksum after the delta; a full copy is needed")


def _check_whole(places: Mapping[str, torch.Tensor], given: Mapping[str, int]) -> None:
    """Check that every tensor was received or has a checksum; a tied tensor under any of its names."""
    full = {(place.data_ptr(), place.shape) for name, place in places.items() if given[name] == place.nbytes}
    if missing := [name for name, place in places.items() if (place.data_ptr(), place.shape) not in full]:
        raise RlvrError(f"the weights that were sent are those of another model: {len(missing)} tensors are missing, such as {missing[0]}")


def _write(place: torch.Tensor, part: Part, desk: Array) -> Array:
    """Copy bytes into a tensor. Copies to a device go through a reused buffer, which is returned."""
    into = place.view(-1).view(torch.uint8)[part.begin : part.begin + part.data.nbytes]
    if place.device.type == "cpu":
        np.copyto(into.numpy(), part.data)
        return desk
    if len(desk) < part.data.nbytes:
        desk = np.empty(part.data.nbytes, np.uint8)
    np.copyto(desk[: part.data.nbytes], part.data)
    into.copy_(torch.from_numpy(desk[: part.data.nbytes]))
    return desk


def _change(place: torch.Tensor, part: Part) -> None:
    if not (0 < part.changed <= place.numel() and part.begin >= 0 and part.wide in (1, 2, 4)):
        raise RlvrError(
            f"{part.changed:,} changes of {part.name} from {part.begin:,}, of {part.wide} bytes: it has {place.numel():,} elements"
        )
    at, moves = _decoded(part)
    bits = place.view(-1).view(torch.int16)[part.begin :]
    if int(at[-1]) >= len(bits):
        raise RlvrError(f"the changes of {part.name} end at element {part.begin + int(at[-1]):,}, and it has {place.numel():,}")
    where = torch.from_numpy(at).to(place.device)
    bits[where] += torch.from_numpy(moves).to(place.device)
