"""Find the plugin code that raised an exception, so that an error message names the author's file, line and method."""

from __future__ import annotations

from traceback import walk_tb

from rlvr.registry.plugins import FILE_MODULE_PREFIX, PLUGIN_KINDS
from rlvr.registry.third_party import find_plugin_packages


def find_plugin_location(error: BaseException) -> str:
    """Find the place in a third-party plugin that raised this exception; "" if no third-party plugin is in the traceback.

    >>> find_plugin_location(KeyError("answer"))
    ''
    """
    foreign = find_plugin_packages(kind.entry_point_group for kind in PLUGIN_KINDS.values()) - {"rlvr"}
    for frame, line in reversed(list(walk_tb(error.__traceback__))):
        module = str(frame.f_globals.get("__name__", ""))
        if module.startswith(FILE_MODULE_PREFIX) or module.split(".")[0] in foreign:
            return f"{frame.f_code.co_filename}:{line}, in {frame.f_code.co_name}"
    return ""
