"""The algorithms, one file each: an advantage and a loss, composed of the functions in `functions`."""

from functools import partial

from rlvr.hints import find_public_name

__getattr__ = partial(find_public_name, "algorithms")
