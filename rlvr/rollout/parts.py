"""Sample long answers in parts: one is cut after so many tokens, and continues in a later call, by the weights of that time.

What is there of an answer travels with its draw, so any process can sample the next part.
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
    """A sampler whose answers end after `most` tokens inside `cutting`, and are complete outside. Each request is known by its seed.

    >>> with parts.cutting({}, version=3) as known:                                     # doctest: +SKIP
    ...     episodes = rollout.collect(draws, Sampling())
    >>> len(known)                                                                      # doctest: +SKIP
    64
    """

    def __init__(self, inner: Sampler, most: int, tokenizer: Tokenizer) -> None:
        self.inner, self.most, self.version, self.tokens = inner, most, 0, tokenizer
        self.known: dict[int, Part] | None = None
        """What is there of each answer; None: nothing is cut."""
        for name in ("company", "gives_text", "tokenizer", "runs_model"):
            setattr(self, name, getattr(inner, name))

    @contextmanager
    def cutting(self, begun: Mapping[int, Part], version: int) -> Iterator[dict[int, Part]]:
        """Cut answers, and continue those that are begun; gives what is there of each, as it becomes known."""
        self.known, self.version = dict(begun), version
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
            known = given is not None and given[0] in asked  # what was never asked is refused by whoever gets it
            yield (given[0], self._joined(asked.pop(given[0]), given[1])) if given and known else given

    def _shorter(self, request: Request) -> Request:
        """The request for the next part of an answer."""
        if self.known is None:
            return request
        part, room = self._room(request, self.known)
        seed = seed_of(request.seed, len(part.tokens)) if part.tokens else request.seed
        return replace(request, prompt=[*request.prompt, *part.tokens], max_tokens=room, seed=seed)

    def _joined(self, request: Request, completion: Completion) -> Completion:
        """The answer is cut here if it can go on; else all parts of it, which are looked at as any answer is."""
        if self.known is None or completion.finish == "error":
            return completion
        before, room = self._room(request, self.known)
        part = before.and_then(completion, self.version)
        full = completion.finish == "length" and len(completion.tokens) == room and len(part.tokens) < request.max_tokens
        ended = not (full and self._goes_on(part))
        self.known[request.seed] = part
        return replace(completion, tokens=part.tokens, logprobs=part.logprobs) if ended else Completion([], [], "error", CUT)

    def _goes_on(self, part: Part) -> bool:
        """Whether a sampler can be asked for what comes after it: no token ends the turn or is none, no log-probability is impossible."""
        among = self.tokens.stop_ids.isdisjoint(part.tokens) and min(part.tokens) >= 0 and max(part.tokens) < self.tokens.vocab_size
        return among and all(-math.inf < p <= ABOVE_ZERO for p in part.logprobs)

    def _room(self, request: Request, known: Mapping[int, Part]) -> tuple[Part, int]:
        """What is there of the answer to a request, and how many tokens its next part may have."""
        part = known.get(request.seed, Part())
        return part, min(self.most, request.max_tokens - len(part.tokens))


class RolloutInParts(Rollout):
    """A rollout in which the answers to draws that have a part are cut after `most` tokens.

    One that is cut is an episode without a verdict, with the tokens that are there: `part_of`.

    >>> RolloutInParts(mdp, sampler, 512, workers=8).collect(draws, Sampling(), version=3)      # doctest: +SKIP
    """

    def __init__(self, mdp: TokenMDP, sampler: Sampler, most: int, **how: Any) -> None:
        self.parts = Parts(sampler, most, mdp.tokenizer)
        super().__init__(mdp, self.parts, **how)

    def stream(self, draws: Sequence[Draw], sampling: Sampling, *, version: int = 0) -> Iterator[tuple[int, Episode]]:
        """Each draw's index with its episode."""
        begun = {_asked(draw): draw.part for draw in draws if draw.part is not None}
        if not begun:
            yield from super().stream(draws, sampling, version=version)
            return
        with self.parts.cutting(begun, version) as known:
            for number, episode in super().stream(draws, sampling, version=version):
                yield number, _told(episode, known.get(_asked(draws[number]), Part()))


def rollout_of(mdp: TokenMDP, sampler: Sampler, *, most: int | None, **how: Any) -> Rollout:
    """A rollout, in parts of so many tokens if there is a number."""
    return Rollout(mdp, sampler, **how) if most is None else RolloutInParts(mdp, sampler, most, **how)


def part_of(episode: Episode) -> Part | None:
    """What is there of an answer that was cut; None for one that has ended or failed.

    >>> part_of(Episode("t", "g", [5, 7], [False, True], [0.0, -0.5], [0.0, 0.0], "failed", error=CUT, meta={"versions": [[3, 1]]}))
    Part(tokens=[7], logprobs=[-0.5], versions=[[3, 1]])
    """
    if episode.error != CUT or "versions" not in episode.meta:
        return None
    begin = episode.prompt_length
    return Part(episode.tokens[begin:], episode.logprobs[begin:], episode.meta["versions"])


def begins_with(episode: Episode, part: Part) -> bool:
    """Whether an episode goes on from this part, if it has tokens of the policy at all: a failed one may have none."""
    begin, versions = episode.prompt_length, episode.meta.get("versions") or [[episode.policy_version, episode.length]]
    if episode.end is End.FAILED and episode.error != CUT:
        return True
    end, spans = begin + len(part.tokens), len(part.versions)
    same = episode.tokens[begin:end] == part.tokens and episode.logprobs[begin:end] == part.logprobs
    ages = [version for version, _ in versions[:spans]] == [version for version, _ in part.versions]
    longer = all(count <= more for (_, count), (_, more) in zip(part.versions, versions, strict=False))
    return same and ages and longer and versions[: spans - 1] == part.versions[: spans - 1] if spans else True


def _told(episode: Episode, part: Part) -> Episode:
    """The episode that names the versions of the weights that sampled it, if there were several; a cut one with all that is there."""
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
    """The seed of the request for the only turn of a draw."""
    return seed_of(draw.seed, 0)


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
