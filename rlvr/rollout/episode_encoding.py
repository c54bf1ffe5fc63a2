"""A binary encoding of groups of episodes, for transport and checkpoints: a few arrays of numbers, and JSON for the rest.

A token id takes 2 or 4 bytes, a mask entry one bit, the log-probability of a policy token 4 bytes, a nonzero reward its position and 8
bytes. Texts, verdicts and metadata are one block of JSON. The encoding is lossless, but metadata is decoded to plain types: an enum to its
value, a numpy float to a float, any mapping to a dict. Decoding never unpickles or imports anything, so untrusted bytes are safe.
"""

from __future__ import annotations

import json
import math
import re
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

from rlvr.episode import LOGPROB_EPS, Episode, StopReason, segments_from_json, segments_to_json
from rlvr.errors import RlvrError
from rlvr.task import Fault, StepReward, Verdict

MAGIC = b"rlvr columns 1\n"
"""The magic bytes at the start, with the version of the layout."""
JSON_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)', re.DOTALL)
"""A string of JSON, also one without an end, so that the time to find all of them grows with the text alone."""
HEADER = struct.Struct("<IQ")
"""The header after the magic bytes: checksum and length of the payload."""
ARRAY_DTYPES: Mapping[str, tuple[str, ...]] = {
    "tokens": ("<u2", "<i4", "<i8"),
    "action_mask": ("|u1",),
    "logprobs": ("<f4", "<f8"),
    "reward_positions": ("<i8",),
    "rewards": ("<f8",),
}
"""The arrays in their order, and the dtypes that each may have."""
MAX_CACHED_TOKEN_ID = 1 << 20
"""Token ids below this share int objects between decoded lists."""
EPISODE_FIELDS = tuple(field.name for field in fields(Episode))
Array = np.ndarray[Any, Any]
DECODE_ERRORS = (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError)
"""The exceptions that decoding raises for invalid values."""


class CorruptData(RlvrError):
    """The bytes are not encoded episodes, or are corrupt."""


