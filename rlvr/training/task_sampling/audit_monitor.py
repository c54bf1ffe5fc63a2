"""Audit monitor: compare the reward with the scores of an audit verifier on a sample of the same answers."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from rlvr.episode import Episode

WINDOW_PAIRS, MIN_PAIRS = 400, 50
"""The window of score pairs, and the minimum number of pairs for a correlation."""


class AuditVerifierMonitor:
    """Tracks recent pairs of scores: the reward, and the audit verifier's score (component `audit`).

    >>> monitor = AuditVerifierMonitor()
    >>> monitor.add_pairs([(1.0, 1.0), (0.0, 0.0)] * 30); monitor.metrics()["audit_verifier/correlation"]
    1.0
    >>> monitor.add_pairs([(1.0, 0.0)] * 60); monitor.metrics()["audit_verifier/correlation_drop"] > 0.3
    True
    """

    def __init__(self) -> None:
        self.pairs = deque[tuple[float, float]](maxlen=WINDOW_PAIRS)
        self.best_correlation: float | None = None
        """The highest correlation so far."""

    def observe_groups(self, groups: Sequence[Sequence[Episode]]) -> None:
        """Add the episodes of one sampling round."""
        verdicts = [e.verdict for group in groups for e in group if e.verdict is not None and not e.is_auxiliary]
        self.add_pairs([(v.score, v.components["audit"]) for v in verdicts if v.score is not None and "audit" in v.components])

    def add_pairs(self, pairs: Sequence[tuple[float, float]]) -> None:
        """Add pairs of scores."""
        self.pairs.extend(pairs)
        if pairs and len(self.pairs) >= MIN_PAIRS and (now := self._compute_correlation()) is not None:
            self.best_correlation = now if self.best_correlation is None else max(self.best_correlation, now)

    def metrics(self) -> dict[str, float]:
        """Return metrics: the number of pairs, the mean gap, the correlation, and its drop from the highest value."""
        if not self.pairs:
            return {}
        gap = math.fsum(ours - theirs for ours, theirs in self.pairs) / len(self.pairs)
        row = {"audit_verifier/num_pairs": float(len(self.pairs)), "audit_verifier/mean_gap": gap}
        if (now := self._compute_correlation()) is not None:
            row["audit_verifier/correlation"] = now
            if self.best_correlation is not None:
                row["audit_verifier/correlation_drop"] = self.best_correlation - now
        return row

    def _compute_correlation(self) -> float | None:
        ours, theirs = zip(*self.pairs, strict=True)
        if len(set(ours)) < 2 or len(set(theirs)) < 2:
            return None
        return round(statistics.correlation(ours, theirs), 12)

    def state_dict(self) -> dict[str, Any]:
        """Return the state for the checkpoint."""
        return {"pairs": [list(pair) for pair in self.pairs], "best": self.best_correlation}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state from `state_dict`."""
        self.pairs.clear()
        self.pairs.extend((float(ours), float(theirs)) for ours, theirs in state["pairs"])
        self.best_correlation = state["best"]
