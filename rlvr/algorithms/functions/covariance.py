"""The covariance of log-probability and advantage at each token, which drives the change of the policy's entropy (2505.22617),
and the threshold of the largest values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rlvr.algorithms.functions.advantages import AllReduce

if TYPE_CHECKING:
    from torch import Tensor


def compute_covariance(columns: Mapping[str, Tensor], all_reduce: AllReduce) -> Tensor:
    """Compute each token's contribution to the covariance: (A - mean A) (l - mean l), with means over the optimizer step."""
    advantages, logs = columns["advantages"].double(), columns["old_logprobs"].double()
    count, added, summed = all_reduce([float(advantages.numel()), float(advantages.sum()), float(logs.sum())])
    return (advantages - added / max(count, 1.0)) * (logs - summed / max(count, 1.0))


def find_top_fraction_threshold(values: Any, fraction: float, all_reduce: AllReduce) -> float:
    """Find the threshold of the largest `fraction` of the values of all processes (at least one); values are an array or a tensor.

    >>> import numpy as np
    >>> bool(3.0 < find_top_fraction_threshold(np.array([1.0, 4.0, 2.0, 3.0]), 0.25, list) <= 4.0)
    True
    """
    count, top = all_reduce([float(len(values)), float(abs(values).max()) if len(values) else 0.0])
    most = max(1.0, math.floor(fraction * count))
    low, high = -top - 1.0, top + 1.0
    for _ in range(60):
        middle = (low + high) / 2
        [above] = all_reduce([float((values >= middle).sum())])
        low, high = (middle, high) if above > most else (low, middle)
    [found] = all_reduce([float((values >= high).sum())])
    return high if found else low  # none is above `high` if the largest are equal
