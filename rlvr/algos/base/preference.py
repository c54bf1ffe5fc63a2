"""Preference and Imitation: algorithms whose loss depends on whole answers, without a ratio and without a clip.

Preference (DPO, IPO, KTO): the loss is a function of s = beta * (l - l_ref) of whole answers. It is computed before the step, at the
current weights, and logged as `loss`; the step follows its gradient, advantage * gradient of l.
Imitation (SFT, best-of-N): the loss is -l of selected answers, the mean over their tokens.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from rlvr.algos.base.recipe import Recipe
from rlvr.algos.parts import aggregate, kl, preferences
from rlvr.algos.parts.answers import Groups, per_token
from rlvr.algos.parts.credit import Total, alone
from rlvr.contracts.algorithm import NO_SCORES, Algorithm, LossInputs, Nested, Scores
from rlvr.episode import Episode
from rlvr.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor


class Chosen(Algorithm):
    """The shared base of Preference and Imitation: it excludes answers without a score and, optionally, truncated ones."""

    common: dict[str, tuple[Any, str]] = {"mask_truncated_completions": (False, "bool")}
    of_critic: Sequence[str] = ()

    def __init__(self, recipe: Recipe, settings: Mapping[str, Any]) -> None:
        self.name, self.recipe, self.settings = recipe.name, recipe, SimpleNamespace(**settings)
        self.learn = recipe.bound("learnable", settings)

    def describe(self) -> list[tuple[str, Any, bool]]:
        """Return every setting: its name, its value, and whether it differs from the default."""
        return [(key, value, value != self.recipe.usual[key]) for key, value in vars(self.settings).items()]

    def trains(self, episode: Episode) -> bool:
        """Return whether an answer may be selected."""
        return episode.scored and not episode.meta.get("mismatched") and not (self.settings.mask_truncated_completions and episode.cut_off)

    def learnable(self, groups: Groups) -> list[list[Episode]]:
        """Select the answers of recorded groups that the loss uses."""
        found: list[list[Episode]] = self.learn(groups)
        return found

    def losses(self, inputs: LossInputs) -> tuple[Tensor, dict[str, Tensor]]:
        """Return -l weighted by the advantage; the KL to the reference is logged."""
        figures = {} if inputs.reference is None else {"kl": kl.estimate(inputs.new.detach(), inputs.reference, "k3")}
        return -inputs.advantages * inputs.new, figures

    def rewards(self, groups: Groups) -> list[list[float | None]]:
        """Return the rewards of the answers that may be selected; None for the others."""
        return [[e.reward if self.trains(e) and e.length else None for e in group] for group in groups]


class Preference(Chosen):
    """A loss on the scores of whole answers relative to a reference.

    >>> from rlvr.algos.dpo import make
    >>> make(beta=0.2).beta
    0.2
    """

    common = Chosen.common | {
        "beta": (0.1, "float"), "length_normalised": (False, "bool"), "dynamic_sampling_rounds": (1, "int"),
        "ref_model_sync_steps": (0, "int"), "ref_model_mixup_alpha": (0.6, "float"),
    }  # fmt: skip
    needs_reference = single_step = True
    credit_needs = frozenset({"penalties"})

    def __init__(self, recipe: Recipe, settings: Mapping[str, Any]) -> None:
        super().__init__(recipe, settings)
        s, traits = self.settings, recipe.traits
        if not s.beta:
            raise ConfigError(f"beta is 0, but {self.name} trains relative to a reference; set it above 0, such as 0.1")
        self.needs_company = self.silent_if_equal = "pairs" in traits
        if s.dynamic_sampling_rounds > 1 and not self.silent_if_equal:
            raise ConfigError(f"{self.name} also learns from groups whose rewards are all equal; set dynamic_sampling_rounds=1")
        self.sampling_rounds, self.needs_mismatched = s.dynamic_sampling_rounds, "mismatched" in traits
        self.prefer = recipe.bound("prefer", settings)
        self.controller = kl.Controller(s.beta, sync_every=s.ref_model_sync_steps, mixup=s.ref_model_mixup_alpha)
        self.refreshes = s.ref_model_sync_steps > 0

    @property
    def beta(self) -> float:
        """The coefficient of the reference."""
        return self.controller.beta

    def credit(self, groups: Groups, scores: Scores = NO_SCORES, *, total: Total = alone) -> Nested:
        """Compute the advantage of each token: the negative gradient of the preference loss."""
        if scores.penalties is None:
            raise ConfigError("preferences need the policy's and the reference's log-probabilities")
        divisors = [[max(1, e.length) if self.settings.length_normalised else 1 for e in group] for group in groups]
        sums = [[math.fsum(np.asarray(row, dtype=np.float64).tolist()) for row in group] for group in scores.penalties]
        shifts = [[s / n for s, n in zip(row, ns, strict=True)] for row, ns in zip(sums, divisors, strict=True)]
        found: preferences.Pulls = self.prefer(groups, self.rewards(groups), shifts, self.beta, total)
        self.figures = found.figures
        pulls = [[a / n for a, n in zip(row, ns, strict=True)] for row, ns in zip(found.pulls, divisors, strict=True)]
        return per_token(pulls, [[e.acted for e in group] for group in groups])

    def row_weights(self, lengths: Sequence[int], prompts: Sequence[str], *, max_length: int = 0, total: Total = alone) -> list[float]:
        """Return weight 1 for every row, because the mean over pairs or answers is part of the advantages."""
        return [1.0] * len(lengths)

    def observe(self, rewards: Sequence[float], kl_value: float | None, total: Total = alone) -> None:
        """Count a step."""
        self.controller.observe(None, 0)

    def refresh(self) -> float:
        """Return how far to move the reference toward the policy after this step."""
        return self.controller.refresh()

    def state_dict(self) -> dict[str, Any]:
        """Return the number of steps."""
        return {"steps": self.controller.steps}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state from `state_dict`."""
        self.controller.steps = int(state["steps"])


