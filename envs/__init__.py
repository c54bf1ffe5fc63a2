"""The built-in environments, one file each: `rlvr.list("env")` has their names, `rlvr.make_env(name)` makes one."""

from functools import partial

from rlvr.hints import find_public_name

__getattr__ = partial(find_public_name, "envs")
