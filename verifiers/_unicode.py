"""Bring a text of the policy into a normal form of Unicode, in time that grows with its length alone."""

from __future__ import annotations

import unicodedata
from typing import Literal

MAX_MARKS = 100
"""The most combining marks in a row. No script has more than a few, and sorting them takes time that grows with the square of their number."""


def normalize_unicode(form: Literal["NFC", "NFD", "NFKC", "NFKD"], text: str) -> str:
    r"""Return the normal form of a text; a text with a longer row of combining marks than any writing has is returned unchanged.

    >>> normalize_unicode("NFKC", "e\u0301４"), normalize_unicode("NFC", "e" + "\u0301\u0323" * 200) == "e" + "\u0301\u0323" * 200
    ('é4', True)
    """
    return text if not text.isascii() and _has_long_row_of_marks(text) else unicodedata.normalize(form, text)


def _has_long_row_of_marks(text: str) -> bool:
    marks = 0
    for sign in text:
        marks = marks + 1 if unicodedata.combining(sign) else 0
        if marks > MAX_MARKS:
            return True
    return False
