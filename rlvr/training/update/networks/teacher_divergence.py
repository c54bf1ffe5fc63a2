"""The divergence of the policy from a teacher over the whole vocabulary, at every trained token.

Logits are computed in tiles of tokens, and again in the backward pass, so that no [tokens, vocabulary] tensor is kept.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from rlvr.errors import ConfigError
from rlvr.models.batch import Batch
from rlvr.training.update.policy import Policy
from rlvr.training.update.reference import ReferencePolicy

DIVERGENCE_KINDS = ("reverse_kl", "forward_kl", "jsd")


class TeacherDivergence:
    """Computes the divergence of a policy from a teacher; called by the policy with its hidden states, in passes with a gradient.

    >>> policy.divergence = TeacherDivergence(reference, "reverse_kl").check_compatible(policy)  # doctest: +SKIP
    """

    def __init__(self, teacher: ReferencePolicy, kind: str) -> None:
        if kind not in DIVERGENCE_KINDS:
            raise ConfigError(f"divergence is {kind!r}; allowed: sampled, {', '.join(DIVERGENCE_KINDS)}")
        if teacher.adapted_model is not None:
            raise ConfigError("the teacher is the model without its adapter; set frozen_models.reference to the folder of another model")
        self.teacher, self.kind = teacher.policy, kind

    def check_compatible(self, policy: Policy) -> TeacherDivergence:
        """Check that the two models can be compared over the whole vocabulary; return self."""
        for who, model in (("the policy", policy), ("the teacher", self.teacher)):
            if model.logit_transform is None:
                raise ConfigError(f"the output head of {who} is not a plain linear layer; use algorithm.divergence=sampled")
        ours, theirs = (len(p.model.get_output_embeddings().weight) for p in (policy, self.teacher))
        if ours != theirs:
            raise ConfigError(f"the policy has {ours} logits and the teacher {theirs}; use algorithm.divergence=sampled")
        return self

    def __call__(self, policy: Policy, batch: Batch, hidden: Tensor) -> Tensor:
        """Compute the divergence at each trained token."""
        with torch.no_grad():
            states = self.teacher.compute_hidden_states(batch)
        found = [
            checkpoint(self._compute_tile, policy, hidden[tile], states[tile], use_reentrant=False, preserve_rng_state=False)
            for tile in policy.iter_head_tiles(hidden)
        ]
        return torch.cat(found) if found else hidden.sum(-1)

    def _compute_tile(self, policy: Policy, hidden: Tensor, states: Tensor) -> Tensor:
        with torch.autocast(hidden.device.type, enabled=False):
            ours, theirs = (p.compute_vocab_logprobs(x) for p, x in ((policy, hidden), (self.teacher, states)))
        return _compute_divergence(ours, theirs.detach(), self.kind)


def _compute_divergence(policy_logprobs: Tensor, teacher_logprobs: Tensor, kind: str) -> Tensor:
    """Compute the divergence of two rows of log-probabilities.

    >>> p, q = torch.tensor([[0.5, 0.5]]).log(), torch.tensor([[0.25, 0.75]]).log()
    >>> [round(float(_compute_divergence(p, q, kind)), 4) for kind in DIVERGENCE_KINDS]
    [0.1438, 0.1308, 0.0338]
    """
    if kind == "reverse_kl":
        return (policy_logprobs.exp() * (policy_logprobs - teacher_logprobs)).sum(-1)
    if kind == "forward_kl":
        return (teacher_logprobs.exp() * (teacher_logprobs - policy_logprobs)).sum(-1)
    middle = torch.logaddexp(policy_logprobs, teacher_logprobs) - math.log(2)
    return (
        (policy_logprobs.exp() * (policy_logprobs - middle)).sum(-1) + (teacher_logprobs.exp() * (teacher_logprobs - middle)).sum(-1)
    ) / 2
