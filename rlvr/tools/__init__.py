"""Tools that a policy may call; one file for each plugin."""

from functools import partial

from rlvr.hints import find_public_name

__getattr__ = partial(find_public_name, "tools")
