"""The registry: finds and builds plugins by name, including those of other packages."""

from functools import partial

from rlvr.hints import find_public_name

__getattr__ = partial(find_public_name, "registry")
