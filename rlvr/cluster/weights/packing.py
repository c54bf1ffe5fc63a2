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

from rlvr.cluster.weights.weight_updates import Array, TensorBucket, TensorSlice, WeightUpdate, compute_checksum
from rlvr.errors import ConfigError, RlvrError
from rlvr.models.plain_weights import cast_if_matrix

MAX_BUCKET_BYTES = 256 << 20
"""Maximum bytes of a bucket."""
FULL_COPY_INTERVAL = 20
"""With deltas, every how many versions a full copy is sent: a restarted worker loads at most so many versions."""
MAX_DELTA_FRACTION = 0.5
"""If a delta is larger than this share of a full copy, the full copy is sent."""
COMPARE_CHUNK = 1 << 26
"""Number of elements of a tensor that are compared at a time."""
Tensors = Mapping[str, torch.Tensor]

# ---- sending


class WeightPacker:
    """Encodes each version of the trainer's weights for rollout workers, as a full copy or as a delta to the version before."""

    def __init__(
        self,
        mode: str,
        precision: str,
        *,
        converts_vectors: bool = True,
        bucket_bytes: int = MAX_BUCKET_BYTES,
        full_copy_interval: int = FULL_COPY_INTERVAL,
    ) -> None:
        """`converts_vectors`: whether vectors are converted to the precision too, not only matrices."""
        if mode == "delta" and getattr(torch, precision).itemsize != 2:
            raise ConfigError(
                f"cluster.weight_transfer is delta, but rollout workers compute in {precision}, where an update changes nearly every weight; "
                "set model.dtype to bfloat16, or cluster.weight_transfer to whole"
            )
        self.mode, self.precision, self.converts_vectors, self.bucket_bytes, self.full_copy_interval = (
            mode,
            precision,
            converts_vectors,
            bucket_bytes,
            full_copy_interval,
        )
        self._sent_tensors, self._num_deltas = dict[str, Array](), 0
        """The last sent values of the tensors that deltas support, and the number of deltas since the last full copy."""

    def pack(self, tensors: Tensors) -> WeightUpdate:
        """Encode the present weights, by their names in the model. A full copy must be read before they change."""
        if self.mode == "delta" and self._num_deltas < self.full_copy_interval - 1 and self._matches_base(tensors):
            parts = list(self._iter_changes(tensors))
            size, whole = sum(part.data.nbytes for part in parts), sum(tensor.nbytes for _, tensor in self._iter_tensors(tensors))
            if size <= MAX_DELTA_FRACTION * whole:
                self._num_deltas += 1
                result = {name: zlib.crc32(_view_bytes(tensor).data) for name, tensor in self._iter_tensors(tensors)}
                return WeightUpdate(list(_fill_buckets(parts, self.bucket_bytes)), True, result, size)
        self._num_deltas = 0
        if self.mode == "delta":
            self._sent_tensors = {
                name: _view_bytes(tensor).view(np.int16).copy() for name, tensor in self._iter_tensors(tensors) if tensor.itemsize == 2
            }
        whole = sum(tensor.nbytes for _, tensor in self._iter_tensors(tensors))
        return WeightUpdate(_fill_buckets(self._iter_full(tensors), self.bucket_bytes), num_bytes=whole)

    def _matches_base(self, tensors: Tensors) -> bool:
        """Whether the tensors that deltas support have the names and sizes of the base; otherwise a full copy is needed."""
        sizes = {name: tensor.numel() for name, tensor in self._iter_tensors(tensors) if tensor.itemsize == 2}
        return bool(sizes) and sizes == {name: len(old) for name, old in self._sent_tensors.items()}

    def _iter_tensors(self, tensors: Tensors) -> Iterator[tuple[str, torch.Tensor]]:
        """Iterate over the tensors as they are sent; tied tensors come once."""
        seen, dtype = set[int](), next((tensor.dtype for tensor in tensors.values() if tensor.is_floating_point()), None)
        same = dtype == getattr(torch, self.precision)  # then its tensors of other precisions are not converted either
        for name, tensor in tensors.items():
            if id(tensor) not in seen:
                seen.add(id(tensor))
                plain = tensor.detach()
                yield name, plain if same else _convert_tensor(plain, self.precision, converts_vectors=self.converts_vectors)

    def _iter_full(self, tensors: Tensors) -> Iterator[TensorSlice]:
        for name, tensor in self._iter_tensors(tensors):
            form, data = _describe_tensor(tensor), _view_bytes(tensor)
            for begin in range(0, len(data), self.bucket_bytes):
                yield TensorSlice(name, form, begin, data[begin : begin + self.bucket_bytes])

    def _iter_changes(self, tensors: Tensors) -> Iterator[TensorSlice]:
        """Encode the changes to the base, and update the base. The few tensors without deltas are sent in full."""
        for name, tensor in self._iter_tensors(tensors):
            form, data = _describe_tensor(tensor), _view_bytes(tensor)
            if tensor.itemsize != 2:
                yield TensorSlice(name, form, 0, data)
                continue
            new, old = data.view(np.int16), self._sent_tensors[name]
            for begin in range(0, len(new), COMPARE_CHUNK):
                here = slice(begin, begin + COMPARE_CHUNK)
                if (at := np.flatnonzero(new[here] != old[here])).size:
                    coded, wide = _encode_changes(at, new[here][at] - old[here][at])
                    yield TensorSlice(name, form, begin, coded, len(at), wide)
            old[:] = new


