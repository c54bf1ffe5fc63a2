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
from rlvr.model.batch import Batch

CUT = -1e30
"""Logit of a masked token: its probability is exactly 0, and 0 times it is not NaN."""
Cut = Callable[[Tensor, slice], Tensor]
"""Masks the logits (divided by the temperature) of some of a batch's entries."""


def kept(logits: Tensor, top_k: int, top_p: float) -> Tensor:
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


class Support:
    """Masks the trainer's logits of each scored token to the tokens that the sampler could have chosen.

    >>> s = Support(top_k=2, top_p=1.0)
    >>> s.cut(torch.tensor([[3.0, 2.0, 1.0]]), torch.tensor([0]))[0, 2].item() == CUT
    True
    """

    def __init__(self, top_k: int, top_p: float, *, recorded: bool = False) -> None:
        self.top_k, self.top_p, self.recorded = top_k, top_p, recorded
        """`recorded`: the weights change between passes, so the tokens are those of the earlier pass without gradients."""
        self.ids: dict[int, Tensor] = {}
        """For each entry of the step, the tokens that could have been sampled."""

    def cut(self, logits: Tensor, target: Tensor) -> Tensor:
        """Mask logits to their own support, which always includes the chosen token, regardless of rounding."""
        return logits.masked_fill(~self._own(logits, target), CUT)

    def _own(self, logits: Tensor, target: Tensor) -> Tensor:
        return kept(logits.detach(), self.top_k, self.top_p).scatter(1, target[:, None], True)

    def of_policy(self, batch: Batch) -> Cut:
        """Return the mask function for a batch of the policy."""
        if not self.recorded:
            return lambda logits, part: self.cut(logits, batch.target[part])
        if _is_filler(batch):
            return _whole
        return partial(self._known if torch.is_grad_enabled() else self._recording, batch)

    def of_reference(self, batch: Batch) -> Cut:
        """Return the mask function for a batch of the reference model, which uses the recorded tokens of the policy."""
        return _whole if _is_filler(batch) else partial(self._known, batch)

    def _recording(self, batch: Batch, logits: Tensor, part: slice) -> Tensor:
        stays = self._own(logits, batch.target[part])
        ids = torch.split_with_sizes(stays.nonzero()[:, 1].to("cpu", torch.int32), stays.sum(1).tolist())
        self.ids.update(zip(batch.take[part].tolist(), ids, strict=True))
        return logits.masked_fill(~stays, CUT)

    def _known(self, batch: Batch, logits: Tensor, part: slice) -> Tensor:
        known = [self.ids[entry] for entry in batch.take[part].tolist()]
        row = torch.repeat_interleave(torch.arange(len(known)), torch.tensor([len(ids) for ids in known]))
        stays = torch.zeros_like(logits, dtype=torch.bool)
        stays[row.to(logits.device), torch.cat(known).long().to(logits.device)] = True
        return logits.masked_fill(~stays, CUT)


def _is_filler(batch: Batch) -> bool:
    """Return whether a batch is padding: a single token that a process computes while others still have micro-batches."""
    return batch.input_ids.numel() == 1


def _whole(logits: Tensor, part: slice) -> Tensor:
    return logits


def support_for(config: RunConfig, algorithm: Algorithm) -> Support | None:
    """Make the support for the sampler's `top_p` and `top_k`; None if they are off. Raises ConfigError if the trainer cannot apply it."""
    asked = config.rollout
    if (asked.top_p == 1 and not asked.top_k) or config.data is not None or algorithm.supervised:
        return None
    name = f"rollout.top_p is {asked.top_p:g}" if asked.top_p < 1 else f"rollout.top_k is {asked.top_k}"
    once = config.train.minibatches_per_step == 1 and algorithm.num_iterations == 1 and not algorithm.prepares
    early = bool(algorithm.credit_needs)
    cause = ""
    if asked.stale:
        setting = "max_staleness" if asked.max_staleness else "partial_rollout_tokens"
        cause = f"with rollout.{setting} the completions come from older weights"
    elif algorithm.bypass and not once:
        cause = "this algorithm takes several optimizer steps and never scores the completions with the weights that sampled them"
    elif algorithm.needs_reference and not early:
        cause = "the KL to the reference (algorithm.beta) is computed before the policy's scores"
    if cause:
        raise ConfigError(
            f"{name}, and the trainer must restrict its probabilities to the same tokens as the sampler; but {cause}, so they are unknown; "
            "set rollout.top_p=1 and rollout.top_k=0, or change the other setting"
        )
    return Support(asked.top_k, asked.top_p, recorded=early or (not once and not algorithm.bypass))
