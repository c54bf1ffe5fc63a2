"""Serialization of plain values and rlvr dataclasses: a JSON table, and long lists of numbers as arrays.

Arrays in their smallest exact dtype are much smaller and faster than pickles. Groups of episodes use the encoding of
rlvr/rollout/episode_encoding.py. Other values are pickled; only processes of the same run read them.
"""

from __future__ import annotations

import importlib
import json
import pickle
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import torch

from rlvr.episode import Episode
from rlvr.rollout.episode_encoding import EncodedEpisodes, decode_episodes, encode_episodes

MIN_ARRAY_LENGTH = 8
"""The minimum length of a list of numbers that is encoded as an array."""


def serialize(value: Any) -> bytes:
    """Serialize a value to bytes.

    >>> deserialize(serialize({"tokens": [1, 2], "rest": (None, 0.5)}))
    {'tokens': [1, 2], 'rest': (None, 0.5)}
    """
    arrays: list[bytes] = []
    table = json.dumps(_encode(value, arrays)).encode()
    sizes = [len(table), *map(len, arrays)]
    return struct.pack(f"<{len(sizes) + 1}q", len(sizes), *sizes) + table + b"".join(arrays)


def deserialize(data: bytes | memoryview) -> Any:
    """Deserialize a value of `serialize`."""
    view = memoryview(data)
    [count] = struct.unpack_from("<q", view)
    sizes = struct.unpack_from(f"<{count}q", view, 8)
    parts, at = [], 8 * (count + 1)
    for size in sizes:
        parts.append(view[at : at + size])
        at += size
    return _decode(json.loads(bytes(parts[0])), parts[1:])


def _encode(value: Any, arrays: list[bytes]) -> Any:
    """Encode a value as JSON: plain values unchanged, others as an object with one key, the kind."""
    if value is None or type(value) in (str, bool, int, float):
        return value
    if isinstance(value, Enum) and type(value).__module__.startswith("rlvr."):
        return {"enum": [type(value).__module__, type(value).__qualname__, value.value]}
    if isinstance(value, list | tuple) and type(value) in (list, tuple):
        if (columns := _encode_groups(value)) is not None:
            arrays.append(columns)
            return {"groups": len(arrays) - 1}
        numbers = _to_array(value)
        if numbers is not None:
            arrays.append(numbers.tobytes())
            kind = "tuple of" if type(value) is tuple else "list of"
            return {kind: [len(arrays) - 1, numbers.dtype.str, type(value[0]).__name__]}
        inside = [_encode(item, arrays) for item in value]
        return {"tuple": inside} if type(value) is tuple else inside
    if type(value) is dict:
        return {"dict": [[_encode(key, arrays), _encode(item, arrays)] for key, item in value.items()]}
    if isinstance(value, PurePath):
        return {"path": str(value)}
    if isinstance(value, torch.Tensor) and not value.dtype.is_complex and value.dtype is not torch.bfloat16:
        array = value.detach().cpu().numpy()
        arrays.append(array.tobytes())
        return {"tensor": [len(arrays) - 1, array.dtype.str, list(array.shape)]}
    if is_dataclass(value) and type(value).__module__.startswith("rlvr.") and all(field.init for field in fields(value)):
        inside = [[field.name, _encode(getattr(value, field.name), arrays)] for field in fields(value)]
        return {"record": [type(value).__module__, type(value).__qualname__, inside]}
    arrays.append(pickle.dumps(value))
    return {"pickle": len(arrays) - 1}


def _encode_groups(value: Sequence[Any]) -> bytes | None:
    """Encode a list of groups of episodes; None for other lists, and for metadata that cannot be encoded."""
    groups = type(value) is list and value and all(type(group) is list and group and type(group[0]) is Episode for group in value)
    if not groups or not all(type(episode) is Episode for group in value for episode in group):
        return None
    try:
        return encode_episodes(value).to_bytes()
    except (TypeError, OverflowError):
        return None


def _to_array(value: Sequence[Any]) -> np.ndarray[Any, Any] | None:
    """Convert a long list of numbers of one type to its smallest exact dtype; None for other lists."""
    if len(value) < MIN_ARRAY_LENGTH:
        return None
    kinds = set(map(type, value))
    if kinds == {float}:
        wide = np.array(value, dtype=np.float64)
        with np.errstate(over="ignore"):
            narrow = wide.astype(np.float32)
        return narrow if np.array_equal(narrow, wide, equal_nan=True) else wide
    if kinds == {bool}:
        return np.array(value, dtype=np.uint8)
    if kinds == {int} and min(value) >= -(1 << 63) and max(value) < 1 << 63:
        whole = np.array(value, dtype=np.int64)
        return whole.astype(np.int32) if min(value) >= -(1 << 31) and max(value) < 1 << 31 else whole
    return None


def _decode(encoded: Any, arrays: Sequence[memoryview]) -> Any:
    """Decode a value of `_encode`."""
    if isinstance(encoded, list):
        return [_decode(item, arrays) for item in encoded]
    if not isinstance(encoded, dict):
        return encoded
    [(kind, inside)] = encoded.items()
    return DECODERS[kind](inside, arrays)


def _decode_list(inside: Any, arrays: Sequence[memoryview]) -> list[Any]:
    place, dtype, kind = inside
    numbers: list[Any] = np.frombuffer(arrays[place], dtype=np.dtype(dtype)).tolist()
    return [number != 0 for number in numbers] if kind == "bool" else numbers


def _decode_tensor(inside: Any, arrays: Sequence[memoryview]) -> torch.Tensor:
    place, dtype, shape = inside
    return torch.from_numpy(np.frombuffer(bytearray(arrays[place]), dtype=np.dtype(dtype)).reshape(shape))


def _decode_dataclass(inside: Any, arrays: Sequence[memoryview]) -> Any:
    """Rebuild an rlvr dataclass with its constructor, so that its validation runs again."""
    module, name, values = inside
    return _resolve_own_class(module, name)(**{key: _decode(value, arrays) for key, value in values})


def _resolve_own_class(module: str, name: str) -> Any:
    if not module.startswith("rlvr."):
        raise ValueError(f"a record of {module} in a message between processes")
    return getattr(importlib.import_module(module), name)


DECODERS: Mapping[str, Callable[[Any, Sequence[memoryview]], Any]] = {
    "list of": _decode_list,
    "tuple of": lambda inside, arrays: tuple(_decode_list(inside, arrays)),
    "tuple": lambda inside, arrays: tuple(_decode(item, arrays) for item in inside),
    "dict": lambda inside, arrays: {_decode(key, arrays): _decode(value, arrays) for key, value in inside},
    "groups": lambda inside, arrays: decode_episodes(EncodedEpisodes.from_bytes(arrays[inside])),
    "path": lambda inside, _: Path(inside),
    "tensor": _decode_tensor,
    "record": _decode_dataclass,
    "enum": lambda inside, _: _resolve_own_class(inside[0], inside[1])(inside[2]),
    "pickle": lambda inside, arrays: pickle.loads(arrays[inside]),
}
