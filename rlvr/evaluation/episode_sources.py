"""Batches of evaluation requests, and sources of episodes: this process, or other processes such as the rollout workers of a cluster."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from rlvr.contracts import Environment, Sampler, SamplingParams
from rlvr.episode import Episode
from rlvr.evaluation.suite import SuiteItem
from rlvr.mdp.token_mdp import TokenMDP
from rlvr.mdp.tokenizers import load_tokenizer
from rlvr.registry.plugins import PluginSpec
from rlvr.rollout.rollout import DEFAULT_CALL_TIMEOUT_S, Rollout, RolloutRequest


@dataclass(frozen=True, slots=True)
class EnvRequests:
    """The rollout requests of one environment of a suite."""

    item: SuiteItem
    mdp: TokenMDP
    sampling: SamplingParams
    batches: Sequence[Sequence[RolloutRequest]]
    """Requests that may be sampled in one batch. If the sampler depends on the batch composition, they must be."""


class EpisodeSource(Protocol):
    """Samples and verifies the requests of an evaluation."""

    def stream_episodes(self, requests: Iterable[EnvRequests]) -> Iterator[list[tuple[RolloutRequest, Episode]]]:
        """Yield requests with their episodes, in any order, in groups that finish together."""
        ...


class RemoteSourceFactory(Protocol):
    """Opens an EpisodeSource that samples in other processes. Each episode equals the one that LocalEpisodeSource would give."""

    def __call__(self, spec: PluginSpec, sampler: Sampler, items: Sequence[SuiteItem]) -> AbstractContextManager[EpisodeSource]:
        """Return a context that is entered when the policy, built from `spec`, is ready. `sampler` is only used for its attributes."""
        ...


class LocalEpisodeSource:
    """Samples in this process, one environment after the other."""

    def __init__(self, sampler: Sampler) -> None:
        self.sampler = sampler

    def stream_episodes(self, requests: Iterable[EnvRequests]) -> Iterator[list[tuple[RolloutRequest, Episode]]]:
        """Yield each request with its episode, as soon as it is verified."""
        for one in requests:
            with make_rollout(one.item, one.mdp, self.sampler) as rollout:
                for batch in one.batches:
                    for i, episode in rollout.stream_episodes(batch, one.sampling):
                        yield [(batch[i], episode)]


def make_mdp(item: SuiteItem, environment: Environment, sampler: Sampler) -> TokenMDP:
    """Make the token MDP of an environment, with the limits of its suite item."""
    named: Any = sampler.tokenizer or "bytes"
    tokenizer = load_tokenizer(named) if isinstance(named, str) else named
    window = sys.maxsize if sampler.traits.text_only else item.max_length  # an endpoint has its own tokens and its own window
    return TokenMDP(environment, tokenizer, max_new_tokens=item.max_new_tokens, max_length=window, max_turn_tokens=item.max_turn_tokens)


def make_rollout(item: SuiteItem, mdp: TokenMDP, sampler: Sampler) -> Rollout:
    """Make the rollout of one environment, in this or another process."""
    return Rollout(
        mdp, sampler=sampler, call_timeout_s=item.call_timeout_s or DEFAULT_CALL_TIMEOUT_S, episode_timeout_s=item.episode_timeout_s
    )
