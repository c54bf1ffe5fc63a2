"""Sample from an OpenAI-compatible endpoint, as text or, if it supports them, as token ids.

{name: openai, url: "https://api.openai.com/v1", model: gpt-4.1-mini}              conversations in, text out
{name: openai, url: "http://localhost:8000/v1", model: tiny, tokenizer: DIR}       token ids in and out, with log-probabilities

With text, the endpoint counts tokens: `max_new_tokens` is sent to it, the whole text is verified, `finish_reason` says whether it was
truncated, and token counts come from `usage`. Reasoning that the endpoint returns separately is recorded, and not verified. With token
ids (`rlvr eval --policy openai:URL#MODEL#TOKENIZER`), the server must return them with the log-probabilities of the sampling
distribution: `vllm serve DIR --logprobs-mode processed_logprobs`.

The key is read from the environment (OPENAI_API_KEY, or the variable named by `api_key_env`) at every request and is never
written. A request to a busy endpoint (408, 409, 425, 429, 5xx, no response) is retried with exponential backoff and jitter;
`Retry-After` is respected. A completion that times out is a failed episode; a permanently rejected request stops the run.
"""

from __future__ import annotations

import random
import re
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from email.utils import parsedate_to_datetime
from queue import Empty, SimpleQueue
from typing import Any

from rlvr.chat.dialects.table import get_dialect
from rlvr.contracts import (
    Completion,
    Environment,
    Request,
    RequestQueue,
    Sampler,
    SamplerTraits,
    SamplingParams,
    StaticQueue,
    Tokenizer,
)
from rlvr.errors import ConfigError, SamplerError, format_suggestion
from rlvr.samplers._chat import LENGTH_REASONS, STOP_REASONS, ChatReply, is_empty_reply, parse_chat_reply
from rlvr.samplers._chat_calls import decode_messages_by_role_tokens, format_messages_as_text, parse_text_turn, parse_tool_turn
from rlvr.samplers._http import HttpClient, HttpResponse, NoReply, redact_url
from rlvr.samplers._vllm_format import make_completion
from rlvr.turns import ToolSpec, Turn

RETRY_STATUSES = frozenset({408, 409, 425, 429, *range(500, 600)})
REQUEST_ERROR_STATUSES = frozenset({400, 413, 422})
"""Statuses that may concern a single request: a content filter, or a prompt that is too long."""
TOKEN_LIMIT_FIELDS = ("max_tokens", "max_completion_tokens")
"""The names of the token limit field at different endpoints."""
REQUEST_FIELDS = ("temperature", "top_p", "top_k", "seed", "n", "stop", "tools", *TOKEN_LIMIT_FIELDS)
"""Fields of a request that an endpoint may reject."""
FIRST_RETRY_DELAY_S, MAX_RETRY_DELAY_S = 0.5, 30.0
POLL_INTERVAL_S = 0.2
"""How long to wait for a completion before control returns to the caller."""
CONNECT_TIMEOUT_S = 30.0
"""Timeout of the first connection, in seconds."""


