"""Data classes of weight updates: buckets, the parcel of a version, and the history of parcels. `packing` makes them.

They do not use tensors, so that a worker without weights does not need torch.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class TensorSlice:
    """Some bytes of a tensor, or changes of its elements.

    >>> TensorSlice("norm.weight", "float32 [2]", 0, np.zeros(8, np.uint8)).num_changed
    0
    """

    name: str
    type_and_shape: str
    """Type and shape of the whole tensor."""
    offset: int
    """The offset in the tensor: bytes, or elements for changes."""
    data: Array
    num_changed: int = 0
    """0: the data are the bytes. Otherwise the number of changed elements, and the data are compressed."""
    gap_bytes: int = 0
    """For changes: the bytes per distance between two changed elements."""


@dataclass(frozen=True, slots=True)
class TensorBucket:
    """Slices of tensors that are sent together, with their checksum.

    >>> TensorBucket((), 0).parts
    ()
    """

    parts: tuple[TensorSlice, ...]
    checksum: int

    @classmethod
    def from_parts(cls, tensor_slices: Iterable[TensorSlice]) -> TensorBucket:
        """Make a bucket of these parts, with their checksum."""
        made = tuple(tensor_slices)
        return cls(made, compute_checksum(made))


@dataclass(frozen=True, slots=True)
class WeightUpdate:
    """One version of the weights. Its buckets may be made lazily, as views of the memory of the trainer.

    >>> WeightUpdate([]).is_delta
    False
    """

    buckets: Iterable[Any]
    """Buckets, or the references under which a transport stores them."""
    is_delta: bool = False
    """Whether it is a delta to the previous version."""
    checksums: Mapping[str, int] = field(default_factory=dict[str, int])
    """For a delta: the checksum of each tensor after the update."""
    num_bytes: int = 0
    """Total bytes of all buckets."""


def compute_checksum(tensor_slices: Iterable[TensorSlice]) -> int:
    """Compute the checksum of all parts, in order, over their bytes and their positions."""
    found = 0
    for part in tensor_slices:
        head = repr((part.name, part.type_and_shape, part.offset, part.num_changed, part.gap_bytes))
        found = zlib.crc32(part.data.data, zlib.crc32(head.encode(), found))
    return found


class WeightUpdateHistory:
    """The stored weight updates; finds which ones a worker must load to get from its version to another.

    >>> history = WeightUpdateHistory()
    >>> for version, is_delta in enumerate([False, True, True]):
    ...     history.add(version, WeightUpdate([], is_delta))
    >>> len(history.get_updates(2, current_version=1)), len(history.get_updates(2, current_version=None))
    (1, 3)
    """

    def __init__(self) -> None:
        self._updates, self._lock = dict[int, WeightUpdate](), threading.Lock()

    def add(self, version: int, update: WeightUpdate) -> None:
        """Add a newer version; from any thread."""
        with self._lock:
            self._updates[version] = update

    def free_unneeded_weights(self, needed_versions: Collection[int]) -> None:
        """Free the versions that neither these nor later versions need."""
        with self._lock:
            first = min(
                (self._find_full_version(version) for version in needed_versions if version in self._updates),
                default=max(self._updates, default=0),
            )
            self._updates = {version: parcel for version, parcel in self._updates.items() if version >= first}

    def get_updates(self, target_version: int, current_version: int | None) -> list[WeightUpdate]:
        """Return the updates that bring a worker from `current_version` (None: no weights) to `target_version`, in order."""
        with self._lock:
            first = self._find_full_version(target_version)
            first = current_version + 1 if current_version is not None and first <= current_version <= target_version else first
            return [parcel for at, parcel in self._updates.items() if first <= at <= target_version]

    def _find_full_version(self, version: int) -> int:
        """Return the last version up to this one with a full copy."""
        return max(at for at, parcel in self._updates.items() if at <= version and not parcel.is_delta)
