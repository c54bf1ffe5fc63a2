"""Batches of evaluation requests, and sources of episodes: this process, or other processes such as the rollout workers of a cluster."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from rlvr.contracts import Environment, Sampler, Sampling
from rlvr.episode import Episode
from rlvr.evaluation.suite import Item
from rlvr.mdp.rules import TokenMDP
from rlvr.mdp.tokenizers import tokenizer_from
from rlvr.plugins.registry import Spec
from rlvr.rollout.rollout import DEADLINE_S, Draw, Rollout


@dataclass(frozen=True, slots=True)
class Asked:
    """The rollout requests of one environment of a suite."""

    item: Item
    mdp: TokenMDP
    sampling: Sampling
    rounds: Sequence[Sequence[Draw]]
    """Requests that may be sampled in one batch. If the sampler depends on the batch composition, they must be."""


class Answers(Protocol):
    """Samples and verifies the requests of an evaluation."""

    def stream(self, asked: Iterable[Asked]) -> Iterator[list[tuple[Draw, Episode]]]:
        """Yield requests with their episodes, in any order, in groups that finish together."""
        ...


class Elsewhere(Protocol):
    """Starts sampling of an evaluation in other processes. Each episode equals the one that local sampling would give."""

    def __call__(self, spec: Spec, sampler: Sampler, items: Sequence[Item]) -> AbstractContextManager[Answers]:
        """Return a context that is entered when the policy, built from `spec`, is ready. `sampler` is only used for its attributes."""
        ...


class Here:
    """Samples in this process, one environment after the other."""

    def __init__(self, sampler: Sampler) -> None:
        self.sampler = sampler

    def stream(self, asked: Iterable[Asked]) -> Iterator[list[tuple[Draw, Episode]]]:
        """Yield each request with its episode, as soon as it is verified."""
        for one in asked:
            with rollout_for(one.item, one.mdp, self.sampler) as rollout:
                for draws in one.rounds:
                    for i, episode in rollout.stream(draws, one.sampling):
                        yield [(draws[i], episode)]


def mdp_for(item: Item, environment: Environment, sampler: Sampler) -> TokenMDP:
    """Make the token MDP of an environment, with the limits of its suite item."""
    tokenizer = tokenizer_from(sampler.tokenizer or "bytes")
    window = sys.maxsize if sampler.gives_text else item.max_length  # an endpoint has its own tokens and its own window
    return TokenMDP(environment, tokenizer, max_new_tokens=item.max_new_tokens, max_length=window, max_turn_tokens=item.max_turn_tokens)


def rollout_for(item: Item, mdp: TokenMDP, sampler: Sampler) -> Rollout:
    """Make the rollout of one environment, in this or another process."""
    sampler.bind(mdp.environment, mdp.tokenizer)
    return Rollout(mdp, sampler, deadline_s=item.deadline_s or DEADLINE_S, episode_s=item.episode_s)
