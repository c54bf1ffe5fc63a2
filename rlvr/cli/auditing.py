"""`rlvr audit`: run an audit, write its page and its JSON, and compare its rates with limits."""

from __future__ import annotations

import json as jsonlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.text import Text

from rlvr.cli import screen
from rlvr.cli.settings import parse_settings
from rlvr.conformance.audit.audit import AuditReport, collect_golds, load_labelled_pairs, run_audit
from rlvr.conformance.audit.html_report import render_page
from rlvr.contracts import Verifier
from rlvr.errors import ConfigError, NotFound
from rlvr.evaluation.statistics import wilson_interval
from rlvr.registry.plugins import load_factory
from rlvr.runs.tables import make_table


def audit_verifier(
    target: str,
    *,
    labelled_pairs: Path | None,
    setting_pairs: Sequence[str],
    rate_limits: dict[str, float | None],
    audit_settings: dict[str, Any],
    max_golds: int,
    out: Path | None,
    json: bool,
) -> int:
    """Audit, print and write the report; returns 1 if a rate is above its limit, or if the verifier crashed, hung or was not finished."""
    for name, limit in rate_limits.items():
        if limit is not None and not 0 <= limit <= 1:
            raise ConfigError(f"{name} is {limit}; it must be a share from 0 to 1")
    if not 0 < audit_settings["success_threshold"] <= 1:
        raise ConfigError(f"--success-threshold is {audit_settings['success_threshold']}; it must be a score above 0, up to 1")
    found, skipped = load_labelled_pairs(labelled_pairs) if labelled_pairs is not None else ([], 0)
    examples = () if found else _load_examples(target)
    bare = collect_golds(found, examples, max_golds=max_golds, seed=audit_settings["seed"])
    if not found and not bare:
        raise ConfigError(f"{target!r} has no examples to start from; give labelled pairs: --pairs FILE.jsonl")
    report = run_audit(target, found, bare, settings=parse_settings(setting_pairs), on_progress=_make_progress_callback(), **audit_settings)
    report.skipped = skipped
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        (out / "audit.json").write_text(jsonlib.dumps(report.to_dict(), indent=1), "utf-8")
        (out / "audit.html").write_text(render_page(report, _wilson_interval), "utf-8")
    above = _find_exceeded_limits(report, rate_limits)
    if json:
        is_limited = any(limit is not None for limit in rate_limits.values())
        screen.print_json({**report.to_dict(), "above": above, "ok": not above if is_limited or above else None})
    else:
        _print_report(report, above, out)
    return 1 if above else 0


def _load_examples(target: str) -> Sequence[Any]:
    """Load the examples of a verifier; a foreign reward function has none."""
    if ":" in target and not target.rpartition(":")[0].endswith(".py"):
        return ()
    try:
        made = load_factory("verifier", target)
    except NotFound:
        raise
    except Exception:
        return ()
    return made.examples if isinstance(made, type) and issubclass(made, Verifier) else ()


def _wilson_interval(failed: int, scored: int) -> tuple[float, float]:
    return wilson_interval([1.0] * failed + [0.0] * (scored - failed))


def _find_exceeded_limits(report: AuditReport, limits: dict[str, float | None]) -> list[str]:
    """List the rates that are above their limits, as sentences; crashes and an audit that was stopped have no limit to be above."""
    found = [f"the audit is incomplete: {report.stopped}"] if report.stopped else []
    crashed = [family for family in report.families if family.num_crashed]
    if crashed:
        why = next((row["reason"] for family in crashed for row in family.examples if row["score"] is None), "")
        found.append(f"it crashed or hung on {sum(family.num_crashed for family in crashed)} answers, such as: {why}"[:300])
    for source, rates in report.compute_error_rates().items():
        for name, option in (("false_positive", "--max-fpr"), ("false_negative", "--max-fnr")):
            limit, rate = limits[option], rates[name]
            if limit is not None and rate is not None and rate > limit:
                found.append(f"{source} pairs: the {name.replace('_', ' ')} rate {rate:.4f} is above {limit:g}")
    for name, option in (("false_positive", "--max-fpr"), ("false_negative", "--max-fnr")):
        if limits[option] is not None and all(rates[name] is None for rates in report.compute_error_rates().values()):
            found.append(f"no answer got a score, so the {name.replace('_', ' ')} rate is unknown")
    if limits["--max-fpr"] is not None and report.universal_answers:
        key = report.universal_answers[0]
        found.append(
            f"the answer {key.text!r:.80} is accepted on {len(key.rewarded_references)} of {key.tasks} tasks with different references"
        )
    return found


def _make_progress_callback() -> Any:
    def told(count: int) -> None:
        if count % 200 == 0 and sys.stderr.isatty():
            print(f"{count} pairs verified", file=sys.stderr)

    return told


def _print_report(report: AuditReport, exceeded: Sequence[str], out: Path | None) -> None:
    console = screen.make_stdout_console()
    rows = []
    for family in report.families:
        if not (family.num_failed or family.num_crashed or family.num_unscored):
            continue
        scored = family.num_verified - family.num_unscored - family.num_crashed
        low, high = _wilson_interval(family.num_failed, scored) if scored else (0.0, 1.0)
        example = family.examples[0] if family.examples else {"answer": "", "reference": ""}
        shown = f"{example['answer'][:40]!r} for {str(example['reference'])[:30]!r}"
        kind = "rejects" if family.right else "accepts"
        rate = "" if family.error_rate is None else f"{family.error_rate:.1%} ({low:.1%} to {high:.1%})"
        rows.append((family.name, f"{kind} {family.num_failed}/{scored}", rate, f"{family.num_unscored}", f"{family.num_crashed}", shown))
    if rows:
        console.print(make_table(("family", "failures", "rate (95 %)", "no score", "crashed", "shortest failure"), rows))
    facts = [
        (f"{source}, {name.replace('_', ' ')}s", "none verified" if rate is None else f"{rate:.2%}")
        for source, rates in report.compute_error_rates().items()
        for name, rate in rates.items()
    ]
    latency = report.compute_latency_quantiles()
    facts += [
        ("verified pairs", str(sum(f.num_verified for f in report.families))),
        ("different verdicts when verified twice", str(len(report.disagreements))),
    ]
    facts += [("reads answers as", ", ".join(report.accepted_forms) or "no form of the gold"), ("skipped labels", str(report.skipped))]
    facts += [("milliseconds for a verdict", ", ".join(f"{name} {1000 * value:.3g}" for name, value in latency.items()))]
    facts += [
        (
            "accepted on any question",
            str(len(report.universal_answers))
            + (f", such as {report.universal_answers[0].text[:60]!r}" if report.universal_answers else ""),
        )
    ]
    run = report.describe_run()
    facts += [("references that pairs were generated from", str(run["golds"])), ("seed", str(run["seed"]))]
    console.print(screen.make_facts_table(facts))
    if out is not None:
        console.print(Text(f"{out / 'audit.html'} and audit.json have every family"))
    for words in exceeded:
        console.print(Text.assemble(screen.make_status_mark(False), " ", words))
