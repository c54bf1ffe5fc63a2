"""Watch the weights of the policy: steps that change none of a few of them, steps that somebody undoes, changes between steps, and weights
that are not finite.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

NUM_PARAMETERS, NUM_WEIGHTS = 8, 1024
"""How many parameters are watched, and about how many weights of each."""
CHECKED_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
MIN_CHANGED_FRACTION = 1e-3
"""A step that changes less than this fraction of low-precision weights changes nothing: its updates are rounded away, but for weights near 0."""


class NonfiniteWeights(NamedTuple):
    """Weights that are infinite or not a number."""

    step: int
    what: str
    cause: str
    last_good_step: int


class WeightChanges:
    """Records steps that changed no weights or were undone, changes by others, and weights that are not finite.

    >>> changes, model = WeightChanges(), nn.Linear(4, 4)
    >>> for step in (1, 2):
    ...     changes.begin_step(model, step)
    ...     changes.end_step(model, step, has_learned=True)
    >>> [changes.had_no_lasting_effect(step) for step in (1, 2, 3)]
    [True, True, False]
    """

    def __init__(self) -> None:
        self.idle_steps = set[int]()
        """The steps that should have changed weights and changed none."""
        self.undone_steps = set[int]()
        """The steps after which somebody put the weights back."""
        self.foreign_steps = set[int]()
        """The steps before which somebody other than the optimizer changed weights."""
        self.broken: NonfiniteWeights | None = None
        """The first weights that were not finite."""
        self._first = self._last = torch.zeros(0)
        """The weights before the last update, and when they were last looked at."""
        self._has_learned, self._newest_step = False, 0

    def begin_step(self, model: nn.Module, step: int) -> None:
        """Look at the weights before an update."""
        now = _sample_weights(model)
        if len(self._last) and not torch.equal(now, self._last):
            self.foreign_steps.add(step)
            if self._has_learned and torch.equal(now, self._first):
                self.undone_steps.add(step - 1)
        self._first = self._last = now
        if self._newest_step:
            wrote = "Something other than the optimizer wrote them before this step: look for a callback, or code of your own, that does"
            self._look_for_broken(model, step, wrote, step - 1)
        else:
            self._look_for_broken(model, step, "The model or the checkpoint that this process began with is broken", max(0, step - 2))

    def end_step(self, model: nn.Module, step: int, *, has_learned: bool) -> None:
        """Look at the weights after an update; `has_learned`: whether it should have changed them."""
        before, self._last, self._has_learned, self._newest_step = self._last, _sample_weights(model), has_learned, step
        self._look_for_broken(
            model, step, "The update of this step overflowed: lower train.learning_rate, or look at the gradient of the loss", step - 1
        )
        if not has_learned or not len(before):
            return
        changed = float((before != self._last).float().mean())
        if not changed or (self._last.dtype != torch.float32 and changed < MIN_CHANGED_FRACTION):
            self.idle_steps.add(step)

    def _look_for_broken(self, model: nn.Module, step: int, cause: str, last_good_step: int) -> None:
        if self.broken is None and (found := _find_nonfinite_weights(model)):
            self.broken = NonfiniteWeights(step, f"{found} are not finite", cause, last_good_step)

    def had_no_lasting_effect(self, step: int) -> bool:
        """Whether a step changed no weights, or somebody put them back. Of the newest step the latter shows only at the next one: until
        then it is like the step before.
        """
        return step in self.idle_steps or step in self.undone_steps or (step == self._newest_step and step - 1 in self.undone_steps)

    def explain_foreign_weight_change(self, *steps: int) -> str:
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


def _find_nonfinite_weights(model: nn.Module) -> str:
    """Describe weights that are infinite or not a number, of this process's part if the model is sharded; empty if there are none.

    >>> model = nn.Linear(2, 2)
    >>> _find_nonfinite_weights(model)
    ''
    >>> model.weight.data[0, 1] = float("nan")
    >>> _find_nonfinite_weights(model)
    '1 of the 4 weights of weight'
    """
    parts = [
        (name, part)
        for name, parameter in model.named_parameters()
        if (part := _get_local(parameter.detach())).numel() and part.dtype in CHECKED_DTYPES
    ]
    extremes = [torch.stack(torch.aminmax(part)).float() for _, part in parts]  # both are nan if one weight is
    if not parts or bool(torch.cat([pair.to(extremes[0].device) for pair in extremes]).isfinite().all()):
        return ""
    name, part = next((name, part) for (name, part), pair in zip(parts, extremes, strict=True) if not bool(pair.isfinite().all()))
    return f"{int((~part.isfinite()).sum())} of the {part.numel()} weights of {name}"


def _get_local(weights: Tensor) -> Tensor:
    return weights.to_local() if isinstance(weights, DTensor) else weights


def _sample_weights(model: nn.Module) -> Tensor:
    """Copy some weights of some parameters, of this process's part if the model is sharded."""
    trained = [parameter.detach() for parameter in model.parameters() if parameter.requires_grad]
    chosen = trained[:: max(1, len(trained) // NUM_PARAMETERS)]
    taken = [part.flatten()[:: 1 + part.numel() // NUM_WEIGHTS].cpu() for part in map(_get_local, chosen) if part.numel()]
    return torch.cat(taken) if taken else torch.zeros(0)
