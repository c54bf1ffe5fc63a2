"""The built-in environments, one file each: `rlvr.list("env")` has their names, `rlvr.make_env(name)` makes one."""

from functools import partial

from rlvr.hints import find_name_in_plugin_folder

__getattr__ = partial(find_name_in_plugin_folder, "envs")
