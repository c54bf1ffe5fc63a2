"""A binary encoding of groups of episodes, for transport and checkpoints: a few arrays of numbers, and JSON for the rest.

A token id takes 2 or 4 bytes, a mask entry one bit, the log-probability of a policy token 4 bytes, a nonzero reward its position and 8
bytes. Texts, verdicts and metadata are one block of JSON. The encoding is lossless, but metadata is decoded to plain types: an enum to its
value, a numpy float to a float, any mapping to a dict. Decoding never unpickles or imports anything, so untrusted bytes are safe.
"""

from __future__ import annotations

import json
import struct
import zlib
from array import array
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from functools import cache
from itertools import accumulate, compress, islice, pairwise
from typing import Any

import numpy as np

from rlvr.episode import ABOVE_ZERO, End, Episode
from rlvr.errors import RlvrError
from rlvr.task import Earned, Fault, Verdict

MAGIC = b"rlvr columns 1\n"
"""The magic bytes at the start, with the version of the layout."""
HEAD = struct.Struct("<IQ")
"""The header after the magic bytes: checksum and length of the payload."""
ARRAYS: Mapping[str, tuple[str, ...]] = {
    "tokens": ("<u2", "<i4", "<i8"),
    "acted": ("|u1",),
    "logprobs": ("<f4", "<f8"),
    "reward_at": ("<i8",),
    "rewards": ("<f8",),
}
"""The arrays in their order, and the dtypes that each may have."""
SHARED = 1 << 20
"""Token ids below this share int objects between decoded lists."""
NAMES = tuple(field.name for field in fields(Episode))
Array = np.ndarray[Any, Any]
WRONG = (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError)
"""The exceptions that decoding raises for invalid values."""


class Damaged(RlvrError):
    """The bytes are not encoded episodes, or are corrupt."""


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """Encoded groups of episodes, one array per kind of number. N = all tokens, A = policy tokens.

    >>> to_columns([[Episode("t", "g", [5, 6], [False, True], [0.0, -0.5], [0.0, 1.0], End.TERMINATED)]]).logprobs   # doctest: +SKIP
    array([-0.5], dtype=float32)
    """

    tokens: Array
    """N token ids."""
    acted: Array
    """The action mask, packed as bits."""
    logprobs: Array
    """A log-probabilities; the others are 0."""
    reward_at: Array
    """The positions, among the N tokens, of rewards other than 0."""
    rewards: Array
    lengths: list[int]
    """The number of tokens of each episode."""
    sizes: list[int]
    """The number of episodes of each group."""
    rest: list[Any]
    """The remaining fields of each episode, as plain JSON."""

    def to_bytes(self) -> bytes:
        """Serialize to one block of bytes, with a checksum."""
        arrays: list[Array] = [getattr(self, name) for name in ARRAYS]
        shapes = [[part.dtype.str, len(part)] for part in arrays]
        table = json.dumps([shapes, self.lengths, self.sizes, self.rest], ensure_ascii=False, separators=(",", ":"))
        text = table.encode("utf-8", "surrogatepass")
        parts = [struct.pack("<Q", len(text)), text, *(part.data.cast("B") if len(part) else b"" for part in arrays)]
        checksum = 0
        for part in parts:
            checksum = zlib.crc32(part, checksum)
        return b"".join([MAGIC, HEAD.pack(checksum, sum(map(len, parts))), *parts])

    @classmethod
    def from_bytes(cls, data: bytes | memoryview) -> Columns:
        """Deserialize a block; the arrays are views of it. Raises CorruptData for an invalid block."""
        view = memoryview(data).cast("B")
        if (begins := bytes(view[: len(MAGIC)])) != MAGIC:
            if begins.startswith(MAGIC[:13]):
                raise Damaged(f"these columns of episodes have another layout, {begins!r}, than this version of rlvr reads, {MAGIC!r}")
            raise Damaged(f"these {len(view):,} bytes are not columns of episodes: they begin with {begins!r}, not {MAGIC!r}")
        begin = len(MAGIC) + HEAD.size
        if len(view) < begin:
            raise Damaged(f"columns of episodes end after {len(view):,} bytes, in their head; send them again")
        checksum, length = HEAD.unpack_from(view, len(MAGIC))
        if len(view) - begin != length:
            raise Damaged(f"columns of episodes have {len(view) - begin:,} bytes where {length:,} were written; send them again")
        if zlib.crc32(view[begin:]) != checksum:
            raise Damaged(f"columns of episodes ({length:,} bytes) have another checksum than when they were written; send them again")
        try:
            return cls._read(view[begin:])
        except (*WRONG, struct.error) as error:
            raise Damaged(f"columns of episodes have a right checksum and cannot be read: {type(error).__name__}: {error}") from error

    @classmethod
    def _read(cls, view: memoryview) -> Columns:
        [size] = struct.unpack_from("<Q", view)
        shapes, lengths, sizes, rest = json.loads(bytes(view[8 : 8 + size]).decode("utf-8", "surrogatepass"))
        arrays, at = list[Array](), 8 + size
        for (name, kinds), (kind, count) in zip(ARRAYS.items(), shapes, strict=True):
            if kind not in kinds or count < 0:
                raise ValueError(f"{count} {name} of type {kind!r}; allowed: {', '.join(kinds)}")
            arrays.append(np.frombuffer(view, np.dtype(kind), count, at) if count else np.empty(0, kind))
            at += arrays[-1].nbytes
        if at != len(view):
            raise ValueError(f"{len(view) - at} bytes are left over")
        tokens, acted, logprobs, reward_at, rewards = arrays
        found = cls(tokens, acted, logprobs, reward_at, rewards, lengths, sizes, rest)
        found._check()
        return found

    def _check(self) -> None:
        """Raise an error if the arrays are inconsistent."""
        if not all(isinstance(part, list) for part in (self.lengths, self.sizes, self.rest)):
            raise TypeError("the lengths, the sizes and the rest must be lists")
        if not all(type(count) is int for count in (*self.lengths, *self.sizes)):
            raise TypeError("the lengths and the sizes must be whole numbers")
        total = sum(self.lengths)
        fits = min(self.lengths, default=0) >= 0 and len(self.tokens) == total and len(self.acted) == (total + 7) // 8
        fits = fits and len(self.logprobs) == int(np.unpackbits(self.acted, count=total).sum())
        fits = fits and len(self.reward_at) == len(self.rewards) and not np.any((self.reward_at < 0) | (self.reward_at >= total))
        if not fits or min(self.sizes, default=0) < 0 or not len(self.lengths) == len(self.rest) == sum(self.sizes):
            raise ValueError("the arrays do not fit each other")


