"""Partial rollouts: a long completion is interrupted after a number of tokens and continued later, with newer weights.

The partial completion is part of the rollout request, so any process can continue it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from rlvr.contracts import Completion, Feed, Request, Sampler, Sampling, Tokenizer
from rlvr.contracts.sampler import Asked
from rlvr.episode import ABOVE_ZERO, End, Episode
from rlvr.mdp.rules import TokenMDP
from rlvr.rollout.draws import Draw, Part, seed_of
from rlvr.rollout.rollout import Rollout

CUT = "the answer continues in the next step"


class Parts(Sampler):
    """Wraps a sampler: inside `cut_completions`, completions are interrupted after `max_tokens`. Requests are identified by their seed."""

    def __init__(self, inner: Sampler, most: int, tokenizer: Tokenizer) -> None:
        self.inner, self.most, self.version, self.tokens = inner, most, 0, tokenizer
        self.known: dict[int, Part] | None = None
        """The partial completion of each request, by seed; None outside of `cut_completions`."""
        for name in ("company", "gives_text", "tokenizer", "runs_model"):
            setattr(self, name, getattr(inner, name))

    @contextmanager
    def cutting(self, begun: Mapping[int, Part], version: int) -> Iterator[dict[int, Part]]:
        """Interrupt completions in this block, and continue the given partial ones; yields the dict of partial completions."""
        self.known, self.version = dict(begun), version
        try:
            yield self.known
        finally:
            self.known = None

    def stream(self, requests: Sequence[Request], sampling: Sampling) -> Iterator[tuple[int, Completion]]:
        """Yield each request's completion, complete or interrupted."""
        shorter = [self._shorter(request) for request in requests]
        for place, completion in self.inner.stream(shorter, sampling):
            yield place, self._joined(requests[place], completion)

    def serve(self, feed: Feed, sampling: Sampling) -> Iterator[tuple[int, Completion] | None]:
        """Yield completions, complete or interrupted, while new requests arrive."""
        asked = dict[int, Request]()
        for given in self.inner.serve(_Shorter(self, feed, asked), sampling):
            known = given is not None and given[0] in asked  # an unknown number is rejected by the caller
            yield (given[0], self._joined(asked.pop(given[0]), given[1])) if given and known else given

    def _shorter(self, request: Request) -> Request:
        """Build the request for the next part of a completion."""
        if self.known is None:
            return request
        part, room = self._room(request, self.known)
        seed = seed_of(request.seed, len(part.tokens)) if part.tokens else request.seed
        return replace(request, prompt=[*request.prompt, *part.tokens], max_tokens=room, seed=seed)

    def _joined(self, request: Request, completion: Completion) -> Completion:
        """Return an error that marks an interrupted completion, or all its parts joined if it has ended."""
        if self.known is None or completion.finish == "error":
            return completion
        before, room = self._room(request, self.known)
        part = before.and_then(completion, self.version)
        full = completion.finish == "length" and len(completion.tokens) == room and len(part.tokens) < request.max_tokens
        ended = not (full and self._goes_on(part))
        self.known[request.seed] = part
        return replace(completion, tokens=part.tokens, logprobs=part.logprobs) if ended else Completion([], [], "error", CUT)

    def _goes_on(self, part: Part) -> bool:
        """Return whether a partial completion can be continued: no stop id, no invalid token and no invalid log-probability."""
        among = self.tokens.stop_ids.isdisjoint(part.tokens) and min(part.tokens) >= 0 and max(part.tokens) < self.tokens.vocab_size
        return among and all(-math.inf < p <= ABOVE_ZERO for p in part.logprobs)

    def _room(self, request: Request, known: Mapping[int, Part]) -> tuple[Part, int]:
        """Return the partial completion of a request, and the token limit of its next part."""
        part = known.get(request.seed, Part())
        return part, min(self.most, request.max_tokens - len(part.tokens))