def _convert_tensor(tensor: torch.Tensor, precision: str, *, converts_vectors: bool) -> torch.Tensor:
    """Convert a tensor to the precision of the workers; vectors only if `converts_vectors`."""
    dtype = getattr(torch, precision)
    return tensor.to(dtype) if converts_vectors and tensor.is_floating_point() else cast_if_matrix(tensor, precision)


def convert_model(model: Any, precision: str, *, converts_vectors: bool) -> Any:
    """Convert a model in place to the precision in which weights are sent, and return it."""
    if _has_dtype(model, precision):
        return model
    if converts_vectors:
        return model.to(getattr(torch, precision))
    for weight in model.parameters():
        weight.data = cast_if_matrix(weight.data, precision)
    return model


def _has_dtype(model: Any, precision: str) -> bool:
    """Whether a model has a precision; then its tensors of other precisions are not converted."""
    return bool(getattr(torch, precision) == model.dtype)


def _describe_tensor(tensor: torch.Tensor) -> str:
    """Describe the type and the shape of a tensor.

    >>> _describe_tensor(torch.zeros(2, 3))
    'float32 [2, 3]'
    """
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


def _view_bytes(tensor: torch.Tensor) -> Array:
    """Return the memory of a tensor as bytes; a copy if it is on a device."""
    found: Array = tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return found


def _fill_buckets(tensor_slices: Iterable[TensorSlice], max_bytes: int) -> Iterator[TensorBucket]:
    """Group parts into buckets of at most so many bytes, unless one part is larger."""
    held, size = list[TensorSlice](), 0
    for part in tensor_slices:
        if held and size + part.data.nbytes > max_bytes:
            yield TensorBucket.from_parts(held)
            held, size = [], 0
        held.append(part)
        size += part.data.nbytes
    if held:
        yield TensorBucket.from_parts(held)


def _encode_changes(indices: Array, differences: Array) -> tuple[Array, int]:
    """Compress indices and differences: first all low bytes, then the higher bytes, which are nearly all 0."""
    gaps = np.diff(indices, prepend=0)
    wide = next(size for size in (1, 2, 4) if gaps.max() < 1 << 8 * size)
    folded = (differences << 1) ^ (differences >> 15)  # -1 becomes 1, and 1 becomes 2
    columns = [part.view(np.uint8).reshape(len(indices), -1).T for part in (gaps.astype(f"<u{wide}"), folded.astype("<i2"))]
    return np.frombuffer(zlib.compress(b"".join(column.tobytes() for column in columns), 1), np.uint8), wide


def _decode_changes(tensor_slice: TensorSlice) -> tuple[Array, Array]:
    """Decode the indices and differences of `_encode_changes`."""
    length = tensor_slice.num_changed * (tensor_slice.gap_bytes + 2)
    opened = zlib.decompressobj()
    try:
        plain = np.frombuffer(opened.decompress(tensor_slice.data.data, max(1, length)), np.uint8)
    except zlib.error as error:
        raise RlvrError(f"the changes of {tensor_slice.name} cannot be decompressed: {error}") from error
    if len(plain) != length or not opened.eof:
        raise RlvrError(f"the changes of {tensor_slice.name} are not {tensor_slice.num_changed:,} of {tensor_slice.gap_bytes} and 2 bytes")
    edge = tensor_slice.num_changed * tensor_slice.gap_bytes
    gaps = np.ascontiguousarray(plain[:edge].reshape(tensor_slice.gap_bytes, -1).T).view(f"<u{tensor_slice.gap_bytes}").reshape(-1)
    folded = np.ascontiguousarray(plain[edge:].reshape(2, -1).T).view("<u2").reshape(-1)
    return np.cumsum(gaps, dtype=np.int64), (folded >> 1).astype(np.int16) ^ -(folded & 1).astype(np.int16)


