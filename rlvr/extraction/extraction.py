r"""The result of a search for an answer, and how several declarations are combined."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

MAX_DECLARATIONS = 1000
"""Maximum number of declarations that are read; of more, only the last ones count."""


@dataclass(frozen=True, slots=True)
class Extraction:
    r"""The answer that a text declares; or None, with the reason.

    >>> Extraction("42", "in the box")
    Extraction(text='42', reason='in the box', candidates=())
    """

    text: str | None
    reason: str
    candidates: tuple[str, ...] = ()
    """The different declared answers, if there was more than one and `text` is None for that reason."""


def deduplicate_keeping_last(texts: Sequence[str]) -> list[str]:
    """Return the different texts, ignoring whitespace, in the order of their last occurrence.

    >>> deduplicate_keeping_last(["1 2", "3", "12"])
    ['3', '12']
    """
    rows: dict[str, str] = {}
    for text in texts:
        key = "".join(text.split())
        rows.pop(key, None)
        rows[key] = text
    return list(rows.values())


def require_agreement(texts: Sequence[str], source: str) -> Extraction:
    """Return the answer that all declarations agree on; no answer if they differ.

    >>> require_agreement(["7", " 7"], "the tag").text, require_agreement(["7", "8"], "the tag").candidates
    ('7', ('7', '8'))
    """
    different = deduplicate_keeping_last([text.strip() for text in texts]) if len(texts) > 1 else [texts[0].strip()]
    if len(different) > 1:
        return Extraction(None, f"{source} {'hold' if ' and ' in source else 'holds'} {len(different)} different answers", tuple(different))
    return Extraction(different[0], f"in {source}") if different[0] else Extraction(None, f"{source} is empty")
