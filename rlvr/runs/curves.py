"""The curves of a training run as plain data: the logged numbers, grouped into panels and averaged down to at most 1000 points."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

MAX_POINTS = 1000
"""The maximum number of points of a curve; longer curves are averaged down."""
PANELS: Mapping[str, tuple[str, ...]] = {
    "reward": ("reward", "reward_std"),
    "accuracy": ("eval/accuracy", "accuracy"),
    "answer length, tokens": ("completions/mean_length", "completions/max_length"),
    "turns and calls per answer": ("turns/mean_per_episode", "tools/calls_per_episode", "tools/errors_per_episode"),
    "fraction truncated": ("completions/clipped_ratio",),
    "KL to the reference": ("kl",),
    "KL of sampler and trainer": ("mismatch_kl",),
    "entropy": ("entropy",),
    "clip share": ("clip_ratio/region_mean", "clip_ratio/low_mean", "clip_ratio/high_mean"),
    "loss": ("loss",),
    "gradient norm": ("grad_norm",),
    "groups with zero variance": ("frac_reward_zero_std",),
    "canary tasks: rewarded answers": ("canary/rewarded_total", "canary/rewarded"),
    "reward against the audit verifier": ("audit_verifier/correlation", "audit_verifier/mean_gap"),
    "activity, fraction of a step": (
        "cluster/sampling_fraction",
        "cluster/idle_fraction",
        "cluster/loading_fraction",
        "cluster/trainer_busy_fraction",
    ),
    "rollout workers": ("cluster/rollout_workers", "cluster/workers_lost", "cluster/retried_tasks", "cluster/abandoned_tasks"),
    "token staleness, steps": ("staleness/mean",),
    "step time by phase, seconds": ("step_time", "time/sample", "time/verify_after_sampling", "time/update"),
}
"""The title of each panel and its metrics. A panel without data is not shown."""


def build_curve_panels(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Build the panels that have data, from one row per step.

    >>> build_curve_panels([{"step": 1, "reward": 0.5}, {"step": 2, "reward": 1.0}])
    [{'title': 'reward', 'steps': [1, 2], 'lines': {'reward': [0.5, 1.0]}}]
    """
    size = -(-len(rows) // MAX_POINTS) or 1
    blocks = [rows[at : at + size] for at in range(0, len(rows), size)]
    steps = [block[-1].get("step", 0) for block in blocks]
    found = []
    for title, names in PANELS.items():
        lines = {name: [_mean_of_numbers(row.get(name) for row in block) for block in blocks] for name in names}
        lines = {name: line for name, line in lines.items() if any(value is not None for value in line)}
        if lines:
            found.append({"title": title, "steps": steps, "lines": lines})
    return found


def _mean_of_numbers(values: Iterable[Any]) -> float | None:
    found = [value for value in values if isinstance(value, int | float)]
    return sum(found) / len(found) if found else None
