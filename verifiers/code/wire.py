"""Encode values as plain tagged data, the only content of messages between an answer, the checker and rlvr.

Both ends run this file; the reading end builds only exact built-in values, whatever was written. A subclass arrives as its base class, an
object that is not data as `OpaqueValue`, which equals only itself. Standard library only: the file also runs in the sandbox, as part of the
answer's driver and of the checker. rlvr's own process only encodes: data from an answer is decoded in the checker process, which has
the task's limits on time and memory and can be killed.
"""

from __future__ import annotations

import collections
import decimal
import fractions
import itertools
import json
import os
from collections.abc import Iterator
from typing import Any

MAX_DEPTH, MAX_ITEMS, MAX_MESSAGE_BYTES, MAX_FRACTION_BITS, MAX_EQUAL_HASHES = 100, 2_000_000, 1 << 26, 1 << 16, 1000


class NotData(Exception):
    """Raised if a value cannot be encoded as data for the other process, or if received bytes are not valid encoded data."""


class OpaqueValue:
    """A value that is not data: a function, an open file, an object of a class of the answer."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __repr__(self) -> str:
        return f"<{self.kind}>"


class ObjectReference(OpaqueValue):
    """An object of the answer's class: it stays in the answer's process, and only its number is sent."""

    def __init__(self, number: int, kind: str) -> None:
        super().__init__(kind)
        self.number = number


kept_objects: list[Any] = []
"""In the answer's process, the objects that a test of a class refers to by their number; empty elsewhere."""


def find_kept_object(number: Any) -> Any:
    """Find the object with this number; `NotData` for anything else."""
    if type(number) is not int or not 0 <= number < len(kept_objects):
        raise NotData("there is no such object")
    return kept_objects[number]


def encode(value: Any, nesting_depth: int = 0) -> Any:
    """Encode a value as JSON: JSON types are unchanged, all others become a list that starts with a tag.

    >>> encode((1, {2.5}))
    ['t', [1, ['s', [['f', '0x1.4000000000000p+1']]]]]
    """
    if value is None or value is True or value is False:
        return value
    if isinstance(value, ObjectReference):
        return ["h", value.number]
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        value = int.__int__(value)
        return value if -(10**15) < value < 10**15 else ["i", hex(value)]
    if isinstance(value, float):
        return ["f", float.hex(value)]
    if isinstance(value, complex):
        return ["c", float.hex(value.real), float.hex(value.imag)]
    if isinstance(value, bytes | bytearray):
        return ["b" if isinstance(value, bytes) else "ba", bytes(value).hex()]
    if isinstance(value, range):
        return ["r", [encode(part) for part in (value.start, value.stop, value.step)]]
    if isinstance(value, decimal.Decimal):
        return ["dec", str(value)]
    if isinstance(value, fractions.Fraction):
        return ["fr", [encode(value.numerator), encode(value.denominator)]]
    if nesting_depth >= MAX_DEPTH:
        raise NotData(f"nested deeper than {MAX_DEPTH}")
    if isinstance(value, dict):
        return ["d", [[encode(key, nesting_depth + 1), encode(item, nesting_depth + 1)] for key, item in dict.items(value)]]
    for kind, tag in TYPE_TAGS.items():
        if isinstance(value, kind):
            return [tag, [encode(item, nesting_depth + 1) for item in kind.__iter__(value)]]
    if isinstance(value, ITERABLE_TYPES):
        return ["it", [encode(item, nesting_depth + 1) for item in itertools.islice(value, MAX_ITEMS)]]
    return ["o", type(value).__name__]


ITERABLE_TYPES: tuple[Any, ...] = (Iterator, type({}.keys()), type({}.values()), type({}.items()))
DATA_TYPES = (str, int, float, complex, bytes, bytearray, range, decimal.Decimal, fractions.Fraction, OpaqueValue, *ITERABLE_TYPES)
TYPE_TAGS: dict[Any, str] = {list: "l", tuple: "t", set: "s", frozenset: "fs", collections.deque: "dq"}
TAG_BUILDERS: dict[str, Any] = {"l": list, "t": tuple, "s": set, "fs": frozenset, "dq": collections.deque, "it": iter}


