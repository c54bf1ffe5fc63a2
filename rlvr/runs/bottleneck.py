"""Find what limits the speed of a cluster run, from the times of its steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

(
    MAX_TRAINER_WAIT_FRACTION,
    MAX_WORKER_IDLE_FRACTION,
    MAX_WORKER_MISSING_FRACTION,
    MAX_WEIGHT_LOADING_FRACTION,
    MAX_VERIFIER_BUSY_FRACTION,
) = 0.1, 0.3, 0.25, 0.25, 0.9
"""Limits, as fractions of a step: trainer waits, rollout workers idle, missing, or loading weights, verifier workers busy."""


def find_bottleneck(step_timings: Sequence[Mapping[str, Any]], max_staleness: int) -> tuple[str, str]:
    """Find the bottleneck of some steps: one word and a sentence; two empty strings for runs without rollout workers.

    `step_timings` are the steps' times (timings.jsonl), `max_staleness` is that of the section `rollout`.

    >>> row = {"step_time": 10.0, "time/wait_for_batch": 6.2, "cluster/sampling_fraction": 0.97, "cluster/idle_fraction": 0.03}
    >>> find_bottleneck([row], max_staleness=1)
    ('rollout_workers', 'the trainer waits for rollout workers 62% of the step, and they sample 97% of it: add rollout workers')
    """
    step_timings = [row for row in step_timings if "cluster/sampling_fraction" in row]
    seconds = float(sum(row["step_time"] for row in step_timings))
    if not seconds:
        return "", ""

    def share(name: str) -> float:
        return float(sum(row.get(name, 0.0) * row["step_time"] for row in step_timings)) / seconds

    samples, idles, loads = (share(f"cluster/{state}_fraction") for state in ("sampling", "idle", "loading"))
    judges = share("cluster/verifier_busy_fraction")
    waits = sum(row.get("time/wait_for_batch", 0.0) for row in step_timings) / seconds
    missing = max(0.0, 1.0 - samples - idles - loads)
    if missing > MAX_WORKER_MISSING_FRACTION:
        return "missing", f"rollout workers are missing {missing:.0%} of the time, because they start or failed: see rollout_workers.jsonl"
    if judges > MAX_VERIFIER_BUSY_FRACTION:
        return "judges", f"verifier workers are busy {judges:.0%} of the step: add verifier workers"
    if loads > MAX_WEIGHT_LOADING_FRACTION:
        return "weights", f"rollout workers load weights {loads:.0%} of the step, and sample {samples:.0%}: the weight transfer is too slow"
    if max_staleness == 0 and waits > MAX_TRAINER_WAIT_FRACTION and idles > MAX_WORKER_IDLE_FRACTION:
        return "turns", (
            f"sampling and training alternate: the trainer waits {waits:.0%} of the step, and rollout workers idle {idles:.0%}: "
            "rollout.max_staleness=1 lets both run at the same time"
        )
    if waits > MAX_TRAINER_WAIT_FRACTION and idles > MAX_WORKER_IDLE_FRACTION:
        return "tail", (
            f"the trainer waits for rollout workers {waits:.0%} of the step although they idle {idles:.0%}: a few long tasks delay it; "
            "cluster.backup_task_fraction, a smaller cluster.groups_per_task or a larger rollout.max_staleness help"
        )
    if waits > MAX_TRAINER_WAIT_FRACTION:
        return (
            "rollout_workers",
            f"the trainer waits for rollout workers {waits:.0%} of the step, and they sample {samples:.0%} of it: add rollout workers",
        )
    if idles > MAX_WORKER_IDLE_FRACTION:
        return "trainer", f"rollout workers idle {idles:.0%} of the step, because the trainer is slower: fewer are sufficient"
    return "balanced", f"rollout workers sample {samples:.0%} of the step, and the trainer waits {waits:.0%}: both are busy"
