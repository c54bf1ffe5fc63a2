"""The door of algorithms: what the learner asks of one, and what it tells it.

A third party's algorithm is a subclass of `Algorithm` in a file of its own (`path/to/file.py:Mine`) or behind an entry
point; the ones of the literature are rows of `rlvr.algos.recipes`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from rlvr.contracts import Plugin
from rlvr.errors import ConfigError

if TYPE_CHECKING:  # torch is heavy and optional; this door is neither
    from torch import Tensor

    from rlvr.episode import Episode


@dataclass(frozen=True, slots=True)
class LossInputs:
    """What an algorithm's loss is told of one micro-batch: flat tensors, one entry per acted token.

    >>> LossInputs.__slots__[:3]
    ('new', 'old', 'sampler')
    """

    new: Tensor
    """Log-probabilities under the policy that is being trained; the only one that carries a gradient, with `entropy` and `values`."""
    old: Tensor
    """Log-probabilities under the weights that the step began with, as the trainer computes them."""
    sampler: Tensor
    """Log-probabilities as the sampler reported them."""
    advantages: Tensor
    rows: Tensor
    """Which of the `count` sequences each entry belongs to."""
    count: int
    reference: Tensor | None = None
    entropy: Tensor | None = None
    values: Tensor | None = None
    old_values: Tensor | None = None
    returns: Tensor | None = None


class Algorithm(Plugin, ABC):
    """Turns groups of episodes into gradients. `credit` is list arithmetic; the loss is one weighted sum over tokens.

    The learner computes `row_weights` once per optimizer step and adds up weight * `losses` over all micro-batches.
    """

    num_iterations: int = 1
    """How many times the learner goes over one step's episodes."""
    sampling_rounds: int = 1
    """Dynamic sampling: how many rounds of sampling a step may take until enough groups teach something."""
    needs_company: bool = False
    """Whether an answer is compared with others to the same prompt, so that a group of one teaches nothing."""
    needs_reference: bool = False
    needs_value: bool = False
    needs_entropy: bool = False
    needs_greedy: bool = False
    """Whether each group must hold one more episode, sampled greedily, with `meta["greedy"]` true."""
    needs_mismatched: bool = False
    """Whether each group must also hold its prompts with the answers to another one, with `meta["mismatched"]` true."""
    refreshes: bool = False
    """Whether the reference is moved toward the policy now and then."""
    penalises_reward: bool = False
    """Whether the KL is taken off the rewards, so that `credit` must be given `penalties`."""
    trains_flat: bool = False
    """Whether an episode with advantage 0 still has a gradient (a KL or entropy term, a critic)."""
    critic_alone: bool = False
    """Whether this step trains the critic's head and holds the policy still."""
    single_step: bool = False
    """Whether the credit holds at the present weights only, so that one step's episodes are good for one optimizer step."""
    figures: Mapping[str, float] = MappingProxyType({})
    """What the last `credit` found worth logging (of this process)."""
    bypass: bool = False
    """Whether `old` is the sampler's own log-probabilities, with no pass of the trainer's."""

    supervised: bool = False
    """Whether the loss is the likelihood of chosen answers: then it is the model's own, at temperature 1, at whatever they were sampled."""

    when_stale: Mapping[str, Any] = MappingProxyType({})
    """Settings to take where answers come from older weights (rollout.max_staleness), unless the user wrote others."""

    @abstractmethod
    def credit(
        self,
        groups: Sequence[Sequence[Episode]],
        *,
        penalties: Sequence[Sequence[Sequence[float]]] | None = None,
        values: Sequence[Sequence[Sequence[float]]] | None = None,
        total: Callable[[Sequence[float]], list[float]] = list,
    ) -> list[list[list[float]]]:
        """Advantages for every token of every episode of every group (0.0 where the policy did not act)."""

    @abstractmethod
    def losses(self, inputs: LossInputs) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of each token, and per-token figures whose means are logged."""

    @abstractmethod
    def row_weights(
        self,
        lengths: Sequence[int],
        prompts: Sequence[str],
        *,
        max_length: int = 0,
        total: Callable[[Sequence[float]], list[float]] = list,
    ) -> list[float]:
        """How much each token of each row counts, over one whole optimizer step."""

    def trains(self, episode: Episode) -> bool:
        """Whether an episode's tokens may train and are counted in the denominators."""
        return episode.scored

    def learnable(self, groups: Sequence[Sequence[Episode]]) -> list[list[Episode]]:
        """Which stored groups, and which of their members, there is something to learn from; ConfigError where there is nothing."""
        raise ConfigError(f"{type(self).__name__} learns from fresh answers only; leave data out, or choose sft, best_of_n, dpo or kto")

    def value_targets(
        self,
        groups: Sequence[Sequence[Episode]],
        *,
        penalties: Sequence[Sequence[Sequence[float]]] | None,
        values: Sequence[Sequence[Sequence[float]]],
    ) -> list[list[list[float]]]:
        """What the critic should have said at each token. Only asked for where `needs_value`."""
        raise NotImplementedError(f"{type(self).__name__} needs a critic and names no targets for it")

    def refresh(self) -> float:
        """After a step: how far the reference is to move toward the policy now (0: not at all, 1: all the way)."""
        return 0.0

    def observe(self, rewards: Sequence[float], kl_value: float | None, total: Callable[[Sequence[float]], list[float]] = list) -> None:
        """After a step: what its rewards and its KL were. For a running baseline or an adaptive coefficient."""

    @property
    def beta(self) -> float:
        """The KL coefficient in force now."""
        return 0.0

    def describe(self) -> list[tuple[str, Any, bool]]:
        """Every setting, its value, and whether it differs from the preset."""
        return []

    def state_dict(self) -> dict[str, Any]:
        """What must survive a resume (a running baseline, an adaptive coefficient): plain JSON."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` gave."""
