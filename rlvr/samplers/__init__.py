"""The samplers: the plugins that sample answers to prompts."""

from functools import partial

from rlvr.hints import find_public_name

__getattr__ = partial(find_public_name, "samplers")
