r"""What a search for an answer gives back, and how several declarations become one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

MANY = 1000
"""Of more declarations than this only the last ones count."""


@dataclass(frozen=True, slots=True)
class Found:
    r"""The answer that a text declares, or None and why there is none.

    >>> Found("42", "in the box")
    Found(text='42', reason='in the box', several=())
    """

    text: str | None
    reason: str
    several: tuple[str, ...] = ()
    """The different answers that were declared, when there was more than one and `text` is therefore None."""


def distinct(texts: Sequence[str]) -> list[str]:
    """The different texts, spaces apart, in order of their last appearance.

    >>> distinct(["1 2", "3", "12"])
    ['3', '12']
    """
    rows: dict[str, str] = {}
    for text in texts:
        key = "".join(text.split())
        rows.pop(key, None)
        rows[key] = text
    return list(rows.values())


def one(texts: Sequence[str], where: str) -> Found:
    """The answer that all declarations agree on; refused where they differ.

    >>> one(["7", " 7"], "the tag").text, one(["7", "8"], "the tag").several
    ('7', ('7', '8'))
    """
    different = distinct([text.strip() for text in texts]) if len(texts) > 1 else [texts[0].strip()]
    if len(different) > 1:
        return Found(None, f"{where} holds {len(different)} different answers", tuple(different))
    return Found(different[0], f"in {where}") if different[0] else Found(None, f"{where} is empty")
