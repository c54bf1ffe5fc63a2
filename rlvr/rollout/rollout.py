"""Rollouts: sample episodes of an environment. A failure gives a failed episode, not an exception.

Each conversation continues as soon as its own session has replied, independently of the others. Sessions run in one bounded thread pool,
verification runs in another; the sampler and the tokenizer are used only in the calling thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rlvr.contracts import Sampler, Sampling
from rlvr.episode import Episode
from rlvr.errors import ConfigError
from rlvr.mdp.sessions import is_async_verifier
from rlvr.mdp.token_mdp import TokenMDP
from rlvr.mdp.verifier_executor import VerifierExecutor
from rlvr.rollout.rollout_request import RolloutRequest as RolloutRequest
from rlvr.rollout.rollout_request import derive_seed as derive_seed
from rlvr.rollout.scheduler import RolloutScheduler
from rlvr.rollout.session_scheduler import SessionRolloutScheduler
from rlvr.rollout.timing import RolloutTiming as RolloutTiming
from rlvr.rollout.timing import measure_covered_time as measure_covered_time

DEFAULT_CALL_TIMEOUT_S = 600.0
"""The default timeout of one verification or one session call."""


class Rollout:
    """Samples episodes of one environment with one sampler.

    >>> with Rollout(mdp, sampler) as rollout:                                        # doctest: +SKIP
    ...     episodes = rollout.collect([Draw(task, "g", 0)], Sampling())
    """

    main_process_samples = False
    """True if the main process samples for all training processes; otherwise each process samples its shard."""

    def __init__(
        self,
        mdp: TokenMDP,
        sampler: Sampler,
        *,
        verify_workers: int = 32,
        session_workers: int = 64,
        max_open_sessions: int = 256,
        call_timeout_s: float = DEFAULT_CALL_TIMEOUT_S,
        episode_timeout_s: float | None = None,
        straggler_policy: str = "wait",
        sync_turns: bool | None = None,
    ) -> None:
        """Create the rollout with its thread pools.

        Args:
            mdp: the environment and the tokenizer.
            sampler: the sampler of the policy.
            verify_workers: the number of concurrent verifications.
            session_workers: the number of concurrent session calls.
            max_open_sessions: the maximum number of open sessions, for environments with stateful sessions.
            call_timeout_s: the timeout of one verification or one session call; after it the episode has no verdict.
            episode_timeout_s: after this time a conversation ends with its current turn and is verified; None: no limit.
            straggler_policy: "truncate" ends the last conversation of a group when the others are done and it has as many turns as the longest
                of
                them; it is verified as it is. "wait" lets it finish.
            sync_turns: whether all conversations wait for the slowest one before each turn. With some samplers the last bits of a result
                depend on the batch composition (`Sampler.eval_batch_size`), and without synchronous turns the composition depends on
                timing. None: only for such samplers, with a stateless interactive environment.
        """
        if verify_workers < 1 or call_timeout_s <= 0:
            raise ConfigError(f"workers {verify_workers} and deadline_s {call_timeout_s} must be above 0")
        if session_workers < 1 or max_open_sessions < 1:
            raise ConfigError(f"actors {session_workers} and open_sessions {max_open_sessions} must be at least 1")
        if episode_timeout_s is not None and episode_timeout_s <= 0:
            raise ConfigError(f"episode_s is {episode_timeout_s}; it must be above 0")
        if straggler_policy not in ("wait", "truncate"):
            raise ConfigError(f"straggler_policy is {straggler_policy!r}; allowed: truncate, wait")
        self.mdp, self.sampler, self.call_timeout_s, self.max_open_sessions = mdp, sampler, call_timeout_s, max_open_sessions
        self.episode_timeout_s, self.straggler_policy = episode_timeout_s, straggler_policy
        self.sync_turns = (
            bool(sampler.eval_batch_size) and mdp.is_interactive and not mdp.has_sessions if sync_turns is None else sync_turns
        )
        self.has_async_verifier = is_async_verifier(mdp.environment.verifier)
        """True if the verifier is asynchronous, so that verdicts are awaited without blocking a thread."""
        self.timing = RolloutTiming()
        self.verifier_executor, self.session_executor = VerifierExecutor(verify_workers), VerifierExecutor(session_workers, name="session")

    def collect(self, requests: Sequence[RolloutRequest], sampling: Sampling, *, version: int = 0) -> list[Episode]:
        """Return one episode per request, in order."""
        found = dict(self.stream(requests, sampling, version=version))
        return [found[i] for i in range(len(requests))]

    def stream(self, requests: Sequence[RolloutRequest], sampling: Sampling, *, version: int = 0) -> Iterator[tuple[int, Episode]]:
        """Yield the index of each request with its episode, as soon as it is verified. All sessions are closed at the end."""
        self.timing = RolloutTiming()
        schedule = (SessionRolloutScheduler if self.mdp.is_interactive else RolloutScheduler)(self, requests, self.timing)
        try:
            for talk in schedule.run(sampling):
                yield talk.number, talk.build_episode(version)
        finally:
            schedule.close()

    def compute_extra_metrics(self, times: Mapping[str, float]) -> dict[str, float]:
        """Return additional timing metrics of a step, given its times; for remote rollouts."""
        return {}

    def close(self) -> None:
        """Stop the threads, without waiting for hanging verifiers or sessions."""
        self.verifier_executor.close()
        self.session_executor.close()

    def __enter__(self) -> Rollout:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
