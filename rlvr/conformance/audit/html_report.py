"""The report of an audit as one HTML page, without scripts or links to other files."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from html import escape
from typing import Any

from rlvr.conformance.audit.audit import RANGE_FAMILY, AuditReport, PairFamilyCounts

Interval = Callable[[int, int], tuple[float, float]]
STYLE = """body{font:15px/1.5 system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem;color:#222;background:#fff}
table{border-collapse:collapse;width:100%;margin:1rem 0}
th,td{text-align:left;padding:.3rem .6rem;border-bottom:1px solid #ddd;vertical-align:top}
td.n{text-align:right;font-variant-numeric:tabular-nums}code{white-space:pre-wrap;word-break:break-word;background:#f4f4f4;padding:0 .2rem}
.bad{color:#b00020}
@media(prefers-color-scheme:dark){body{background:#181818;color:#ddd}code{background:#2a2a2a}th,td{border-color:#444}.bad{color:#ff8a80}}"""


def render_page(report: AuditReport, interval: Interval) -> str:
    """Render the page; `interval` computes the confidence interval of a fraction."""
    latency = report.compute_latency_quantiles()
    head = [
        ("verified", str(sum(f.num_verified for f in report.families if f.name != RANGE_FAMILY))),
        ("no score", str(sum(f.num_unscored for f in report.families))),
    ]
    head += [
        ("crashes and timeouts", str(sum(f.num_crashed for f in report.families))),
        ("different verdicts when asked twice", str(len(report.disagreements))),
    ]
    head += [("milliseconds for a verdict", ", ".join(f"{name} {1000 * value:.3g}" for name, value in latency.items()))]
    head += [
        ("reads answers as", ", ".join(report.accepted_forms) or "no form of the gold was accepted"),
        ("pairs without a clear label", str(report.skipped)),
    ]
    rates = [
        (f"{source}: {kind.replace('_', ' ')} rate", "none" if value is None else f"{value:.2%}")
        for source, kinds in report.compute_error_rates().items()
        for kind, value in kinds.items()
    ]
    run = [(name.replace("_", " "), _format_fact(value)) for name, value in report.describe_run().items()]
    stopped = f'<p class="bad">The audit is incomplete: {escape(report.stopped)}.</p>' if report.stopped else ""
    body = [
        stopped,
        _render_table(("", ""), [*rates, *head]),
        "<h2>Run</h2>",
        _render_table(("", ""), run),
        "<h2>Families</h2>",
        _render_families(report.families, interval),
    ]
    if report.universal_answers:
        rows = [
            (
                f"<code>{escape(key.text[:300])}</code>",
                f"{len(key.rewarded_references)} of {key.tasks}",
                escape(", ".join(key.rewarded_references)),
            )
            for key in report.universal_answers[:20]
        ]
        body += ["<h2>Paid without knowing the question</h2>", _render_table(("answer", "tasks", "references"), rows, raw=True)]
    if report.disagreements:
        twice = [(f"<code>{escape(one['answer'][:300])}</code>", escape(str(one["scores"]))) for one in report.disagreements[:20]]
        body += ["<h2>Different verdicts</h2>", _render_table(("answer", "scores"), twice, raw=True)]
    name = escape(report.target)
    text = (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>Audit of {name}</title><style>{STYLE}</style><h1>Audit of {name}</h1>'
    )
    return (text + "".join(body) + "</html>").encode("utf-8", "replace").decode("utf-8")


def _format_fact(value: Any) -> str:
    return (
        (json.dumps(value, ensure_ascii=False, default=str) if value else "defaults") if isinstance(value, dict) else str(value) or "none"
    )


def _render_families(families: Sequence[PairFamilyCounts], interval: Interval) -> str:
    rows = []
    for family in families:
        scored = family.num_verified - family.num_unscored - family.num_crashed
        low, high = interval(family.num_failed, scored) if scored else (0.0, 1.0)
        share = "none" if family.error_rate is None else f"{family.error_rate:.1%} ({low:.1%} to {high:.1%})"
        shown = "<br>".join(_render_example(one) for one in family.examples[:2])
        mark = ' class="bad"' if family.num_failed or family.num_crashed or family.num_partly_rewarded else ""
        kind = "refused" if family.right else "paid"
        counts = f"{family.num_failed} of {family.num_verified}" + (f", {family.num_unscored} no score" if family.num_unscored else "")
        counts += f", {family.num_crashed} crashed" if family.num_crashed else ""
        counts += (
            f", {family.num_partly_rewarded} paid in part, up to {family.highest_partial_score:g}" if family.num_partly_rewarded else ""
        )
        rows.append((f"<span{mark}>{escape(family.name)}</span>", f"{kind} {counts}", share, shown))
    return _render_table(("family", "failures", "rate", "shortest failures"), rows, raw=True)


def _render_example(one: dict[str, Any]) -> str:
    answer = one["answer"] if len(one["answer"]) <= 160 else f"{one['answer'][:160]}... ({len(one['answer'])} characters)"
    reference, reason = escape(str(one["reference"])[:120]), escape(str(one["reason"])[:160])
    return f"<code>{escape(answer) or '(empty)'}</code> for <code>{reference}</code> {reason}"


def _render_table(head: Sequence[str], rows: Sequence[Sequence[str]], *, raw: bool = False) -> str:
    top = "".join(f"<th>{escape(cell)}</th>" for cell in head) if any(head) else ""
    lines = "".join("<tr>" + "".join(f"<td>{cell if raw else escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table>{'<tr>' + top + '</tr>' if top else ''}{lines}</table>"
