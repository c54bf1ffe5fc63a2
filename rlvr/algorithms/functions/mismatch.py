"""Mismatch between the token probabilities of sampler and trainer: metrics, and an optional correction.

With w_t = exp(l_old_t - l_sampler_t), the correction multiplies the policy term (never the KL term):

    token_truncate      min(w_t, cap)                   token_mask        w_t where floor <= w_t <= cap, else 0
    sequence_truncate   min(prod w, cap)                sequence_mask     prod w inside the bounds, else 0
    geometric_mask      1 where the geometric mean of w is inside the bounds, else 0

The product over a sequence grows or shrinks with its length; for long answers prefer the token or geometric forms.
The measurements use the raw ratios, before any truncation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlvr.algorithms.functions.surrogate import LOG_RATIO_LIMIT, spread_row_sums

if TYPE_CHECKING:
    from torch import Tensor

CORRECTIONS = ("none", "token_truncate", "token_mask", "sequence_truncate", "sequence_mask", "geometric_mask")


def compute_mismatch_correction(
    old_logprobs: Tensor, sampler_logprobs: Tensor, row_indices: Tensor, num_rows: int, mode: str, *, max_ratio: float, min_ratio: float
) -> Tensor:
    """Compute the correction factor of each token's policy loss, without a gradient."""
    gap = (old_logprobs - sampler_logprobs).detach()
    if mode.startswith("sequence"):
        gap = spread_row_sums(gap, row_indices, num_rows, mean=False)
    elif mode == "geometric_mask":
        gap = spread_row_sums(gap, row_indices, num_rows, mean=True)
    ratio = gap.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
    inside = ((ratio >= min_ratio) & (ratio <= max_ratio)).to(ratio.dtype)
    if mode in ("token_truncate", "sequence_truncate"):
        return ratio.clamp(max=max_ratio)
    if mode in ("token_mask", "sequence_mask"):
        return ratio * inside
    if mode == "geometric_mask":
        return inside
    raise ValueError(f"importance_sampling_correction is {mode!r}; allowed: {', '.join(CORRECTIONS)}")


def compute_mismatch_metrics(old_logprobs: Tensor, sampler_logprobs: Tensor) -> dict[str, float]:
    """Compute statistics of the raw ratios: quantiles, effective sample size as a fraction, KL(sampler || trainer), largest difference."""
    if old_logprobs.numel() == 0:
        return {}
    gap = (old_logprobs - sampler_logprobs).detach().double()
    ratio = gap.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
    ordered = ratio.sort().values
    last = ordered.numel() - 1
    row = {f"sampling/ratio_{name}": float(ordered[round(q * last)]) for name, q in QUANTILES.items()}
    row["sampling/ratio_mean"] = float(ratio.mean())
    row["sampling/effective_sample_size"] = float(ratio.sum().square() / (ratio.square().sum() * ratio.numel()))
    row["sampling/logp_difference_max"] = float(gap.abs().max())
    row["mismatch_kl"] = float((ratio - 1 - gap).mean())
    return row


QUANTILES = {"min": 0.0, "p01": 0.01, "median": 0.5, "p99": 0.99, "max": 1.0}