@dataclass(frozen=True, slots=True, eq=False)
class EncodedEpisodes:
    """Encoded groups of episodes, one array per kind of number. N = all tokens, A = policy tokens.

    >>> encode_episodes([[Episode("t", "g", [5, 6], [False, True], [0.0, -0.5], [0.0, 1.0], StopReason.TERMINATED)]]).logprobs
    array([-0.5], dtype=float32)
    """

    tokens: Array
    """N token ids."""
    action_mask: Array
    """The action mask, packed as bits."""
    logprobs: Array
    """A log-probabilities; the others are 0."""
    reward_positions: Array
    """The positions, among the N tokens, of rewards other than 0."""
    rewards: Array
    episode_lengths: list[int]
    """The number of tokens of each episode."""
    group_sizes: list[int]
    """The number of episodes of each group."""
    metadata_rows: list[Any]
    """The remaining fields of each episode, as plain JSON."""

    def to_bytes(self) -> bytes:
        """Serialize to one block of bytes, with a checksum."""
        arrays: list[Array] = [getattr(self, name) for name in ARRAY_DTYPES]
        shapes = [[part.dtype.str, len(part)] for part in arrays]
        table = json.dumps([shapes, self.episode_lengths, self.group_sizes, self.metadata_rows], ensure_ascii=False, separators=(",", ":"))
        text = table.encode("utf-8", "surrogatepass")
        parts = [struct.pack("<Q", len(text)), text, *(part.data.cast("B") if len(part) else b"" for part in arrays)]
        checksum = 0
        for part in parts:
            checksum = zlib.crc32(part, checksum)
        return b"".join([MAGIC, HEADER.pack(checksum, sum(map(len, parts))), *parts])

    @classmethod
    def from_bytes(cls, data: bytes | memoryview, *, max_values: float = math.inf) -> EncodedEpisodes:
        """Deserialize a block; the arrays are views of it. Raises CorruptData for an invalid block, and for one whose table has more values
        than `max_values`: each of them takes far more memory than the two bytes that it is written in.
        """
        view = memoryview(data).cast("B")
        if (begins := bytes(view[: len(MAGIC)])) != MAGIC:
            if begins.startswith(MAGIC[:13]):
                raise CorruptData(f"these columns of episodes have another layout, {begins!r}, than this version of rlvr reads, {MAGIC!r}")
            raise CorruptData(f"these {len(view):,} bytes are not columns of episodes: they begin with {begins!r}, not {MAGIC!r}")
        begin = len(MAGIC) + HEADER.size
        if len(view) < begin:
            raise CorruptData(f"columns of episodes end after {len(view):,} bytes, in their head; send them again")
        checksum, length = HEADER.unpack_from(view, len(MAGIC))
        if len(view) - begin != length:
            raise CorruptData(f"columns of episodes have {len(view) - begin:,} bytes where {length:,} were written; send them again")
        if zlib.crc32(view[begin:]) != checksum:
            raise CorruptData(f"columns of episodes ({length:,} bytes) have another checksum than when they were written; send them again")
        try:
            return cls._decode(view[begin:], max_values)
        except (*DECODE_ERRORS, struct.error) as error:
            raise CorruptData(f"columns of episodes have a right checksum and cannot be read: {type(error).__name__}: {error}") from error

    @classmethod
    def _decode(cls, view: memoryview, max_values: float) -> EncodedEpisodes:
        [size] = struct.unpack_from("<Q", view)
        table = bytes(view[8 : 8 + size])
        if max_values < math.inf and sum(map(JSON_STRING.sub(b"", table).count, (b",", b"[", b"{"))) > max_values:
            raise ValueError(f"its table has more than {max_values:,} values")
        shapes, lengths, sizes, rest = json.loads(table.decode("utf-8", "surrogatepass"))
        arrays, at = list[Array](), 8 + size
        for (name, kinds), (kind, count) in zip(ARRAY_DTYPES.items(), shapes, strict=True):
            if kind not in kinds or count < 0:
                raise ValueError(f"{count} {name} of type {kind!r}; allowed: {', '.join(kinds)}")
            arrays.append(np.frombuffer(view, np.dtype(kind), count, at) if count else np.empty(0, kind))
            at += arrays[-1].nbytes
        if at != len(view):
            raise ValueError(f"{len(view) - at} bytes are left over")
        tokens, acted, logprobs, reward_at, rewards = arrays
        found = cls(tokens, acted, logprobs, reward_at, rewards, lengths, sizes, rest)
        found._check_consistency()
        return found

    def _check_consistency(self) -> None:
        """Raise an error if the arrays are inconsistent."""
        if not all(isinstance(part, list) for part in (self.episode_lengths, self.group_sizes, self.metadata_rows)):
            raise TypeError("the lengths, the sizes and the rest must be lists")
        if not all(type(count) is int for count in (*self.episode_lengths, *self.group_sizes)):
            raise TypeError("the lengths and the sizes must be whole numbers")
        total = sum(self.episode_lengths)
        fits = min(self.episode_lengths, default=0) >= 0 and len(self.tokens) == total and len(self.action_mask) == (total + 7) // 8
        fits = fits and len(self.logprobs) == int(np.unpackbits(self.action_mask, count=total).sum())
        fits = (
            fits
            and len(self.reward_positions) == len(self.rewards)
            and not np.any((self.reward_positions < 0) | (self.reward_positions >= total))
        )
        if (
            not fits
            or min(self.group_sizes, default=0) < 0
            or not len(self.episode_lengths) == len(self.metadata_rows) == sum(self.group_sizes)
        ):
            raise ValueError("the arrays do not fit each other")


def encode_episodes(groups: Iterable[Sequence[Episode]]) -> EncodedEpisodes:
    """Encode groups of episodes. Raises TypeError for metadata other than text, numbers, None, lists, tuples and mappings."""
    groups = list(groups)
    everyone = [episode for group in groups for episode in group]
    logprobs, mask = array("d"), bytearray()
    reward_at, rewards = list[int](), list[float]()
    for episode in everyone:
        for place in _find_reward_positions(episode.rewards):
            reward_at.append(len(mask) + place)
            rewards.append(episode.rewards[place])
        logprobs.fromlist(episode.logprobs)
        mask += _mask_to_bytes(episode.action_mask)
    acted = np.frombuffer(mask, np.bool_)
    return EncodedEpisodes(
        _to_smallest_dtype(_concatenate_tokens([episode.tokens for episode in everyone]), "tokens"),
        np.packbits(acted),
        _to_smallest_dtype(np.frombuffer(logprobs, np.float64)[acted], "logprobs"),
        np.array(reward_at, "<i8"),
        np.array(rewards, "<f8"),
        [len(episode.tokens) for episode in everyone],
        [len(group) for group in groups],
        [_encode_metadata(episode) for episode in everyone],
    )


