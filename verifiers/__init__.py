"""The built-in verifiers, one file each: `rlvr.list("verifier")` has their names, `rlvr.make_verifier(name)` makes one."""

from functools import partial

from rlvr.hints import find_public_name

__getattr__ = partial(find_public_name, "verifiers")
