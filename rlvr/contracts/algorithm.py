"""The interface of algorithms: the methods that the learner calls, and their inputs.

The built-in algorithms are the files of `rlvr/algorithms/`. To write your own (`rlvr new algorithm mine`), combine an advantage and a loss
from `rlvr.algorithms.functions`, or subclass `Algorithm`. Name it as `path/to/file.py:make`, or register it as an entry point.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from rlvr.contracts import Plugin
from rlvr.errors import ConfigError

if TYPE_CHECKING:  # torch is heavy and optional; this module is neither
    from torch import Tensor

    from rlvr.episode import Episode


NestedValues = Sequence[Sequence[Any]]
"""Numbers per group, answer and token; the last level is a list or an array."""


@dataclass(frozen=True, slots=True)
class TokenStats:
    """Statistics of every token, computed before the advantages: the fields that `AlgorithmTraits.token_inputs` names; the others are
    None. `TOKEN_INPUTS` of the learner says how each is computed; `sample` is a value for the checks and tests of algorithms.

    >>> TokenStats(entropy=[[[0.0, 0.7]]]).entropy[0][0][1]
    0.7
    """

    old_logprobs: NestedValues | None = field(default=None, metadata={"sample": -1.0})
    """Log-probabilities under the current weights."""
    reference_logprobs: NestedValues | None = field(default=None, metadata={"sample": -1.0})
    """Log-probabilities under the reference model."""
    entropy: NestedValues | None = field(default=None, metadata={"sample": 0.5})
    """The entropy of the distribution that the token was drawn from, in nats: as a number, before the update. `LossInputs.entropy` is that
    of the policy being trained, with a gradient.
    """
    values: NestedValues | None = field(default=None, metadata={"sample": 0.0})
    """The critic's value estimate before the token."""
    penalties: NestedValues | None = field(default=None, metadata={"sample": 0.0})
    """beta * (old_logprobs - reference_logprobs), if the KL is subtracted from the reward."""


EMPTY_TOKEN_STATS = TokenStats()
DIFFERENTIABLE_INPUTS = frozenset({"logprobs", "entropy", "values", "divergence"})
"""The fields of `LossInputs` that carry a gradient; the loss never gets them from `TokenStats`."""


def get_loss_input_name(statistic: str) -> str:
    """Return the name that the field of `LossInputs` for a field of `TokenStats` has, if there is one.

    >>> get_loss_input_name("penalties"), get_loss_input_name("entropy")
    ('penalties', 'old_entropy')
    """
    return f"old_{statistic}" if statistic in DIFFERENTIABLE_INPUTS else statistic


SAMPLE_TOKEN_STATS: Mapping[str, float] = {field.name: field.metadata["sample"] for field in fields(TokenStats)}
"""A value of each field, for checks and tests."""


@dataclass(frozen=True, slots=True)
class LossInputs:
    """The inputs of an algorithm's loss for one micro-batch: flat tensors, one entry per policy token.

    >>> LossInputs.__slots__[:3]
    ('logprobs', 'old_logprobs', 'rollout_logprobs')
    """

    logprobs: Tensor
    """Log-probabilities under the policy being trained. Only `DIFFERENTIABLE_INPUTS` carry a gradient."""
    old_logprobs: Tensor
    """Log-probabilities under the weights at the start of the step, computed by the trainer; with `old_from_sampler` those of the sampler."""
    rollout_logprobs: Tensor
    """Log-probabilities reported by the sampler."""
    advantages: Tensor
    rows: Tensor
    """The index of the sequence that each entry belongs to, below `num_rows`."""
    num_rows: int
    frozen_logprobs: Mapping[str, Tensor] = field(default_factory=dict)
    """Log-probabilities under each model of `AlgorithmTraits.scoring_models`, by its name."""
    entropy: Tensor | None = None
    values: Tensor | None = None
    old_values: Tensor | None = None
    returns: Tensor | None = None
    divergence: Tensor | None = None
    """The policy's divergence from the reference over the whole vocabulary, with a gradient."""
    batch_stats: Tensor | None = None
    """The result of `Algorithm.compute_token_batch_stats` for these tokens."""
    tokens: Tensor | None = None
    """The token ids. Set, like `episodes` and `turns`, only if `AlgorithmTraits.needs_token_context`."""
    episodes: Tensor | None = None
    """The index of the completion that each token belongs to, among those of this process that have a score."""
    turns: Tensor | None = None
    """The index of the turn that each token belongs to."""

    @property
    def reference_logprobs(self) -> Tensor | None:
        """Log-probabilities under the reference model, if there is one."""
        return self.frozen_logprobs.get("reference")


def _declared_by_name() -> Any:
    """A trait that is true if a component function names it in `declare_traits`."""
    return field(default=False, metadata={"declared_by_name": True})


def _set_by_user(setting: str, default: Any) -> Any:
    """A trait that is the value of a setting of every policy-gradient algorithm. `SETTINGS` describes the setting and its range."""
    return field(default=default, metadata={"setting": setting})