def _find_reward_positions(rewards: list[float]) -> Iterable[int]:
    """Return the positions of nonzero rewards. Fast for the usual case of one reward at the end."""
    if (paid := len(rewards) - rewards.count(0.0)) == 0:
        return ()
    if paid == 1 and rewards[-1]:
        return (len(rewards) - 1,)
    return compress(range(len(rewards)), rewards)


def _mask_to_bytes(action_mask: list[bool]) -> bytes:
    """Convert a mask to bytes. Fast for the usual case of one run of True."""
    count = action_mask.count(True)
    begin = action_mask.index(True) if count else len(action_mask)
    if begin + count < len(action_mask):
        return bytes(action_mask)
    return bytes(begin) + b"\x01" * count


def _concatenate_tokens(lists: Sequence[list[int]]) -> Array:
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


def decode_episodes(encoded: EncodedEpisodes) -> list[list[Episode]]:
    """Decode the groups of episodes, with the validation of `Episode`."""
    edges = [0, *accumulate(encoded.episode_lengths)]
    mask = np.unpackbits(encoded.action_mask, count=edges[-1]).view(np.bool_)
    paid = defaultdict[int, list[tuple[int, float]]](list)
    for place, reward in zip(encoded.reward_positions.tolist(), encoded.rewards.tolist(), strict=True):
        number = bisect_right(edges, place) - 1
        paid[number].append((place - edges[number], reward))
    listed, ends = _make_token_list_reader(encoded.tokens), 0
    try:
        sound = _are_numbers_valid(encoded, mask, edges)
        everyone = list[Episode]()
        for number, ((begin, end), rest) in enumerate(zip(pairwise(edges), encoded.metadata_rows, strict=True)):
            rewards = [0.0] * (end - begin)
            for place, reward in paid.get(number, ()):
                rewards[place] = reward
            here = mask[begin:end]
            begins, ends = ends, ends + int(np.count_nonzero(here))
            acted, logprobs = _expand_logprobs(here, encoded.logprobs[begins:ends])
            everyone.append(_decode_episode(rest, [listed(begin, end), acted, logprobs, rewards], is_validated=sound))
    except DECODE_ERRORS as error:
        raise CorruptData(f"columns hold an episode that cannot be one: {error}") from error
    groups = iter(everyone)
    return [list(islice(groups, size)) for size in encoded.group_sizes]


def _expand_logprobs(mask: Array, logprobs: Array) -> tuple[list[bool], list[float]]:
    """Expand one episode's action mask and log-probabilities to lists over all its tokens."""
    count, chosen = len(logprobs), logprobs.tolist()
    begin = int(mask.argmax()) if count else len(mask)
    if begin + count == len(mask) and mask[begin:].all():  # one run, at the end
        return [False] * begin + [True] * count, [0.0] * begin + chosen
    wide = np.zeros(len(mask))
    wide[mask] = logprobs
    return mask.tolist(), wide.tolist()


def _make_token_list_reader(tokens: Array) -> Callable[[int, int], list[int]]:
    """Return a function that slices the token ids as a list. Small ids share int objects, which is faster than creating new ones."""
    if len(tokens) and tokens.min() >= 0 and (most := int(tokens.max())) < MAX_CACHED_TOKEN_ID:
        table = _cached_ints(1 << most.bit_length())
        return lambda begin, end: table[tokens[begin:end]].tolist()
    return lambda begin, end: tokens[begin:end].tolist()


@cache
def _cached_ints(size: int) -> Array:
    """Return the integers below `size` as an object array."""
    return np.array(range(size), dtype=object)


