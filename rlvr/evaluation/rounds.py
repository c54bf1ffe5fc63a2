"""What is sampled together, and who samples it: this process, or others that are handed in, such as the collectors of a cluster."""

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
    """What is asked in one environment of a suite.

    >>> Asked(item, mdp, Sampling(), [[draw]]).rounds                                       # doctest: +SKIP
    [[Draw(...)]]
    """

    item: Item
    mdp: TokenMDP
    sampling: Sampling
    rounds: Sequence[Sequence[Draw]]
    """The draws that are sampled together. Where the company decides the last bits of an answer (`Sampler.company`), they must be."""


class Answers(Protocol):
    """Samples and judges what an evaluation asks."""

    def stream(self, asked: Iterable[Asked]) -> Iterator[list[tuple[Draw, Episode]]]:
        """Each draw with its episode, in any order; together those that come together."""
        ...


class Elsewhere(Protocol):
    """Starts those who sample for an evaluation outside of this process. Each episode is the one that `Here` would give."""

    def __call__(self, spec: Spec, sampler: Sampler, items: Sequence[Item]) -> AbstractContextManager[Answers]:
        """Entered when the policy has come up, made from `spec`. `sampler` is made from it too; it is asked for its rules alone."""
        ...


class Here:
    """Samples in this process, one environment after the other.

    >>> Here(sampler).stream([Asked(item, mdp, Sampling(), [draws])])                       # doctest: +SKIP
    """

    def __init__(self, sampler: Sampler) -> None:
        self.sampler = sampler

    def stream(self, asked: Iterable[Asked]) -> Iterator[list[tuple[Draw, Episode]]]:
        """Each draw with its episode, as soon as it is judged."""
        for one in asked:
            with rollout_for(one.item, one.mdp, self.sampler) as rollout:
                for draws in one.rounds:
                    for i, episode in rollout.stream(draws, one.sampling):
                        yield [(draws[i], episode)]


def mdp_for(item: Item, environment: Environment, sampler: Sampler) -> TokenMDP:
    """The rules of an environment's conversations, with the limits of its item."""
    tokenizer = tokenizer_from(sampler.tokenizer or "bytes")
    window = sys.maxsize if sampler.gives_text else item.max_length  # an endpoint has its own tokens and its own window
    return TokenMDP(environment, tokenizer, max_new_tokens=item.max_new_tokens, max_length=window, max_turn_tokens=item.max_turn_tokens)


def rollout_for(item: Item, mdp: TokenMDP, sampler: Sampler) -> Rollout:
    """What samples the answers of one environment, wherever it runs."""
    sampler.bind(mdp.environment, mdp.tokenizer)
    return Rollout(mdp, sampler, deadline_s=item.deadline_s or DEADLINE_S, episode_s=item.episode_s)
