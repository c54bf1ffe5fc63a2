"""What limits the speed of a run with collectors, in words, from the times of its steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

WAITS, IDLE, MISSING, LOADS, JUDGES = 0.1, 0.3, 0.25, 0.25, 0.9
"""Shares of a step beyond which something is a limit: the trainer waits, collectors idle, are missing, or load weights, judges are busy."""


def bottleneck(rows: Sequence[Mapping[str, Any]], ahead: int) -> tuple[str, str]:
    """What limits these steps, as one word and as a sentence; two empty texts for runs without collectors.

    `rows` are their times (timings.jsonl), `ahead` is `rollout.max_staleness`.

    >>> row = {"step_time": 10.0, "time/wait_for_batch": 6.2, "cluster/sampling": 0.97, "cluster/idle": 0.03}
    >>> bottleneck([row], ahead=1)
    ('collectors', 'the trainer waits for collectors 62% of the step, and they sample 97% of it: add collectors')
    """
    rows = [row for row in rows if "cluster/sampling" in row]
    seconds = float(sum(row["step_time"] for row in rows))
    if not seconds:
        return "", ""

    def share(name: str) -> float:
        return float(sum(row.get(name, 0.0) * row["step_time"] for row in rows)) / seconds

    samples, idles, loads, judges = (share(f"cluster/{name}") for name in ("sampling", "idle", "loading", "judging"))
    waits = sum(row.get("time/wait_for_batch", 0.0) for row in rows) / seconds
    missing = max(0.0, 1.0 - samples - idles - loads)
    if missing > MISSING:
        return "missing", f"collectors are missing {missing:.0%} of the time, since they start or were lost: see collectors.jsonl"
    if judges > JUDGES:
        return "judges", f"judge hosts are busy {judges:.0%} of the step: add judge hosts"
    if loads > LOADS:
        return "weights", f"collectors load weights {loads:.0%} of the step, and sample {samples:.0%}: the way of the weights is too slow"
    if ahead == 0 and waits > WAITS and idles > IDLE:
        return "turns", (
            f"sampling and training take turns: the trainer waits {waits:.0%} of the step, and collectors idle {idles:.0%}: "
            "rollout.max_staleness=1 lets both work at once"
        )
    if waits > WAITS and idles > IDLE:
        return "tail", (
            f"the trainer waits for collectors {waits:.0%} of the step although they idle {idles:.0%}: a few long calls hold it up; "
            "cluster.backups, a smaller cluster.groups_per_call or a larger rollout.max_staleness help"
        )
    if waits > WAITS:
        return (
            "collectors",
            f"the trainer waits for collectors {waits:.0%} of the step, and they sample {samples:.0%} of it: add collectors",
        )
    if idles > IDLE:
        return "trainer", f"collectors idle {idles:.0%} of the step, since the trainer is slower: fewer collectors would do"
    return "balanced", f"collectors sample {samples:.0%} of the step, and the trainer waits {waits:.0%}: both are busy"
