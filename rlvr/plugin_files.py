"""Plugins in files of the user, `path/to/file.py:Object`: which file such a name means.

A name is relative to the file that names it (a recipe, a suite, the class whose `needs` has it), and then to the current folder. A run
folder keeps a copy of each such file in `plugins/`; the copy is meant where the file itself is gone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

FILE_PLUGIN_PATTERN = re.compile(r"(?P<path>[^\n{}]+\.py):(?P<name>[^\W\d]\w*)")
COPIES_FOLDER = "plugins"
"""The folder of a run with the copies of plugin files."""


def find_plugin_file(path: str, folder: Path | None = None) -> Path | None:
    """Find the file of a plugin: relative to `folder`, then to the current folder, then among the copies of a run; None if there is none.

    >>> find_plugin_file("no_such_file.py") is None
    True
    """
    given = Path(path).expanduser()
    places = [given] if folder is None else [folder / given, given, folder / COPIES_FOLDER / given.name]
    if folder is not None and folder.name == COPIES_FOLDER:  # a copy that names another copy
        places.append(folder / given.name)
    return next((place.resolve() for place in places if place.is_file()), None)


def resolve_plugin_files(data: Any, folder: Path | None = None) -> Any:
    """Return plain data with absolute paths in all names `path/to/file.py:Object` whose file exists; everything else is unchanged.

    >>> resolve_plugin_files({"name": "dataset", "verifier": "numeric"})
    {'name': 'dataset', 'verifier': 'numeric'}
    """

    def resolve(path: str, name: str) -> str:
        found = find_plugin_file(path, folder)
        return f"{found or path}:{name}"

    return _replace_names(data, resolve)


def shorten_plugin_files(data: Any) -> Any:
    """Return plain data with file names only in all names `path/to/file.py:Object`: the same plugin in another folder has the same name.

    >>> shorten_plugin_files({"name": "/home/me/worlds.py:Chess", "size": 8})
    {'name': 'worlds.py:Chess', 'size': 8}
    """
    return _replace_names(data, lambda path, name: f"{Path(path).name}:{name}")


def _replace_names(data: Any, replace: Callable[[str, str], str]) -> Any:
    if isinstance(data, str):
        match = FILE_PLUGIN_PATTERN.fullmatch(data)
        return replace(match["path"], match["name"]) if match else data
    if isinstance(data, Mapping):
        return {_replace_names(key, replace): _replace_names(value, replace) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return type(data)([_replace_names(value, replace) for value in data]) if type(data) in (list, tuple) else data
    return data
