"""Encode values as plain tagged data, the only content of messages between an answer, the checker and rlvr.

Both ends run this file; the reading end builds only exact built-in values, whatever was written. A subclass arrives as its base class, an
object that is not data as `Opaque`, which equals only itself. Standard library only: the file also runs in the sandbox, as part of the
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

DEEP, MANY, LONG, LARGE, ALIKE = 100, 2_000_000, 1 << 26, 1 << 16, 1000


class NotData(Exception):
    """Raised if a value cannot be written as data, or the input is not valid data."""


class Opaque:
    """A value that is not data: a function, an open file, an object of a class of the answer."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __repr__(self) -> str:
        return f"<{self.kind}>"


def encode(value: Any, depth: int = 0) -> Any:
    """Encode a value as JSON: JSON types are unchanged, all others become a list that starts with a tag.

    >>> encode((1, {2.5}))
    ['t', [1, ['s', [['f', '0x1.4000000000000p+1']]]]]
    """
    if value is None or value is True or value is False:
        return value
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
    if depth >= DEEP:
        raise NotData(f"nested deeper than {DEEP}")
    if isinstance(value, dict):
        return ["d", [[encode(key, depth + 1), encode(item, depth + 1)] for key, item in dict.items(value)]]
    for kind, tag in TAGS.items():
        if isinstance(value, kind):
            return [tag, [encode(item, depth + 1) for item in kind.__iter__(value)]]
    if isinstance(value, VIEWS):
        return ["it", [encode(item, depth + 1) for item in itertools.islice(value, MANY)]]
    return ["o", type(value).__name__]


VIEWS: tuple[Any, ...] = (Iterator, type({}.keys()), type({}.values()), type({}.items()))
PLAIN = (str, int, float, complex, bytes, bytearray, range, decimal.Decimal, fractions.Fraction, Opaque, *VIEWS)
TAGS: dict[Any, str] = {list: "l", tuple: "t", set: "s", frozenset: "fs", collections.deque: "dq"}
MAKERS: dict[str, Any] = {"l": list, "t": tuple, "s": set, "fs": frozenset, "dq": collections.deque, "it": iter}


def foreign(value: Any) -> Iterator[Any]:
    """Yield the objects in a value that are not data (`Opaque` ones from an answer are not included).

    >>> list(foreign([1, {"a": (2, print)}])), list(foreign([1, {2}]))
    ([<built-in function print>], [])
    """
    left: list[Any] = [value]
    seen: set[int] = set()
    while left:
        item = left.pop()
        if item is None or isinstance(item, PLAIN) or id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, dict):
            left += [*dict.keys(item), *dict.values(item)]
        elif isinstance(item, list | tuple | set | frozenset | collections.deque):
            left.extend(item)
        else:
            yield item


def decode(data: Any, depth: int = 0) -> Any:
    """Decode a value that `encode` wrote; `NotData` for anything that it cannot have written."""
    if data is None or type(data) in (bool, int, str):
        return data
    if type(data) is not list or len(data) < 2 or type(data[0]) is not str or depth > DEEP:
        raise NotData("the input is not tagged data")
    tag, body = data[0], data[1]
    try:
        if tag in SCALARS:
            return SCALARS[tag](body)
        if tag == "c":
            return complex(float.fromhex(body), float.fromhex(data[2]))
        if tag == "r":
            return range(*(int(decode(part)) for part in body))
        if tag == "fr":
            return _fraction(*(int(decode(part)) for part in body))
        if type(body) is not list:
            raise NotData(f"{tag!r} does not contain a list")
        if tag == "d":
            pairs = [(decode(key, depth + 1), decode(item, depth + 1)) for key, item in body]
            return dict(_spread(pairs, [key for key, _ in pairs]))
        if tag in MAKERS:
            items = [decode(item, depth + 1) for item in body]
            if tag in ("s", "fs"):
                _spread(items, items)
            return items if tag == "l" else MAKERS[tag](items)
    except NotData:
        raise
    except Exception as error:
        raise NotData(f"{tag!r} has invalid content: {type(error).__name__}") from None
    raise NotData(f"unknown tag {tag!r}")


def _fraction(top: int, bottom: int) -> fractions.Fraction:
    """Build a fraction of limited size: reducing one takes quadratic time in its length, and cannot be interrupted."""
    if max(top.bit_length(), bottom.bit_length()) > LARGE:
        raise NotData("a fraction of huge numbers")
    return fractions.Fraction(top, bottom)


def _spread(items: list[Any], keys: list[Any]) -> list[Any]:
    """Return the items; raises if so many keys share a hash that building a dict or set takes quadratic time."""
    allowed = 32 if any(isinstance(key, tuple) and len(key) > 64 for key in keys) else ALIKE  # long ones are slow to compare
    if len(keys) > allowed and collections.Counter(map(hash, keys)).most_common(1)[0][1] > allowed:
        raise NotData("too many keys with the same hash")
    return items


SCALARS: dict[str, Any] = {
    "i": lambda body: int(body, 16),
    "f": float.fromhex,
    "b": bytes.fromhex,
    "ba": bytearray.fromhex,
    "dec": decimal.Decimal,
    "o": lambda body: Opaque(str(body)[:100]),
}


def send(number: int, message: Any) -> None:
    """Write one message: its length, then JSON."""
    raw = json.dumps(message).encode()
    view = memoryview(len(raw).to_bytes(4, "big") + raw)
    while view:
        view = view[os.write(number, view) :]


def receive(number: int, most: int = LONG) -> Any:
    """Read one message of at most `most` bytes; EOFError at the end of the stream, NotData for a malformed message."""
    length = int.from_bytes(_exactly(number, 4), "big")
    if length > most:
        raise NotData(f"a message of {length} bytes")
    raw = _exactly(number, length)
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        raise NotData("a message that is not JSON") from None


def _exactly(number: int, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        more = os.read(number, min(count - len(data), 1 << 20))
        if not more:
            raise EOFError
        data += more
    return bytes(data)
