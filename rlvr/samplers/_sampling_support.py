"""Sampling support: the tokens that `top_k` and `top_p` leave to sample from, for the sampler and for the trainer.

The sampler draws from the distribution restricted to these tokens and renormalized. If the trainer scored the same tokens under the full
distribution, every ratio would be off by the removed mass. So the trainer restricts its own distribution to the same tokens. It recomputes
them from its own logits, which equal the sampler's while the weights are equal: in the first pass over a step's completions. If more
optimizer steps follow, that pass records the tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from rlvr.config.config import RunConfig
from rlvr.contracts.algorithm import Algorithm
from rlvr.errors import ConfigError
from rlvr.models.batch import Batch

MASKED_LOGIT = -1e30
"""Logit of a masked token: its probability is exactly 0, and 0 times it is not NaN."""
LogitMask = Callable[[Tensor, slice], Tensor]
"""Masks the logits (divided by the temperature) of some of a batch's entries."""


def compute_support_mask(logits: Tensor, top_k: int, top_p: float) -> Tensor:
    """Return a mask of the tokens that may be sampled: the `top_k` likeliest, and of those the fewest that reach `top_p` together."""
    stays = torch.ones_like(logits, dtype=torch.bool)
    if 0 < top_k < logits.shape[-1]:
        stays = logits >= logits.topk(top_k, dim=-1).values[:, -1:]
        logits = logits.masked_fill(~stays, -torch.inf)
    if top_p < 1:
        ordered, order = logits.sort(dim=-1, descending=True)
        odds = ordered.softmax(dim=-1)
        stays = stays & torch.zeros_like(stays).scatter(1, order, odds.cumsum(dim=-1) - odds < top_p)
    return stays


class SamplingSupportMask:
    """Masks the trainer's logits of each scored token to the tokens that the sampler could have chosen.

    >>> s = SamplingSupportMask(top_k=2, top_p=1.0)
    >>> s.mask_logits(torch.tensor([[3.0, 2.0, 1.0]]), torch.tensor([0])) > MASKED_LOGIT
    tensor([[ True,  True, False]])
    """

    def __init__(self, top_k: int, top_p: float, *, recorded: bool = False) -> None:
        self.top_k, self.top_p, self.is_recorded = top_k, top_p, recorded
        """`recorded`: the weights change between passes, so the tokens are those of the earlier pass without gradients."""
        self.support_ids: dict[int, Tensor] = {}
        """For each entry of the step, the tokens that could have been sampled."""

    def mask_logits(self, logits: Tensor, target: Tensor) -> Tensor:
        """Mask logits to their own support, which always includes the chosen token, regardless of rounding."""
        return logits.masked_fill(~self._compute_mask(logits, target), MASKED_LOGIT)

    def _compute_mask(self, logits: Tensor, target: Tensor) -> Tensor:
        return compute_support_mask(logits.detach(), self.top_k, self.top_p).scatter(1, target[:, None], True)

    def make_policy_mask(self, batch: Batch) -> LogitMask:
        """Return the mask function for a batch of the policy."""
        if not self.is_recorded:
            return lambda logits, part: self.mask_logits(logits, batch.targets[part])
        if _is_padding_batch(batch):
            return _keep_logits
        return partial(self._mask_recorded if torch.is_grad_enabled() else self._record_and_mask, batch)

    def make_reference_mask(self, batch: Batch) -> LogitMask:
        """Return the mask function for a batch of the reference model, which uses the recorded tokens of the policy."""
        return _keep_logits if _is_padding_batch(batch) else partial(self._mask_recorded, batch)

    def _record_and_mask(self, batch: Batch, logits: Tensor, part: slice) -> Tensor:
        stays = self._compute_mask(logits, batch.targets[part])
        ids = torch.split_with_sizes(stays.nonzero()[:, 1].to("cpu", torch.int32), stays.sum(1).tolist())
        self.support_ids.update(zip(batch.entry_positions[part].tolist(), ids, strict=True))
        return logits.masked_fill(~stays, MASKED_LOGIT)

    def _mask_recorded(self, batch: Batch, logits: Tensor, part: slice) -> Tensor:
        known = [self.support_ids[entry] for entry in batch.entry_positions[part].tolist()]
        row = torch.repeat_interleave(torch.arange(len(known)), torch.tensor([len(ids) for ids in known]))
        stays = torch.zeros_like(logits, dtype=torch.bool)
        stays[row.to(logits.device), torch.cat(known).long().to(logits.device)] = True
        return logits.masked_fill(~stays, MASKED_LOGIT)


def _is_padding_batch(batch: Batch) -> bool:
    """Return whether a batch is padding: a single token that a process computes while others still have micro-batches."""
    return batch.input_ids.numel() == 1


def _keep_logits(logits: Tensor, part: slice) -> Tensor:
    return logits


def make_sampling_support_mask(config: RunConfig, algorithm: Algorithm) -> SamplingSupportMask | None:
    """Make the mask of the tokens that `top_p` and `top_k` can sample, for the trainer; None if both are off.

    Raises ConfigError if the trainer cannot apply the mask.
    """
    asked = config.rollout
    if (asked.top_p == 1 and not asked.top_k) or config.data is not None or algorithm.traits.is_supervised:
        return None
    name = f"rollout.top_p is {asked.top_p:g}" if asked.top_p < 1 else f"rollout.top_k is {asked.top_k}"
    once = config.train.minibatches_per_step == 1 and algorithm.traits.num_iterations == 1 and not algorithm.traits.needs_batch_stats
    early = bool(algorithm.traits.token_inputs)
    cause = ""
    if asked.is_off_policy:
        setting = next((name for name in ("max_staleness", "partial_rollout_tokens") if getattr(asked, name)), None)
        cause = f"with {f'rollout.{setting}' if setting else 'this batch source'} the completions come from older weights"
    elif algorithm.traits.use_rollout_logprobs and not once:
        cause = "this algorithm takes several optimizer steps and never scores the completions with the weights that sampled them"
    elif algorithm.traits.scoring_models and not early:
        cause = "the KL to the reference (algorithm.beta), or another frozen model, is computed before the policy's scores"
    if cause:
        raise ConfigError(
            f"{name}, and the trainer must restrict its probabilities to the same tokens as the sampler; but {cause}, so they are unknown; "
            "set rollout.top_p=1 and rollout.top_k=0, or change the other setting"
        )
    return SamplingSupportMask(asked.top_k, asked.top_p, recorded=early or (not once and not algorithm.traits.use_rollout_logprobs))
