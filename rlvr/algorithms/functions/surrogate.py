"""The surrogate loss: compute each token's loss from its probability ratio and its advantage.

All tensors are flat: one entry per acted token, independent of padding and packing. `rows` says which sequence an entry
belongs to. Only tensor methods are used, so this module needs no import of torch.

    level      token: r_t = exp(l_t - l_old_t)          sequence: one ratio, the geometric mean of the tokens' (GSPO)
               sequence_token: its value, per-token gradient       completion: the product of the tokens' (RLOO)
    clip: PPO's pessimistic clip       weighted: a capped, detached ratio as a weight of the log-probability       gated: a soft gate
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor

RATIO_LEVELS = ("token", "sequence", "sequence_token", "completion")
LOG_RATIO_LIMIT = 20.0


class SurrogateLoss(NamedTuple):
    """The loss of each token, and where it was clipped.

    >>> SurrogateLoss._fields
    ('loss', 'clipped_low', 'clipped_high')
    """

    loss: Tensor
    clipped_low: Tensor
    """1.0 where the lower bound stopped the gradient."""
    clipped_high: Tensor
    """1.0 where the upper bound stopped the gradient (for `compute_capped_ratio_loss`: where the weight was capped)."""


def spread_row_sums(values: Tensor, row_indices: Tensor, num_rows: int, *, mean: bool) -> Tensor:
    """Compute the sum or mean over each row's entries, repeated for every entry."""
    sums = values.new_zeros(num_rows).index_add(0, row_indices, values)
    if mean:
        sizes = values.new_zeros(num_rows).index_add(0, row_indices, values.detach() * 0 + 1)
        sums = sums / sizes.clamp(min=1)
    return sums.index_select(0, row_indices)


def compute_log_ratio(new: Tensor, old: Tensor, row_indices: Tensor, num_rows: int, level: str) -> Tensor:
    """Compute the log of the importance ratio at a level, clamped so that its exponential is finite."""
    delta = (new - old).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    return delta if level == "token" else _compute_row_log_ratio(delta, new, row_indices, num_rows, level)


def _compute_row_log_ratio(log_ratios: Tensor, new: Tensor, row_indices: Tensor, num_rows: int, level: str) -> Tensor:
    """Compute one log ratio for all tokens of a row."""
    if level == "completion":
        return spread_row_sums(log_ratios, row_indices, num_rows, mean=False).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    pooled = spread_row_sums(log_ratios, row_indices, num_rows, mean=True)
    if level == "sequence":
        return pooled
    if level == "sequence_token":
        return pooled.detach() + new - new.detach()
    raise ValueError(f"importance_sampling_level is {level!r}; allowed: {', '.join(RATIO_LEVELS)}")


def compute_clipped_loss(
    ratio: Tensor, advantage: Tensor, epsilon: float, epsilon_high: float, delta: float | None = None
) -> SurrogateLoss:
    """Compute PPO's clipped loss, from the smaller of r*A and its clipped form. `delta` bounds the ratio where A < 0 (dual clip)."""
    bounded = ratio if delta is None else ratio.clamp(max=delta)
    loss = -(bounded * advantage).minimum(ratio.clamp(1 - epsilon, 1 + epsilon_high) * advantage)
    low = ((ratio < 1 - epsilon) & (advantage < 0)).to(ratio.dtype)
    high = ((ratio > 1 + epsilon_high) & (advantage > 0)).to(ratio.dtype)
    return SurrogateLoss(loss, low, high)


def compute_capped_ratio_loss(ratio: Tensor, advantage: Tensor, new: Tensor, ratio_max: float) -> SurrogateLoss:
    """Compute -A times the log-probability, weighted by the detached capped ratio, so that no token loses its gradient."""
    weight = ratio.detach().clamp(max=ratio_max)
    return SurrogateLoss(-weight * advantage * new, ratio.detach() * 0, (ratio > ratio_max).to(ratio.dtype))


def compute_gated_loss(ratio: Tensor, advantage: Tensor, temperature_pos: float, temperature_neg: float) -> SurrogateLoss:
    """Compute a loss with a sigmoid gate instead of a clip; the gate has slope 1 at r = 1 for every temperature."""
    positive = (advantage > 0).to(ratio.dtype)
    tau = temperature_pos * positive + temperature_neg * (1 - positive)
    gate = (tau * (ratio - 1)).sigmoid() * 4 / tau
    nothing = ratio.detach() * 0
    return SurrogateLoss(-gate * advantage, nothing, nothing)
