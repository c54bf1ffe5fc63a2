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
class Part:
    """Some bytes of a tensor, or changes of its elements.

    >>> Part("norm.weight", "float32 [2]", 0, np.zeros(8, np.uint8)).changed
    0
    """

    name: str
    form: str
    """Type and shape of the whole tensor."""
    begin: int
    """The offset in the tensor: bytes, or elements for changes."""
    data: Array
    changed: int = 0
    """0: the data are the bytes. Otherwise the number of changed elements, and the data are compressed."""
    wide: int = 0
    """For changes: the bytes per distance between two changed elements."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """Parts that are sent together.

    >>> Bucket((), 0).parts
    ()
    """

    parts: tuple[Part, ...]
    checksum: int

    @classmethod
    def of(cls, parts: Iterable[Part]) -> Bucket:
        """Make a bucket of these parts, with their checksum."""
        made = tuple(parts)
        return cls(made, checksum_of(made))


@dataclass(frozen=True, slots=True)
class Parcel:
    """One version of the weights. Its buckets may be made lazily, as views of the memory of the trainer.

    >>> Parcel([]).delta
    False
    """

    buckets: Iterable[Any]
    """Buckets, or the references under which a transport stores them."""
    delta: bool = False
    """Whether it is a delta to the previous version."""
    result: Mapping[str, int] = field(default_factory=dict[str, int])
    """For a delta: the checksum of each tensor after the update."""
    size: int = 0
    """Total bytes of all buckets."""


def checksum_of(parts: Iterable[Part]) -> int:
    """Compute the checksum of all parts, in order, over their bytes and their positions."""
    found = 0
    for part in parts:
        head = repr((part.name, part.form, part.begin, part.changed, part.wide))
        found = zlib.crc32(part.data.data, zlib.crc32(head.encode(), found))
    return found


class Chain:
    """The stored versions of a transport. It finds what a worker must load.

    >>> chain = Chain()
    >>> for version, delta in enumerate([False, True, True]):
    ...     chain.add(version, Parcel([], delta))
    >>> len(chain.path(2, has=1)), len(chain.path(2, has=None))
    (1, 3)
    """

    def __init__(self) -> None:
        self._held, self._lock = dict[int, Parcel](), threading.Lock()

    def add(self, version: int, parcel: Parcel) -> None:
        """Add a newer version; from any thread."""
        with self._lock:
            self._held[version] = parcel

    def keep(self, versions: Collection[int]) -> None:
        """Free the versions that neither these nor later versions need."""
        with self._lock:
            first = min((self._whole(version) for version in versions if version in self._held), default=max(self._held, default=0))
            self._held = {version: parcel for version, parcel in self._held.items() if version >= first}

    def path(self, version: int, has: int | None) -> list[Parcel]:
        """Return the parcels that update a worker to a version, in order; `has` is its present version."""
        with self._lock:
            first = self._whole(version)
            first = has + 1 if has is not None and first <= has <= version else first
            return [parcel for at, parcel in self._held.items() if first <= at <= version]

    def _whole(self, version: int) -> int:
        """Return the last version up to this one with a full copy."""
        return max(at for at, parcel in self._held.items() if at <= version and not parcel.delta)
