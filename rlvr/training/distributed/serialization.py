"""Serialization of the values that the processes of one run send each other: pickles, in which groups of episodes are columns.

The encoding of rlvr/rollout/episode_encoding.py is much smaller and faster than a pickle of episodes. A tensor travels as an array: without
its graph, its device and the rest of its storage. Only processes of the same run read these bytes.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

import torch

from rlvr.episode import Episode
from rlvr.rollout.episode_encoding import EncodedEpisodes, decode_episodes, encode_episodes


def serialize(value: Any) -> bytes:
    """Serialize a value to bytes.

    >>> deserialize(serialize({"tokens": [1, 2], "rest": (None, 0.5)}))
    {'tokens': [1, 2], 'rest': (None, 0.5)}
    """
    out = io.BytesIO()
    _Pickler(out, protocol=pickle.HIGHEST_PROTOCOL).dump(value)
    return out.getvalue()


def deserialize(data: bytes | memoryview) -> Any:
    """Deserialize a value of `serialize`."""
    return _Unpickler(io.BytesIO(data)).load()


class _Pickler(pickle.Pickler):
    def persistent_id(self, value: Any) -> bytes | None:
        """Return the columns of a list of groups of episodes; None for other values, and for metadata that cannot be encoded."""
        if type(value) is not list or not value or not all(type(group) is list and group and type(group[0]) is Episode for group in value):
            return None
        if not all(type(episode) is Episode for group in value for episode in group):
            return None
        try:
            return encode_episodes(value).to_bytes()
        except (TypeError, OverflowError):
            return None

    def reducer_override(self, value: Any) -> Any:
        """Reduce a tensor to its numbers."""
        if not isinstance(value, torch.Tensor):
            return NotImplemented
        own = value.detach().cpu()
        if own.dtype is torch.bfloat16 or own.dtype.is_complex:  # numpy has no bfloat16
            return own.clone().__reduce_ex__(pickle.HIGHEST_PROTOCOL)
        return torch.from_numpy, (own.numpy(),)


class _Unpickler(pickle.Unpickler):
    def persistent_load(self, columns: bytes) -> list[list[Episode]]:
        """Decode groups of episodes."""
        return decode_episodes(EncodedEpisodes.from_bytes(columns))