@dataclass(frozen=True, slots=True, kw_only=True)
class AlgorithmTraits:
    """What an algorithm needs from the learner, and how its batches may be treated. Decided once, when the algorithm is constructed.
    A new trait is a field here, and the code that acts on it: the constructor of `PolicyGradient` fills the fields of the two kinds above.

    >>> AlgorithmTraits(needs_value=True).needs_reference
    False
    """

    num_iterations: int = _set_by_user("num_iterations", 1)
    """The number of passes that the learner makes over one step's episodes."""
    sampling_rounds: int = _set_by_user("dynamic_sampling_rounds", 1)
    """Dynamic sampling: the maximum number of sampling rounds in one step, to get enough groups with a learning signal."""
    requires_group: bool = _declared_by_name()
    """True if answers to the same prompt are compared, so that a group of one gives no learning signal."""
    skips_zero_variance: bool = _declared_by_name()
    """True if a group whose answers all have the same score gives no gradient. Dynamic sampling can then replace such groups."""
    requires_multi_turn: bool = _declared_by_name()
    """True if the algorithm only makes sense for environments with several turns."""
    needs_reference: bool = False
    """True if the policy is compared with the model `reference`: the policy as it was at first, or the one that `frozen_models` names."""
    frozen_models: tuple[str, ...] = ()
    """The names of the models that the configuration must give (`frozen_models.NAME`). The loss gets their log-probabilities of every token
    in `LossInputs.frozen_logprobs`. With the name `reference` the reference is a separate model.
    """
    divergence_kind: str = ""
    """The full-vocabulary divergence from the reference that the loss needs at each token: reverse_kl, forward_kl, jsd, or empty."""
    needs_value: bool = False
    needs_entropy: bool = False
    """Whether the loss needs each token's entropy."""
    needs_greedy_sample: bool = _declared_by_name()
    """True if each group needs one additional episode, sampled greedily, with `meta["greedy"]` true."""
    needs_kl_samples: bool = _declared_by_name()
    """True if each group also needs episodes that pair its prompt with answers to another prompt (`meta["mismatched"]` is
    true).
    """
    needs_token_context: bool = _declared_by_name()
    """True if the loss needs each token's id, completion index and turn index."""
    token_inputs: frozenset[str] = frozenset()
    """The fields of `TokenStats` that the advantages or the loss need. With any of them the old log-probabilities have a pass of their own, before
    the update; `make_sampling_support_mask` then allows fewer settings of top_p.
    """
    needs_batch_stats: bool = False
    """True if `compute_token_batch_stats` must be called before each optimizer step."""
    syncs_reference: bool = False
    """True if the reference model is periodically moved toward the policy."""
    backprop_zero_advantage: bool = _declared_by_name()
    """True if an episode with advantage 0 still has a gradient (from a KL or entropy term, or a critic)."""
    count_zero_advantage: bool = True
    """True if episodes with advantage 0 are counted in the denominators of the loss."""
    one_optimizer_step: bool = False
    """True if the advantages are valid at the current weights only, so that a batch allows a single optimizer step."""
    noop_on_policy: tuple[str, ...] = ()
    """Settings without effect when training is exactly on-policy, because every probability ratio is 1."""
    use_rollout_logprobs: bool = _set_by_user("old_from_sampler", False)
    """True if the sampler's log-probabilities are used as `old_logprobs`, without a forward pass of the trainer."""
    is_supervised: bool = False
    """True if the loss is the likelihood of selected answers. It is then computed at temperature 1."""
    off_policy_defaults: Mapping[str, Any] = field(default_factory=dict)
    """Default settings for off-policy runs (rollout.max_staleness or rollout.partial_rollout_tokens above 0). Settings given by the user take precedence."""

    def __post_init__(self) -> None:
        taken = {field.name for field in (*fields(LossInputs), *fields(TokenStats))}
        if wrong := [name for name in self.frozen_models if name in taken]:
            raise ConfigError(f"a frozen model cannot be called {wrong[0]!r}, which is an input of the loss; give it another name")

    @property
    def scoring_models(self) -> tuple[str, ...]:
        """The names of all models beside the policy that score its tokens: the reference first."""
        return tuple(dict.fromkeys((*(["reference"] if self.needs_reference else []), *self.frozen_models)))


TRAITS_BY_NAME = tuple(field.name for field in fields(AlgorithmTraits) if field.metadata.get("declared_by_name"))
"""The traits that a component function turns on by their name."""
TRAITS_BY_SETTING = tuple(field for field in fields(AlgorithmTraits) if "setting" in field.metadata)
"""The fields of the traits that are the value of a setting."""


class SettingValue(NamedTuple):
    """The value of a setting of an algorithm.

    >>> SettingValue("beta", 0.1, is_changed=True).name
    'beta'
    """

    name: str
    value: Any
    is_changed: bool
    """Whether the value differs from the default."""


