"""How weights are passed on: a version is a parcel of buckets, and a chain of parcels brings a collector to it. Made in `packing`.

It knows nothing of tensors, so that a collector without weights needs no torch.
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
    """Some of the bytes of a tensor, or what changes in them.

    >>> Part("norm.weight", "float32 [2]", 0, np.zeros(8, np.uint8)).changed
    0
    """

    name: str
    form: str
    """Type and shape of the whole tensor."""
    begin: int
    """Where it begins: the byte, or for changes the element."""
    data: Array
    changed: int = 0
    """0: the data is the bytes themselves. Else how many elements change, and the data is compressed."""
    wide: int = 0
    """Of changes: the bytes of the distance between two of them."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """As many parts as are passed on together.

    >>> Bucket((), 0).parts
    ()
    """

    parts: tuple[Part, ...]
    checksum: int

    @classmethod
    def of(cls, parts: Iterable[Part]) -> Bucket:
        """The parts with their checksum."""
        made = tuple(parts)
        return cls(made, checksum_of(made))


@dataclass(frozen=True, slots=True)
class Parcel:
    """One version of the weights. Its buckets may be views of the trainer's memory that are made when they are asked for.

    >>> Parcel([]).delta
    False
    """

    buckets: Iterable[Any]
    """Buckets; in a transport what it keeps them under."""
    delta: bool = False
    """Whether it is the difference from the version before."""
    result: Mapping[str, int] = field(default_factory=dict[str, int])
    """Of a delta: the checksum of each tensor after it."""
    size: int = 0
    """How many bytes all buckets have together."""


def checksum_of(parts: Iterable[Part]) -> int:
    """Of all parts, in order: of their bytes, and of where these belong."""
    found = 0
    for part in parts:
        head = repr((part.name, part.form, part.begin, part.changed, part.wide))
        found = zlib.crc32(part.data.data, zlib.crc32(head.encode(), found))
    return found


class Chain:
    """The versions that a transport holds, and what a collector must load of them.

    >>> chain = Chain()
    >>> for version, delta in enumerate([False, True, True]):
    ...     chain.add(version, Parcel([], delta))
    >>> len(chain.path(2, has=1)), len(chain.path(2, has=None))
    (1, 3)
    """

    def __init__(self) -> None:
        self._held, self._lock = dict[int, Parcel](), threading.Lock()

    def add(self, version: int, parcel: Parcel) -> None:
        """Hold a newer version; from any thread."""
        with self._lock:
            self._held[version] = parcel

    def keep(self, versions: Collection[int]) -> None:
        """Free what none of these versions needs, nor any later one."""
        with self._lock:
            first = min((self._whole(version) for version in versions if version in self._held), default=max(self._held, default=0))
            self._held = {version: parcel for version, parcel in self._held.items() if version >= first}

    def path(self, version: int, has: int | None) -> list[Parcel]:
        """What brings a collector to a version, in order; `has` is the version that it has."""
        with self._lock:
            first = self._whole(version)
            first = has + 1 if has is not None and first <= has <= version else first
            return [parcel for at, parcel in self._held.items() if first <= at <= version]

    def _whole(self, version: int) -> int:
        """The last version up to this one that is held whole."""
        return max(at for at, parcel in self._held.items() if at <= version and not parcel.delta)
