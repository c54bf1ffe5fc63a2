"""Ask any OpenAI-compatible endpoint: text for evaluation, token ids where it gives them.

{name: openai, url: "https://api.openai.com/v1", model: gpt-4.1-mini}              conversations in, text out
{name: openai, url: "http://localhost:8000/v1", model: tiny, tokenizer: DIR}       token ids in and out, with log-probabilities

Asked for text, it counts in tokens of its own: `max_new_tokens` is sent on to it, its whole text is judged, `finish_reason` says whether
that was cut, and its `usage` is what the figures count. Asked for token ids (`rlvr eval --policy openai:URL#MODEL#TOKENIZER`), its
server must give them back and score them under the distribution it samples from: `vllm serve DIR --logprobs-mode processed_logprobs`.

The key is read from the environment (OPENAI_API_KEY, or the variable that `key_variable` names) at every request and is written
nowhere. What is too busy (408, 409, 429, 5xx, no answer) is asked again, later and later and not in step; `Retry-After` is obeyed.
An answer that cannot be had within the deadline is a failed episode; a request that is refused for good stops the run.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from email.utils import parsedate_to_datetime
from queue import Empty, SimpleQueue
from typing import Any

from rlvr.contracts import Completion, Environment, Feed, Listed, Request, Sampler, Sampling, Tokenizer
from rlvr.errors import ConfigError, SamplerError
from rlvr.mdp.tokenizers import EOS, POLICY, USER
from rlvr.samplers._dialect import finished
from rlvr.samplers._http import Http, NoReply, Reply

BUSY = frozenset({408, 409, 425, 429, *range(500, 600)})
UNFIT = frozenset({400, 413, 422})
"""A request that others like it were not refused for: a filter took offence, or the prompt is too long."""
STOPPED = ("stop", "eos", "eos_token", "stop_sequence", "end_turn")
CUT = ("length", "max_tokens", "model_length")
"""How endpoints say that an answer came to its end, and that it was cut."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0
LOOK_S = 0.2
"""How long it waits for an answer before the rest is looked after."""
REACHED_S = 30.0
"""How long the first connection may take."""


