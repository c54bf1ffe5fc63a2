"""Find the word that was probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

LEAST_SIMILAR = 0.8
"""How similar a word must be to be taken for a slip of the fingers; difflib's ratio."""


def find_similar(word: str, known: Iterable[str]) -> str:
    """Find the known word that was probably meant: few letters differ, they stand in another order, or the end is missing.

    >>> find_similar("trian", ["train", "list"]), find_similar("temp", ["top-p", "temperature"]), find_similar("score", ["compare"])
    ('train', 'temperature', '')
    """
    names = sorted(known)
    same = [name for name in names if sorted(name) == sorted(word)]
    longer = [name for name in names if len(word) >= 3 and name.startswith(word)]
    near = same or difflib.get_close_matches(word, names, n=1, cutoff=LEAST_SIMILAR) or (longer if len(longer) == 1 else [])
    return near[0] if near else ""
