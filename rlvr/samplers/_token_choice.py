"""Sample tokens: apply temperature, top-k and top-p, and draw one token for each row."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rlvr.contracts import Request, SamplingParams
from rlvr.samplers._sampling_support import compute_support_mask


def draw_uniforms(requests: Sequence[Request], num_columns: int) -> Tensor:
    """Draw one row of uniform random numbers per request, from its own seed."""
    generator, numbers_BT = torch.Generator(), torch.zeros(len(requests), num_columns)
    for row, request in zip(numbers_BT, requests, strict=True):
        # row by row, so that the first n numbers do not depend on how many are drawn
        row[: request.max_tokens] = torch.rand(request.max_tokens, generator=generator.manual_seed(request.seed % 2**63))
    return numbers_BT


def sample_tokens(logits_BV: Tensor, sampling: SamplingParams, uniform_B: Tensor) -> tuple[Tensor, Tensor]:
    """Sample one token per row, by inverting the cumulative distribution; return it with its log-probability."""
    if sampling.temperature == 0:
        return logits_BV.argmax(dim=-1), torch.zeros_like(uniform_B)
    logits_BV = logits_BV / sampling.temperature
    if sampling.top_k or sampling.top_p < 1:
        logits_BV = logits_BV.masked_fill(~compute_support_mask(logits_BV, sampling.top_k, sampling.top_p), -torch.inf)
    logits_BV = logits_BV - logits_BV.amax(dim=-1, keepdim=True)
    odds_BV = logits_BV.exp()
    cumulative_BV = odds_BV.cumsum(dim=-1) if odds_BV.device.type == "cpu" else _compute_cumulative_sum(odds_BV)
    total_B = cumulative_BV[:, -1]
    below_B = torch.minimum(uniform_B * total_B, torch.nextafter(total_B, torch.zeros_like(total_B)))  # it may round up to the total
    chosen_B1 = torch.searchsorted(cumulative_BV, below_B[:, None], right=True).clamp(max=logits_BV.shape[-1] - 1)
    logprob_B = logits_BV.gather(1, chosen_B1)[:, 0] - odds_BV.sum(dim=-1).log()
    return chosen_B1[:, 0], logprob_B.clamp(max=0.0)


def _compute_cumulative_sum(odds_BV: Tensor) -> Tensor:
    """Compute the cumulative sum of each row on an accelerator. A single row is duplicated, because its summation order varies."""
    if len(odds_BV) > 1:
        return odds_BV.cumsum(dim=-1)
    return torch.cat([odds_BV, odds_BV]).cumsum(dim=-1)[:1]
