"""Replay given answers without a model: for tests, checks of environments, and baselines.

{name: scripted, answer: gold}      the environment's gold answer (or its oracle turns), which must get the full score
{name: scripted, answer: noop}      an empty answer, which must get the lowest score
{name: scripted, answer: random}    a random legal turn, if the environment lists them; else uniformly random tokens
{name: scripted, answers: ["7"]}    these texts, one per turn
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from rlvr.chat.tool_calling import ToolFormat
from rlvr.contracts import Completion, Environment, Request, RequestQueue, Sampler, SamplerTraits, SamplingParams, Tokenizer
from rlvr.errors import ConfigError, EnvError, SamplerError, format_suggestion
from rlvr.mdp.tokenizers import ByteTokenizer, CharTokenizer
from rlvr.samplers._chat_calls import decode_messages_by_role_tokens

SCRIPTS = ("gold", "noop", "random")


class ScriptedSampler(Sampler):
    """Returns scripted answers.

    >>> ScriptedSampler(answer="noop").answer
    'noop'
    """

    traits = SamplerTraits(loads_weights=False, cli_syntax="scripted:gold|noop|random")
    tokenizer = "bytes"  # it can encode any text

    @classmethod
    def settings_from_cli(cls, argument: str) -> dict[str, Any]:
        """`scripted:gold` is the script named gold."""
        return {"answer": argument}

    def __init__(self, *, answer: str = "gold", answers: list[str] | None = None) -> None:
        """Set the script.

        Args:
            answer: gold (the environment's solution), noop (nothing) or random (a legal turn where the environment lists them, else tokens).
            answers: these texts instead, one per turn.
        """
        if answers is None and answer not in SCRIPTS:
            raise ConfigError(f"there is no script {answer!r}; {format_suggestion(answer, SCRIPTS)}; or give answers: [text, ...]")
        if answers is not None and not answers:
            raise ConfigError("answers is an empty list; give at least one text")
        self.answer, self.answers = answer, answers
        self._environment: Environment | None = None
        self._tokenizer: Tokenizer | None = None
        self._calls: ToolFormat | None = None

    def setup(self, environment: Environment, tokenizer: Tokenizer, *, precision: str | None = None, max_length: int = 0) -> None:
        """Store the environment, which has the gold answers, and the tokenizer."""
        self._environment, self._tokenizer = environment, tokenizer
        self._calls = ToolFormat(tokenizer, environment)

    def stream_completions(self, requests: Sequence[Request], sampling: SamplingParams) -> Iterator[tuple[int, Completion]]:
        """Yield one completion for each request."""
        for index, request in enumerate(requests):
            yield index, self._complete(request)

    def stream_from_queue(self, queue: RequestQueue, sampling: SamplingParams) -> Iterator[tuple[int, Completion] | None]:
        """Yield completions for a queue of requests."""
        while (asked := queue.pop(sys.maxsize)) is not None:
            yield from ((number, self._complete(request)) for number, request in asked)
            if not asked:
                yield None

    def _complete(self, request: Request) -> Completion:
        if self._tokenizer is None:
            raise SamplerError("the scripted sampler got a request before `setup`")
        tokenizer = self._tokenizer
        turns = self._list_legal_turns(request) if self.answers is None and self.answer == "random" else None
        if self.answers is None and self.answer == "random" and not turns:
            return _sample_random(request, tokenizer)
        text = random.Random(request.seed).choice(turns) if turns else self._get_text(request)
        tokens = [*tokenizer.encode(text), tokenizer.eos_id]
        if len(tokens) > request.max_tokens:
            return Completion(tokens[: request.max_tokens], [0.0] * request.max_tokens, "length")
        return Completion(tokens, [0.0] * len(tokens), "stop")

    def _list_legal_turns(self, request: Request) -> Sequence[str] | None:
        if self._environment is None or request.task is None:
            return None
        messages: Sequence[Any] = ()
        if request.chat_prompt:
            messages = request.chat_prompt.messages
        elif request.turn:
            if not isinstance(self._tokenizer, CharTokenizer | ByteTokenizer):
                return None
            messages = decode_messages_by_role_tokens(request, self._tokenizer)
        played = [str(message["content"]) for message in messages if message["role"] == "assistant"]
        return self._environment.list_legal_turns(request.task, played[len(played) - request.turn :])

    def _get_text(self, request: Request) -> str:
        if self.answers is not None:
            return self.answers[min(request.turn, len(self.answers) - 1)]
        if self.answer == "noop" or self._environment is None or request.task is None:
            return ""
        assert self._calls is not None
        turns = self._calls.build_oracle_turns(request.task)
        if turns is None:
            raise ConfigError(
                f"{type(self._environment).__name__} has no gold solution for {request.task.id!r}; use scripted:noop or scripted:random "
                "(`rlvr check env` lists the tasks that cannot be verified)"
            )
        gold = turns[min(request.turn, len(turns) - 1)]
        if not isinstance(gold, str):
            raise EnvError(f"{type(self._environment).__name__}.gold returned {gold!r:.80} for {request.task.id!r}; it must be a string")
        return gold


def _sample_random(request: Request, tokenizer: Tokenizer) -> Completion:
    rng = random.Random(request.seed)
    tokens: list[int] = []
    while len(tokens) < request.max_tokens and not (tokens and tokens[-1] in tokenizer.stop_ids):
        tokens.append(rng.randrange(tokenizer.vocab_size))
    return Completion(tokens, [-math.log(tokenizer.vocab_size)] * len(tokens), "stop" if tokens[-1] in tokenizer.stop_ids else "length")


make = ScriptedSampler
