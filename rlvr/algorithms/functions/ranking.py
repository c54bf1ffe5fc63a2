"""Ranking: the Bradley-Terry loss of a reward model on pairs of answers.

    -log sigmoid(r+ - r- - margin) + c (r+ + r-)^2          the mean over pairs

The second term keeps the scores near 0 (2312.09244); without it they could drift, because the first uses only their difference.
Only tensor methods are used, so this module needs no import of torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def compute_bradley_terry_loss(chosen: Tensor, rejected: Tensor, margin: Tensor, centering: float) -> Tensor:
    """Compute the loss of each pair, given both scores and the required margin."""
    difference = chosen - rejected - margin
    # log(1 + exp(-x)), without overflow for large |x|
    cost = (-difference).clamp(min=0) + (-difference.abs()).exp().log1p()
    return cost + centering * (chosen + rejected).square()
