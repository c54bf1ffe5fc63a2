"""The divergence of the policy from a teacher over the whole vocabulary, at every trained token.

Logits are computed in tiles of tokens, and again in the backward pass, so that no [tokens, vocabulary] tensor is kept.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from rlvr.errors import ConfigError
from rlvr.learn.update.head import WIDE, Form
from rlvr.learn.update.policy import Policy
from rlvr.learn.update.reference import Reference
from rlvr.model import defaults
from rlvr.model.batch import Batch

KINDS = ("reverse_kl", "forward_kl", "jsd")


class Divergence:
    """Computes the divergence of a policy from a teacher; called by the policy with its hidden states, in passes with a gradient.

    >>> policy.divergence = Divergence(reference, "reverse_kl").fitted(policy)       # doctest: +SKIP
    """

    def __init__(self, teacher: Reference, kind: str) -> None:
        if kind not in KINDS:
            raise ConfigError(f"divergence is {kind!r}; allowed: sampled, {', '.join(KINDS)}")
        if teacher.adapter is not None:
            raise ConfigError("the teacher is the model without its adapter; set reference.path to a folder with another model")
        self.teacher, self.kind = teacher.policy, kind

    def fitted(self, policy: Policy) -> Divergence:
        """Check that the two models can be compared over the whole vocabulary; return self."""
        for who, model in (("the policy", policy), ("the teacher", self.teacher)):
            if model.form is None:
                raise ConfigError(f"the output head of {who} is not a plain linear layer; use algorithm.divergence=sampled")
        ours, theirs = (len(p.model.get_output_embeddings().weight) for p in (policy, self.teacher))
        if ours != theirs:
            raise ConfigError(f"the policy has {ours} logits and the teacher {theirs}; use algorithm.divergence=sampled")
        return self

    def __call__(self, policy: Policy, batch: Batch, hidden: Tensor) -> Tensor:
        """Compute the divergence at each trained token."""
        with torch.no_grad():
            states = self.teacher.states(batch)
        size = max(1, defaults.defaults_of(hidden.device).head_logits // len(policy.model.get_output_embeddings().weight))
        tiles = [slice(a, a + size) for a in range(0, len(hidden), size)]
        found = [
            checkpoint(self._tile, policy, hidden[tile], states[tile], use_reentrant=False, preserve_rng_state=False) for tile in tiles
        ]
        return torch.cat(found) if found else hidden.sum(-1)

    def _tile(self, policy: Policy, hidden: Tensor, states: Tensor) -> Tensor:
        with torch.autocast(hidden.device.type, enabled=False):
            ours, theirs = (logs_of(p, x) for p, x in ((policy, hidden), (self.teacher, states)))
        return between(ours, theirs.detach(), self.kind)


def logs_of(policy: Policy, hidden: Tensor) -> Tensor:
    """Compute the log-probability of every token of the vocabulary, at least in float32."""
    head = policy.model.get_output_embeddings()
    wide = hidden.dtype if hidden.dtype in WIDE else torch.float32
    bias = None if head.bias is None else head.bias.to(wide)
    logits = (policy.form or Form())(nn.functional.linear(hidden.to(wide), head.weight.to(wide), bias)) / policy.temperature
    return logits.log_softmax(-1)


def between(ours: Tensor, theirs: Tensor, kind: str) -> Tensor:
    """Compute the divergence of two rows of log-probabilities.

    >>> p, q = torch.tensor([[0.5, 0.5]]).log(), torch.tensor([[0.25, 0.75]]).log()
    >>> [round(float(between(p, q, kind)), 4) for kind in KINDS]
    [0.1438, 0.1308, 0.034]
    """
    if kind == "reverse_kl":
        return (ours.exp() * (ours - theirs)).sum(-1)
    if kind == "forward_kl":
        return (theirs.exp() * (theirs - ours)).sum(-1)
    middle = torch.logaddexp(ours, theirs) - math.log(2)
    return ((ours.exp() * (ours - middle)).sum(-1) + (theirs.exp() * (theirs - middle)).sum(-1)) / 2