class RolloutInParts(Rollout):
    """A rollout that interrupts the completions of requests with a partial completion after `max_tokens` tokens.

    An interrupted completion gives an episode without a verdict (see `get_partial_completion`).
    """

    def __init__(self, mdp: TokenMDP, sampler: Sampler, most: int, **how: Any) -> None:
        self.parts = Parts(sampler, most, mdp.tokenizer)
        super().__init__(mdp, self.parts, **how)

    def stream(self, draws: Sequence[Draw], sampling: Sampling, *, version: int = 0) -> Iterator[tuple[int, Episode]]:
        """Yield the index of each request with its episode."""
        begun = {_asked(draw): draw.part for draw in draws if draw.part is not None}
        if not begun:
            yield from super().stream(draws, sampling, version=version)
            return
        with self.parts.cutting(begun, version) as known:
            for number, episode in super().stream(draws, sampling, version=version):
                yield number, _told(episode, known.get(_asked(draws[number]), Part()))


def rollout_of(mdp: TokenMDP, sampler: Sampler, *, most: int | None, **how: Any) -> Rollout:
    """Build a rollout; a partial rollout if a number of tokens is given."""
    return Rollout(mdp, sampler, **how) if most is None else RolloutInParts(mdp, sampler, most, **how)


def part_of(episode: Episode) -> Part | None:
    """Return the partial completion of an interrupted episode; None if it has ended or failed.

    >>> part_of(Episode("t", "g", [5, 7], [False, True], [0.0, -0.5], [0.0, 0.0], "failed", error=CUT, meta={"versions": [[3, 1]]}))
    Part(tokens=[7], logprobs=[-0.5], versions=[[3, 1]])
    """
    if episode.error != CUT or "versions" not in episode.meta:
        return None
    begin = episode.prompt_length
    return Part(episode.tokens[begin:], episode.logprobs[begin:], episode.meta["versions"])


def begins_with(episode: Episode, part: Part) -> bool:
    """Return whether an episode continues this partial completion. True for failed episodes, which may have no tokens."""
    begin, versions = episode.prompt_length, episode.meta.get("versions") or [[episode.policy_version, episode.length]]
    if episode.end is End.FAILED and episode.error != CUT:
        return True
    end, spans = begin + len(part.tokens), len(part.versions)
    same = episode.tokens[begin:end] == part.tokens and episode.logprobs[begin:end] == part.logprobs
    ages = [version for version, _ in versions[:spans]] == [version for version, _ in part.versions]
    longer = all(count <= more for (_, count), (_, more) in zip(part.versions, versions, strict=False))
    return same and ages and longer and versions[: spans - 1] == part.versions[: spans - 1] if spans else True


def _told(episode: Episode, part: Part) -> Episode:
    """Record the weight versions of an episode, if there are several; add the tokens so far to an interrupted one."""
    if episode.error == CUT:
        before, count = len(episode.tokens), len(part.tokens)
        lists: dict[str, Any] = {
            "tokens": [*episode.tokens, *part.tokens],
            "acted": [False] * before + [True] * count,
            "logprobs": [0.0] * before + part.logprobs,
            "rewards": [0.0] * (before + count),
        }
        return replace(episode, **lists, meta=episode.meta | {"versions": part.versions})
    sampled = sum(count for _, count in part.versions)
    if len(part.versions) < 2 or sampled != episode.length:  # a failed answer has none of its tokens, or not all
        return episode
    return replace(episode, meta=episode.meta | {"versions": part.versions})


def _asked(draw: Draw) -> int:
    """Return the seed of the sampler request for the only turn of a rollout request."""
    return seed_of(draw.seed, 0)


class _Shorter(Feed):
    """A request queue that replaces each request by the request for its next part."""

    def __init__(self, parts: Parts, feed: Feed, asked: dict[int, Request]) -> None:
        self.parts, self.feed, self.asked = parts, feed, asked

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "notify":  # the scheduler calls the callback of its own queue
            self.feed.notify = value
        else:
            super().__setattr__(name, value)

    def take(self, room: int) -> Asked | None:
        return self._noted(self.feed.take(room))

    def wave(self) -> Asked | None:
        return self._noted(self.feed.wave())

    @property
    def coming(self) -> int:
        return self.feed.coming

    def _noted(self, asked: Asked | None) -> Asked | None:
        self.asked.update(asked or ())
        return asked and [(number, self.parts._shorter(request)) for number, request in asked]
