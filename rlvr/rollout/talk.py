"""One conversation of a rollout, from the prompt to the verdict."""

from __future__ import annotations

import math
from collections.abc import Coroutine
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from rlvr.contracts import Completion, Request, together
from rlvr.episode import ABOVE_ZERO, End, Episode
from rlvr.errors import EnvError, RlvrError
from rlvr.mdp.judges import Job, Judges
from rlvr.mdp.rules import TokenMDP
from rlvr.mdp.sessions import begun
from rlvr.mdp.state import State
from rlvr.mdp.transcript import said_so_far
from rlvr.rollout.draws import Draw, seed_of
from rlvr.task import Fault, Verdict


class Stage(StrEnum):
    """The phase of a conversation. In the last four phases it sends no more requests to the sampler."""

    WAITING = "waiting"
    """Not started."""
    OPENING = "opening"
    READY = "ready"
    """The next request is available to the sampler."""
    SAMPLING = "sampling"
    HEARING = "hearing"
    """The session processes the last turn."""
    ENDING = "ending"
    """The conversation is over, and its transcript is being collected."""
    CLOSING = "closing"
    """The session is being closed."""
    JUDGING = "judging"
    DONE = "done"


@dataclass(eq=False, slots=True)
class Talk:
    """One conversation. Its tokens are used only in the scheduler's thread; jobs in other threads use only its session."""

    number: int
    draw: Draw
    mdp: TokenMDP
    stage: Stage = Stage.WAITING
    error: str = ""
    """The reason why there is no verdict."""
    job: Job | None = None
    """The current job, running or queued in `executor`."""
    pool: Judges = field(init=False)
    """The thread pool of the current job."""
    submitted: float = 0.0
    """The time when the last job was submitted."""
    asked_at: float = 0.0
    """The time when the sampler took the current request."""
    seconds: float = 0.0
    """The duration of all turns and replies, without queueing."""
    verdict: Verdict | None = None
    state: State = field(init=False)
    logprobs: list[float] = field(init=False)
    usage: list[int] = field(default_factory=lambda: [0, 0])
    """Input and output tokens as counted by an endpoint."""

    def __post_init__(self) -> None:
        try:
            self.state = self.mdp.pose(self.draw.task, seed=self.draw.world_seed if self.mdp.takes_part else 0)
            if not self.mdp.worlds:
                self.mdp.ask(self.state)
        except EnvError as error:  # a prompt that is too long fails only this episode
            self.state, self.error = State(self.draw.task, [], []), str(error)
        self.logprobs = [0.0] * len(self.state.tokens)

    def ask(self) -> None:
        """Render the prompt, once the session is open."""
        try:
            self.mdp.ask(self.state)
        except EnvError as error:  # a prompt that is too long fails only this episode
            self.error = str(error)
        self.logprobs = [0.0] * len(self.state.tokens)

    def request(self) -> Request:
        """Build the next request for the sampler."""
        turn = len(self.state.turns)
        state, seed = self.state, seed_of(self.draw.seed, turn)
        said, ends = (said_so_far(state), self.mdp.turn_end(state)) if state.lease else (None, None)
        return Request(list(state.tokens), self.mdp.budget(state), seed, self.draw.task, turn, said, ends)

    def say(self, completion: Completion) -> None:
        """Append a completion. If it is invalid, set `error`."""
        if completion.finish == "error" or not all(-math.inf < p <= ABOVE_ZERO for p in completion.logprobs):
            self.error = _refused(completion)
            return
        try:
            closed = self._session_turn(completion) if self.state.lease or completion.usage else self.mdp.say(self.state, completion.tokens)
        except RlvrError as error:
            self.error = f"the sampler's tokens do not fit: {error}"
            return
        self.logprobs += completion.logprobs[: len(self.state.tokens) - len(self.logprobs)]
        if not closed and self.state.end is None:
            self.error = f"the sampler stopped for length after {len(completion.tokens)} tokens, before the limit"

    def _session_turn(self, completion: Completion) -> bool:
        """Append a turn of a session, without tokens after its end, or the text of an endpoint."""
        if completion.usage:
            return self._say_text(completion, completion.usage)
        return self.mdp.say(self.state, completion.tokens[: self.mdp.turn_length(self.state, completion.tokens)])

    def _say_text(self, completion: Completion, usage: tuple[int, int]) -> bool:
        """Append the text of an endpoint that counts its own tokens."""
        self.usage = [before + more for before, more in zip(self.usage, usage, strict=True)]
        cut = completion.finish == "length"
        return self.mdp.say_text(self.state, completion.tokens, spent=usage[1], cut=cut, turn=completion.turn)

    def go_on(self) -> None:
        """Append the reply of the session, or end the conversation."""
        try:
            self.mdp.go_on(self.state)
        except (Exception, SystemExit) as error:
            self.error = f"the session's reply cannot be rendered: {type(error).__name__}: {error}"
        self.logprobs += [0.0] * (len(self.state.tokens) - len(self.logprobs))

    # ---- jobs: each runs in a thread of a pool

    def open(self) -> None:
        """Open the session."""
        if self.state.lease is not None:
            self.state.lease.open()

    def hear(self) -> None:
        """Pass the last turn to the session."""
        self.mdp.listen(self.state)

    def collect(self) -> None:
        """Collect the transcript to verify."""
        state = self.state
        if state.lease is not None:
            state.ending = state.lease.collect(tuple(state.turns), tuple(state.heard))

    def judge_waiting(self) -> Verdict | Coroutine[Any, Any, Verdict]:
        """Verify with an asynchronous verifier: return the verdict, or a coroutine that does not block a thread."""
        ending = self.mdp.finish(self.state)
        found = ending if isinstance(ending, Verdict) else begun(self.mdp.environment.verifier, self.draw.task, ending)
        told = together([found], lambda verdicts: self.mdp.with_earned(self.state, verdicts[0]))
        return told if isinstance(told, Verdict) else told()

    def give_up(self) -> None:
        """Cancel the current job."""
        job, self.job = self.job, None
        if job is not None:
            self.pool.give_up(job)

    @property
    def asked(self) -> str:
        """The name of the last session method called, for timeout messages."""
        return self.state.lease.asked if self.state.lease else ""

    def episode(self, version: int) -> Episode:
        """Build the episode of the conversation."""
        if self.verdict is None or self.error:
            return self._failed(version)
        made = self.mdp.episode(self.state, self.verdict, group=self.draw.group, logprobs=self.logprobs, version=version)
        made.meta.update(self.draw.meta, finish=str(self.state.end), **({"usage": self.usage} if any(self.usage) else {}))
        if not self.mdp.worlds and any(turn.reasoning for turn in self.state.turns):  # a session record already contains the turns
            made.meta["reasoning"] = [turn.reasoning for turn in self.state.turns]
        return made

    def _failed(self, version: int) -> Episode:
        """Build the episode of a conversation without a verdict."""
        draw, state = self.draw, self.state
        length = min(len(self.logprobs), len(state.tokens))
        reason = self.error or "the conversation never ended"
        return Episode(
            task_id=draw.task.id,
            group=draw.group,
            tokens=state.tokens[:length],
            acted=state.acted[:length],
            logprobs=self.logprobs[:length],
            rewards=[0.0] * length,
            end=End.FAILED,
            policy_version=version,
            verdict=Verdict(None, reason, fault=Fault.INFRA),
            turns=len(state.turns),
            error=reason,
            meta={**draw.meta, "finish": End.FAILED.value},
        )


def _refused(completion: Completion) -> str:
    if completion.finish == "error":
        return completion.error or "the sampler gave no answer and no reason"
    bad = next(p for p in completion.logprobs if not -math.inf < p <= ABOVE_ZERO)
    return f"the sampler gave a token the log-probability {bad}; it must be a finite number of at most 0"
