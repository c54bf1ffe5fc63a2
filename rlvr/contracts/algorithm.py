"""The interface of algorithms: what the learner calls, and with which data.

The published algorithms are the files of `rlvr/algos/`. One of your own is a file too (`rlvr new algorithm mine`), named as
`path/to/file.py:make` or registered as an entry point: an advantage and a loss from `rlvr.algos.parts`, or a subclass of `Algorithm`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from rlvr.contracts import Plugin
from rlvr.errors import ConfigError

if TYPE_CHECKING:  # torch is heavy and optional; this module is neither
    from torch import Tensor

    from rlvr.episode import Episode


Nested = Sequence[Sequence[Any]]
"""Numbers per group, answer and token; the last level is a list or an array."""


@dataclass(frozen=True, slots=True)
class Scores:
    """What the trainer knows of every token before credit: what `Algorithm.credit_needs` names, and None for the rest.

    >>> Scores(entropy=[[[0.0, 0.7]]]).entropy[0][0][1]
    0.7
    """

    old: Nested | None = None
    """Log-probabilities under the current weights."""
    reference: Nested | None = None
    entropy: Nested | None = None
    """The entropy of the distribution that the token was drawn from, in nats."""
    values: Nested | None = None
    """What the critic expects before the token."""
    penalties: Nested | None = None
    """beta * (old - reference), if the KL is subtracted from the reward."""


NO_SCORES = Scores()


@dataclass(frozen=True, slots=True)
class LossInputs:
    """The inputs of an algorithm's loss for one micro-batch: flat tensors, one entry per acted token.

    >>> LossInputs.__slots__[:3]
    ('new', 'old', 'sampler')
    """

    new: Tensor
    """Log-probabilities under the policy being trained. Only this, `entropy`, `values` and `divergence`
    carry a gradient."""
    old: Tensor
    """Log-probabilities under the weights at the start of the step, computed by the trainer."""
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
    divergence: Tensor | None = None
    """The policy's divergence from the reference over the whole vocabulary; it carries a gradient too."""
    prepared: Tensor | None = None
    """What `Algorithm.prepare` returned for these tokens."""
    tokens: Tensor | None = None
    """The token ids; this and the next two only if `Algorithm.needs_context`."""
    episodes: Tensor | None = None
    """Which of the step's answers each token belongs to (of this process)."""
    turns: Tensor | None = None
    """Which of its answer's turns each token belongs to."""


