"""Model code shared by samplers and the learner: weights, attention, batches, reward models."""

from functools import partial

from rlvr.hints import find_public_name

__getattr__ = partial(find_public_name, "models")
