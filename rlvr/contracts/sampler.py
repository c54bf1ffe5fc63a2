"""The sampler contract: requests in, completions out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from rlvr.contracts.environment import Environment
from rlvr.contracts.plugin import Plugin
from rlvr.contracts.tokenizer import Tokenizer
from rlvr.errors import ConfigError
from rlvr.task import Task


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to sample. The log-probabilities handed back are under exactly this distribution.

    >>> Sampling(temperature=1.0).top_p
    1.0
    """

    temperature: float = 1.0  # 0 is greedy
    top_p: float = 1.0
    top_k: int = 0  # 0 keeps the whole vocabulary
    stop_ids: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        if self.temperature < 0 or not 0 < self.top_p <= 1 or self.top_k < 0:
            raise ValueError(f"temperature {self.temperature} >= 0, 0 < top_p {self.top_p} <= 1 and top_k {self.top_k} >= 0 must hold")


@dataclass(frozen=True, slots=True)
class Request:
    """One turn to sample: ids in. `seed` alone decides its randomness, whatever else is sampled beside it.

    >>> Request(prompt=[1, 6, 2], max_tokens=8, seed=3).max_tokens
    8
    """

    prompt: Sequence[int]
    max_tokens: int
    seed: int = 0
    task: Task | None = None  # for samplers that read from a script; a model never sees it
    turn: int = 0

    def __post_init__(self) -> None:
        if not self.prompt or self.max_tokens < 1:
            raise ValueError(f"a request needs a prompt and room for a token, got {len(self.prompt)} and {self.max_tokens}")


@dataclass(frozen=True, slots=True)
class Completion:
    """One sampled turn: ids out, never re-tokenised. The stop id, when there is one, is the last token.

    >>> Completion(tokens=[7, 9, 0], logprobs=[-0.5, -0.1, -0.01], finish="stop").finish
    'stop'
    """

    tokens: list[int]
    logprobs: list[float]
    finish: Literal["stop", "length", "error"]
    error: str = ""
    usage: tuple[int, int] | None = None  # tokens read and written as an endpoint counts them, where `tokens` only writes down its text

    def __post_init__(self) -> None:
        if len(self.tokens) != len(self.logprobs):
            raise ValueError(f"{len(self.tokens)} tokens but {len(self.logprobs)} log-probabilities")
        if self.finish != "error" and not self.tokens:
            raise ValueError("a completion without a token is an error, and must say so")


Asked = list[tuple[int, Request]]
"""Requests, each with the number that its completion is handed back with."""


class Feed(ABC):
    """Where a sampler takes its requests from while it answers others. Nothing in it waits.

    Both ways to ask give None once no more can come, and nothing where something may come later.
    """

    notify: Callable[[], None] | None = None
    """A sampler that waits for answers from elsewhere sets this; it is called, from any thread, when there may be more to take."""

    @abstractmethod
    def take(self, room: int) -> Asked | None:
        """Up to `room` requests that are ready."""

    @abstractmethod
    def wave(self) -> Asked | None:
        """All requests, once all are ready that can be: nothing is asked and no world is still to answer."""

    @property
    def coming(self) -> int:
        """How many more requests may be under way beside those that were taken."""
        return 0


class Listed(Feed):
    """A feed of requests that are all there from the start.

    >>> len(Listed([Request([1], 4)]).take(10))
    1
    """

    def __init__(self, requests: Sequence[Request]) -> None:
        self.left = list(enumerate(requests))

    def take(self, room: int) -> Asked | None:
        """The next `room` requests."""
        taken, self.left = self.left[:room], self.left[room:]
        return taken or None

    def wave(self) -> Asked | None:
        """All that are left."""
        return self.take(len(self.left))


class Sampler(Plugin, ABC):
    """Answers prompts. Several requests with the same prompt are a group, and a sampler may compute that prompt once."""

    policy_form: ClassVar[str] = ""  # how `rlvr eval --policy` addresses it, for example `hf:DIR`; empty when it cannot stand alone
    tokenizer: str | None = None  # the tokenizer that its tokens belong to, where the sampler is the one to decide
    gives_text: bool = False  # whether its tokens only write down a text: then limits hold in the tokens that `Completion.usage` counts
    holds_trainer_up: str = ""  # why it cannot sample in a thread of its own while the trainer trains; empty where it can
    company: ClassVar[int] = 0  # how many answers evaluation samples side by side where that decides their last bits; 0: it does not

    @classmethod
    def policy_settings(cls, rest: str) -> dict[str, Any]:
        """The constructor's settings for `--policy NAME:rest`."""
        raise ConfigError(f"{cls.__name__} cannot be used as a policy of its own")

    @abstractmethod
    def stream(self, requests: Sequence[Request], sampling: Sampling) -> Iterator[tuple[int, Completion]]:
        """Each request's index with its completion, in the order in which they end: verification begins at once."""

    def serve(self, feed: Feed, sampling: Sampling) -> Iterator[tuple[int, Completion] | None]:
        """Each completion with its request's number, for requests that come while others are answered. Ends when the feed does.

        None means: nothing has ended, look after the rest. A sampler says so whenever it would have to wait for requests, and now and then
        while it works. The default answers in waves, by way of `stream`.
        """
        while (asked := feed.wave()) is not None:
            if not asked:
                yield None
                continue
            silent = {number for number, _ in asked}
            for place, completion in self.stream([request for _, request in asked], sampling):
                silent.discard(asked[place][0])
                yield asked[place][0], completion
            for number in sorted(silent):
                yield number, Completion([], [], "error", "the sampler gave no answer at all")

    def __init_subclass__(cls, **more: Any) -> None:
        """Who writes `stream` alone is asked by way of it, also where a base class has a `serve` of its own."""
        super().__init_subclass__(**more)
        if "stream" in vars(cls) and "serve" not in vars(cls):
            setattr(cls, "serve", Sampler.serve)  # noqa: B010 -- pyright takes an assignment for an override

    def sample(self, requests: Sequence[Request], sampling: Sampling) -> list[Completion]:
        """All completions, in the order of the requests."""
        return [completion for _, completion in sorted(self.stream(requests, sampling), key=lambda pair: pair[0])]

    def bind(self, environment: Environment, tokenizer: Tokenizer) -> None:
        """Told once, before the first request, what the prompts are made of. Most samplers do not care."""

    def load(self, model: Any, version: int) -> None:
        """Take over the trainer's weights. Samplers without weights (the scripted one) leave this alone."""

    def rest(self) -> None:
        """Told when a step has all its answers: until the next `load` nothing is sampled, and memory may be lent to the trainer."""