def to_columns(groups: Iterable[Sequence[Episode]]) -> Columns:
    """Encode groups of episodes. Raises TypeError for metadata other than text, numbers, None, lists, tuples and mappings."""
    groups = list(groups)
    everyone = [episode for group in groups for episode in group]
    logprobs, mask = array("d"), bytearray()
    reward_at, rewards = list[int](), list[float]()
    for episode in everyone:
        for place in _paid(episode.rewards):
            reward_at.append(len(mask) + place)
            rewards.append(episode.rewards[place])
        logprobs.fromlist(episode.logprobs)
        mask += _flags(episode.acted)
    acted = np.frombuffer(mask, np.bool_)
    return Columns(
        _narrow(_ids([episode.tokens for episode in everyone]), "tokens"),
        np.packbits(acted),
        _narrow(np.frombuffer(logprobs, np.float64)[acted], "logprobs"),
        np.array(reward_at, "<i8"),
        np.array(rewards, "<f8"),
        [len(episode.tokens) for episode in everyone],
        [len(group) for group in groups],
        [_rest(episode) for episode in everyone],
    )


def _paid(rewards: list[float]) -> Iterable[int]:
    """Return the positions of nonzero rewards. Fast for the usual case of one reward at the end."""
    if (paid := len(rewards) - rewards.count(0.0)) == 0:
        return ()
    if paid == 1 and rewards[-1]:
        return (len(rewards) - 1,)
    return compress(range(len(rewards)), rewards)


def _flags(acted: list[bool]) -> bytes:
    """Convert a mask to bytes. Fast for the usual case of one run of True."""
    count = acted.count(True)
    begin = acted.index(True) if count else len(acted)
    if begin + count < len(acted):
        return bytes(acted)
    return bytes(begin) + b"\x01" * count


def _ids(lists: Sequence[list[int]]) -> Array:
    """Concatenate all token ids in one array."""
    for kind in ("i", "q"):
        found = array(kind)
        try:
            for tokens in lists:
                found.fromlist(tokens)
        except OverflowError:
            if kind == "q":
                raise
        else:
            break
    return np.frombuffer(found, found.typecode)


def from_columns(columns: Columns) -> list[list[Episode]]:
    """Decode the groups of episodes, with the validation of `Episode`."""
    edges = [0, *accumulate(columns.lengths)]
    mask = np.unpackbits(columns.acted, count=edges[-1]).view(np.bool_)
    paid = defaultdict[int, list[tuple[int, float]]](list)
    for place, reward in zip(columns.reward_at.tolist(), columns.rewards.tolist(), strict=True):
        number = bisect_right(edges, place) - 1
        paid[number].append((place - edges[number], reward))
    listed, ends = _listed(columns.tokens), 0
    try:
        sound = _sound(columns, mask, edges)
        everyone = list[Episode]()
        for number, ((begin, end), rest) in enumerate(zip(pairwise(edges), columns.rest, strict=True)):
            rewards = [0.0] * (end - begin)
            for place, reward in paid.get(number, ()):
                rewards[place] = reward
            here = mask[begin:end]
            begins, ends = ends, ends + int(np.count_nonzero(here))
            acted, logprobs = _acted(here, columns.logprobs[begins:ends])
            everyone.append(_episode(rest, [listed(begin, end), acted, logprobs, rewards], sound=sound))
    except WRONG as error:
        raise Damaged(f"columns hold an episode that cannot be one: {error}") from error
    groups = iter(everyone)
    return [list(islice(groups, size)) for size in columns.sizes]


