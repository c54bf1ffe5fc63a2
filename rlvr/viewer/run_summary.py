"""The summary of a run at the head of its page: name, facts, curves, held-out accuracy or metrics. Episodes are read later, in one pass."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlvr.errors import NotFound
from rlvr.evaluation.export import iter_latest_rows, list_conversation_metrics
from rlvr.evaluation.samples import PLAN_FILE, REPORT_FILE, ROWS_FILE, load_plan
from rlvr.evaluation.statistics import Estimate, wilson_interval
from rlvr.plugin_files import shorten_plugin_files
from rlvr.runs.bottleneck import find_bottleneck
from rlvr.runs.curves import build_curve_panels
from rlvr.runs.run_log import load_run_config, read_jsonl

METRICS_FILE, TIMINGS_FILE, ROLLOUT_WORKERS_FILE = "metrics.jsonl", "timings.jsonl", "rollout_workers.jsonl"
MAX_HELD_OUT_TASKS = 1_000_000
"""A report that says more held-out tasks gets no interval: it was edited, and the time for an interval grows with its tasks."""
TABLE_HEAD = ("environment", "n", "avg", "95 %", "pass@n", "maj@n", "tasks", "samples", "scored", "unscored", "truncated", "failed")


@dataclass(frozen=True, slots=True)
class ViewedRun:
    """A run to show: its folder, the summary for the head of the page, its episodes, and its tokenizer.

    >>> ViewedRun(Path("runs/a"), {"name": "a", "kind": "training"}, iter(()), "bytes").head["name"]
    'a'
    """

    folder: Path
    head: dict[str, Any]
    rows: Iterator[dict[str, Any]]
    tokenizer: str
    """The name of the policy's tokenizer."""


def load_viewed_run(run: Path) -> ViewedRun:
    """Load a run: its summary, an iterator of its episodes, and the name of its tokenizer."""
    if (run / PLAN_FILE).is_file():
        plan = load_plan(run)
        rows = iter_latest_rows(run) if (run / ROWS_FILE).is_file() else iter(())
        return ViewedRun(run, _build_evaluation_summary(run), rows, plan.policy.partition(":")[2])
    if (run / "config.yaml").is_file():
        return ViewedRun(run, _build_training_summary(run), iter(_read_log(run, ROWS_FILE)), load_run_config(run).tokenizer_name)
    raise NotFound(f"{run} is not a run: it has neither config.yaml nor {PLAN_FILE}; name a folder that `rlvr train` or `rlvr eval` wrote")


def _build_training_summary(run: Path) -> dict[str, Any]:
    """Build the summary of a training run: its curves, and its accuracy on held-out tasks."""
    rows, report = load_metrics(run), load_report(run)
    facts: dict[str, Any] = {"steps": len(rows)}
    facts |= {name: report[name] for name in ("accuracy_before", "accuracy_after", "seconds") if report.get(name) is not None}
    facts |= _collect_cluster_facts(run, rows)
    head = {
        "name": run.resolve().name,
        "kind": "training",
        "facts": facts | _get_unfinished_fact(run),
        "panels": build_curve_panels(rows),
        "figures": None,
    }
    return head | {"held_out": list_held_out_accuracies(rows, report), "settings": (run / "config.yaml").read_text("utf-8")}


