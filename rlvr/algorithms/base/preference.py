"""Preference and Imitation: algorithms whose loss depends on whole answers, without a ratio and without a clip.

Preference (DPO, IPO, KTO): the loss is a function of s = beta * (l - l_ref) of whole answers. It is computed before the step, at the
current weights, and logged as `loss`; the step follows its gradient, advantage * gradient of l. Imitation (SFT, best-of-N): the loss is
-l of selected answers, the mean over their tokens.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from rlvr.algorithms.base.algorithm_spec import AlgorithmSpec
from rlvr.algorithms.functions import aggregation as aggregate
from rlvr.algorithms.functions import kl, preferences
from rlvr.algorithms.functions.advantages import AllReduce, single_process_all_reduce
from rlvr.algorithms.functions.answer_batch import Groups, expand_to_tokens
from rlvr.contracts.algorithm import EMPTY_TOKEN_STATS, Algorithm, AlgorithmTraits, LossInputs, NestedValues, SettingValue, TokenStats
from rlvr.episode import Episode
from rlvr.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor


class ScoredAnswersAlgorithm(Algorithm):
    """The shared base of Preference and Imitation, with what they have in common: only answers with a score are in the loss, truncated ones
    only if they are not masked, and the loss of a token is minus its log-probability times its advantage.
    """

    common_settings: dict[str, tuple[Any, str]] = {"mask_truncated_completions": (False, "bool")}
    critic_settings: Sequence[str] = ()

    def __init__(self, spec: AlgorithmSpec, settings: Mapping[str, Any]) -> None:
        self.name, self.spec, self.settings = spec.name, spec, SimpleNamespace(**settings)
        self.select_offline_function = spec.bind_settings("select_offline", settings)

    def describe_settings(self) -> list[SettingValue]:
        """Return every setting."""
        return [SettingValue(key, value, value != self.spec.default_settings[key]) for key, value in vars(self.settings).items()]

    def is_in_loss(self, episode: Episode) -> bool:
        """Return whether an answer can enter the loss: it has a score and is neither mismatched nor masked as truncated."""
        return (
            episode.is_scored
            and not episode.meta.get("mismatched")
            and not (self.settings.mask_truncated_completions and episode.is_cut_by_token_or_time_limit)
        )

    def select_offline(self, groups: Groups) -> list[list[Episode]]:
        """Select the answers of recorded groups that the loss uses."""
        found: list[list[Episode]] = self.select_offline_function(groups)
        return found

    def compute_token_losses(self, inputs: LossInputs) -> tuple[Tensor, dict[str, Tensor]]:
        """Return minus the log-probability times the advantage of each token; the KL to the reference is only logged."""
        figures = (
            {} if inputs.reference_logprobs is None else {"kl": kl.estimate_kl(inputs.logprobs.detach(), inputs.reference_logprobs, "k3")}
        )
        return -inputs.advantages * inputs.logprobs, figures

    def get_selectable_rewards(self, groups: Groups) -> list[list[float | None]]:
        """Return the rewards of the answers that may be selected; None for the others."""
        return [[e.reward if self.is_in_loss(e) and e.num_policy_tokens else None for e in group] for group in groups]


class Preference(ScoredAnswersAlgorithm):
    """The base of DPO, IPO and KTO: a loss on whole answers, from their log-probabilities relative to a reference.

    >>> from rlvr.algorithms.dpo import make
    >>> make(beta=0.2).beta
    0.2
    """

    common_settings = ScoredAnswersAlgorithm.common_settings | {
        "beta": (0.1, "float"), "length_normalised": (False, "bool"), "dynamic_sampling_rounds": (1, "int"),
        "ref_model_sync_steps": (0, "int"), "ref_model_mixup_alpha": (0.6, "float"),
    }  # fmt: skip

    def __init__(self, spec: AlgorithmSpec, settings: Mapping[str, Any]) -> None:
        super().__init__(spec, settings)
        s, traits = self.settings, spec.traits
        if not s.beta:
            raise ConfigError(f"beta is 0, but {self.name} trains relative to a reference; set it above 0, such as 0.1")
        if s.dynamic_sampling_rounds > 1 and "requires_group" not in traits:
            raise ConfigError(f"{self.name} also learns from groups whose rewards are all equal; set dynamic_sampling_rounds=1")
        self.traits = AlgorithmTraits(
            sampling_rounds=s.dynamic_sampling_rounds,
            requires_group="requires_group" in traits,
            skips_zero_variance="skips_zero_variance" in traits,
            needs_kl_samples="needs_kl_samples" in traits,
            needs_reference=True,
            one_optimizer_step=True,
            syncs_reference=s.ref_model_sync_steps > 0,
            token_inputs=frozenset({"penalties"}),
        )
        self.prefer_function = spec.bind_settings("prefer", settings)
        self.controller = kl.KLController(s.beta, sync_every=s.ref_model_sync_steps, mixup=s.ref_model_mixup_alpha)

    @property
    def beta(self) -> float:
        """The coefficient of the implicit reward, beta * (l - l_ref), as in DPO."""
        return self.controller.beta

    def compute_advantages(
        self, groups: Groups, token_stats: TokenStats = EMPTY_TOKEN_STATS, *, all_reduce: AllReduce = single_process_all_reduce
    ) -> NestedValues:
        """Compute the advantage of each token: the negative gradient of the preference loss."""
        if token_stats.penalties is None:
            raise ConfigError("preferences need the policy's and the reference's log-probabilities")
        divisors = [[max(1, e.num_policy_tokens) if self.settings.length_normalised else 1 for e in group] for group in groups]
        sums = [[math.fsum(np.asarray(row, dtype=np.float64).tolist()) for row in group] for group in token_stats.penalties]
        shifts = [[s / n for s, n in zip(row, ns, strict=True)] for row, ns in zip(sums, divisors, strict=True)]
        found: preferences.PreferenceAdvantages = self.prefer_function(
            groups, self.get_selectable_rewards(groups), shifts, self.beta, all_reduce
        )
        self.metrics = found.metrics
        pulls = [[a / n for a, n in zip(row, ns, strict=True)] for row, ns in zip(found.advantages, divisors, strict=True)]
        return expand_to_tokens(pulls, [[e.action_mask for e in group] for group in groups])

    def compute_row_weights(
        self, lengths: Sequence[int], group_ids: Sequence[str], *, max_length: int = 0, all_reduce: AllReduce = single_process_all_reduce
    ) -> list[float]:
        """Return weight 1 for every row, because the mean over pairs or answers is part of the advantages."""
        return [1.0] * len(lengths)

    def on_step_end(self, rewards: Sequence[float], kl_value: float | None, all_reduce: AllReduce = single_process_all_reduce) -> None:
        """Count a step."""
        self.controller.update(None, 0)

    def get_reference_update_fraction(self) -> float:
        """Return how far to move the reference toward the policy after this step."""
        return self.controller.get_reference_update_fraction()

    def state_dict(self) -> dict[str, Any]:
        """Return the number of steps."""
        return {"steps": self.controller.num_steps}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state from `state_dict`."""
        self.controller.num_steps = int(state["steps"])


