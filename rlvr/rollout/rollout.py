"""Rollouts: sample episodes of an environment. A failure gives a failed episode, not an exception.

Each conversation continues as soon as its own session has replied, independently of the others. Sessions run in one bounded thread pool,
verification runs in another; the sampler and the tokenizer are used only in the calling thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rlvr.contracts import Sampler, Sampling
from rlvr.episode import Episode
from rlvr.errors import ConfigError
from rlvr.mdp.judges import Judges
from rlvr.mdp.rules import TokenMDP
from rlvr.mdp.sessions import waits
from rlvr.rollout.draws import Draw as Draw
from rlvr.rollout.draws import seed_of as seed_of
from rlvr.rollout.schedule import Schedule
from rlvr.rollout.sessions import SessionSchedule
from rlvr.rollout.timing import Timing as Timing
from rlvr.rollout.timing import covered as covered

DEADLINE_S = 600.0
"""The default timeout of one verification or one session call."""


class Rollout:
    """Samples episodes of one environment with one sampler.

    >>> with Rollout(mdp, sampler) as rollout:                                        # doctest: +SKIP
    ...     episodes = rollout.collect([Draw(task, "g", 0)], Sampling())
    """

    shared = False
    """True if the main process samples for all training processes; otherwise each process samples its shard."""

    def __init__(
        self,
        mdp: TokenMDP,
        sampler: Sampler,
        *,
        workers: int = 32,
        actors: int = 64,
        open_sessions: int = 256,
        deadline_s: float = DEADLINE_S,
        episode_s: float | None = None,
        overlong: str = "wait",
        lockstep: bool | None = None,
    ) -> None:
        """Create the rollout with its thread pools.

        Args:
            mdp: the environment and the tokenizer.
            sampler: the sampler of the policy.
            workers: the number of concurrent verifications.
            actors: the number of concurrent session calls.
            open_sessions: the maximum number of open sessions, for environments with stateful sessions.
            deadline_s: the timeout of one verification or one session call; after it the episode has no verdict.
            episode_s: after this time a conversation ends with its current turn and is verified; None: no limit.
            overlong: "cut" ends the last conversation of a group when the others are done and it has as many turns as the longest of
                them; it is verified as it is. "wait" lets it finish.
            lockstep: whether all conversations wait for the slowest one before each turn. With some samplers the last bits of a result
                depend on the batch composition (`Sampler.eval_batch_size`), and without synchronous turns the composition depends on
                timing. None: only for such samplers, with a stateless interactive environment.
        """
        if workers < 1 or deadline_s <= 0:
            raise ConfigError(f"workers {workers} and deadline_s {deadline_s} must be above 0")
        if actors < 1 or open_sessions < 1:
            raise ConfigError(f"actors {actors} and open_sessions {open_sessions} must be at least 1")
        if episode_s is not None and episode_s <= 0:
            raise ConfigError(f"episode_s is {episode_s}; it must be above 0")
        if overlong not in ("wait", "cut"):
            raise ConfigError(f"overlong is {overlong!r}; allowed: cut, wait")
        self.mdp, self.sampler, self.deadline_s, self.open_sessions = mdp, sampler, deadline_s, open_sessions
        self.episode_s, self.overlong = episode_s, overlong
        self.lockstep = bool(sampler.company) and mdp.takes_part and not mdp.worlds if lockstep is None else lockstep
        self.waits = waits(mdp.environment.verifier)
        """True if the verifier is asynchronous, so that verdicts are awaited without blocking a thread."""
        self.timing = Timing()
        self.judges, self.actors = Judges(workers), Judges(actors, name="session")

    def collect(self, draws: Sequence[Draw], sampling: Sampling, *, version: int = 0) -> list[Episode]:
        """Return one episode per request, in order."""
        found = dict(self.stream(draws, sampling, version=version))
        return [found[i] for i in range(len(draws))]

    def stream(self, draws: Sequence[Draw], sampling: Sampling, *, version: int = 0) -> Iterator[tuple[int, Episode]]:
        """Yield the index of each request with its episode, as soon as it is verified. All sessions are closed at the end."""
        self.timing = Timing()
        schedule = (SessionSchedule if self.mdp.takes_part else Schedule)(self, draws, self.timing)
        try:
            for talk in schedule.run(sampling):
                yield talk.number, talk.episode(version)
        finally:
            schedule.close()

    def measured(self, times: Mapping[str, float]) -> dict[str, float]:
        """Return additional timing metrics of a step, given its times; for remote rollouts."""
        return {}

    def close(self) -> None:
        """Stop the threads, without waiting for hanging verifiers or sessions."""
        self.judges.close()
        self.actors.close()

    def __enter__(self) -> Rollout:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