def _collect_cluster_facts(run: Path, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Count what happened to a run's rollout workers, and name the bottleneck of its speed; empty for a run without rollout workers."""
    events = Counter(row.get("event") for row in _read_log(run, ROLLOUT_WORKERS_FILE))
    named = {"rollout_workers_lost": "lost", "calls_given_up": "given_up", "resumed": "resumed"}
    _, limit = find_bottleneck(rows, load_run_config(run).rollout.max_staleness)
    return {name: events[event] for name, event in named.items() if events[event]} | ({"speed": limit} if limit else {})


def load_metrics(run: Path) -> list[dict[str, Any]]:
    """Load the metrics of each step, merged with its timings."""
    clock: dict[Any, dict[str, Any]] = {row.get("step"): row for row in _read_log(run, TIMINGS_FILE)}
    return [clock.get(row.get("step"), {}) | row for row in _read_log(run, METRICS_FILE)]


def list_held_out_accuracies(rows: Sequence[Mapping[str, Any]], report: Mapping[str, Any]) -> list[list[float | None]]:
    """List the accuracies on held-out tasks as `[step, value, low, high]`; the interval is None if the number of tasks is unknown.

    >>> list_held_out_accuracies([{"step": 1}, {"step": 2, "eval/accuracy": 0.5}], {"accuracy_before": 0.25})
    [[0, 0.25, None, None], [2, 0.5, None, None]]
    """
    last = rows[-1].get("step", len(rows)) if rows else 0
    found = {row.get("step", 0): row["eval/accuracy"] for row in rows if _is_number(row.get("eval/accuracy"))}
    found |= {step: report[name] for step, name in ((0, "accuracy_before"), (last, "accuracy_after")) if _is_number(report.get(name))}
    tasks = report.get("held_out_tasks")
    return [
        [step, found[step], *(compute_share_interval(found[step], tasks) if isinstance(tasks, int) else (None, None))]
        for step in sorted(found)
    ]


def compute_share_interval(share: float, num_tasks: int) -> tuple[float | None, float | None]:
    """Compute the 95 % Wilson interval (low, high) of the share of tasks that were solved; (None, None) if it is unknown.

    >>> [round(end, 2) for end in compute_share_interval(0.5, 100)]
    [0.4, 0.6]
    """
    if not 1 <= num_tasks <= MAX_HELD_OUT_TASKS or not 0 <= share <= 1:
        return None, None
    right = round(share * num_tasks)
    return wilson_interval([1.0] * right + [0.0] * (num_tasks - right))


def _build_evaluation_summary(run: Path) -> dict[str, Any]:
    """Build the summary of an evaluation: a line of metrics for each environment, once it is finished."""
    plan, envs = load_plan(run), load_report(run).get("envs", {})
    conversation_columns = list_conversation_metrics(envs)
    lines = [
        [*_format_env_row(name, env), *("" if env.get(key) is None else f"{env[key]:.3g}" for key in conversation_columns)]
        for name, env in envs.items()
    ]
    facts = {
        "suite": plan.suite,
        "policy": shorten_plugin_files(plan.policy),
        "sampled": plan.sampling_summary,
        "seed": plan.seed,
    } | _get_unfinished_fact(run)
    bars = [
        {"label": name, "value": env["mean_score"]["value"], "low": env["mean_score"]["low"], "high": env["mean_score"]["high"]}
        for name, env in envs.items()
        if env["mean_score"] and not env["refused"] and Estimate.from_dict(env["mean_score"]).is_fraction  # the bars are in per cent
    ]
    figures = {"head": [*TABLE_HEAD, *conversation_columns], "lines": lines, "bars": bars} if lines else None
    return {"name": run.resolve().name, "kind": "evaluation", "facts": facts, "panels": [], "figures": figures, "settings": plan.to_yaml()}


def _get_unfinished_fact(run: Path) -> dict[str, str]:
    """Return the fact that a run is unfinished (it has no report yet); empty for a finished run."""
    return {} if (run / REPORT_FILE).is_file() else {"state": "unfinished"}


def _format_env_row(name: str, env: Mapping[str, Any]) -> list[str]:
    avg = None if env["refused"] else env["mean_score"]
    shown = [str(Estimate.from_dict(avg)), Estimate.from_dict(avg).format_interval()] if avg else ["refused", ""]
    for key in ("pass_at", "maj_at"):
        found = env["metrics_at_k"].get(key, {}).get(str(env["n"]))
        shown.append(f"{found['value']:.1%}" if found and avg else "")
    return [name, str(env["n"]), *shown, *(str(env[key]) for key in ("tasks", "samples", "scored", "unscored", "truncated", "failed"))]


def _read_log(run: Path, name: str) -> Iterable[dict[str, Any]]:
    """Read the rows of a log; empty if the run has not written any yet."""
    return read_jsonl(run / name) if (run / name).is_file() else ()


def load_report(run: Path) -> dict[str, Any]:
    """Load the report of a finished run; empty if there is none."""
    path = run / REPORT_FILE
    try:
        found = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
