"""The reference policy for the KL: a frozen copy, or the model without its adapter, which needs no extra memory."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor

from rlvr.learn.update.policy import Policy
from rlvr.learn.update.shards import folded, local, put
from rlvr.model.batch import Batch


class Reference:
    """Log-probabilities under the reference policy.

    >>> Reference.of(model, temperature=1.0).logprobs(batch)        # doctest: +SKIP
    """

    def __init__(self, policy: Policy, *, adapter: Any = None) -> None:
        self.policy, self.adapter = policy, adapter

    @classmethod
    def of(cls, model: Any, *, temperature: float, frozen: Any = None, fp32_head: bool = False) -> Reference:
        """Create the reference from a frozen model; else from the base of an adapted model; else from a copy of the current model."""
        if frozen is None and hasattr(model, "disable_adapter"):
            return cls(Policy(model, temperature=temperature, fp32_head=fp32_head), adapter=model)
        copied = frozen if frozen is not None else copy.deepcopy(model)
        copied.requires_grad_(False)
        return cls(Policy(copied, temperature=temperature, fp32_head=fp32_head))

    @torch.no_grad()
    def logprobs(self, batch: Batch) -> Tensor:
        """Compute the log-probabilities of one micro-batch."""
        if self.adapter is None:
            return self.policy(batch).logprobs
        with self.adapter.disable_adapter():
            return self.policy(batch).logprobs

    def refresh(self, model: Any, mix: float = 1.0) -> None:
        """Move the reference toward the model's weights by the fraction `mix`; 1 copies them."""
        if self.adapter is not None:
            raise ValueError(
                "the reference is the adapter's base and cannot be refreshed; train without an adapter, or pass a frozen model"
            )
        folded(self.policy)
        with torch.no_grad():
            for mine, theirs in zip(self.policy.model.parameters(), model.parameters(), strict=True):
                local(mine).lerp_(local(theirs).to(mine.dtype), mix)

    def state_dict(self) -> dict[str, Tensor] | None:
        """Return the reference's weights, if it has its own."""
        return None if self.adapter is not None else {k: v.detach() for k, v in self.policy.model.state_dict().items()}

    def load_state_dict(self, state: dict[str, Tensor] | None) -> None:
        """Restore the state from `state_dict`."""
        if state is not None and self.adapter is None:
            for name, tensor in self.policy.model.state_dict(keep_vars=True).items():
                put(tensor, state[name])
