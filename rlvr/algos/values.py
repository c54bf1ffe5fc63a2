"""The value function of PPO: generalised advantage estimation on lists, the value loss on tensors.

A token that the environment wrote is not an action: it is not a discount step, and it passes the next value and the
running advantage on unchanged, so inserting such tokens does not change the result. A reward on such a token belongs to
the action before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def gae(acted: Sequence[bool], rewards: Sequence[float], values: Sequence[float], gamma: float, lam: float) -> list[float]:
    """The advantage of each acted token (0.0 elsewhere); `values[t]` is the critic's value before token t.

    >>> gae([False, True, True], [0.0, 0.0, 1.0], [0.0, 0.5, 0.5], 1.0, 1.0)
    [0.0, 0.5, 0.5]
    """
    advantages = [0.0] * len(rewards)
    next_value = running = pending = 0.0
    for t in range(len(rewards) - 1, -1, -1):
        pending += rewards[t]
        if acted[t]:
            surprise = pending + gamma * next_value - values[t]
            running = advantages[t] = surprise + gamma * lam * running
            next_value, pending = values[t], 0.0
    return advantages


def value_loss(values: Tensor, old: Tensor, returns: Tensor, epsilon: float | None) -> Tensor:
    """Half the squared error per token: the larger of the unclipped and the clipped one (epsilon None: unclipped)."""
    free = (values - returns).square()
    if epsilon is None:
        return 0.5 * free
    held = old + (values - old).clamp(-epsilon, epsilon)
    return 0.5 * free.maximum((held - returns).square())