class OpenAISampler(Sampler):
    """Sends each request to an endpoint, some at a time.

    >>> OpenAISampler(url="http://localhost:8000/v1", model="tiny").concurrency
    16
    """

    policy_form = "openai:URL#MODEL[#TOKENIZER]"

    @classmethod
    def policy_settings(cls, rest: str) -> dict[str, Any]:
        """`openai:URL#MODEL` for text, as in openai:http://localhost:8000/v1#tiny; with `#TOKENIZER`, a folder, for token ids."""
        url, _, named = rest.partition("#")
        model, _, tokenizer = named.partition("#")
        if not model:
            raise ConfigError("the policy openai: names no model; write openai:URL#MODEL, as in openai:http://localhost:8000/v1#tiny")
        return {"url": url, "model": model} | ({"tokenizer": tokenizer} if tokenizer else {})

    def __init__(
        self,
        *,
        url: str,
        model: str,
        tokenizer: str | None = None,
        key_variable: str = "OPENAI_API_KEY",
        concurrency: int = 16,
        retries: int = 6,
        attempt_s: float = 120.0,
        deadline_s: float = 600.0,
    ) -> None:
        """Say whom to ask, and how patiently.

        Args:
            url: the endpoint, up to and with /v1.
            model: what it calls the model.
            tokenizer: a folder: ask with token ids and get log-probabilities; None: ask with text.
            key_variable: the variable of the environment that holds the key.
            concurrency: how many requests are under way at once.
            retries: how often a request is repeated that was refused for a while.
            attempt_s: how long one request may take.
            deadline_s: how long an answer may take, all attempts together.
        """
        for name, value in {"concurrency": concurrency, "attempt_s": attempt_s, "deadline_s": deadline_s, "retries": retries + 1}.items():
            if not value > 0:
                raise ConfigError(f"{name} is {value}; it must be above 0")
        self.http, self.model, self.tokenizer = Http(url, key_variable=key_variable), model, tokenizer
        self.concurrency, self.retries, self.attempt_s, self.deadline_s = concurrency, retries, attempt_s, deadline_s
        self.gives_text = tokenizer is None
        self._pool = ThreadPoolExecutor(concurrency, thread_name_prefix="ask")
        self._words: Tokenizer | None = None
        self._limit = "max_tokens"
        self._heard = False
        """Whether it has answered anything yet: then a refusal is about that one request."""
        self._closed = threading.Event()

    def ready(self) -> None:
        """Somebody listens there: a wrong port is found at once, and not once a sample."""
        try:
            self.http.reach(until=time.monotonic() + min(self.attempt_s, REACHED_S))
        except NoReply as error:
            raise NoReply(f"{error}; start the server, or mend the address") from None

    def bind(self, environment: Environment, tokenizer: Tokenizer) -> None:
        """How text is written as tokens, where the endpoint gives text."""
        self._words = tokenizer

    def load(self, model: Any, version: int) -> None:
        """An endpoint keeps its own weights."""
        raise ConfigError("the sampler openai cannot take new weights, so it cannot train; use vllm (placement: server) or hf")

    def stream(self, requests: Sequence[Request], sampling: Sampling) -> Iterator[tuple[int, Completion]]:
        """Each completion as it arrives."""
        yield from (ended for ended in self.serve(Listed(requests), sampling) if ended is not None)

    def serve(self, feed: Feed, sampling: Sampling) -> Iterator[tuple[int, Completion] | None]:
        """The same for requests that come while others are under way."""
        asked: dict[Future[Completion], int] = {}
        ended: SimpleQueue[Future[Completion] | None] = SimpleQueue()
        feed.notify = lambda: ended.put(None)
        try:
            while (more := feed.take(sys.maxsize)) is not None or asked:
                for number, request in more or ():
                    future = self._pool.submit(self._complete, request, sampling)
                    asked[future] = number
                    future.add_done_callback(ended.put)
                done: Future[Completion] | None = None
                with suppress(Empty):
                    done = ended.get(timeout=LOOK_S) if asked else None
                yield None if done is None else (asked.pop(done), done.result())
        finally:
            feed.notify = None
            for future in asked:
                future.cancel()

    def close(self) -> None:
        """Break off what is under way."""
        self._closed.set()
        self._pool.shutdown(wait=False, cancel_futures=True)
        self.http.close()

    def _complete(self, request: Request, sampling: Sampling) -> Completion:
        try:
            if self.tokenizer is not None:
                return self._tokens(request, sampling)
            return self._text(request, sampling)
        except NoReply as error:
            return Completion([], [], "error", str(error))

    def _text(self, request: Request, sampling: Sampling) -> Completion:
        """A conversation in, the whole text out; how long it is, is counted by the endpoint in tokens of its own."""
        if self._words is None or request.task is None:
            raise SamplerError("the sampler openai was asked before it was bound to an environment, or without a task")
        body = {"messages": conversation(request, self._words)} | self._sampling(request, sampling)
        reply = self._asked("/chat/completions", body)
        try:
            said = reply.json()
            choice = said["choices"][0]
            text, reason = choice["message"].get("content") or "", str(choice["finish_reason"])
            usage = used(said.get("usage"))
            if not isinstance(text, str):
                raise TypeError("its content is no text")
        except (ValueError, LookupError, TypeError, AttributeError, OverflowError) as error:
            raise NoReply(f"{self.http.told(reply)}; that is no chat completion ({type(error).__name__})") from None
        if reason not in (*STOPPED, *CUT):
            return Completion([], [], "error", f"the endpoint ended an answer of {len(text)} characters by {reason!r}")
        tokens = self._words.encode(text)
        if reason in STOPPED or not tokens:  # cut before its first word (hidden thought took all the room): nothing was said
            tokens.append(self._words.eos_id)
        return Completion(tokens, [0.0] * len(tokens), "length" if reason in CUT else "stop", usage=usage)

    def _tokens(self, request: Request, sampling: Sampling) -> Completion:
        """Ids in, ids out."""
        body = {"prompt": list(request.prompt), "logprobs": 0, "return_token_ids": True, "stop_token_ids": sorted(sampling.stop_ids)}
        reply = self._asked("/completions", body | {"ignore_eos": True} | self._sampling(request, sampling))
        try:
            choice = reply.json()["choices"][0]
            logprobs = [float(logprob) for logprob in choice["logprobs"]["token_logprobs"]]
            tokens, reason = choice.get("token_ids"), str(choice["finish_reason"])
        except (ValueError, LookupError, TypeError) as error:
            raise NoReply(f"{self.http.told(reply)}; that is no completion with log-probabilities ({type(error).__name__})") from None
        if not isinstance(tokens, list):
            raise ConfigError(f"{self.http.url} gives no token ids back; leave the tokenizer out to evaluate it by its text")
        if len(tokens) != len(logprobs):
            return Completion([], [], "error", f"the endpoint gave {len(tokens)} tokens and {len(logprobs)} log-probabilities")
        return finished([int(token) for token in tokens], logprobs, reason, sampling)

    def _sampling(self, request: Request, sampling: Sampling) -> dict[str, Any]:
        settings: dict[str, Any] = {"model": self.model, "temperature": sampling.temperature, "seed": request.seed, "n": 1}
        settings |= {"top_p": sampling.top_p} if sampling.top_p < 1 else {}
        settings |= {"top_k": sampling.top_k} if sampling.top_k else {}
        return settings | {self._limit: request.max_tokens}

    def _asked(self, path: str, body: dict[str, Any]) -> Reply:
        """The reply, asked for again while the endpoint is busy; NoReply once there is no time or no attempt left."""
        until, told, attempts = time.monotonic() + self.deadline_s, "", 0
        while True:
            reply: Reply | None = None
            try:
                reply = self.http.ask("POST", path, body, until=min(until, time.monotonic() + self.attempt_s))
            except NoReply as error:
                told = str(error)
            if reply is not None:
                if reply.status == 200:
                    self._heard = True
                    return reply
                told = self.http.told(reply)
                if reply.status == 400 and "max_tokens" in body and "max_completion_tokens" in told:
                    self._limit = "max_completion_tokens"  # the name that newer models insist on
                    body[self._limit] = body.pop("max_tokens")
                    continue
                if reply.status in UNFIT and self._heard:
                    raise NoReply(told)
                if reply.status not in BUSY:
                    raise ConfigError(refused(reply, told, self.model, self.http.key_variable))
            pause, attempts = patience(reply, attempts), attempts + 1
            if attempts > self.retries or time.monotonic() + pause > until or self._closed.wait(pause):
                break
        raise NoReply(f"no answer after {attempts} attempts: {told}")