class OpenAISampler(Sampler):
    """Sends requests to an endpoint, up to `concurrency` at a time.

    >>> OpenAISampler(url="http://localhost:8000/v1", model="tiny").concurrency
    16
    """

    traits = SamplerTraits(
        runs_model=False,
        text_only=True,
        cli_syntax="openai:URL#MODEL[#TOKENIZER]",
        non_semantic_settings=frozenset(("api_key_env", "headers", "concurrency", "retries", "attempt_timeout_s", "completion_timeout_s")),
    )

    @classmethod
    def settings_from_cli(cls, argument: str) -> dict[str, Any]:
        """`openai:URL#MODEL` for text, as in openai:http://localhost:8000/v1#tiny; with `#TOKENIZER`, a folder, for token ids."""
        url, _, named = argument.partition("#")
        model, _, tokenizer = named.partition("#")
        if not model:
            raise ConfigError("the policy openai: has no model; write openai:URL#MODEL, as in openai:http://localhost:8000/v1#tiny")
        return {"url": url, "model": model} | ({"tokenizer": tokenizer} if tokenizer else {})

    def __init__(
        self,
        *,
        url: str,
        model: str,
        tokenizer: str | None = None,
        api_key_env: str = "OPENAI_API_KEY",
        concurrency: int = 16,
        retries: int = 6,
        extra_body: Mapping[str, Any] | None = None,
        omit: Sequence[str] = (),
        stop: str | Sequence[str] = (),
        headers: Mapping[str, str] | None = None,
        dialect: str = "",
        attempt_timeout_s: float = 120.0,
        completion_timeout_s: float = 600.0,
    ) -> None:
        """Set the endpoint, the model and the timeouts.

        Args:
            url: the endpoint, up to and with /v1.
            model: the name of the model at the endpoint.
            tokenizer: a folder: use token ids and log-probabilities; None: use text.
            api_key_env: the environment variable with the key.
            concurrency: most requests in progress at a time.
            retries: most retries of a request while the endpoint is busy.
            extra_body: additional fields of each request, such as {reasoning_effort: low}; they replace ours of the same name.
            omit: fields that are not sent, such as [temperature, seed], for an endpoint that rejects them.
            stop: texts at which the endpoint ends a completion.
            headers: additional headers of each request; $NAME is the value of an environment variable, such as {api-key: $AZURE_KEY}.
            dialect: for an endpoint without tool support: describe tools in the system message and parse calls from its text, as `fenced`.
            attempt_timeout_s: timeout of one request, in seconds.
            completion_timeout_s: timeout of one completion, all attempts together, in seconds.
        """
        for name, value in {
            "concurrency": concurrency,
            "attempt_timeout_s": attempt_timeout_s,
            "completion_timeout_s": completion_timeout_s,
            "retries": retries + 1,
        }.items():
            if not value > 0:
                raise ConfigError(f"{name} is {value}; it must be above 0")
        stops = [stop] if isinstance(stop, str) else list(stop)
        if not all(isinstance(text, str) and text for text in stops):
            raise ConfigError(f"stop is {stop!r}; it must be a text or a list of texts, such as ['\\n\\n']")
        if tokenizer is not None and (stops or dialect):
            name = "stop" if stops else "dialect"
            raise ConfigError(f"{name} is for text, and with a tokenizer the policy's own tokens are used; remove one of the two")
        if unknown := [name for name in ([omit] if isinstance(omit, str) else omit) if name not in REQUEST_FIELDS]:
            raise ConfigError(f"omit has {unknown[0]!r}, which is not sent; {format_suggestion(str(unknown[0]), REQUEST_FIELDS)}")
        url = url.rstrip("/").removesuffix("/chat/completions")
        self.http, self.model, self.tokenizer = HttpClient(url, api_key_env=api_key_env, headers=headers), model, tokenizer
        self.extra_body = ({"stop": stops} if stops else {}) | dict(extra_body or {})
        self.omit, self.dialect = frozenset([omit] if isinstance(omit, str) else omit), get_dialect(dialect) if dialect else None
        self.concurrency, self.retries, self.attempt_timeout_s, self.completion_timeout_s = (
            concurrency,
            retries,
            attempt_timeout_s,
            completion_timeout_s,
        )
        self.traits = replace(type(self).traits, text_only=tokenizer is None)
        self._pool = ThreadPoolExecutor(concurrency, thread_name_prefix="ask")
        self._tokenizer: Tokenizer | None = None
        self._token_limit_field = TOKEN_LIMIT_FIELDS[0]
        self._has_succeeded = False
        """Whether any request has succeeded: after that, a rejection concerns a single request."""
        self._closed = threading.Event()

    def prepare(self) -> None:
        """Check that the endpoint accepts connections, so that a wrong port is one early error instead of one per sample."""
        try:
            self.http.connect(deadline=time.monotonic() + min(self.attempt_timeout_s, CONNECT_TIMEOUT_S))
        except NoReply as error:
            raise NoReply(f"{error}; start the server, or fix the URL") from None

    def setup(self, environment: Environment, tokenizer: Tokenizer, *, precision: str | None = None, max_length: int = 0) -> None:
        """Store the tokenizer, which encodes the endpoint's text."""
        self._tokenizer = tokenizer

    def update_from_model(self, model: Any, version: int) -> None:
        """Raise ConfigError: an endpoint cannot load the trainer's weights."""
        raise ConfigError("the sampler openai cannot load new weights, so it cannot train; use vllm (placement: server) or hf")

    def stream_completions(self, requests: Sequence[Request], sampling: SamplingParams) -> Iterator[tuple[int, Completion]]:
        """Yield each completion as it arrives."""
        yield from (ended for ended in OpenAISampler.stream_from_queue(self, StaticQueue(requests), sampling) if ended is not None)

    def stream_from_queue(self, queue: RequestQueue, sampling: SamplingParams) -> Iterator[tuple[int, Completion] | None]:
        """Yield completions for a queue of requests, which may grow meanwhile."""
        asked: dict[Future[Completion], int] = {}
        ended: SimpleQueue[Future[Completion] | None] = SimpleQueue()
        queue.on_requests_ready = lambda: ended.put(None)
        try:
            while (more := queue.pop(sys.maxsize)) is not None or asked:
                for number, request in more or ():
                    future = self._pool.submit(self._complete, request, sampling)
                    asked[future] = number
                    future.add_done_callback(ended.put)
                done: Future[Completion] | None = None
                with suppress(Empty):
                    done = ended.get(timeout=POLL_INTERVAL_S) if asked else None
                yield None if done is None else (asked.pop(done), done.result())
        finally:
            queue.on_requests_ready = None
            for future in asked:
                future.cancel()

    def close(self) -> None:
        """Abort all requests in progress."""
        self._closed.set()
        self._pool.shutdown(wait=False, cancel_futures=True)
        self.http.close()

    def _complete(self, request: Request, sampling: SamplingParams) -> Completion:
        began = time.monotonic()
        try:
            made = self._complete_as_text(request, sampling) if self.tokenizer is None else self._complete_as_tokens(request, sampling)
            return replace(made, duration_s=time.monotonic() - began)
        except NoReply as error:
            return Completion([], [], "error", str(error))

    def _complete_as_text(self, request: Request, sampling: SamplingParams) -> Completion:
        """Send the conversation and return the whole text; its length is the endpoint's own token count."""
        if self._tokenizer is None or request.task is None:
            raise SamplerError("the sampler openai got a request before `setup`, or one without a task")
        tools = request.chat_prompt.tools if request.chat_prompt else ()
        if request.chat_prompt and tools and self.dialect:
            messages = format_messages_as_text(request.chat_prompt, self.dialect)
        else:
            messages = (
                [dict(message) for message in request.chat_prompt.messages]
                if request.chat_prompt
                else decode_messages_by_role_tokens(request, self._tokenizer)
            )
        body = {"messages": messages} | self._make_body(request, sampling)
        if tools and not self.dialect and "tools" not in self.omit:
            body["tools"] = [tool.to_openai_format() for tool in tools]
        said, turn = self._request_turn(body, request, tools)
        if said.finish_reason not in STOP_REASONS | LENGTH_REASONS:
            return Completion([], [], "error", f"the endpoint ended an answer of {len(said.text)} characters by {said.finish_reason!r}")
        cut = turn.finish_reason == "length" if turn else said.truncated
        tokens = self._tokenizer.encode(turn.text if turn else said.text)
        if not cut or not tokens:  # truncated before any text, for example by hidden reasoning
            tokens.append(self._tokenizer.eos_id)
        return Completion(tokens, [0.0] * len(tokens), "length" if cut else "stop", usage=said.usage, turn=turn)

    def _request_turn(self, body: dict[str, Any], request: Request, tools: Sequence[ToolSpec]) -> tuple[ChatReply, Turn | None]:
        """Request one turn, again where the reply is none: a page of a proxy, no choice, or nothing with 0 tokens, as gateways send it
        when their provider fails.
        """
        told = "no request was made"
        for attempt in range(self.retries + 1):
            if attempt and self._closed.wait(compute_retry_delay(None, attempt)):
                break
            reply = self._post_with_retries("/chat/completions", body)
            try:
                said = parse_chat_reply(reply.json(), request.max_tokens)
                turn = Turn(said.text, said.text, said.reasoning, (), "length" if said.truncated else "stop") if said.reasoning else None
                if tools:
                    turn = parse_text_turn(said, request, self.dialect) if self.dialect else parse_tool_turn(said, request)
                if is_empty_reply(reply.json()):
                    raise ValueError("no content and no token")
            except (ValueError, LookupError, TypeError, AttributeError, OverflowError) as error:
                told = f"{self.http.format_error(reply)}; that is not a chat completion ({type(error).__name__})"
                continue
            return said, turn
        raise NoReply(told)

    def _complete_as_tokens(self, request: Request, sampling: SamplingParams) -> Completion:
        """Send token ids and return token ids."""
        body = {"prompt": list(request.prompt), "logprobs": 0, "return_token_ids": True, "stop_token_ids": sorted(sampling.stop_ids)}
        reply = self._post_with_retries("/completions", body | {"ignore_eos": True} | self._make_body(request, sampling))
        try:
            choice = reply.json()["choices"][0]
            logprobs = [float(logprob) for logprob in choice["logprobs"]["token_logprobs"]]
            tokens, reason = choice.get("token_ids"), str(choice["finish_reason"])
        except (ValueError, LookupError, TypeError) as error:
            raise NoReply(
                f"{self.http.format_error(reply)}; that is not a completion with log-probabilities ({type(error).__name__})"
            ) from None
        if not isinstance(tokens, list):
            raise ConfigError(f"{self.http.url} returns no token ids; remove the tokenizer to evaluate it by its text")
        if len(tokens) != len(logprobs):
            return Completion([], [], "error", f"the endpoint returned {len(tokens)} tokens and {len(logprobs)} log-probabilities")
        return make_completion([int(token) for token in tokens], logprobs, reason, sampling)

    def _make_body(self, request: Request, sampling: SamplingParams) -> dict[str, Any]:
        settings: dict[str, Any] = {"model": self.model, "temperature": sampling.temperature, "seed": request.seed, "n": 1}
        settings |= {"top_p": sampling.top_p} if sampling.top_p < 1 else {}
        settings |= {"top_k": sampling.top_k} if sampling.top_k else {}
        settings |= {self._token_limit_field: request.max_tokens}
        return {name: value for name, value in settings.items() if name not in self.omit} | self.extra_body

    def _post_with_retries(self, path: str, body: dict[str, Any]) -> HttpResponse:
        """Send a request with retries while the endpoint is busy; NoReply if no time or no attempt is left."""
        until, told, attempts = time.monotonic() + self.completion_timeout_s, "", 0
        while True:
            reply: HttpResponse | None = None
            try:
                reply = self.http.request("POST", path, body, deadline=min(until, time.monotonic() + self.attempt_timeout_s))
            except NoReply as error:
                told = str(error)
            if reply is not None:
                if reply.status == 200:
                    self._has_succeeded = True
                    return reply
                told = self.http.format_error(reply)
                if reply.status == 400 and "max_tokens" in body and "max_completion_tokens" in told:
                    self._token_limit_field = TOKEN_LIMIT_FIELDS[1]  # the name that newer models require
                    body[self._token_limit_field] = body.pop(TOKEN_LIMIT_FIELDS[0])
                    continue
                if reply.status in REQUEST_ERROR_STATUSES and self._has_succeeded:
                    raise NoReply(told)
                if reply.status not in RETRY_STATUSES:
                    raise ConfigError(_format_rejection(reply, told, self.model, self.http.api_key_env))
            pause, attempts = compute_retry_delay(reply, attempts), attempts + 1
            if attempts > self.retries or time.monotonic() + pause > until or self._closed.wait(pause):
                break
        raise NoReply(f"no answer after {attempts} attempts: {told}")


