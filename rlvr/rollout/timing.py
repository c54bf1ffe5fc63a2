"""Where the time of a collection went."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import astuple, dataclass, field


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
    judged: list[tuple[float, float]] = field(default_factory=list)
    """When each verification began and ended."""
    idle: float = 0.0
    """The part of `sampling` in which the sampler had nothing to do, because every conversation waited for its session."""
    open: int = 0
    """The most sessions that were open at once, if the environment has sessions of its own."""

    @property
    def verifying(self) -> float:
        """All verifications added up."""
        return sum(end - start for start, end in self.judged)

    @property
    def busy(self) -> float:
        """The time in which at least one verification was under way."""
        return covered(self.judged)

    @property
    def hidden(self) -> float:
        """The share of that time in which sampling ran too: what verification did not cost.

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
    """How much time the spans cover together, what lies in several counted once.

    >>> covered([(4.0, 5.0), (0.0, 2.0), (1.0, 3.0)])
    4.0
    """
    total, until = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(end - max(start, until), 0.0)
        until = max(until, end)
    return total
