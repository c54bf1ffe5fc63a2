"""Watch a few weights of the policy: steps that change none of them, steps that somebody undoes, and changes between steps."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

NUM_PARAMETERS, NUM_WEIGHTS = 8, 1024
"""How many parameters are watched, and about how many weights of each."""
MIN_CHANGED_FRACTION = 1e-3
"""A step that changes less than this fraction of low-precision weights changes nothing: its updates are rounded away, but for weights near 0."""


class WeightChanges:
    """What steps, and others, did to the weights.

    >>> changes, model = WeightChanges(), nn.Linear(4, 4)
    >>> for step in (1, 2):
    ...     changes.begin_step(model, step)
    ...     changes.end_step(model, step, has_learned=True)
    >>> [changes.was_in_vain(step) for step in (1, 2, 3)]
    [True, True, False]
    """

    def __init__(self) -> None:
        self.idle_steps = set[int]()
        """The steps that should have changed weights and changed none."""
        self.undone_steps = set[int]()
        """The steps after which somebody put the weights back."""
        self.foreign_steps = set[int]()
        """The steps before which somebody other than the optimizer changed weights."""
        self._first = self._last = torch.zeros(0)
        """The weights before the last update, and when they were last looked at."""
        self._has_learned, self._newest_step = False, 0

    def begin_step(self, model: nn.Module, step: int) -> None:
        """Look at the weights before an update."""
        now = sample_weights(model)
        if len(self._last) and not torch.equal(now, self._last):
            self.foreign_steps.add(step)
            if self._has_learned and torch.equal(now, self._first):
                self.undone_steps.add(step - 1)
        self._first = self._last = now

    def end_step(self, model: nn.Module, step: int, *, has_learned: bool) -> None:
        """Look at the weights after an update; `has_learned`: whether it should have changed them."""
        before, self._last, self._has_learned, self._newest_step = self._last, sample_weights(model), has_learned, step
        if not has_learned or not len(before):
            return
        changed = float((before != self._last).float().mean())
        if not changed or (self._last.dtype != torch.float32 and changed < MIN_CHANGED_FRACTION):
            self.idle_steps.add(step)

    def was_in_vain(self, step: int) -> bool:
        """Whether a step changed no weights, or somebody put them back. Of the newest step the latter shows only at the next one: until
        then it is like the step before.
        """
        return step in self.idle_steps or step in self.undone_steps or (step == self._newest_step and step - 1 in self.undone_steps)

    def explain_foreign_step(self, *steps: int) -> str:
        """Say before which of these steps somebody else changed weights; empty if before none."""
        return next(
            (
                f"Something other than the optimizer changed the weights before step {step}: look for a callback, or code of your own, that "
                "writes them"
                for step in steps
                if step in self.foreign_steps
            ),
            "",
        )


def sample_weights(model: nn.Module) -> Tensor:
    """Copy some weights of some parameters, of this process's part if the model is sharded."""
    trained = [parameter.detach() for parameter in model.parameters() if parameter.requires_grad]
    chosen = trained[:: max(1, len(trained) // NUM_PARAMETERS)]
    local = [part.to_local() if isinstance(part, DTensor) else part for part in chosen]
    taken = [part.flatten()[:: 1 + part.numel() // NUM_WEIGHTS].cpu() for part in local if part.numel()]
    return torch.cat(taken) if taken else torch.zeros(0)
