"""Support: the tokens that `top_k` and `top_p` leave to sample from, for the sampler and for the trainer.

The sampler draws from the distribution cut to these tokens and normalised again. If the trainer scored the same tokens under the whole
distribution, every ratio would be off by the mass that was cut away. So it cuts its own distribution to the same tokens. It finds them
again from its own logits, which are the sampler's as long as the weights are: in the first pass over a step's answers. If more optimizer
steps follow, that pass records them.
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
"""The logit of a token that was cut away: its probability is exactly 0, and 0 times it is no NaN."""
Cut = Callable[[Tensor, slice], Tensor]
"""Cuts the logits of some of a batch's entries, divided by the temperature."""


def kept(logits: Tensor, top_k: int, top_p: float) -> Tensor:
    """Which tokens of each row may be sampled: the `top_k` likeliest, and of those the fewest that reach `top_p` together."""
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
    """The trainer's side: cuts the logits of each scored token to what its sampler could have chosen.

    >>> s = Support(top_k=2, top_p=1.0)
    >>> s.cut(torch.tensor([[3.0, 2.0, 1.0]]), torch.tensor([0]))[0, 2].item() == CUT
    True
    """

    def __init__(self, top_k: int, top_p: float, *, recorded: bool = False) -> None:
        self.top_k, self.top_p, self.recorded = top_k, top_p, recorded
        """`recorded`: the weights change between passes, so the tokens are those of the pass without gradients before."""
        self.ids: dict[int, Tensor] = {}
        """For each entry of the step, the tokens that it could have been."""

    def cut(self, logits: Tensor, target: Tensor) -> Tensor:
        """Cut logits to the support that they have themselves; the chosen token is in it, however rounding would decide."""
        return logits.masked_fill(~self._own(logits, target), CUT)

    def _own(self, logits: Tensor, target: Tensor) -> Tensor:
        return kept(logits.detach(), self.top_k, self.top_p).scatter(1, target[:, None], True)

    def of_policy(self, batch: Batch) -> Cut:
        """What cuts a batch of the policy."""
        if not self.recorded:
            return lambda logits, part: self.cut(logits, batch.target[part])
        if _is_filler(batch):
            return _whole
        return partial(self._known if torch.is_grad_enabled() else self._recording, batch)

    def of_reference(self, batch: Batch) -> Cut:
        """What cuts a batch of the reference: to the policy's tokens, which were recorded before."""
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
    """Whether a batch is a single token: one that a process computes while others still have micro-batches, and that is no entry."""
    return batch.input_ids.numel() == 1


def _whole(logits: Tensor, part: slice) -> Tensor:
    return logits


def support_for(config: RunConfig, algorithm: Algorithm) -> Support | None:
    """How the trainer follows the sampler's `top_p` and `top_k`; None if there are none. ConfigError if it cannot."""
    asked = config.rollout
    if (asked.top_p == 1 and not asked.top_k) or config.data is not None or algorithm.supervised:
        return None
    name = f"rollout.top_p is {asked.top_p:g}" if asked.top_p < 1 else f"rollout.top_k is {asked.top_k}"
    once = config.train.minibatches_per_step == 1 and algorithm.num_iterations == 1 and not algorithm.prepares
    early = bool(algorithm.credit_needs)
    cause = ""
    if asked.stale:
        cause = f"with rollout.{'max_staleness' if asked.max_staleness else 'max_tokens_per_version'} the answers come from older weights"
    elif algorithm.bypass and not once:
        cause = "this algorithm takes several optimizer steps and never scores the answers with the weights that sampled them"
    elif algorithm.needs_reference and not early:
        cause = "the KL to the reference (algorithm.beta) is computed before the policy's scores"
    if cause:
        raise ConfigError(
            f"{name}, and the trainer must cut its probabilities to the same tokens as the sampler; but {cause}, so they are not known; "
            "set rollout.top_p=1 and rollout.top_k=0, or change the other setting"
        )
    return Support(asked.top_k, asked.top_p, recorded=early or (not once and not algorithm.bypass))