def used(usage: Any) -> tuple[int, int]:
    """Tokens read and written as the endpoint reports them, hidden thought included; 0 where it does not tell.

    >>> used({"prompt_tokens": 12, "completion_tokens": 5})
    (12, 5)
    """
    told = usage if isinstance(usage, dict) else {}
    return int(told.get("prompt_tokens") or 0), int(told.get("completion_tokens") or 0)


def patience(reply: Reply | None, attempt: int) -> float:
    """How long to wait before asking again: as long as the endpoint says, or twice as long each time, with chance in it."""
    said = (reply.headers.get("retry-after", "") if reply else "").strip()
    if said.replace(".", "", 1).isdecimal() and said.isascii():
        return float(said)
    if said:
        try:
            return max(0.0, parsedate_to_datetime(said).timestamp() - time.time())
        except ValueError:
            pass  # not a date either
    return min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2**attempt) * random.uniform(0.5, 1.0)


def refused(reply: Reply, told: str, model: str, key_variable: str) -> str:
    """What to do about a refusal that asking again will not change."""
    if reply.status in (401, 403):
        return f"{told}; set the key in the environment variable {key_variable}, or name another one with key_variable"
    if reply.status == 404:
        return f"{told}; does the URL end where /chat/completions follows (often in /v1), and is the model called {model!r} there?"
    return told


def conversation(request: Request, words: Tokenizer) -> list[dict[str, str]]:
    """The messages so far: the task's own, and then what was said in turn, read back from the marks of the tokenizer of text."""
    assert request.task is not None
    messages = [dict(message) for message in request.task.prompt]
    later = list(request.prompt[len(words.render(request.task.prompt)) :])
    role, said = "assistant", list[int]()
    for token in later:
        if token in (USER, POLICY, EOS):
            if said or (role, token) in (("assistant", EOS), ("user", POLICY)):  # either may have said nothing
                messages.append({"role": role, "content": words.decode(said)})
            role, said = ("user" if token == USER else "assistant"), []
        else:
            said.append(token)
    return [{"role": str(message["role"]), "content": str(message["content"])} for message in messages]


make = OpenAISampler