def find_non_data(value: Any) -> Iterator[Any]:
    """Yield the objects in a value that are not data (`OpaqueValue` ones from an answer are not included).

    >>> list(find_non_data([1, {"a": (2, print)}])), list(find_non_data([1, {2}]))
    ([<built-in function print>], [])
    """
    left: list[Any] = [value]
    seen: set[int] = set()
    while left:
        item = left.pop()
        if item is None or isinstance(item, DATA_TYPES) or id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, dict):
            left += [*dict.keys(item), *dict.values(item)]
        elif isinstance(item, list | tuple | set | frozenset | collections.deque):
            left.extend(item)
        else:
            yield item


def decode(data: Any, nesting_depth: int = 0) -> Any:
    """Decode a value that `encode` wrote; `NotData` for anything that it cannot have written."""
    if data is None or type(data) in (bool, int, str):
        return data
    if type(data) is not list or len(data) < 2 or type(data[0]) is not str or nesting_depth > MAX_DEPTH:
        raise NotData("the input is not tagged data")
    tag, body = data[0], data[1]
    try:
        if tag in SCALAR_DECODERS:
            return SCALAR_DECODERS[tag](body)
        if tag == "c":
            return complex(float.fromhex(body), float.fromhex(data[2]))
        if tag == "r":
            return range(*(int(decode(part)) for part in body))
        if tag == "fr":
            return _decode_fraction(*(int(decode(part)) for part in body))
        if type(body) is not list:
            raise NotData(f"{tag!r} does not contain a list")
        if tag == "d":
            pairs = [(decode(key, nesting_depth + 1), decode(item, nesting_depth + 1)) for key, item in body]
            return dict(_check_hash_collisions(pairs, [key for key, _ in pairs]))
        if tag in TAG_BUILDERS:
            items = [decode(item, nesting_depth + 1) for item in body]
            if tag in ("s", "fs"):
                _check_hash_collisions(items, items)
            return items if tag == "l" else TAG_BUILDERS[tag](items)
    except NotData:
        raise
    except Exception as error:
        raise NotData(f"{tag!r} has invalid content: {type(error).__name__}") from None
    raise NotData(f"unknown tag {tag!r}")


def _decode_fraction(top: int, bottom: int) -> fractions.Fraction:
    """Build a fraction of limited size: reducing one takes quadratic time in its length, and cannot be interrupted."""
    if max(top.bit_length(), bottom.bit_length()) > MAX_FRACTION_BITS:
        raise NotData("a fraction of huge numbers")
    return fractions.Fraction(top, bottom)


def _check_hash_collisions(items: list[Any], keys: list[Any]) -> list[Any]:
    """Return the items; raises if so many keys share a hash that building a dict or set takes quadratic time."""
    allowed = 32 if any(isinstance(key, tuple) and len(key) > 64 for key in keys) else MAX_EQUAL_HASHES  # long ones are slow to compare
    if len(keys) > allowed and collections.Counter(map(hash, keys)).most_common(1)[0][1] > allowed:
        raise NotData("too many keys with the same hash")
    return items


SCALAR_DECODERS: dict[str, Any] = {
    "i": lambda body: int(body, 16),
    "f": float.fromhex,
    "b": bytes.fromhex,
    "ba": bytearray.fromhex,
    "dec": decimal.Decimal,
    "o": lambda body: OpaqueValue(str(body)[:100]),
    "h": find_kept_object,
}


def write_message(fd: int, message: Any) -> None:
    """Write one message: its length, then JSON."""
    raw = json.dumps(message).encode()
    view = memoryview(len(raw).to_bytes(4, "big") + raw)
    while view:
        view = view[os.write(fd, view) :]


def read_message(fd: int, max_bytes: int = MAX_MESSAGE_BYTES) -> Any:
    """Read one message of at most `max_bytes` bytes; EOFError at the end of the stream, NotData for a malformed message."""
    length = int.from_bytes(_read_exactly(fd, 4), "big")
    if length > max_bytes:
        raise NotData(f"a message of {length} bytes")
    raw = _read_exactly(fd, length)
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        raise NotData("a message that is not JSON") from None


def _read_exactly(fd: int, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        more = os.read(fd, min(count - len(data), 1 << 20))
        if not more:
            raise EOFError
        data += more
    return bytes(data)