def compute_retry_delay(reply: HttpResponse | None, attempt: int) -> float:
    """Return the delay before the next attempt: the endpoint's Retry-After, or exponential backoff with jitter."""
    said = (reply.headers.get("retry-after", "") if reply else "").strip()
    if said.replace(".", "", 1).isdecimal() and said.isascii():
        return float(said)
    if said:
        try:
            return max(0.0, parsedate_to_datetime(said).timestamp() - time.time())
        except ValueError:
            pass  # not a date either
    return min(MAX_RETRY_DELAY_S, FIRST_RETRY_DELAY_S * 2**attempt) * random.uniform(0.5, 1.0)


def _format_rejection(reply: HttpResponse, error: str, model: str, api_key_env: str) -> str:
    """Format the message for a permanent rejection, with advice."""
    if reply.status in (401, 403):
        return f"{error}; set the key in the environment variable {api_key_env}, or name another one with --sampler api_key_env=NAME"
    if reply.status == 404:
        return f"{error}; check that the URL ends before /chat/completions (often in /v1) and that the endpoint has a model {model!r}"
    if place := reply.headers.get("location", ""):
        return f"{error}; it has moved to {redact_url(place)}: use that URL"
    if reply.status in REQUEST_ERROR_STATUSES and (fields := [name for name in REQUEST_FIELDS if re.search(rf"\b{name}\b", error)]):
        instead = "--temperature 1, or " if fields[0] == "temperature" else ""
        return f"{error}; to leave the field out: {instead}--sampler 'omit=[{', '.join(fields)}]'"
    return error


make = OpenAISampler
