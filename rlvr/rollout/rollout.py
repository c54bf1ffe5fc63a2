"""Tasks and a sampler in, episodes out. A failure becomes a failed episode: data, not a crash.

Each conversation continues as soon as its own session has replied, independently of the others. Sessions are asked in one bounded pool of
threads, answers are judged in another; the sampler and the tokens belong to the thread that asks for episodes.
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
"""How long one verification, or one call of a session, may take unless it is set."""


class Rollout:
    """Collects episodes of one environment with one sampler.

    >>> with Rollout(mdp, sampler) as rollout:                                        # doctest: +SKIP
    ...     episodes = rollout.collect([Draw(task, "g", 0)], Sampling())
    """

    shared = False
    """Whether the main process samples for all learning processes. Otherwise each samples its share."""

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
        """Set how much runs in parallel, and the timeouts.

        Args:
            mdp: the environment and the tokenizer.
            sampler: who answers.
            workers: how many answers are judged at once.
            actors: how many sessions are asked at once.
            open_sessions: how many sessions are open at once, where the environment has sessions of its own.
            deadline_s: how long one verification, or one call of a session, may take; then the episode has no verdict.
            episode_s: after so many seconds from its first request a conversation ends with its present turn, and is judged; None: never.
            overlong: "cut" ends the last conversation of a group, once the others are over, where it has as many turns as the longest of
                them; it is judged as it is. "wait": it ends by itself.
            lockstep: whether all conversations wait for the slowest before each turn. The company in which an answer is sampled may decide
                its last bits (`Sampler.company`), and without lockstep it depends on how long replies take. None: only for such a sampler,
                with an environment that replies and has no sessions of its own.
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
        """Whether verdicts are awaited without a thread."""
        self.timing = Timing()
        self.judges, self.actors = Judges(workers), Judges(actors, name="session")

    def collect(self, draws: Sequence[Draw], sampling: Sampling, *, version: int = 0) -> list[Episode]:
        """One episode a draw, in order."""
        found = dict(self.stream(draws, sampling, version=version))
        return [found[i] for i in range(len(draws))]

    def stream(self, draws: Sequence[Draw], sampling: Sampling, *, version: int = 0) -> Iterator[tuple[int, Episode]]:
        """Each draw's index with its episode, as soon as it is judged. However this ends, all its sessions are closed."""
        self.timing = Timing()
        schedule = (SessionSchedule if self.mdp.takes_part else Schedule)(self, draws, self.timing)
        try:
            for talk in schedule.run(sampling):
                yield talk.number, talk.episode(version)
        finally:
            schedule.close()

    def measured(self, times: Mapping[str, float]) -> dict[str, float]:
        """Further times of a step, besides these; for one that samples elsewhere."""
        return {}

    def close(self) -> None:
        """Stop the threads. A verifier or a session that hangs delays neither this nor the end of the process."""
        self.judges.close()
        self.actors.close()

    def __enter__(self) -> Rollout:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
