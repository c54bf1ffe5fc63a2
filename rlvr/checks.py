"""Conformance kits: what the author of a plugin runs to see that it keeps its promises."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Check:
    """One row of a kit's table: what was looked at, whether it holds, and what was seen.

    >>> Check("is reproducible", True, "holds").ok
    True
    """

    name: str
    ok: bool
    detail: str
