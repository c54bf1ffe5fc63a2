"""Timing of a rollout."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import astuple, dataclass, field


@dataclass(slots=True)
class RolloutTiming:
    """The timing of one rollout, in seconds.

    >>> RolloutTiming(sampling_s=2.0, verify_tail_s=0.1).sampling_s
    2.0
    """

    sampling_s: float = 0.0
    """The time from the first request to the last completion."""
    verify_tail_s: float = 0.0
    """The time from the last completion to the last verdict: verification that sampling did not hide."""
    verification_spans: list[tuple[float, float]] = field(default_factory=list)
    """The start and end of each verification."""
    sampler_idle_s: float = 0.0
    """The part of the sampling time in which the sampler was idle because all conversations waited for their sessions."""
    max_open_sessions: int = 0
    """The maximum number of open sessions, for environments with stateful sessions."""

    @property
    def total_verify_s(self) -> float:
        """The summed duration of all verifications."""
        return sum(end - start for start, end in self.verification_spans)

    @property
    def verify_busy_s(self) -> float:
        """The time in which at least one verification was running."""
        return measure_covered_time(self.verification_spans)

    @property
    def hidden_verify_fraction(self) -> float:
        """The fraction of the verification time that was hidden behind sampling.

        >>> RolloutTiming(sampling_s=2.0, verify_tail_s=0.25, verification_spans=[(0.0, 1.0), (0.5, 1.0)]).hidden_verify_fraction
        0.75
        """
        busy = self.verify_busy_s
        return 1.0 - min(self.verify_tail_s / busy, 1.0) if busy else 1.0

    def __add__(self, other: RolloutTiming) -> RolloutTiming:
        mine, theirs = astuple(self), astuple(other)
        added = RolloutTiming(*(a + b for a, b in zip(mine, theirs, strict=True)))
        added.max_open_sessions = max(self.max_open_sessions, other.max_open_sessions)
        return added


def measure_covered_time(spans: Iterable[tuple[float, float]]) -> float:
    """Compute the total time covered by spans, counting overlaps once.

    >>> measure_covered_time([(4.0, 5.0), (0.0, 2.0), (1.0, 3.0)])
    4.0
    """
    total, until = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(end - max(start, until), 0.0)
        until = max(until, end)
    return total