class Imitation(ScoredAnswersAlgorithm):
    """Supervised learning on the best answer of each group.

    >>> from rlvr.algorithms.best_of_n import make
    >>> make(score_threshold=0.5).traits.is_supervised
    True
    """

    common_settings = ScoredAnswersAlgorithm.common_settings | {"num_iterations": (1, "int"), "loss_aggregation": ("token-mean", "str")}

    def __init__(self, spec: AlgorithmSpec, settings: Mapping[str, Any]) -> None:
        super().__init__(spec, settings)
        self.choose_function = spec.bind_settings("choose", settings)
        self.traits = AlgorithmTraits(
            num_iterations=self.settings.num_iterations,
            is_supervised=True,
            use_rollout_logprobs=True,  # the loss has no ratio, so it needs no forward pass for old log-probabilities
            count_zero_advantage=False,
        )
        if self.settings.loss_aggregation == "seq-mean-token-sum-norm":
            raise ConfigError("loss_aggregation=seq-mean-token-sum-norm is for policy gradients; use token-mean or seq-mean-token-mean")

    def compute_advantages(
        self, groups: Groups, token_stats: TokenStats = EMPTY_TOKEN_STATS, *, all_reduce: AllReduce = single_process_all_reduce
    ) -> NestedValues:
        """Return advantage 1 at each token of the selected answers."""
        places = [self.choose_function(group) for group in self.get_selectable_rewards(groups)]
        self.metrics = {"imitation/selected_answers": all_reduce([float(sum(i is not None for i in places))])[0]}
        chosen = [[float(i == place) for i in range(len(group))] for group, place in zip(groups, places, strict=True)]
        return expand_to_tokens(chosen, [[e.action_mask for e in group] for group in groups])

    def compute_row_weights(
        self, lengths: Sequence[int], group_ids: Sequence[str], *, max_length: int = 0, all_reduce: AllReduce = single_process_all_reduce
    ) -> list[float]:
        """Compute the weight of each selected answer's tokens over one optimizer step."""
        return aggregate.compute_row_weights(lengths, group_ids, self.settings.loss_aggregation, all_reduce=all_reduce)


def define_preference(name: str, description: str | None, prefer: Any, select_offline: Any, **defaults: Any) -> AlgorithmSpec:
    """Define a preference algorithm: its `__name__`, docstring, loss on whole answers, and selection of recorded answers."""
    return AlgorithmSpec(Preference, name, description, {"prefer": prefer, "select_offline": select_offline}, defaults)


def define_imitation(name: str, description: str | None, choose: Any, select_offline: Any, **defaults: Any) -> AlgorithmSpec:
    """Define an imitation algorithm; `choose` returns the index of the best answer of a group, or None."""
    return AlgorithmSpec(Imitation, name, description, {"choose": choose, "select_offline": select_offline}, defaults)
