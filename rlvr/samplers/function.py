"""A Python function as a policy: for baselines, for prompts to a system of your own, and for tests of an evaluation.

A function `f(prompt: str) -> str` gets the text of the last message; one with a parameter `messages` gets the whole conversation.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rlvr.contracts import Completion, Environment, Request, Sampler, SamplerInfo, SamplingParams, Tokenizer
from rlvr.errors import ConfigError, SamplerError


def answer_nothing(prompt: str) -> str:
    """Return an empty completion: the default function of a FunctionSampler, to be replaced by yours."""
    return ""


class FunctionSampler(Sampler):
    """Completions from a function of yours, one call for each turn.

    >>> FunctionSampler(function=lambda prompt: "4").function("2+2=")
    '4'
    """

    info = SamplerInfo(loads_weights=False)
    tokenizer = "bytes"  # it can encode any text

    def __init__(self, *, function: Callable[..., str] = answer_nothing) -> None:
        """Set the function.

        Args:
            function: takes the text of a prompt, or `messages`, and returns the completion.
        """
        if not callable(function):
            raise ConfigError(f"the policy is a {type(function).__name__}; give a function from the text of a prompt to a completion")
        self.function, self._takes_messages = function, "messages" in inspect.signature(function).parameters
        self._tokenizer: Tokenizer | None = None

    def setup(self, environment: Environment, tokenizer: Tokenizer, *, precision: str | None = None, max_length: int = 0) -> None:
        """Store the tokenizer."""
        self._tokenizer = tokenizer

    def stream(self, requests: Sequence[Request], sampling: SamplingParams) -> Iterator[tuple[int, Completion]]:
        """Yield one completion for each request, in order."""
        for number, request in enumerate(requests):
            yield number, self._complete(request)

    def _complete(self, request: Request) -> Completion:
        if self._tokenizer is None:
            raise SamplerError("the function sampler got a request before `setup`")
        messages: Sequence[Any] = request.chat_prompt.messages if request.chat_prompt else request.task.prompt if request.task else ()
        if not messages or (request.turn and not request.chat_prompt):
            return Completion([], [], "error", "a function answers the first turn only where the environment gives no messages")
        try:
            text = self.function(messages=list(messages)) if self._takes_messages else self.function(messages[-1]["content"])
        except Exception as error:  # a failed call is a failed episode, as with an endpoint
            return Completion([], [], "error", f"{type(error).__name__}: {error}")
        if not isinstance(text, str):
            return Completion([], [], "error", f"the function returned {text!r:.80}; it must return a text")
        tokens = [*self._tokenizer.encode(text), self._tokenizer.eos_id]
        if len(tokens) > request.max_tokens:
            return Completion(tokens[: request.max_tokens], [0.0] * request.max_tokens, "length")
        return Completion(tokens, [0.0] * len(tokens), "stop")


make = FunctionSampler
