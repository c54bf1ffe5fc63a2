"""A Python function as a policy: for baselines, for players of games, for a system of your own, and for tests of an evaluation.

`f(prompt: str)` gets what was said since its last turn, after the system prompt if there is one. A function with a parameter `messages`
gets the whole conversation, one with a parameter `tools` the descriptions of the tools, and one with a parameter `prompts` a list of one
prompt, for a list of one answer. It returns a text, a `Call` or a list of
calls, or a message in OpenAI's format: `{"content": ..., "tool_calls": [{"function": {"name": ..., "arguments": {...}}}]}`. It may be a
coroutine function; then the calls for different conversations run at the same time.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rlvr.chat.dialects.dialect import Dialect
from rlvr.chat.dialects.table import get_dialect
from rlvr.chat.hf_tokenizer import DEFAULT_DIALECT, TOOL_ROLES
from rlvr.chat.openai_calls import build_turn_with_calls
from rlvr.contracts import Completion, Environment, Plugin, Request, Sampler, SamplerTraits, SamplingParams, Tokenizer
from rlvr.errors import ConfigError, SamplerError
from rlvr.mdp.tokenizers import ByteTokenizer, CharTokenizer, load_text_tokenizer
from rlvr.registry.plugins import load_function_from_file
from rlvr.samplers._chat_calls import decode_messages_by_role_tokens
from rlvr.turns import Call, ToolSpec, Turn

RETURN_HELP = "it must return a text, a Call or a list of them, or {'content': ..., 'tool_calls': [...]}"

LIST_HELP = "it gets one prompt and must return its text; a function that gets a list of prompts is written f(prompts)"


def _answer_nothing(prompt: str) -> str:
    """Return an empty completion: the default function of a FunctionSampler, to be replaced by yours."""
    return ""


class FunctionSampler(Sampler):
    """Completions from a function of yours, one call for each turn.

    >>> FunctionSampler(function=lambda prompt: "4").function("2+2=")
    '4'
    """

    traits = SamplerTraits(loads_weights=False)
    tokenizer = load_text_tokenizer()

    def __init__(self, *, function: Callable[..., Any] | str = _answer_nothing, concurrency: int = 32) -> None:
        """Set the function.

        Args:
            function: takes the text of a prompt, and in a conversation then the text of each reply, or `messages` and `tools`, which
                are the whole conversation, and returns the turn; or its name, path/to/file.py:function.
            concurrency: how many calls of a coroutine function run at the same time.
        """
        if isinstance(function, str):
            function = load_function_from_file(function, "policy")
        if not callable(function) or isinstance(function, Plugin):  # a verifier and a tool are callable, too
            raise ConfigError(f"the policy is a {type(function).__name__}; give a function from the text of a prompt to a completion")
        if concurrency < 1:
            raise ConfigError(f"concurrency is {concurrency}; it must be at least 1")
        known = inspect.signature(function).parameters
        wanted = [name for name in ("messages", "tools") if name in known]
        required = [
            name
            for name, spec in known.items()
            if spec.default is spec.empty and spec.kind not in (spec.VAR_POSITIONAL, spec.VAR_KEYWORD) and name not in wanted
        ]
        if len(required) > (not wanted) or (not wanted and not known):
            raise ConfigError(
                f"the policy {getattr(function, '__name__', function)!r} has the parameters ({', '.join(known)}); a policy is f(prompt), "
                "f(messages) or f(messages, tools)"
            )
        self.function, self.concurrency, self._wanted = function, concurrency, wanted
        self._takes_list = required == ["prompts"]
        self._tokenizer: Tokenizer | None = None
        self._dialect = DEFAULT_DIALECT

    def setup(self, environment: Environment, tokenizer: Tokenizer, *, precision: str | None = None, max_length: int = 0) -> None:
        """Store the tokenizer, and the form of tool calls in a text."""
        self._tokenizer, self._dialect = tokenizer, environment.dialect or str(getattr(tokenizer, "dialect", DEFAULT_DIALECT))

    def stream_completions(self, requests: Sequence[Request], sampling: SamplingParams) -> Iterator[tuple[int, Completion]]:
        """Yield one completion for each request, in order."""
        if not inspect.iscoroutinefunction(self.function):
            for number, request in enumerate(requests):
                yield number, self._complete(request)
            return
        with asyncio.Runner() as runner:
            yield from enumerate(runner.run(self._complete_all(requests)))

    async def _complete_all(self, requests: Sequence[Request]) -> list[Completion]:
        places = asyncio.Semaphore(self.concurrency)

        async def complete(request: Request) -> Completion:
            async with places:
                if isinstance(arguments := self._build_arguments(request), Completion):
                    return arguments
                try:
                    returned = await self.function(*arguments[0], **arguments[1])
                except Exception as error:
                    return _describe_failure(error)
                return self._build_completion(request, returned)

        return list(await asyncio.gather(*map(complete, requests)))

    def _complete(self, request: Request) -> Completion:
        if isinstance(arguments := self._build_arguments(request), Completion):
            return arguments
        try:
            returned = self.function(*arguments[0], **arguments[1])
        except Exception as error:  # a failed call is a failed episode, as with an endpoint
            return _describe_failure(error)
        return self._build_completion(request, returned)

    def _build_arguments(self, request: Request) -> tuple[tuple[Any, ...], dict[str, Any]] | Completion:
        if self._tokenizer is None:
            raise SamplerError("the function sampler got a request before `setup`")
        if request.chat_prompt:
            messages: Sequence[Any] = request.chat_prompt.messages
        elif request.task is not None and (not request.turn or isinstance(self._tokenizer, CharTokenizer | ByteTokenizer)):
            messages = decode_messages_by_role_tokens(request, self._tokenizer) if request.turn else request.task.prompt
        else:
            return Completion([], [], "error", "a function needs the messages, and this conversation has only tokens")
        if not self._wanted:
            last_turn = max((place for place, message in enumerate(messages) if message["role"] == "assistant"), default=len(messages) - 2)
            told = [*(message for message in messages[: last_turn + 1] if message["role"] == "system"), *messages[last_turn + 1 :]]
            specs, dialect = _get_tools(request), get_dialect(self._dialect)
            about = [dialect.format_instructions(specs)] if specs and not request.turn else []  # said once
            text = "\n\n".join([*about, *(_format_message(message, dialect) for message in told)])
            return ([text] if self._takes_list else text,), {}
        tools = [spec.to_openai_format() for spec in _get_tools(request)]
        given = {"messages": [dict(message) for message in messages], "tools": tools}
        return (), {name: given[name] for name in self._wanted}

    def _build_completion(self, request: Request, returned: Any) -> Completion:
        assert self._tokenizer is not None
        if self._takes_list and isinstance(returned, list | tuple) and len(returned) == 1:
            (returned,) = returned
        try:
            turn = _build_turn(returned, request)
        except (TypeError, ValueError) as error:
            is_list = isinstance(returned, list | tuple) and all(isinstance(text, str) for text in returned)
            told = LIST_HELP if is_list and not self._wanted and not self._takes_list else f"{RETURN_HELP} ({error})"
            return Completion([], [], "error", f"the function returned {returned!r:.80}; {told}")
        tokens = [*self._tokenizer.encode(turn if isinstance(turn, str) else turn.text), self._tokenizer.eos_id]
        logprobs = [0.0] * min(len(tokens), request.max_tokens)
        if len(tokens) > request.max_tokens:  # then the calls are not complete either
            return Completion(tokens[: request.max_tokens], logprobs, "length")
        if isinstance(turn, str):
            return Completion(tokens, logprobs, "stop")
        return Completion(tokens, logprobs, "stop", usage=(len(request.prompt), len(tokens)), turn=turn)


def _format_message(message: Mapping[str, Any], dialect: Dialect) -> str:
    """Format a message as the description of the tools promises: a result has the name of its tool."""
    is_result = message["role"] in TOOL_ROLES
    return (
        dialect.format_result_as_user_message(str(message.get("name", "tool")), message["content"])
        if is_result
        else str(message["content"])
    )


def _get_tools(request: Request) -> Sequence[ToolSpec]:
    return request.chat_prompt.tools if request.chat_prompt else ()


def _build_turn(returned: Any, request: Request) -> str | Turn:
    """Build the turn from what the function returned: a text stays one, and is parsed as that of a model."""
    if isinstance(returned, str):
        return returned
    calls = [returned] if isinstance(returned, Call) else list(returned.calls) if isinstance(returned, Turn) else returned
    content: Any = returned.content if isinstance(returned, Turn) else ""
    if isinstance(returned, Mapping):
        content, calls = returned.get("content") or "", returned.get("tool_calls") or []
        if "content" not in returned and "tool_calls" not in returned:
            raise TypeError("it has neither content nor tool_calls")
    if not isinstance(content, str) or not isinstance(calls, list | tuple):
        raise TypeError(f"a {type(returned).__name__}")
    if not calls:
        return content
    plain = [{"name": call.name, "arguments": dict(call.arguments or {})} if isinstance(call, Call) else call for call in calls]
    return build_turn_with_calls(content, plain, _get_tools(request), request.turn)


def _describe_failure(error: Exception) -> Completion:
    return Completion([], [], "error", f"{type(error).__name__}: {error}")


make = FunctionSampler
