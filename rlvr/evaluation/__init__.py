"""Evaluate policies: suites, samples, statistics, comparisons, rescoring, export."""

from functools import partial

from rlvr.hints import find_public_name

__getattr__ = partial(find_public_name, "evaluation")
