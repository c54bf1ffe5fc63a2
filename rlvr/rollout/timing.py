"""Timing of a rollout."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import astuple, dataclass, field


@dataclass(slots=True)
class Timing:
    """The timing of one rollout, in seconds.

    >>> Timing(sampling=2.0, waiting=0.1).sampling
    2.0
    """

    sampling: float = 0.0
    """The time from the first request to the last completion."""
    waiting: float = 0.0
    """The time from the last completion to the last verdict: verification that sampling did not hide."""
    judged: list[tuple[float, float]] = field(default_factory=list)
    """The start and end of each verification."""
    idle: float = 0.0
    """The part of the sampling time in which the sampler was idle because all conversations waited for their sessions."""
    open: int = 0
    """The maximum number of open sessions, for environments with stateful sessions."""

    @property
    def verifying(self) -> float:
        """The summed duration of all verifications."""
        return sum(end - start for start, end in self.judged)

    @property
    def busy(self) -> float:
        """The time in which at least one verification was running."""
        return covered(self.judged)

    @property
    def hidden(self) -> float:
        """The fraction of the verification time that was hidden behind sampling.

        >>> Timing(sampling=2.0, waiting=0.25, judged=[(0.0, 1.0), (0.5, 1.0)]).hidden
        0.75
        """
        busy = self.busy
        return 1.0 - min(self.waiting / busy, 1.0) if busy else 1.0

    def __add__(self, other: Timing) -> Timing:
        mine, theirs = astuple(self), astuple(other)
        added = Timing(*(a + b for a, b in zip(mine, theirs, strict=True)))
        added.open = max(self.open, other.open)
        return added


def covered(spans: Iterable[tuple[float, float]]) -> float:
    """Compute the total time covered by spans, counting overlaps once.

    >>> covered([(4.0, 5.0), (0.0, 2.0), (1.0, 3.0)])
    4.0
    """
    total, until = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(end - max(start, until), 0.0)
        until = max(until, end)
    return total
