"""The configuration of a run: its schema, overrides from the command line, YAML files."""

from functools import partial

from rlvr.hints import find_public_name

__getattr__ = partial(find_public_name, "config")
