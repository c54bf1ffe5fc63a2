"""Find the plugin code that raised an exception, so that an error message names the author's file, line and method."""

from __future__ import annotations

from traceback import walk_tb

from rlvr.plugins.foreign import packages
from rlvr.plugins.registry import FILE_MODULE, KINDS


def place_of(error: BaseException) -> str:
    """Find the place in a third-party plugin that raised this exception; "" if no third-party plugin is in the traceback.

    >>> place_of(KeyError("answer"))
    ''
    """
    foreign = packages(kind.group for kind in KINDS.values()) - {"rlvr"}
    for frame, line in reversed(list(walk_tb(error.__traceback__))):
        module = str(frame.f_globals.get("__name__", ""))
        if module.startswith(FILE_MODULE) or module.split(".")[0] in foreign:
            return f"{frame.f_code.co_filename}:{line}, in {frame.f_code.co_name}"
    return ""
