"""Ranking: the loss of a reward model on pairs of answers (Bradley-Terry).

    -log sigmoid(r+ - r- - margin) + c (r+ + r-)^2          the mean over pairs

The second term keeps scores around 0 (2312.09244); a difference of scores alone would leave them free to drift.
Only tensor methods are used, so this module needs no import of torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def bradley_terry(chosen: Tensor, rejected: Tensor, margin: Tensor, centering: float) -> Tensor:
    """The loss of each pair, given both scores and by how much they should differ at least."""
    difference = chosen - rejected - margin
    # log(1 + exp(-x)), written so that neither side overflows
    cost = (-difference).clamp(min=0) + (-difference.abs()).exp().log1p()
    return cost + centering * (chosen + rejected).square()
