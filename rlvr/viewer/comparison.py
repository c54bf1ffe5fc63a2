"""The comparison of several runs on one page, as plain data: conditions, and differences A - B with intervals.

Training runs with the same settings except the seed are one condition; the page draws their mean with a band. Each condition is compared
with the first one by the accuracy on held-out tasks, each evaluation with the first one by pairs (`rlvr.evaluation.compare`).
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlvr.errors import RlvrError
from rlvr.evaluation.compare import EnvComparison, compare_evaluations
from rlvr.evaluation.statistics import compute_t_quantile, compute_t_upper_tail, mean
from rlvr.plugin_files import shorten_plugin_files
from rlvr.runs.run_log import load_run_config
from rlvr.viewer.run_summary import compute_share_interval, load_report

logger = logging.getLogger(__name__)

IGNORED_SECTIONS = ("seed", "log")
"""Sections of the configuration that are ignored when runs are grouped into conditions."""
MAX_LABEL_CHARS = 48
"""Maximum characters of a condition's label."""


def group_runs_into_conditions(names: Sequence[str], settings: Sequence[Mapping[str, str]]) -> tuple[list[str], list[int]]:
    """Group runs by their settings: return the labels of the conditions, and for each run the index of its condition.

    >>> group_runs_into_conditions(["tool-0", "tool-1", "none"], [{"tools": "1"}, {"tools": "1"}, {"tools": "0"}])
    (['tool', 'none'], [0, 0, 1])
    """
    forms = [tuple(sorted(found.items())) for found in settings]
    distinct = list(dict.fromkeys(forms))
    at = [distinct.index(form) for form in forms]
    varied = sorted({key for found in settings for key in found if len({other.get(key) for other in settings}) > 1})
    labels: list[str] = []
    for nth, form in enumerate(distinct):
        members = [name for name, place in zip(names, at, strict=True) if place == nth]
        told = ", ".join(f"{key}={value}" for key, value in form if key and key in varied)
        common = re.sub(r"([-_./]|seed)+\d*$", "", _common_prefix(members))
        alone = len(members) == 1 and names.count(members[0]) == 1
        label = members[0] if alone else common if len(common) > 2 or not told else told[:MAX_LABEL_CHARS]
        labels.append(label if label and label not in labels else f"{label or 'runs'} {nth + 1}")
    return labels, at


def _common_prefix(names: Sequence[str]) -> str:
    """Return the common prefix of all names."""
    first, last = min(names), max(names)
    same = next((at for at, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))
    return first[:same]


def load_settings(run: Path) -> dict[str, str]:
    """Load the settings of a training run as texts by dotted key, without the ignored sections (seed, log)."""
    settings = shorten_plugin_files(load_run_config(run).model_dump(mode="json"))
    return {key: text for key, text in _flatten(settings) if key.partition(".")[0] not in IGNORED_SECTIONS}


def _flatten(data: Any, key: str = "") -> list[tuple[str, str]]:
    if not isinstance(data, Mapping):
        return [(key, str(data))]
    return [pair for name, value in data.items() for pair in _flatten(value, f"{key}.{name}" if key else str(name))]


def compare_training_runs(runs: Sequence[Path], labels: Sequence[str], condition_indices: Sequence[int]) -> dict[str, Any]:
    """Compare training runs: a line for each condition, and its difference to the first one."""
    reports = [load_report(run) for run in runs]
    members = [[report for report, place in zip(reports, condition_indices, strict=True) if place == nth] for nth in range(len(labels))]
    after = [_get_report_values(found, "accuracy_after") for found in members]
    lines = [
        [
            label,
            str(condition_indices.count(nth)),
            _format_range(_get_report_values(members[nth], "accuracy_before")),
            _format_range(after[nth]),
        ]
        for nth, label in enumerate(labels)
    ]
    forest, notes = [], set()
    for nth in range(1, len(labels)):
        if not after[0] or not after[nth]:
            continue
        value, low, high, p, note = _compute_difference(after[0], after[nth], [members[0][0], members[nth][0]])
        notes.add(note)
        forest.append(
            {
                "label": f"{labels[0]} - {labels[nth]}",
                "value": value,
                "low": low,
                "high": high,
                "told": _format_difference(value, low, high, p),
            }
        )
    table = {"title": "", "head": ["condition", "runs", "held out, before", "held out, after"], "lines": lines}
    return {"tables": [table], "forest": forest, "title": "difference of held-out accuracy, points", "notes": sorted(notes)}


def _get_report_values(reports: Sequence[Mapping[str, Any]], name: str) -> list[float]:
    return [float(report[name]) for report in reports if isinstance(report.get(name), int | float)]


