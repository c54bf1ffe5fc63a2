"""The sampler contract: requests in, completions out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from rlvr.contracts.environment import Environment
from rlvr.contracts.plugin import Plugin
from rlvr.contracts.tokenizer import Tokenizer
from rlvr.contracts.weights import Weights
from rlvr.errors import ConfigError, SamplerError
from rlvr.hints import Hinted, add_usage_to_constructor_errors
from rlvr.task import Task
from rlvr.turns import ToolSpec, Turn


@add_usage_to_constructor_errors
@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling parameters. Samplers return log-probabilities under exactly this distribution.

    >>> SamplingParams(temperature=1.0).top_p
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
class ChatPrompt:
    """A conversation so far, with its tools, in the format of chat servers; for samplers that exchange text.

    >>> ChatPrompt(({"role": "user", "content": "2+2="},)).tools
    ()
    """

    messages: tuple[Mapping[str, Any], ...]
    tools: tuple[ToolSpec, ...] = ()


class StopCriterion(Protocol):
    """A stop criterion for turns in addition to the stop ids. It must not modify the tokens."""

    def may_stop(self, token: int) -> bool:
        """Return whether a turn may end with this token. A cheap pre-check."""
        ...

    def __call__(self, tokens: Sequence[int]) -> bool:
        """Return whether the turn ends with the last of `tokens`, which are all tokens of the turn so far."""
        ...


@dataclass(frozen=True, slots=True)
class Request:
    """One turn to sample, as token ids. Its randomness depends only on `seed`, not on the other requests in the batch.

    >>> Request(prompt=[1, 6, 2], max_tokens=8, seed=3).max_tokens
    8
    """

    prompt: Sequence[int]
    max_tokens: int
    seed: int = 0
    task: Task | None = None  # for scripted samplers; models never see it
    turn: int = 0
    chat_prompt: ChatPrompt | None = None  # set if the conversation has tools or initial messages; for samplers that exchange text
    stop_criterion: StopCriterion | None = (
        None  # ends the turn in addition to the stop ids; if a sampler ignores it, extra tokens are truncated
    )

    def __post_init__(self) -> None:
        if not self.prompt or self.max_tokens < 1:
            raise ValueError(f"a request needs a prompt and max_tokens of at least 1, got {len(self.prompt)} tokens and {self.max_tokens}")


@dataclass(frozen=True, slots=True)
class Completion(Hinted):
    """One sampled turn, as token ids that are never re-tokenized. A stop id, if present, is the last token.

    >>> Completion(tokens=[7, 9, 0], logprobs=[-0.5, -0.1, -0.01], finish_reason="stop").finish_reason
    'stop'
    """

    _synonyms = {"token_ids": "tokens", "stop_reason": "finish_reason"}
    _hints = {
        **dict.fromkeys(
            ("text", "content", "outputs", "message"),
            "a sampler returns tokens: tokenizer.decode(completion.tokens); rlvr.generate(sampler, prompts) returns texts",
        ),
    }
    tokens: list[int]
    logprobs: list[float]
    finish_reason: Literal["stop", "length", "error"]
    error: str = ""
    usage: tuple[int, int] | None = None  # the endpoint's own count of input and output tokens, if `tokens` only encodes its text
    turn: Turn | None = None  # the turn with its calls, if the endpoint parsed them
    duration_s: float = 0.0  # the sampling time without queueing; 0 if the sampler does not know it

    def __post_init__(self) -> None:
        if len(self.tokens) != len(self.logprobs) or (self.finish_reason != "error" and not self.tokens):
            raise self._build_error()

    def _build_error(self) -> ValueError:
        if len(self.tokens) != len(self.logprobs):
            return ValueError(f"{len(self.tokens)} tokens but {len(self.logprobs)} log-probabilities")
        return ValueError("a completion without tokens must have finish_reason='error'")


NumberedRequests = list[tuple[int, Request]]
"""Requests, each with the number that identifies its completion."""


class RequestQueue(ABC):
    """The queue that a sampler takes requests from while it works on others. Its methods never block.

    `pop` and `pop_all_if_idle` return None once no more requests can come, and an empty list if more may come later.
    """

    on_requests_ready: Callable[[], None] | None = None
    """A callback that an asynchronous sampler may set. It is called, from any thread, when new requests may be available."""

    @abstractmethod
    def pop(self, max_requests: int) -> NumberedRequests | None:
        """Return up to `max_requests` requests that are ready."""

    @abstractmethod
    def pop_all_if_idle(self) -> NumberedRequests | None:
        """Return all requests, once no request is being sampled and no session is still working on a reply; before that, an empty list."""

    @property
    def max_future_requests(self) -> int:
        """The number of further requests that may follow those already taken."""
        return 0


class StaticQueue(RequestQueue):
    """A queue of requests that are all known from the start.

    >>> len(StaticQueue([Request([1], 4)]).pop(10))
    1
    """

    def __init__(self, requests: Sequence[Request]) -> None:
        self.remaining = list(enumerate(requests))

    def pop(self, max_requests: int) -> NumberedRequests | None:
        """Return the next `max_requests` requests."""
        taken, self.remaining = self.remaining[:max_requests], self.remaining[max_requests:]
        return taken if taken or self.remaining else None

    def pop_all_if_idle(self) -> NumberedRequests | None:
        """Return all remaining requests."""
        return self.pop(len(self.remaining))


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerTraits:
    """What a sampler is: how it gets its weights, and what its samples depend on. A sampler that wraps another one passes it on.

    >>> SamplerTraits(eval_batch_size=64).loads_weights
    True
    """

    loads_weights: bool = True
    """False for a sampler without weights, such as a script: the trainer then sends it none."""
    runs_model: bool = True
    """True if it runs the model that `update_from_model` receives, on that model's device; False if an engine of its own reads the weights,
    whose copies may then be in host memory."""
    validates_model: bool = False
    """True if `check_model_support` tests the model, which the sampler then has as its `model`: its tokens can be checked before a run."""
    text_only: bool = False
    """True if `tokens` only encode a text; limits then apply to `Completion.usage`."""
    blocks_trainer_reason: str = ""
    """Why it cannot sample in a thread during training; empty if it can."""
    eval_batch_size: int = 0
    """The evaluation batch size, if results depend on it bitwise; 0 if not."""
    cli_syntax: str = ""
    """Its syntax in `rlvr eval --policy`, for example `hf:DIR`; empty if unsupported."""
    non_semantic_settings: frozenset[str] = frozenset()
    """Settings without effect on the samples; evaluations do not record them."""


class Sampler(Plugin, ABC):
    """Samples completions of prompts. Requests with the same prompt form a group, whose prompt may be computed once.

    Define `stream_completions`, and one of `update_from_model` (it runs the model) and `update_weights` (an engine of its own loads them);
    a sampler without weights says so: `traits = SamplerTraits(loads_weights=False)`. One that can take new requests while it works on others
    overrides `stream_from_queue` as well. `docs/sampling.md` has a whole sampler, and `rlvr check sampler NAME` checks one.
    """

    _hints = {
        "generate": "write rlvr.generate(model, prompts, tokenizer='chars', n=8) for texts, or .sample([rlvr.Request(ids, 32)], rlvr.SamplingParams()) for ids",
        "rollout": "write rlvr.Rollout(env, tokenizer, sampler).sample(tasks, n=8)",
    }
    traits: SamplerTraits = SamplerTraits()
    """What it is. A class attribute, or set in the constructor where it depends on the settings."""
    tokenizer: str | Tokenizer | None = None
    """The tokenizer, if the sampler determines it."""

    def __repr__(self) -> str:
        """Show the class, and the model or the tokenizer that the sampler names."""
        return f"<{type(self).__name__}{f' of {self.tokenizer}' if isinstance(self.tokenizer, str) else ''}>"

    @classmethod
    def settings_from_cli(cls, argument: str) -> dict[str, Any]:
        """Parse `--policy NAME:rest` into constructor arguments."""
        raise ConfigError(f"{cls.__name__} cannot be used as a policy with --policy")

    @abstractmethod
    def stream_completions(self, requests: Sequence[Request], sampling: SamplingParams) -> Iterator[tuple[int, Completion]]:
        """Yield the index of each request with its completion as soon as it finishes, so that verification can start early."""

    def stream_from_queue(self, queue: RequestQueue, sampling: SamplingParams) -> Iterator[tuple[int, Completion] | None]:
        """Yield each completion with its request's number, while new requests arrive. Ends when the queue ends.

        Yields None to return control to the caller: whenever the sampler would have to wait for requests, and regularly while it works.
        The default samples one batch of all available requests at a time, with `stream_completions`; a subclass of a sampler with its own `stream_from_queue`
        overrides this method, too.
        """
        while (asked := queue.pop_all_if_idle()) is not None:
            if not asked:
                yield None
                continue
            silent = {number for number, _ in asked}
            for place, completion in self.stream_completions([request for _, request in asked], sampling):
                if not isinstance(place, int) or not 0 <= place < len(asked):
                    raise SamplerError(
                        f"{type(self).__name__}.stream_completions yielded an answer to request {place!r}; it was given {len(asked)} requests, "
                        f"and must yield their places, from 0 to {len(asked) - 1}"
                    )
                silent.discard(asked[place][0])
                yield asked[place][0], completion
            for number in sorted(silent):
                yield number, Completion([], [], "error", "the sampler gave no answer at all")

    def sample(self, requests: Sequence[Request], sampling: SamplingParams) -> list[Completion]:
        """Return all completions, in the order of the requests. For episodes of an environment use `rlvr.Rollout`."""
        if not isinstance(requests, Sequence) or isinstance(requests, str):
            raise ConfigError(
                f"a sampler takes a list of rlvr.Request and was given a {type(requests).__name__}; "
                "for episodes of an environment write rlvr.Rollout(env, tokenizer, sampler).sample(tasks, n=8)"
            )
        return [completion for _, completion in sorted(self.stream_completions(requests, sampling), key=lambda pair: pair[0])]

    def setup(self, environment: Environment, tokenizer: Tokenizer, *, precision: str | None = None, max_length: int = 0) -> None:
        """Receive the environment and the tokenizer before the first request.

        A training run also gives the trainer's compute precision and the maximum sequence length (prompt and completion); its evaluations
        call this again without them, for each environment, so keep what was given. Most samplers ignore all of it.
        """

    def get_weight_probe_metrics(self) -> dict[str, float]:
        """Return metrics of the latest weight load, which are logged with the step that samples from these weights."""
        return {}

    def check_model_support(self, model: Any) -> str:
        """Raise ConfigError if the sampler cannot run the trainer's model. Returns why sampling will be slow, or an empty string."""
        return ""

    def update_weights(self, weights: Weights, version: int) -> None:
        """Receive new weights: everything that has some calls this method. When it returns, nothing is sampled from older ones.

        The default calls `update_from_model`; samplers with an engine of their own override this method. Of a model alone, give
        `PlainWeights(model)`.
        """
        if self.traits.loads_weights:
            self.update_from_model(weights.gather_model(), version)

    def update_from_model(self, model: Any, version: int) -> None:
        """Load a model of this process. Called by the default of `update_weights` alone; the default raises ConfigError."""
        raise ConfigError(
            f"the sampler {type(self).__name__} was given weights and loads none: define `update_from_model` (it runs the model) or "
            "`update_weights` (an engine of its own loads them; give it PlainWeights(model)), or, if it has no weights, set "
            "traits = SamplerTraits(loads_weights=False)"
        )

    def sleep(self) -> None:
        """Free memory for the trainer after a step's sampling. Nothing is sampled until the next weight update. Not called with
        `rollout.max_staleness`.
        """
