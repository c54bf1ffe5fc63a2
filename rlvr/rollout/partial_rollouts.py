"""Partial rollouts: a long completion is interrupted after a number of tokens and continued later, with newer weights.

The partial completion is part of the rollout request, so any process can continue it.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from rlvr.contracts import Completion, Request, RequestQueue, Sampler, SamplingParams, Tokenizer
from rlvr.contracts.sampler import NumberedRequests
from rlvr.episode import LOGPROB_EPS, Episode, StopReason
from rlvr.mdp.token_mdp import TokenMDP
from rlvr.rollout.rollout import Rollout
from rlvr.rollout.rollout_request import PartialCompletion, RolloutRequest, derive_seed

CONTINUES_ERROR = "the answer continues in the next step"


class InterruptibleSampler(Sampler):
    """Wraps a sampler: inside `interrupt_completions`, completions are interrupted after `max_tokens`. Requests are identified by their
    seed.
    """

    def __init__(self, inner: Sampler, max_tokens: int, tokenizer: Tokenizer) -> None:
        self.inner, self.max_tokens, self.version, self.rollout_tokenizer = inner, max_tokens, 0, tokenizer
        self.partial_by_seed: dict[int, PartialCompletion] | None = None
        """The partial completion of each request, by seed; None outside of `interrupt_completions`."""
        self.traits, self.tokenizer = inner.traits, inner.tokenizer

    @contextmanager
    def interrupt_completions(
        self, partial_by_seed: Mapping[int, PartialCompletion], version: int
    ) -> Iterator[dict[int, PartialCompletion]]:
        """Interrupt completions in this block, and continue the given partial ones; yields the dict of partial completions."""
        self.partial_by_seed, self.version = dict(partial_by_seed), version
        try:
            yield self.partial_by_seed
        finally:
            self.partial_by_seed = None

    def stream_completions(self, requests: Sequence[Request], sampling: SamplingParams) -> Iterator[tuple[int, Completion]]:
        """Yield each request's completion, complete or interrupted."""
        shorter = [self._shorten_request(request) for request in requests]
        for place, completion in self.inner.stream_completions(shorter, sampling):
            yield place, self._join_completion(requests[place], completion)

    def stream_from_queue(self, queue: RequestQueue, sampling: SamplingParams) -> Iterator[tuple[int, Completion] | None]:
        """Yield completions, complete or interrupted, while new requests arrive."""
        asked = dict[int, Request]()
        for given in self.inner.stream_from_queue(_ShortenedRequestQueue(self, queue, asked), sampling):
            known = given is not None and given[0] in asked  # an unknown number is rejected by the caller
            yield (given[0], self._join_completion(asked.pop(given[0]), given[1])) if given and known else given

    def _shorten_request(self, request: Request) -> Request:
        """Build the request for the next part of a completion."""
        if self.partial_by_seed is None:
            return request
        part, room = self._find_part_budget(request, self.partial_by_seed)
        seed = derive_seed(request.seed, len(part.tokens)) if part.tokens else request.seed
        return replace(request, prompt=[*request.prompt, *part.tokens], max_tokens=room, seed=seed)

    def _join_completion(self, request: Request, completion: Completion) -> Completion:
        """Return an error that marks an interrupted completion, or all its parts joined if it has ended."""
        if self.partial_by_seed is None or completion.finish_reason == "error":
            return completion
        before, room = self._find_part_budget(request, self.partial_by_seed)
        part = before.extend(completion, self.version)
        full = completion.finish_reason == "length" and len(completion.tokens) == room and len(part.tokens) < request.max_tokens
        ended = not (full and self._can_continue(part))
        self.partial_by_seed[request.seed] = part
        return replace(completion, tokens=part.tokens, logprobs=part.logprobs) if ended else Completion([], [], "error", CONTINUES_ERROR)

    def _can_continue(self, partial_completion: PartialCompletion) -> bool:
        """Return whether a partial completion can be continued: no stop id, no invalid token and no invalid log-probability."""
        among = (
            self.rollout_tokenizer.stop_ids.isdisjoint(partial_completion.tokens)
            and min(partial_completion.tokens) >= 0
            and max(partial_completion.tokens) < self.rollout_tokenizer.vocab_size
        )
        return among and all(-math.inf < p <= LOGPROB_EPS for p in partial_completion.logprobs)

    def _find_part_budget(self, request: Request, partial_by_seed: Mapping[int, PartialCompletion]) -> tuple[PartialCompletion, int]:
        """Return the partial completion of a request, and the token limit of its next part."""
        part = partial_by_seed.get(request.seed, PartialCompletion())
        return part, min(self.max_tokens, request.max_tokens - len(part.tokens))


