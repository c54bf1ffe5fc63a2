"""The built-in verifiers, one file each: `rlvr.list("verifier")` has their names, `rlvr.make_verifier(name)` makes one."""

from functools import partial

from rlvr.hints import find_name_in_plugin_folder

__getattr__ = partial(find_name_in_plugin_folder, "verifiers")