# ---- receiving


def apply_updates(model: Any, updates: Iterable[WeightUpdate]) -> None:
    """Update a model with these weight updates, in order; RlvrError if its weights are then not exactly those of the trainer.

    After an error the model mixes several versions and must not be used.
    """
    places: dict[str, torch.Tensor] = model.state_dict()
    desk = np.empty(0, np.uint8)
    result: Mapping[str, int] = {}
    for parcel in updates:
        given = dict.fromkeys(places, 0)
        for bucket in parcel.buckets:
            if compute_checksum(bucket.parts) != bucket.checksum:
                raise RlvrError(f"{len(bucket.parts)} parts of the weights arrived with a wrong checksum")
            for part in bucket.parts:
                if part.name not in places or _describe_tensor(places[part.name]) != part.type_and_shape:
                    here = _describe_tensor(places[part.name]) if part.name in places else "no such tensor"
                    raise RlvrError(
                        f"the weights that were sent are those of another model: {part.name} is {part.type_and_shape}, here {here}"
                    )
                if part.num_changed:
                    _apply_changes(places[part.name], part)
                    continue
                if part.offset != given[part.name] or part.offset + part.data.nbytes > places[part.name].nbytes:
                    size = (
                        f"{part.data.nbytes:,} bytes from {part.offset:,} where byte {given[part.name]:,} of {places[part.name].nbytes:,}"
                    )
                    raise RlvrError(f"the parts of {part.name} do not follow each other: {size} comes next")
                given[part.name] += part.data.nbytes
                desk = _copy_bytes(places[part.name], part, desk)
        if others := parcel.checksums.keys() - places.keys():
            raise RlvrError(f"the weights that were sent are those of another model: it has {min(others)}, and here is no such tensor")
        _check_all_received(places, given | {name: places[name].nbytes for name in parcel.checksums})
        result = parcel.checksums
    for name, checksum in result.items():
        if zlib.crc32(_view_bytes(places[name]).data) != checksum:
            raise RlvrError(f"{name} has a wrong checksum after the delta; a full copy is needed")


def _check_all_received(tensors: Mapping[str, torch.Tensor], received_bytes: Mapping[str, int]) -> None:
    """Check that every tensor was received or has a checksum; a tied tensor under any of its names."""
    full = {(place.data_ptr(), place.shape) for name, place in tensors.items() if received_bytes[name] == place.nbytes}
    if missing := [name for name, place in tensors.items() if (place.data_ptr(), place.shape) not in full]:
        raise RlvrError(f"the weights that were sent are those of another model: {len(missing)} tensors are missing, such as {missing[0]}")


def _copy_bytes(tensor: torch.Tensor, tensor_slice: TensorSlice, buffer: Array) -> Array:
    """Copy bytes into a tensor. Copies to a device go through a reused buffer, which is returned."""
    into = tensor.view(-1).view(torch.uint8)[tensor_slice.offset : tensor_slice.offset + tensor_slice.data.nbytes]
    if tensor.device.type == "cpu":
        np.copyto(into.numpy(), tensor_slice.data)
        return buffer
    if len(buffer) < tensor_slice.data.nbytes:
        buffer = np.empty(tensor_slice.data.nbytes, np.uint8)
    np.copyto(buffer[: tensor_slice.data.nbytes], tensor_slice.data)
    into.copy_(torch.from_numpy(buffer[: tensor_slice.data.nbytes]))
    return buffer


def _apply_changes(place: torch.Tensor, part: TensorSlice) -> None:
    if not (0 < part.num_changed <= place.numel() and part.offset >= 0 and part.gap_bytes in (1, 2, 4)):
        raise RlvrError(
            f"{part.num_changed:,} changes of {part.name} from {part.offset:,}, of {part.gap_bytes} bytes: it has {place.numel():,} elements"
        )
    at, moves = _decode_changes(part)
    bits = place.view(-1).view(torch.int16)[part.offset :]
    if int(at[-1]) >= len(bits):
        raise RlvrError(f"the changes of {part.name} end at element {part.offset + int(at[-1]):,}, and it has {place.numel():,}")
    where = torch.from_numpy(at).to(place.device)
    bits[where] += torch.from_numpy(moves).to(place.device)
