"""The built-in sandboxes, one file each: `rlvr.list("sandbox")` has their names, `rlvr.make_sandbox(name)` makes one."""

from functools import partial

from rlvr.hints import find_name_in_plugin_folder

__getattr__ = partial(find_name_in_plugin_folder, "sandbox")