def _format_range(values: Sequence[float]) -> str:
    """Format a mean, with the smallest and the largest value if there are several."""
    if not values:
        return ""
    if min(values) < 0 or max(values) > 1:
        return " to ".join(f"{value:.4g}" for value in dict.fromkeys((min(values), max(values))))
    told = f"{100 * mean(values):.1f} %"
    return told if len(values) == 1 else f"{told} ({100 * min(values):.1f} to {100 * max(values):.1f})"


def _compute_difference(
    a: Sequence[float], b: Sequence[float], reports: Sequence[Mapping[str, Any]]
) -> tuple[float, float | None, float | None, float | None, str]:
    """Compute A - B with its 95 % interval and p-value, and a note on the method."""
    value = mean(a) - mean(b)
    if len(a) > 1 and len(b) > 1:
        parts = [_variance(found) / len(found) for found in (a, b)]
        error = math.sqrt(sum(parts))
        if not error:
            return value, None, None, None, "All runs of a condition have the same accuracy, so there is no interval over seeds."
        freedom = error**4 / sum(part**2 / (len(found) - 1) for part, found in zip(parts, (a, b), strict=True))
        half = compute_t_quantile(0.975, freedom) * error
        note = "Intervals over seeds by Welch's t; they cover the variation between seeds, not between tasks."
        return value, value - half, value + half, 2 * compute_t_upper_tail(abs(value) / error, freedom), note
    counts = [report.get("held_out_tasks") or 0 for report in reports]
    ends = [compute_share_interval(mean(found), count) for found, count in zip((a, b), counts, strict=True)]
    (l1, u1), (l2, u2) = ends
    if l1 is None or u1 is None or l2 is None or u2 is None:
        return value, None, None, None, "The number of held-out tasks is not recorded, so there is no interval."
    low = value - math.hypot(mean(a) - l1, u2 - mean(b))
    high = value + math.hypot(u1 - mean(a), mean(b) - l2)
    note = "With one run per condition, the interval (Newcombe) covers the variation between tasks, not seeds. Train several seeds."
    return value, low, high, None, note


def _variance(values: Sequence[float]) -> float:
    centre = mean(values)
    return sum((value - centre) ** 2 for value in values) / (len(values) - 1)


def compare_eval_runs(runs: Sequence[Path]) -> dict[str, Any]:
    """Compare the first evaluation (A) with each of the others (B).

    A note gives the reason for each pair that cannot be compared.
    """
    tables: list[dict[str, Any]] = []
    forest: list[dict[str, Any]] = []
    notes: list[str] = []
    names = [run.resolve().name for run in runs]
    for run, name in zip(runs[1:], names[1:], strict=True):
        try:
            found = compare_evaluations(runs[0], run)
        except RlvrError as error:
            notes.append(f"no difference between {names[0]} and {name}: {error}")
            logger.warning("%s", notes[-1])
            continue
        p = "p, Holm" if len(found.envs) > 1 else "p"
        head = ["environment", "A", "B", "A - B", "95 %", p, "won", "lost", "equal", "MDE"]
        tables.append({"title": f"A  {names[0]},  B  {name}", "head": head, "lines": [_format_row(env) for env in found.envs.values()]})
        for env in found.envs.values():
            if not env.is_fraction:
                continue  # the plot is in points
            label = env.name if len(runs) == 2 else f"{env.name}, B {name}"
            told = _format_difference(env.paired_test.difference, env.paired_test.low, env.paired_test.high, env.adjusted_p)
            forest.append(
                {
                    "label": label,
                    "value": env.paired_test.difference,
                    "low": env.paired_test.low,
                    "high": env.paired_test.high,
                    "told": told,
                }
            )
        notes += [f"left out: {note}" for note in found.warnings] + [f"in one run only: {name}" for name in found.unshared_envs]
    if tables:
        notes.append(
            "Paired by task. Intervals by resampling tasks. MDE, the minimum detectable effect: the true difference that this many tasks "
            "show in 4 of 5 comparisons."
        )
    return {"tables": tables, "forest": forest, "title": "A - B, points", "notes": notes}


def _format_row(env: EnvComparison) -> list[str]:
    found = env.paired_test
    shown = [env.name, *env.format_means(), env.format_signed_difference(found.difference)]
    shown += [f"{env.format_signed_difference(found.low)} to {env.format_signed_difference(found.high)}", _format_p(env.adjusted_p)]
    return [*shown, str(found.wins), str(found.losses), str(found.ties), env.format_signed_difference(found.detectable).removeprefix("+")]


def _format_difference(value: float, low: float | None, high: float | None, p: float | None) -> str:
    told = f"{100 * value:+.1f}"
    told += f"  ({100 * low:+.1f} to {100 * high:+.1f})" if low is not None and high is not None else ""
    return told + (f"  p {_format_p(p)}" if p is not None else "")


def _format_p(value: float) -> str:
    return "<0.001" if value < 0.001 else f"{value:.3f}"
