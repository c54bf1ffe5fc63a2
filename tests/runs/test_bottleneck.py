"""What limits a run with rollout_workers, in words."""

from __future__ import annotations

from typing import Any

import pytest

from rlvr.runs.bottleneck import find_bottleneck


def row(waits: float, sampling: float, idle: float, loading: float = 0.0, **more: float) -> dict[str, Any]:
    shares = {"cluster/sampling_fraction": sampling, "cluster/idle_fraction": idle, "cluster/loading_fraction": loading}
    return {"step_time": 10.0, "time/wait_for_batch": 10 * waits, **shares, **more}


@pytest.mark.parametrize(
    ("found", "ahead", "kind", "words"),
    [
        (
            row(0.62, 0.95, 0.05),
            1,
            "rollout_workers",
            "waits for rollout workers 62% of the step, and they sample 95% of it: add rollout workers",
        ),
        (row(0.62, 0.95, 0.05), 0, "rollout_workers", "add rollout workers"),
        (row(0.60, 0.60, 0.40), 0, "turns", "the trainer waits 60% of the step, and rollout workers idle 40%: rollout.max_staleness=1"),
        (row(0.60, 0.60, 0.40), 1, "tail", "although they idle 40%: a few long tasks delay it; cluster."),
        (row(0.00, 0.60, 0.40), 1, "trainer", "rollout workers idle 40% of the step, because the trainer is slower"),
        (row(0.05, 0.90, 0.10), 1, "balanced", "both are busy"),
        (row(0.60, 0.50, 0.10), 1, "missing", "rollout workers are missing 40% of the time"),
        (row(0.60, 0.50, 0.10, 0.4), 1, "weights", "rollout workers load weights 40% of the step, and sample 50%"),
        (
            row(0.60, 0.95, 0.05, **{"cluster/verifier_busy_fraction": 0.97}),
            1,
            "judges",
            "verifier workers are busy 97% of the step: add verifier workers",
        ),
    ],
)
def test_the_limit_is_told_with_what_to_do(found: dict[str, Any], ahead: int, kind: str, words: str) -> None:
    told = find_bottleneck([found], ahead)
    assert told[0] == kind and words in told[1]


def test_long_steps_weigh_more_and_runs_without_rollout_workers_have_no_limit() -> None:
    long = row(0.9, 0.9, 0.1) | {"step_time": 90.0, "time/wait_for_batch": 81.0}
    assert "waits for rollout workers 82% of the step" in find_bottleneck([long, row(0.1, 0.9, 0.1)], 1)[1]
    assert find_bottleneck([{"step_time": 1.0}], 0) == find_bottleneck([], 0) == ("", "")
