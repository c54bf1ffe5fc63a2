"""Tasks and a sampler in, episodes out. A failure becomes a failed episode: data, not a crash.

Every answer is judged the moment its conversation ends, in a bounded pool of threads, while others are still being
sampled. Conversations of several turns go in waves: all that still have the word speak, then the environment answers.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, wait
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from dataclasses import astuple, dataclass, field
from queue import SimpleQueue

from rlvr.contracts import Completion, Request, Sampler, Sampling
from rlvr.episode import ABOVE_ZERO, End, Episode
from rlvr.errors import ConfigError, EnvError, RlvrError
from rlvr.mdp.judges import Judges, late
from rlvr.mdp.rules import State, TokenMDP, posed
from rlvr.task import Fault, Task, Verdict


def seed_of(*parts: object) -> int:
    """One seed from whatever names a random choice; the same parts give the same seed in every process.

    >>> seed_of(0, "rollout", 3) == seed_of(0, "rollout", 3)
    True
    """
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=8).digest(), "little") >> 1


@dataclass(frozen=True, slots=True)
class Draw:
    """One episode to collect: which task, in which group, with which randomness.

    >>> Draw(Task("t", user("2+2=")), group="0:t", seed=7).group        # doctest: +SKIP
    '0:t'
    """

    task: Task
    group: str
    seed: int
    meta: dict[str, object] = field(default_factory=dict)
    world: int | None = None
    """The seed of its session; None: one for the whole group, so that its members begin in the same world."""

    def __post_init__(self) -> None:
        posed(self.task)

    @property
    def world_seed(self) -> int:
        """The seed that the session is opened with."""
        return seed_of("world", self.group, self.task.id) if self.world is None else self.world


@dataclass(slots=True)
class Timing:
    """Where the time of one collection went, in seconds.

    >>> Timing(sampling=2.0, waiting=0.1).sampling
    2.0
    """

    sampling: float = 0.0
    """From the first request to the last completion."""
    waiting: float = 0.0
    """After that, until the last verdict: verification that sampling did not hide."""
    verifying: float = 0.0
    """All verifications added up."""
    busy: float = 0.0
    """The time in which at least one verification was under way."""

    @property
    def hidden(self) -> float:
        """The share of that time in which sampling went on beside it: what verification did not cost.

        >>> Timing(sampling=2.0, waiting=0.1, busy=0.4).hidden
        0.75
        """
        return 1.0 - min(self.waiting / self.busy, 1.0) if self.busy else 1.0

    def __add__(self, other: Timing) -> Timing:
        pairs = zip(astuple(self), astuple(other), strict=True)
        return Timing(*(mine + theirs for mine, theirs in pairs))


def covered(spans: Iterable[tuple[float, float]]) -> float:
    """How much time the spans cover together, what lies in several counted once.

    >>> covered([(4.0, 5.0), (0.0, 2.0), (1.0, 3.0)])
    4.0
    """
    total, until = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(end - max(start, until), 0.0)
        until = max(until, end)
    return total


class Rollout:
    """Collects episodes of one environment with one sampler.

    >>> with Rollout(mdp, sampler) as rollout:                                        # doctest: +SKIP
    ...     episodes = rollout.collect([Draw(task, "g", 0)], Sampling())
    """

    def __init__(self, mdp: TokenMDP, sampler: Sampler, *, workers: int = 32, deadline_s: float = 600.0) -> None:
        if workers < 1 or deadline_s <= 0:
            raise ConfigError(f"workers {workers} and deadline_s {deadline_s} must be above 0")
        self.mdp, self.sampler, self.deadline_s = mdp, sampler, deadline_s
        self.timing = Timing()
        self._judged: list[tuple[float, float]] = []
        self._moved = 0.0
        """When a verification last began or ended."""
        self._judges = Judges(workers)
        self._hearing = Judges(1)
        """One thread, as an environment's `reply` is called in turn: it may hang too."""

    def collect(self, draws: Sequence[Draw], sampling: Sampling, *, version: int = 0) -> list[Episode]:
        """One episode a draw, in order."""
        found = dict(self.stream(draws, sampling, version=version))
        return [found[i] for i in range(len(draws))]

    def stream(self, draws: Sequence[Draw], sampling: Sampling, *, version: int = 0) -> Iterator[tuple[int, Episode]]:
        """Each draw's index with its episode, as soon as it is judged."""
        self.timing, self._judged = Timing(), []
        began = self._moved = time.perf_counter()
        talks = [_Talk(draw, self.mdp) for draw in draws]
        try:
            yield from self._waves(talks, sampling, version, began)
        finally:
            for talk in talks:
                talk.state.close()

    def _waves(self, talks: list[_Talk], sampling: Sampling, version: int, began: float) -> Iterator[tuple[int, Episode]]:
        over: SimpleQueue[int] = SimpleQueue()
        waiting: set[int] = set(range(len(talks)))
        while speaking := [i for i, talk in enumerate(talks) if talk.speaking]:
            silent = set(speaking)
            for at, completion in self.sampler.stream([talks[i].request() for i in speaking], sampling):
                silent.discard(speaking[at])
                self._hear(talks[speaking[at]], completion, speaking[at], over)
                while not over.empty():
                    waiting.discard(i := over.get())
                    yield i, talks[i].episode(self._wait(talks[i]), version)
            for i in silent:
                talks[i].error = "the sampler gave no answer at all"
        sampled = time.perf_counter()
        self.timing.sampling = sampled - began
        for i in sorted(waiting):
            yield i, talks[i].episode(self._wait(talks[i]), version)
        self.timing.waiting = time.perf_counter() - sampled
        self.timing.verifying = sum(end - start for start, end in self._judged)
        self.timing.busy = covered(self._judged)

    def _hear(self, talk: _Talk, completion: Completion, i: int, over: SimpleQueue[int]) -> None:
        """A talk goes on, or is put to the judge; `over` is told when there is no more to wait for."""
        heard = self._hearing.submit(talk.hear, completion)
        if not wait([heard], self.deadline_s).done:
            self._hearing.close()  # what hangs in there is left behind
            self._hearing = Judges(1)
            talk.error = f"{talk.what} gave nothing within {self.deadline_s:g} s"
        if talk.error:
            talk.state.close()
        if talk.over:
            talk.verdict = self._judges.submit(self._judge, talk)
            talk.verdict.add_done_callback(lambda _: over.put(i))
        elif not talk.speaking:
            over.put(i)

    def _judge(self, talk: _Talk) -> Verdict:
        began = talk.judged_since = self._moved = time.perf_counter()
        verdict = self.mdp.judge(talk.state)
        self._moved = time.perf_counter()
        self._judged.append((began, self._moved))
        return verdict

    def _wait(self, talk: _Talk) -> Verdict | None:
        """The verdict, within the deadline from when its verification began; or, while it is in the queue, from when that last moved."""
        if talk.verdict is None:
            return None
        while True:
            left = self.deadline_s - (time.perf_counter() - (talk.judged_since or self._moved))
            with suppress(FutureTimeout):
                return talk.verdict.result(timeout=max(left, 0.0))
            if left <= 0:
                talk.verdict.cancel()
                return late(self.deadline_s)

    def close(self) -> None:
        """Let the judges go; a verifier that hangs is not waited for, not even when the process ends."""
        self._judges.close()
        self._hearing.close()

    def __enter__(self) -> Rollout:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class _Talk:
    """One conversation under way."""

    def __init__(self, draw: Draw, mdp: TokenMDP) -> None:
        self.draw, self.mdp = draw, mdp
        self.verdict: Future[Verdict] | None = None
        self.judged_since = 0.0
        self.error = ""
        try:
            self.state = mdp.start(draw.task, seed=draw.world_seed)
        except EnvError as error:  # one prompt that is too long costs one answer, not all of them
            self.state, self.error = State(draw.task, [], []), str(error)
        self.logprobs = [0.0] * len(self.state.tokens)
        self.usage = [0, 0]
        """Tokens read and written as an endpoint counts them."""

    @property
    def what(self) -> str:
        """What is asked when it hears a turn, by its name."""
        lease = self.state.lease
        return lease.asked if lease else f"{type(self.mdp.environment).__name__}.open"

    @property
    def speaking(self) -> bool:
        return self.state.end is None and not self.error

    @property
    def over(self) -> bool:
        return self.state.end is not None and not self.error

    def request(self) -> Request:
        state, draw = self.state, self.draw
        turn = len(state.said)
        return Request(list(state.tokens), self.mdp.budget(state), seed_of(draw.seed, turn), draw.task, turn)

    def hear(self, completion: Completion) -> None:
        if completion.finish == "error":
            self.error = completion.error or "the sampler gave no answer and no reason"
            return
        impossible = [p for p in completion.logprobs if not -math.inf < p <= ABOVE_ZERO]
        if impossible:
            self.error = f"the sampler gave a token the log-probability {impossible[0]}; it must be a finite number of at most 0"
            return
        try:
            if completion.usage is None:
                self.mdp.extend(self.state, completion.tokens)
            else:
                self.usage = [before + more for before, more in zip(self.usage, completion.usage, strict=True)]
                self.mdp.extend_by_text(self.state, completion.tokens, spent=completion.usage[1], cut=completion.finish == "length")
        except RlvrError as error:
            self.error = f"the sampler's tokens do not fit: {error}"
        except (Exception, SystemExit) as error:
            self.error = f"{self.what} raised {type(error).__name__}: {error}"
        else:
            self.logprobs += completion.logprobs
            self.logprobs += [0.0] * (len(self.state.tokens) - len(self.logprobs))
            if completion.finish == "length" and self.state.end is None:
                self.error = f"the sampler stopped for length after {len(completion.tokens)} tokens, with room for more"

    def episode(self, verdict: Verdict | None, version: int) -> Episode:
        draw, state = self.draw, self.state
        if verdict is not None and not self.error:
            made = self.mdp.episode(state, verdict, group=draw.group, logprobs=self.logprobs, version=version)
            made.meta.update(draw.meta, finish=str(state.end), **({"usage": self.usage} if any(self.usage) else {}))
            return made
        length = len(self.logprobs)
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
            turns=len(state.said),
            error=reason,
            meta={**draw.meta, "finish": End.FAILED.value},
        )