class Imitation(Chosen):
    """Supervised learning on the best answer of each group.

    >>> from rlvr.algos.best_of_n import make
    >>> make(at_least=0.5).supervised
    True
    """

    common = Chosen.common | {"num_iterations": (1, "int"), "loss_aggregation": ("token-mean", "str")}
    bypass = supervised = True
    """The loss has no ratio, so no forward pass for old log-probabilities is needed."""
    counts_flat = False

    def __init__(self, recipe: Recipe, settings: Mapping[str, Any]) -> None:
        super().__init__(recipe, settings)
        self.num_iterations, self.choose = self.settings.num_iterations, recipe.bound("choose", settings)
        if self.settings.loss_aggregation == "seq-mean-token-sum-norm":
            raise ConfigError("loss_aggregation=seq-mean-token-sum-norm is for policy gradients; use token-mean or seq-mean-token-mean")

    def credit(self, groups: Groups, scores: Scores = NO_SCORES, *, total: Total = alone) -> Nested:
        """Return advantage 1 at each token of the selected answers."""
        places = [self.choose(group) for group in self.rewards(groups)]
        self.figures = {"best/kept": total([float(sum(i is not None for i in places))])[0]}
        chosen = [[float(i == place) for i in range(len(group))] for group, place in zip(groups, places, strict=True)]
        return per_token(chosen, [[e.acted for e in group] for group in groups])

    def row_weights(self, lengths: Sequence[int], prompts: Sequence[str], *, max_length: int = 0, total: Total = alone) -> list[float]:
        """Compute the weight of each selected answer's tokens over one optimizer step."""
        return aggregate.row_weights(lengths, prompts, self.settings.loss_aggregation, total=total)


def preference(name: str, about: str | None, prefer: Any, learnable: Any, **defaults: Any) -> Recipe:
    """Define a preference algorithm: its `__name__`, docstring, loss on whole answers, and selection of recorded answers."""
    return Recipe(Preference, name, about, {"prefer": prefer, "learnable": learnable}, defaults)


def imitation(name: str, about: str | None, choose: Any, learnable: Any, **defaults: Any) -> Recipe:
    """Define an imitation algorithm; `choose` returns the index of the best answer of a group, or None."""
    return Recipe(Imitation, name, about, {"choose": choose, "learnable": learnable}, defaults)