def _are_numbers_valid(encoded: EncodedEpisodes, mask: Array, edges: Sequence[int]) -> bool:
    """Return whether the numbers of all episodes are valid. Vectorized, because checking each episode is slow."""
    firsts = [begin for begin, end in pairwise(edges) if end > begin]
    numbers = bool(((encoded.logprobs > -np.inf) & (encoded.logprobs <= LOGPROB_EPS)).all() and np.isfinite(encoded.rewards).all())
    paid_to_policy = bool(mask[encoded.reward_positions].all()) and not mask[firsts].any()
    return numbers and paid_to_policy and not (len(encoded.rewards) and any(rest[2] == StopReason.FAILED for rest in encoded.metadata_rows))


def _to_smallest_dtype(values: Array, name: str) -> Array:
    """Convert to the smallest dtype that represents every number exactly."""
    with np.errstate(over="ignore", invalid="ignore"):
        for kind in ARRAY_DTYPES[name]:
            if np.array_equal(narrow := values.astype(kind), values):
                return narrow
    return values


def _encode_metadata(episode: Episode) -> list[Any]:
    """Encode the fields of an episode that are not in the arrays, as plain JSON."""
    verdict = episode.verdict
    judged = None
    try:
        if verdict is not None:
            earned = [astuple(part) for part in verdict.step_rewards]
            judged = [
                verdict.score,
                verdict.reason,
                _encode_plain(dict(verdict.components)),
                verdict.fault.value,
                _encode_plain(verdict.detail),
                earned,
            ]
        meta = _encode_plain(episode.meta)
    except (TypeError, RecursionError) as error:
        raise TypeError(f"the episode of {episode.task_id!r} cannot be encoded: {error}; put plain values into meta and detail") from error
    named = [episode.task_id, episode.group, episode.stop_reason.value, episode.policy_version]
    tree = [segments_to_json(episode.segments)] if episode.segments else []
    return [*named, judged, episode.text, episode.turns, episode.error, meta, *tree]


def _decode_episode(metadata: Sequence[Any], numbers: Sequence[list[Any]], *, is_validated: bool) -> Episode:
    """Build an episode from its metadata and lists. Validation is skipped if all numbers were already validated."""
    task_id, group, end, version, judged, text, turns, error, meta, *tree = metadata
    segments = segments_from_json(*tree) if tree else ()
    verdict = None
    if judged is not None:
        score, reason, parts, fault, detail, earned = judged
        verdict = Verdict(
            score, reason, _decode_plain(parts), Fault(fault), _decode_plain(detail), tuple(StepReward(*part) for part in earned)
        )
    values = [task_id, group, *numbers, StopReason(end), version, verdict, text, turns, error, _decode_plain(meta), segments]
    if segments or not is_validated:
        return Episode(*values)
    made = object.__new__(Episode)
    for name, value in zip(EPISODE_FIELDS, values, strict=True):
        object.__setattr__(made, name, value)
    return made


def _encode_plain(value: Any) -> list[Any]:
    """Encode a value for JSON: unchanged if JSON round-trips it, otherwise with type tags."""
    try:
        if json.loads(json.dumps(value)) == value:
            return ["plain", value]
    except (TypeError, ValueError):
        pass
    return ["marked", _encode_tagged(value)]


def _decode_plain(encoded: Sequence[Any]) -> Any:
    """Decode a value of `_encode_plain`."""
    how, value = encoded
    return value if how == "plain" else _decode_tagged(value)


def _encode_tagged(value: Any) -> Any:
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
        return [kind.__name__, *map(_encode_tagged, value)]
    if isinstance(value, Mapping):
        return ["dict", *([_encode_tagged(key), _encode_tagged(item)] for key, item in value.items())]
    raise TypeError(f"{value!r:.80} is a {kind.__name__}, not text, a number, None, a list, a tuple or a mapping")


def _decode_tagged(encoded: Any) -> Any:
    """Decode a value of `_encode_tagged`."""
    if not isinstance(encoded, list):
        return encoded
    kind, *inside = encoded
    if kind == "int":
        return int(inside[0], 16)
    if kind == "dict":
        return {_decode_tagged(key): _decode_tagged(item) for key, item in inside}
    return {"list": list, "tuple": tuple}[kind](map(_decode_tagged, inside))