class PartialRollout(Rollout):
    """A rollout that interrupts the completions of requests with a partial completion after `max_tokens` tokens.

    An interrupted completion gives an episode without a verdict (see `get_partial_completion`).
    """

    def __init__(self, mdp: TokenMDP, sampler: Sampler, max_tokens: int, **settings: Any) -> None:
        self.partial_sampler = InterruptibleSampler(sampler, max_tokens, mdp.tokenizer)
        super().__init__(mdp, sampler=self.partial_sampler, **settings)

    def stream_episodes(
        self, requests: Sequence[RolloutRequest], sampling: SamplingParams, *, version: int = 0
    ) -> Generator[tuple[int, Episode]]:
        """Yield the index of each request with its episode."""
        begun = {
            _derive_request_seed(request): request.partial_completion for request in requests if request.partial_completion is not None
        }
        if not begun:
            yield from super().stream_episodes(requests, sampling, version=version)
            return
        with self.partial_sampler.interrupt_completions(begun, version) as known:
            for number, episode in super().stream_episodes(requests, sampling, version=version):
                yield number, _record_versions(episode, known.get(_derive_request_seed(requests[number]), PartialCompletion()))


def build_rollout(mdp: TokenMDP, sampler: Sampler, *, partial_rollout_tokens: int | None, **settings: Any) -> Rollout:
    """Build a rollout; a partial rollout if a number of tokens is given."""
    return (
        Rollout(mdp, sampler=sampler, **settings)
        if partial_rollout_tokens is None
        else PartialRollout(mdp, sampler, partial_rollout_tokens, **settings)
    )


def get_partial_completion(episode: Episode) -> PartialCompletion | None:
    """Return the partial completion of an interrupted episode; None if it has ended or failed.

    >>> ends = {"stop_reason": StopReason.FAILED, "error": CONTINUES_ERROR, "meta": {"versions": [[3, 1]]}}
    >>> get_partial_completion(Episode("t", "g", [5, 7], [False, True], [0.0, -0.5], [0.0, 0.0], **ends))
    PartialCompletion(tokens=[7], logprobs=[-0.5], version_spans=[[3, 1]])
    """
    if episode.error != CONTINUES_ERROR or "versions" not in episode.meta:
        return None
    begin = episode.prompt_length
    return PartialCompletion(episode.tokens[begin:], episode.logprobs[begin:], episode.meta["versions"])


def is_continuation(episode: Episode, partial_completion: PartialCompletion) -> bool:
    """Return whether an episode continues this partial completion. True for failed episodes, which may have no tokens."""
    begin, versions = episode.prompt_length, episode.meta.get("versions") or [[episode.policy_version, episode.num_policy_tokens]]
    if episode.stop_reason is StopReason.FAILED and episode.error != CONTINUES_ERROR:
        return True
    end, spans = begin + len(partial_completion.tokens), len(partial_completion.version_spans)
    same = episode.tokens[begin:end] == partial_completion.tokens and episode.logprobs[begin:end] == partial_completion.logprobs
    ages = [version for version, _ in versions[:spans]] == [version for version, _ in partial_completion.version_spans]
    longer = all(count <= more for (_, count), (_, more) in zip(partial_completion.version_spans, versions, strict=False))
    return same and ages and longer and versions[: spans - 1] == partial_completion.version_spans[: spans - 1] if spans else True


def _record_versions(episode: Episode, partial_completion: PartialCompletion) -> Episode:
    """Record the weight versions of an episode, if there are several; add the tokens so far to an interrupted one."""
    if episode.error == CONTINUES_ERROR:
        before, count = len(episode.tokens), len(partial_completion.tokens)
        lists: dict[str, Any] = {
            "tokens": [*episode.tokens, *partial_completion.tokens],
            "action_mask": [False] * before + [True] * count,
            "logprobs": [0.0] * before + partial_completion.logprobs,
            "rewards": [0.0] * (before + count),
        }
        return replace(episode, **lists, meta=episode.meta | {"versions": partial_completion.version_spans})
    sampled = sum(count for _, count in partial_completion.version_spans)
    if (
        len(partial_completion.version_spans) < 2 or sampled != episode.num_policy_tokens
    ):  # a failed answer has none of its tokens, or not all
        return episode
    return replace(episode, meta=episode.meta | {"versions": partial_completion.version_spans})


def _derive_request_seed(rollout_request: RolloutRequest) -> int:
    """Return the seed of the sampler request for the only turn of a rollout request."""
    return derive_seed(rollout_request.seed, 0)


class _ShortenedRequestQueue(RequestQueue):
    """A request queue that replaces each request by the request for its next part."""

    def __init__(self, parts: InterruptibleSampler, feed: RequestQueue, asked: dict[int, Request]) -> None:
        self.sampler, self.queue, self.requests = parts, feed, asked

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "on_requests_ready":  # the scheduler calls the callback of its own queue
            self.queue.on_requests_ready = value
        else:
            super().__setattr__(name, value)

    def pop(self, max_requests: int) -> NumberedRequests | None:
        return self._shorten_requests(self.queue.pop(max_requests))

    def pop_all_if_idle(self) -> NumberedRequests | None:
        return self._shorten_requests(self.queue.pop_all_if_idle())

    @property
    def max_future_requests(self) -> int:
        return self.queue.max_future_requests

    def _shorten_requests(self, asked: NumberedRequests | None) -> NumberedRequests | None:
        self.requests.update(asked or ())
        return asked and [(number, self.sampler._shorten_request(request)) for number, request in asked]
