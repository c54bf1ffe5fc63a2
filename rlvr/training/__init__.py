"""Training: the training loop, the policy update, checkpoints and task sampling."""

from functools import partial

from rlvr.hints import find_public_name

__getattr__ = partial(find_public_name, "training")
