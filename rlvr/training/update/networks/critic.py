"""A separate critic: a copy of the initial policy with a scalar head."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from rlvr.models.batch import Batch
from rlvr.training.update.policy import Policy


class Critic(nn.Module):
    """A separate critic: estimates, at each token, the return from there on.

    >>> policy.value = Critic(model, max_grad_norm=1.0)  # doctest: +SKIP
    """

    def __init__(self, model: Any, *, max_grad_norm: float) -> None:
        super().__init__()
        self.body, self.max_grad_norm = Policy(copy.deepcopy(model)), max_grad_norm
        unused, embedding = (part.weight for part in (self.body.model.get_output_embeddings(), self.body.model.get_input_embeddings()))
        if unused is not embedding:
            unused.requires_grad_(False)  # distributed training waits for the gradient of every trainable weight
        weight = next(model.parameters())
        self.head = nn.Linear(model.config.get_text_config().hidden_size, 1).to(device=weight.device, dtype=weight.dtype)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, batch: Batch) -> Tensor:
        """Compute the value before each policy token."""
        values: Tensor = self.head(self.body.compute_hidden_states(batch)).sum(-1)
        return values

    def clip_gradient(self, policy_grad_norm: float) -> float:
        """Clip the critic's gradient; return `policy_grad_norm`, or the norm of the critic's gradient if that is not finite.

        A step whose norm is not finite changes nothing.
        """
        own = float(nn.utils.clip_grad_norm_(self.parameters(), self.max_grad_norm or torch.inf))
        return policy_grad_norm if own < torch.inf else own
