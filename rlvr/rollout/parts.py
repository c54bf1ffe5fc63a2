"""Sample long answers in parts: one is cut after so many tokens, and continues in a later call, by the weights of that time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from rlvr.contracts import Completion, Feed, Request, Sampler, Sampling
from rlvr.contracts.sampler import Asked
from rlvr.rollout.draws import seed_of

CUT = "the answer continues in the next step"


@dataclass(frozen=True, slots=True)
class Part:
    """What is there of an answer.

    >>> Part([7, 9], [-0.5, -0.1], [[3, 2]]).tokens
    [7, 9]
    """

    tokens: list[int]
    logprobs: list[float]
    versions: list[list[int]]
    """Which version of the weights sampled how many of the tokens, in their order."""

    def and_then(self, completion: Completion, version: int) -> Part:
        """With what was sampled after it."""
        before, count = self.versions, len(completion.tokens)
        same = before and before[-1][0] == version
        spans = [*before[:-1], [version, before[-1][1] + count]] if same else [*before, [version, count]]
        return Part([*self.tokens, *completion.tokens], [*self.logprobs, *completion.logprobs], spans)


class Parts(Sampler):
    """A sampler whose answers end after `most` tokens inside `cutting`, and are complete outside. Each request is known by its seed.

    >>> with parts.cutting({}, version=3) as known:                                     # doctest: +SKIP
    ...     episodes = rollout.collect(draws, Sampling())
    >>> len(known), sum(not ended for _, ended in known.values())                       # doctest: +SKIP
    (64, 5)
    """

    def __init__(self, inner: Sampler, most: int) -> None:
        self.inner, self.most, self.version = inner, most, 0
        self.known: dict[int, tuple[Part, bool]] | None = None
        """What is there of each answer, and whether it has ended; None: nothing is cut."""
        for name in ("company", "gives_text", "tokenizer", "runs_model"):
            setattr(self, name, getattr(inner, name))

    @contextmanager
    def cutting(self, begun: Mapping[int, Part], version: int) -> Iterator[dict[int, tuple[Part, bool]]]:
        """Cut answers, and continue those that are begun; gives what became of each, as it becomes known."""
        self.known, self.version = {seed: (part, False) for seed, part in begun.items()}, version
        try:
            yield self.known
        finally:
            self.known = None

    def stream(self, requests: Sequence[Request], sampling: Sampling) -> Iterator[tuple[int, Completion]]:
        """Each request's completion, whole or as far as it may go."""
        shorter = [self._shorter(request) for request in requests]
        for place, completion in self.inner.stream(shorter, sampling):
            yield place, self._joined(requests[place], completion)

    def serve(self, feed: Feed, sampling: Sampling) -> Iterator[tuple[int, Completion] | None]:
        """The same for requests that come while others are answered."""
        asked = dict[int, Request]()
        for given in self.inner.serve(_Shorter(self, feed, asked), sampling):
            yield given and (given[0], self._joined(asked.pop(given[0]), given[1]))

    def _shorter(self, request: Request) -> Request:
        """The request for the next part of an answer."""
        if self.known is None:
            return request
        part, _ = self.known.get(request.seed, (Part([], [], []), False))
        room = min(self.most, request.max_tokens - len(part.tokens))
        seed = seed_of(request.seed, len(part.tokens)) if part.tokens else request.seed
        return replace(request, prompt=[*request.prompt, *part.tokens], max_tokens=room, seed=seed)

    def _joined(self, request: Request, completion: Completion) -> Completion:
        """All parts of an answer if this was the last one; else the answer is cut here."""
        if self.known is None or completion.finish == "error":
            return completion
        before, _ = self.known.get(request.seed, (Part([], [], []), False))
        part = before.and_then(completion, self.version)
        ended = completion.finish != "length" or len(part.tokens) >= request.max_tokens
        self.known[request.seed] = (part, ended)
        return replace(completion, tokens=part.tokens, logprobs=part.logprobs) if ended else Completion([], [], "error", CUT)


class _Shorter(Feed):
    """A feed whose requests are those for the next parts."""

    def __init__(self, parts: Parts, feed: Feed, asked: dict[int, Request]) -> None:
        self.parts, self.feed, self.asked = parts, feed, asked

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "notify":  # the schedule calls that of its own feed
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
