"""Plugins of third-party packages: their entry points, read from metadata only, so that a broken package does not affect others."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from functools import lru_cache
from importlib.metadata import Distribution, EntryPoint, distributions, entry_points


def find_entry_points(group: str) -> dict[str, list[EntryPoint]]:
    """Find the entry points of a group, by name; a name may be defined by several packages.

    >>> find_entry_points("rlvr.nothing")
    {}
    """
    named: dict[str, list[EntryPoint]] = {}
    for point in _list_entry_points(group, tuple((path, _get_mtime(path)) for path in sys.path)):
        if point.name not in (None, "") and point not in named.get(point.name, []):
            named.setdefault(point.name, []).append(point)
    return named


def get_package_name(dist: Distribution | None) -> str:
    """Return the name of the package that defines an entry point.

    >>> get_package_name(None)
    '?'
    """
    try:
        return str(dist.metadata["Name"] or "?") if dist else "?"
    except Exception:
        return "?"


def find_plugin_packages(groups: Iterable[str]) -> set[str]:
    """Find the top-level packages that the entry points of these groups import.

    >>> find_plugin_packages(["rlvr.nothing"])
    set()
    """
    found = (point for group in groups for named in find_entry_points(group).values() for point in named)
    return {point.value.split(":")[0].split(".")[0].strip() for point in found}


@lru_cache(maxsize=64)
def _list_entry_points(group: str, path_state: tuple[tuple[str, float], ...]) -> Sequence[EntryPoint]:
    """List the entry points of a group, read again when a package came to or left the folders of the import path."""
    try:
        return list(entry_points(group=group))
    except Exception:  # one malformed entry_points.txt must not hide the plugins of other packages
        return [point for dist in distributions() for point in _read_entry_points(dist) if point.group == group]


def _get_mtime(path: str) -> float:
    try:
        return os.stat(path or ".").st_mtime
    except (OSError, TypeError, ValueError):
        return 0.0


def _read_entry_points(dist: Distribution) -> list[EntryPoint]:
    try:
        return list(dist.entry_points)
    except Exception:
        return []
