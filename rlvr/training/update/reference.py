"""The reference policy for the KL: a frozen copy, or the model without its adapter, which needs no extra memory."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor

from rlvr.models.batch import Batch
from rlvr.training.update.policy import Policy
from rlvr.training.update.sharded_tensors import copy_to_shards, get_local_shard, reshard


class ReferencePolicy:
    """The frozen or slowly moving reference model; computes log-probabilities under it.

    >>> ReferencePolicy.from_model(model, temperature=1.0).compute_logprobs(batch)  # doctest: +SKIP
    """

    def __init__(self, policy: Policy, *, adapter: Any = None) -> None:
        self.policy, self.adapted_model = policy, adapter

    @classmethod
    def from_model(cls, model: Any, *, temperature: float, frozen_model: Any = None, fp32_head: bool = False) -> ReferencePolicy:
        """Create the reference from a frozen model; else from the base of an adapted model; else from a copy of the current model."""
        if frozen_model is None and hasattr(model, "disable_adapter"):
            return cls(Policy(model, temperature=temperature, fp32_head=fp32_head), adapter=model)
        copied = frozen_model if frozen_model is not None else copy.deepcopy(model)
        copied.requires_grad_(False)
        return cls(Policy(copied, temperature=temperature, fp32_head=fp32_head))

    @torch.no_grad()
    def compute_logprobs(self, batch: Batch) -> Tensor:
        """Compute the log-probabilities of one micro-batch."""
        if self.adapted_model is None:
            return self.policy(batch).logprobs
        with self.adapted_model.disable_adapter():
            return self.policy(batch).logprobs

    def soft_update(self, model: Any, fraction: float = 1.0) -> None:
        """Move the reference's weights toward the model's: w_ref += fraction * (w - w_ref); 1 copies them."""
        if self.adapted_model is not None:
            raise ValueError(
                "the reference is the adapter's base and cannot be refreshed; train without an adapter, or pass a frozen model"
            )
        reshard(self.policy)
        with torch.no_grad():
            for mine, theirs in zip(self.policy.model.parameters(), model.parameters(), strict=True):
                get_local_shard(mine).lerp_(get_local_shard(theirs).to(mine.dtype), fraction)

    def state_dict(self) -> dict[str, Tensor] | None:
        """Return the reference's weights; None if they are those of the policy without its adapter."""
        return None if self.adapted_model is not None else {k: v.detach() for k, v in self.policy.model.state_dict().items()}

    def load_state_dict(self, state: dict[str, Tensor] | None) -> None:
        """Restore the state from `state_dict`."""
        if state is not None and self.adapted_model is None:
            for name, tensor in self.policy.model.state_dict(keep_vars=True).items():
                copy_to_shards(tensor, state[name])
