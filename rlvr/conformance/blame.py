"""Whose code an exception came out of: the author of a plugin wants a file, a line and a method, and no word of ours."""

from __future__ import annotations

from traceback import walk_tb

from rlvr.plugins.foreign import packages
from rlvr.plugins.registry import FILE_MODULE, KINDS


def place_of(error: BaseException) -> str:
    """Where a plugin that is not ours was when it raised this; empty where none was at work.

    >>> place_of(KeyError("answer"))
    ''
    """
    foreign = packages(kind.group for kind in KINDS.values()) - {"rlvr"}
    for frame, line in reversed(list(walk_tb(error.__traceback__))):
        module = str(frame.f_globals.get("__name__", ""))
        if module.startswith(FILE_MODULE) or module.split(".")[0] in foreign:
            return f"{frame.f_code.co_filename}:{line}, in {frame.f_code.co_name}"
    return ""