def _acted(mask: Array, logprobs: Array) -> tuple[list[bool], list[float]]:
    """Expand one episode's action mask and log-probabilities to lists over all its tokens."""
    count, chosen = len(logprobs), logprobs.tolist()
    begin = int(mask.argmax()) if count else len(mask)
    if begin + count == len(mask) and mask[begin:].all():  # one run, at the end
        return [False] * begin + [True] * count, [0.0] * begin + chosen
    wide = np.zeros(len(mask))
    wide[mask] = logprobs
    return mask.tolist(), wide.tolist()


def _listed(tokens: Array) -> Callable[[int, int], list[int]]:
    """Return a function that slices the token ids as a list. Small ids share int objects, which is faster than creating new ones."""
    if len(tokens) and tokens.min() >= 0 and (most := int(tokens.max())) < SHARED:
        table = _objects(1 << most.bit_length())
        return lambda begin, end: table[tokens[begin:end]].tolist()
    return lambda begin, end: tokens[begin:end].tolist()


@cache
def _objects(size: int) -> Array:
    """Return the integers below `size` as an object array."""
    return np.array(range(size), dtype=object)


def _sound(columns: Columns, mask: Array, edges: Sequence[int]) -> bool:
    """Return whether the numbers of all episodes are valid. Vectorized, because checking each episode is slow."""
    firsts = [begin for begin, end in pairwise(edges) if end > begin]
    numbers = bool(((columns.logprobs > -np.inf) & (columns.logprobs <= ABOVE_ZERO)).all() and np.isfinite(columns.rewards).all())
    paid_to_policy = bool(mask[columns.reward_at].all()) and not mask[firsts].any()
    return numbers and paid_to_policy and not (len(columns.rewards) and any(rest[2] == End.FAILED for rest in columns.rest))


def _narrow(wide: Array, name: str) -> Array:
    """Convert to the smallest dtype that represents every number exactly."""
    with np.errstate(over="ignore", invalid="ignore"):
        for kind in ARRAYS[name]:
            if np.array_equal(narrow := wide.astype(kind), wide):
                return narrow
    return wide


def _rest(episode: Episode) -> list[Any]:
    """Encode the fields of an episode that are not in the arrays, as plain JSON."""
    verdict = episode.verdict
    judged = None
    try:
        if verdict is not None:
            earned = [astuple(part) for part in verdict.earned]
            judged = [verdict.score, verdict.reason, _told(dict(verdict.parts)), verdict.fault.value, _told(verdict.detail), earned]
        meta = _told(episode.meta)
    except (TypeError, RecursionError) as error:
        raise TypeError(f"the episode of {episode.task_id!r} cannot be encoded: {error}; put plain values into meta and detail") from error
    named = [episode.task_id, episode.group, episode.end.value, episode.policy_version]
    return [*named, judged, episode.text, episode.turns, episode.error, meta]


def _episode(rest: Sequence[Any], numbers: Sequence[list[Any]], *, sound: bool) -> Episode:
    """Build an episode from its metadata and lists. Validation is skipped if all numbers were already validated."""
    task_id, group, end, version, judged, text, turns, error, meta = rest
    verdict = None
    if judged is not None:
        score, reason, parts, fault, detail, earned = judged
        verdict = Verdict(score, reason, _heard(parts), Fault(fault), _heard(detail), tuple(Earned(*part) for part in earned))
    values = [task_id, group, *numbers, End(end), version, verdict, text, turns, error, _heard(meta)]
    if not sound:
        return Episode(*values)
    made = object.__new__(Episode)
    for name, value in zip(NAMES, values, strict=True):
        object.__setattr__(made, name, value)
    return made


def _told(value: Any) -> list[Any]:
    """Encode a value for JSON: unchanged if JSON round-trips it, otherwise with type tags."""
    try:
        if json.loads(json.dumps(value)) == value:
            return ["plain", value]
    except (TypeError, ValueError):
        pass
    return ["marked", _marked(value)]


def _heard(told: Sequence[Any]) -> Any:
    """Decode a value of `_encode_plain`."""
    how, value = told
    return value if how == "plain" else _unmarked(value)


def _marked(value: Any) -> Any:
    """Encode a value for JSON, with a type tag at the start of every list, tuple and mapping."""
    kind = type(value)
    if value is None or kind is bool:
        return value
    if isinstance(value, int):
        return int(value) if value.bit_length() <= 64 else ["int", hex(value)]  # Python writes at most 4,300 decimal digits
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, float):
        return float(value)
    if kind in (list, tuple):
        return [kind.__name__, *map(_marked, value)]
    if isinstance(value, Mapping):
        return ["dict", *([_marked(key), _marked(item)] for key, item in value.items())]
    raise TypeError(f"{value!r:.80} is a {kind.__name__}, not text, a number, None, a list, a tuple or a mapping")


def _unmarked(told: Any) -> Any:
    """Decode a value of `_encode_tagged`."""
    if not isinstance(told, list):
        return told
    kind, *inside = told
    if kind == "int":
        return int(inside[0], 16)
    if kind == "dict":
        return {_unmarked(key): _unmarked(item) for key, item in inside}
    return {"list": list, "tuple": tuple}[kind](map(_unmarked, inside))