class Algorithm(Plugin, ABC):
    """Turns groups of episodes into gradients. `credit` is arithmetic on lists and arrays; the loss is one weighted sum over tokens.

    The learner computes `row_weights` once per optimizer step and adds up weight * `losses` over all micro-batches.
    """

    num_iterations: int = 1
    """How many passes the learner makes over one step's episodes."""
    sampling_rounds: int = 1
    """Dynamic sampling: the most rounds of sampling in one step, to get enough groups with a learning signal."""
    needs_company: bool = False
    """Whether an answer is compared with others to the same prompt, so that a group of one gives no learning signal."""
    silent_if_equal: bool = False
    """Whether a group in which all answers score the same gives no gradient, so that other samples would help."""
    needs_turns: bool = False
    """Whether it makes no sense where the policy takes a single turn."""
    needs_reference: bool = False
    needs_teacher: bool = False
    """Whether the reference must be another model, which the run names."""
    needs_divergence: str = ""
    """Which divergence from the reference over the whole vocabulary the loss needs at each token: reverse_kl, forward_kl or jsd."""
    needs_value: bool = False
    needs_entropy: bool = False
    """Whether the loss needs each token's entropy."""
    needs_greedy: bool = False
    """Whether each group needs one more episode, sampled greedily, with `meta["greedy"]` true."""
    needs_mismatched: bool = False
    """Whether each group also needs its prompt with answers to another prompt, with `meta["mismatched"]` true."""
    needs_context: bool = False
    """Whether the loss needs each token's id, answer and turn."""
    credit_needs: frozenset[str] = frozenset()
    """The fields of `Scores` that `credit` needs: `old`, `reference`, `entropy`, `values`, `penalties`."""
    prepares: bool = False
    """Whether `prepare` is called before each optimizer step."""
    refreshes: bool = False
    """Whether the reference is moved toward the policy from time to time."""
    trains_flat: bool = False
    """Whether an episode with advantage 0 still has a gradient (a KL or entropy term, a critic)."""
    counts_flat: bool = True
    """Whether an episode with advantage 0 is counted in the denominators of the loss."""
    critic_alone: bool = False
    """Whether this step trains only the critic's head, with the policy frozen."""
    single_step: bool = False
    """Whether the credit is valid at the current weights only, so that one step's episodes serve one optimizer step."""
    idle_on_policy: tuple[str, ...] = ()
    """Settings that have no effect while the weights that train are those that sampled, because every ratio is 1."""
    figures: Mapping[str, float] = MappingProxyType({})
    """Numbers from the last `credit` to log (of this process only). `loss` replaces the mean of `losses`."""
    returns: Nested | None = None
    """The critic's target at each token, from the last `credit`; set if `needs_value`."""
    bypass: bool = False
    """Whether `old` is the sampler's log-probabilities, without a forward pass of the trainer."""

    supervised: bool = False
    """Whether the loss is the likelihood of chosen answers: then it is the model's own, at temperature 1, at whatever they were sampled."""

    when_stale: Mapping[str, Any] = MappingProxyType({})
    """Settings to use if answers come from older weights (rollout.max_staleness), unless the user set them."""

    def configure(self, *, max_completion_length: int) -> None:
        """Called before the first step with the run's limit on the length of an answer (0: none). ConfigError if the settings do not fit
        it.
        """

    @abstractmethod
    def credit(
        self,
        groups: Sequence[Sequence[Episode]],
        scores: Scores = NO_SCORES,
        *,
        total: Callable[[Sequence[float]], list[float]] = list,
    ) -> Nested:
        """The advantage of every token of every episode of every group (0.0 where the policy did not act)."""

    @abstractmethod
    def losses(self, inputs: LossInputs) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of each token, and per-token values whose means are logged."""

    @abstractmethod
    def row_weights(
        self,
        lengths: Sequence[int],
        prompts: Sequence[str],
        *,
        max_length: int = 0,
        total: Callable[[Sequence[float]], list[float]] = list,
    ) -> list[float]:
        """The weight of each row's tokens in the loss, over one whole optimizer step."""

    def prepare(self, columns: Mapping[str, Tensor], total: Callable[[Sequence[float]], list[float]] = list) -> Tensor:
        """Before an optimizer step: one number per token, from the columns (`old`, `sampler`, `advantages`, ...) of all tokens that
        train in this process. The loss gets it as `prepared`. Called only if `prepares`; `total` sums over all processes.
        """
        raise NotImplementedError(f"{type(self).__name__} sets `prepares` but does not define prepare")

    def trains(self, episode: Episode) -> bool:
        """Whether an episode's tokens train and are counted in the denominators."""
        return episode.scored

    def kept(self, episode: Episode) -> Sequence[bool]:
        """Which tokens of an episode that trains are in the loss: those of the policy, or fewer. The others count as masked."""
        return episode.acted

    def learnable(self, groups: Sequence[Sequence[Episode]]) -> list[list[Episode]]:
        """The stored groups, reduced to the members that can be trained on; ConfigError if there are none."""
        name = getattr(self, "name", type(self).__name__)
        raise ConfigError(f"{name} trains on fresh answers only; remove `data`, or choose sft, best_of_n, dpo or kto")

    def refresh(self) -> float:
        """After a step: how far to move the reference toward the policy (0: not at all, 1: all the way)."""
        return 0.0

    def observe(self, rewards: Sequence[float], kl_value: float | None, total: Callable[[Sequence[float]], list[float]] = list) -> None:
        """Called after a step with its rewards and its KL, for a running baseline or an adaptive coefficient."""

    @property
    def beta(self) -> float:
        """The current KL coefficient."""
        return 0.0

    def describe(self) -> list[tuple[str, Any, bool]]:
        """Every setting, its value, and whether it differs from the preset."""
        return []

    def state_dict(self) -> dict[str, Any]:
        """The state to restore on resume (a running baseline, an adaptive coefficient), as plain JSON."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state from `state_dict`."""