class Algorithm(Plugin, ABC):
    """Turns groups of episodes into gradients: advantages on lists and arrays, and a loss that is a weighted sum over tokens.

    The learner calls `compute_row_weights` once per optimizer step and sums weight * token loss over all micro-batches.
    """

    traits: AlgorithmTraits = AlgorithmTraits()
    """What the learner must provide. A subclass sets it as a class attribute or in its constructor."""
    is_critic_warmup: bool = False
    """True while only the critic's head is trained and the policy is frozen."""
    metrics: Mapping[str, float] = MappingProxyType({})
    """Metrics of the last `compute_advantages` (of this process only). The key `loss` replaces the mean of the token losses."""
    returns: NestedValues | None = None
    """The critic's target at each token, from the last `compute_advantages`; set if `traits.needs_value`."""

    def set_completion_limit(self, *, max_new_tokens: int) -> None:
        """Receive the run's limit on the completion length (0: none), before the first step.

        Raises:
            ConfigError: the settings do not fit this limit.
        """

    @abstractmethod
    def compute_advantages(
        self,
        groups: Sequence[Sequence[Episode]],
        token_stats: TokenStats = EMPTY_TOKEN_STATS,
        *,
        all_reduce: Callable[[Sequence[float]], list[float]] = list,
    ) -> NestedValues:
        """Compute the advantage of every token of every episode of every group (0.0 at tokens that the policy did not generate).

        `all_reduce` sums numbers over all processes.
        """

    @abstractmethod
    def compute_token_losses(self, inputs: LossInputs) -> tuple[Tensor, dict[str, Tensor]]:
        """Compute the loss of each token, and per-token values whose means are logged."""

    @abstractmethod
    def compute_row_weights(
        self,
        lengths: Sequence[int],
        group_ids: Sequence[str],
        *,
        max_length: int = 0,
        all_reduce: Callable[[Sequence[float]], list[float]] = list,
    ) -> list[float]:
        """Compute, for each row (episode) of one optimizer step, the factor of each of its tokens in the loss; rows of one group have
        the same id in `group_ids`.
        """

    def compute_token_batch_stats(
        self, columns: Mapping[str, Tensor], all_reduce: Callable[[Sequence[float]], list[float]] = list
    ) -> Tensor:
        """Compute one value per token from all tokens of an optimizer step, such as a mask, for the loss as `LossInputs.batch_stats`.

        `columns` has one entry (`old_logprobs`, `rollout_logprobs`, `advantages`, ...) per token that trains in this process; `all_reduce`
        sums over all processes. Called before the step, and only if `traits.needs_batch_stats`.
        """
        raise NotImplementedError(f"{type(self).__name__} sets `traits.needs_batch_stats` but does not define compute_token_batch_stats")

    def select_groups(self, groups: Sequence[list[Episode]]) -> tuple[list[list[Episode]], dict[str, list[list[Episode]]]]:
        """Return the groups of a step to train on, and the others by the reason why they are left out. Called after sampling,
        by the process that sampled or read them. It must not keep a state. The default keeps all.
        """
        return list(groups), {}

    def is_in_loss(self, episode: Episode) -> bool:
        """Return whether an episode is trained on and counted in the denominators."""
        return episode.is_scored

    def loss_mask(self, episode: Episode) -> Sequence[bool]:
        """Return the mask of the tokens in the loss: the policy's tokens, or a subset of them. The other policy tokens count as masked."""
        return episode.action_mask

    def select_offline(self, groups: Sequence[Sequence[Episode]]) -> list[list[Episode]]:
        """Reduce recorded groups to the episodes that can be trained on; raise ConfigError if there are none."""
        name = getattr(self, "name", type(self).__name__)
        raise ConfigError(f"{name} trains on fresh answers only; remove `data`, or choose sft, best_of_n, dpo or kto")

    def get_reference_update_fraction(self) -> float:
        """Return how far to move the reference toward the policy after a step (0: not at all, 1: copy the policy)."""
        return 0.0

    def on_step_end(
        self, rewards: Sequence[float], kl_value: float | None, all_reduce: Callable[[Sequence[float]], list[float]] = list
    ) -> None:
        """Update running baselines or adaptive coefficients after a step, from its rewards and its KL."""

    @property
    def beta(self) -> float:
        """The current KL coefficient."""
        return 0.0

    def __repr__(self) -> str:
        """Show the name, and the settings that differ from their defaults."""
        name = getattr(getattr(self, "spec", None), "name", type(self).__name__)
        changed = ", ".join(f"{setting}={value!r}" for setting, value, is_changed in self.describe_settings() if is_changed)
        return f"<algorithm {name}{f', but {changed}' if changed else ''}>"

    def describe_settings(self) -> list[SettingValue]:
        """Return every active setting."""
        return []

    def state_dict(self) -> dict[str, Any]:
        """Return the state to restore on resume (a running baseline, an adaptive coefficient), as plain JSON."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state from `state_dict`."""
