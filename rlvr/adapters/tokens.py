"""Conversations for frameworks that sample token ids, with the exact tokens, masks and log-probabilities of rlvr.

`TokenConversationRunner` runs a conversation with a coroutine that samples turns. `make_row` converts an episode for a trainer. Session
calls and verification run in threads with timeouts, as in a rollout.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from rlvr.contracts import Completion, Environment, Request
from rlvr.episode import End, Episode
from rlvr.mdp.judges import Judges, late
from rlvr.mdp.rules import TokenMDP
from rlvr.mdp.tokenizers import HFTokenizer
from rlvr.rollout.draws import Draw
from rlvr.rollout.talk import Stage, Talk
from rlvr.task import Fault, Verdict

LOOK_S = 0.5
"""Interval at which a job that waits for a thread is checked."""
CLOSING_S = 10.0
"""Timeout for closing all sessions."""
Generate = Callable[[Request], Awaitable[Completion]]
"""Samples one turn with the engine of the framework."""


@dataclass(frozen=True, slots=True)
class Row:
    """An episode in the format of trainers: the prompt, and the response with a mask.

    >>> Row([5], [6, 7], [1, 0], [-0.1, 0.0], Verdict(1.0, "right"), "terminated", 1).mask
    [1, 0]
    """

    prompt_ids: list[int]
    response_ids: list[int]
    """The tokens of the policy, and those of the environment between its turns."""
    mask: list[int]
    """1 for tokens of the policy."""
    logprobs: list[float]
    """Of the sampler; 0.0 where the mask is 0."""
    verdict: Verdict
    end: str
    turns: int
    answer: str = ""
    """The verified text."""

    @property
    def truncated(self) -> bool:
        """Whether a limit ended it."""
        return self.end == End.TRUNCATED.value


def row_of(episode: Episode, filler: int) -> Row:
    """Convert an episode to a row. Without a token of the policy it gets the token `filler`, with mask 0, since trainers need a response.

    >>> row_of(Episode("t", "g", [5, 6], [False, True], [0.0, -0.1], [0.0, 1.0], End.TERMINATED, verdict=Verdict(1.0, "")), 0).response_ids
    [6]
    """
    start = episode.prompt_length
    verdict = episode.verdict or Verdict(None, episode.error or "no verdict", fault=Fault.INFRA)
    prompt = episode.tokens[:start] or [filler]
    if start == len(episode.tokens):
        return Row(prompt, [filler], [0], [0.0], verdict, episode.end.value, episode.turns, episode.text)
    mask = [int(own) for own in episode.acted[start:]]
    return Row(prompt, episode.tokens[start:], mask, episode.logprobs[start:], verdict, episode.end.value, episode.turns, episode.text)


def completion_of(tokens: Iterable[int], logprobs: Sequence[float] | None, stops: Iterable[int]) -> Completion:
    """Make the completion of one turn. The tokens must include the stop token. Missing log-probabilities become 0.0.

    >>> completion_of([7, 2], None, {2}).finish
    'stop'
    """
    said = list(tokens)
    if not said:
        return Completion([], [], "error", "the engine returned no token")
    if logprobs is not None and len(logprobs) != len(said):
        return Completion([], [], "error", f"the engine returned {len(said)} tokens and {len(logprobs)} log-probabilities")
    return Completion(said, [0.0] * len(said) if logprobs is None else list(logprobs), "stop" if said[-1] in stops else "length")


def player_of(
    environment: Environment, tokenizer: Any, *, stops: Iterable[int] = (), max_new_tokens: int | None = None,
    max_length: int | None = None, workers: int = 32, deadline_s: float = 600.0,
) -> Player:  # fmt: skip
    """Make a runner for the Hugging Face tokenizer of a framework.

    Args:
        environment: makes the tasks.
        tokenizer: a loaded Hugging Face tokenizer.
        stops: stop token ids of the engine besides EOS.
        max_new_tokens: maximum tokens of the policy per conversation; None: the value of the environment.
        max_length: maximum tokens of prompt and completion; None: the value of the environment.
        workers: number of concurrent session calls, and of concurrent verifications.
        deadline_s: timeout of one call of a session and of one verification, in seconds.
    """
    mdp = TokenMDP(environment, HFTokenizer(tokenizer, stops), max_new_tokens=max_new_tokens, max_length=max_length)
    return Player(mdp, workers=workers, deadline_s=deadline_s)


class Player:
    """Run conversations of one environment; the framework decides how many run concurrently."""

    def __init__(self, mdp: TokenMDP, *, workers: int = 32, deadline_s: float = 600.0) -> None:
        """Set the limits.

        Args:
            mdp: the environment and the tokenizer, with the token limits.
            workers: number of concurrent session calls, and of concurrent verifications.
            deadline_s: timeout of one call of a session and of one verification, in seconds.
        """
        self.mdp, self.deadline_s = mdp, deadline_s
        self.actors, self.judges = Judges(workers, name="session"), Judges(workers)
        self.closing = set[Future[Any]]()
        """Jobs that close sessions."""

    async def play(self, draw: Draw, generate: Generate) -> Episode:
        """Run one conversation and verify it. Errors give a failed episode; the session is always closed."""
        talk = Talk(0, draw, self.mdp)
        try:
            if self.mdp.worlds and not talk.error and await self._step(talk, talk.open):
                talk.ask()
            while not talk.error and talk.state.end is None:
                await self._turn(talk, generate)
            if not talk.error and self.mdp.takes_part:
                await self._step(talk, talk.collect)
            if not talk.error:
                talk.verdict = await self._judge(talk)
            return talk.episode(0)
        finally:
            talk.stage = Stage.DONE
            if talk.state.lease is not None:
                self._leave(talk.state.lease.close)

    async def _turn(self, talk: Talk, generate: Generate) -> None:
        try:
            completion = await generate(talk.request())
        except Exception as error:
            talk.error = f"sampling raised {type(error).__name__}: {error}"
            return
        talk.say(completion)
        if not talk.error and talk.state.end is None and await self._step(talk, talk.hear):
            talk.go_on()

    async def _step(self, talk: Talk, work: Callable[[], Any]) -> bool:
        """Call the session; on an error store it in the conversation and return False."""
        try:
            await self._within(self.actors, work)
        except TimeoutError:
            talk.error = f"{talk.asked} returned nothing within {self.deadline_s:g} s"
        except (Exception, SystemExit) as error:
            talk.error = f"{talk.asked} raised {type(error).__name__}: {error}"
        return not talk.error

    async def _judge(self, talk: Talk) -> Verdict:
        try:
            verdict: Verdict = await self._within(self.judges, lambda: self.mdp.judge(talk.state))
            return verdict
        except TimeoutError:
            return late(self.deadline_s)
        except (Exception, SystemExit) as error:
            return Verdict(None, f"the verifier raised {error!r}", fault=Fault.INFRA)

    async def _within(self, pool: Judges, work: Callable[[], Any]) -> Any:
        """Run a function in a thread with a timeout, which starts with the thread."""
        submitted, job = perf_counter(), pool.submit(work)
        future = asyncio.wrap_future(job)
        try:
            while not future.done():
                left = (job.since or max(pool.moved, submitted)) + self.deadline_s - perf_counter()
                if left <= 0:
                    raise TimeoutError
                await asyncio.wait({future}, timeout=left if job.since else min(left, LOOK_S))
            return future.result()
        finally:
            if not job.done():
                pool.give_up(job)

    def _leave(self, close: Callable[[], None]) -> None:
        """Close a session in a thread, or here if the threads have been stopped."""
        self.closing = {job for job in self.closing if not job.done()}
        try:
            self.closing.add(self.actors.submit(close))
        except RuntimeError:
            close()

    def close(self) -> None:
        """Wait for closing sessions up to a timeout, stop the threads and close the environment."""
        wait(self.closing, CLOSING_S)
        self.actors.close()
        self.judges.close()
        self.mdp.environment.close()
