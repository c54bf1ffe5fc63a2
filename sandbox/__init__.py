"""The built-in sandboxes, one file each: `rlvr.list("sandbox")` has their names, `rlvr.make_sandbox(name)` makes one."""

from functools import partial

from rlvr.hints import find_public_name

__getattr__ = partial(find_public_name, "sandbox")
