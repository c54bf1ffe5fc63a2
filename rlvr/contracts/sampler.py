"""The sampler contract: requests in, completions out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol

from rlvr.contracts.environment import Environment
from rlvr.contracts.plugin import Plugin
from rlvr.contracts.tokenizer import Tokenizer
from rlvr.contracts.weights import Weights
from rlvr.errors import ConfigError
from rlvr.task import Task
from rlvr.turns import ToolSpec, Turn


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to sample. The returned log-probabilities are those of exactly this distribution.

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
class Said:
    """A conversation with tools so far, for samplers that exchange text, in the format of chat servers.

    >>> Said(({"role": "user", "content": "2+2="},)).tools
    ()
    """

    messages: tuple[Mapping[str, Any], ...]
    tools: tuple[ToolSpec, ...] = ()


class TurnEnd(Protocol):
    """Says where a turn ends that no stop id ends. It only reads the tokens."""

    def may(self, token: int) -> bool:
        """Whether a turn may end with this token: a cheap first test."""
        ...

    def __call__(self, tokens: Sequence[int]) -> bool:
        """Whether the turn ends with the last of these tokens, which are all of its tokens so far."""
        ...


@dataclass(frozen=True, slots=True)
class Request:
    """One turn to sample, as token ids. Its randomness depends on `seed` alone, not on the other requests in the batch.

    >>> Request(prompt=[1, 6, 2], max_tokens=8, seed=3).max_tokens
    8
    """

    prompt: Sequence[int]
    max_tokens: int
    seed: int = 0
    task: Task | None = None  # for samplers that read from a script; a model never sees it
    turn: int = 0
    said: Said | None = None  # where the conversation has tools or an opening, for samplers that exchange text
    ends: TurnEnd | None = None  # ends the turn besides the stop ids. A sampler may ignore it: what it gives beyond is cut off

    def __post_init__(self) -> None:
        if not self.prompt or self.max_tokens < 1:
            raise ValueError(f"a request needs a prompt and max_tokens of at least 1, got {len(self.prompt)} tokens and {self.max_tokens}")


@dataclass(frozen=True, slots=True)
class Completion:
    """One sampled turn, as token ids that are never re-tokenised. The stop id, if there is one, is the last token.

    >>> Completion(tokens=[7, 9, 0], logprobs=[-0.5, -0.1, -0.01], finish="stop").finish
    'stop'
    """

    tokens: list[int]
    logprobs: list[float]
    finish: Literal["stop", "length", "error"]
    error: str = ""
    usage: tuple[int, int] | None = None  # input and output tokens as the endpoint counts them, if `tokens` only encodes its text
    turn: Turn | None = None  # the turn with its calls, where the endpoint has read them from its text
    seconds: float = 0.0  # how long it took without waiting for its turn, if the sampler knows; 0: since it was asked

    def __post_init__(self) -> None:
        if len(self.tokens) != len(self.logprobs) or (self.finish != "error" and not self.tokens):
            raise self._mistake()

    def _mistake(self) -> ValueError:
        if len(self.tokens) != len(self.logprobs):
            return ValueError(f"{len(self.tokens)} tokens but {len(self.logprobs)} log-probabilities")
        return ValueError("a completion without tokens must have finish='error'")


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
        return taken if taken or self.left else None

    def wave(self) -> Asked | None:
        """All that are left."""
        return self.take(len(self.left))


class Sampler(Plugin, ABC):
    """Samples answers to prompts. Requests with the same prompt are a group; a sampler may compute that prompt once."""

    policy_form: ClassVar[str] = ""  # its form in `rlvr eval --policy`, for example `hf:DIR`; empty if it cannot be used there
    tokenizer: str | None = None  # the tokenizer of its tokens, if the sampler decides it
    gives_text: bool = False  # whether its tokens only encode a text: then limits apply to the tokens in `Completion.usage`
    holds_trainer_up: str = ""  # why it cannot sample in a separate thread during training; empty if it can
    runs_model: bool = True  # whether it runs the model that `load` gets; false: it only reads the weights, wherever they are
    incidental: ClassVar[frozenset[str]] = frozenset()  # settings that do not affect what is sampled: an evaluation does not record them
    company: ClassVar[int] = 0  # the batch size of evaluation, if it affects the last bits of the results; 0: it does not

    @classmethod
    def policy_settings(cls, rest: str) -> dict[str, Any]:
        """The constructor's arguments for `--policy NAME:rest`."""
        raise ConfigError(f"{cls.__name__} cannot be used as a policy with --policy")

    @abstractmethod
    def stream(self, requests: Sequence[Request], sampling: Sampling) -> Iterator[tuple[int, Completion]]:
        """Yield the index of each request with its completion, as soon as it finishes, so that verification can start early."""

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

    def prepare(self, *, precision: str, max_length: int) -> None:
        """Called once before a training run: the precision the trainer computes in, and the most tokens of a prompt with its answer."""

    def figures(self) -> dict[str, float]:
        """Metrics of the latest `load`, which are logged with the step that samples from it."""
        return {}

    def bind(self, environment: Environment, tokenizer: Tokenizer) -> None:
        """Receive the environment and the tokenizer, once, before the first request. Most samplers ignore this."""

    def suits(self, model: Any) -> str:
        """Asked before a run begins: ConfigError if the trainer's model cannot be sampled from, else why it will be slow, or ''."""
        return ""

    def receive(self, weights: Weights, version: int) -> None:
        """Called with the trainer's new weights. The default loads a plain model; a sampler with an engine elsewhere overrides it."""
        if type(self).load is not Sampler.load:
            self.load(weights.model(), version)

    def load(self, model: Any, version: int) -> None:
        """Load the trainer's weights. Samplers without weights (such as scripted) ignore this."""

    def rest(self) -> None:
        """Called when a step has all its answers: nothing is sampled until the next `load`, so memory can be freed for the trainer."""
