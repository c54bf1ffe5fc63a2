"""The samples of an evaluation in other people's formats, so that nobody is locked in.

csv, parquet    one line a sample
trl-dataset     JSON lines with prompt, completion and label, as TRL's trainers read them
markdown        the report, for a README or a pull request
inspect         logs that inspect_ai reads and shows, one for each environment
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rlvr.errors import ConfigError, MissingExtra, NotFound, suggest
from rlvr.samples import PLAN, REPORT, Plan, plan_of, rows_in, sample_of, write_whole

COLUMNS = (
    "env",
    "split",
    "index",
    "sample",
    "task_id",
    "score",
    "finish",
    "fault",
    "reason",
    "tokens",
    "prompt_tokens",
    "prompt",
    "reference",
    "text",
)


def export(run: Path, to: str, out: Path | None = None) -> Path:
    """Write a run in another format; where nothing is said, into its own folder. The path that was written."""
    if to not in FORMATS:
        raise ConfigError(f"--to {to!r} is not a format; {suggest(to, FORMATS)}")
    plan = plan_of(run)
    write, name = FORMATS[to]
    out = out or run / name
    if out.exists() and out.parent != run:
        raise ConfigError(f"{out} exists, and nothing is ever overwritten; choose another --out")
    try:
        write(run, plan, out)
    except OSError as error:
        raise ConfigError(f"{out} cannot be written: {error.strerror}; choose another --out") from error
    return out


def last_rows(run: Path) -> Iterator[dict[str, Any]]:
    """The row that counts for each sample, in the order of task and sample."""
    found = {sample_of(row).key: row for row in rows_in(run)}
    return (found[key] for key in sorted(found))


def flat(row: Mapping[str, Any]) -> dict[str, Any]:
    """A sample as one line of a table."""
    sample = sample_of(row)
    values = {"score": sample.score, "finish": sample.finish, "reason": sample.reason, "tokens": sample.tokens, "text": sample.text}
    values |= {"fault": sample.verdict.get("fault", ""), "prompt_tokens": sample.prompt_tokens, "prompt": _prompt(row)}
    values |= {"reference": _text(row["reference"])}
    return {name: values.get(name, row.get(name)) for name in COLUMNS}


def _prompt(row: Mapping[str, Any]) -> str:
    return "\n\n".join(message["content"] for message in row["prompt"])


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _csv(run: Path, plan: Plan, out: Path) -> None:
    with out.open("w", encoding="utf-8", newline="") as file:
        table: csv.DictWriter[str] = csv.DictWriter(file, COLUMNS)
        table.writeheader()
        table.writerows([flat(row) for row in last_rows(run)])


def _parquet(run: Path, plan: Plan, out: Path) -> None:
    try:
        import pyarrow
        import pyarrow.parquet
    except ModuleNotFoundError as error:
        raise MissingExtra("pyarrow", "train", "export --to csv") from error
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([flat(row) for row in last_rows(run)]), out)


def _trl(run: Path, plan: Plan, out: Path) -> None:
    """Prompt and completion as messages, and whether the answer was right: for supervised and for KTO training. No score, no row."""
    with out.open("w", encoding="utf-8") as file:
        for row in last_rows(run):
            sample = sample_of(row)
            if sample.score is not None:
                completion = [{"role": "assistant", "content": sample.text}]
                kept = {"prompt": row["prompt"], "completion": completion, "label": sample.right, "score": sample.score}
                file.write(json.dumps(kept | {"task_id": sample.task_id, "env": row["env"]}, ensure_ascii=False) + "\n")


def _markdown(run: Path, plan: Plan, out: Path) -> None:
    report = run / REPORT
    if not report.is_file():
        raise NotFound(f"{run} has no {REPORT} yet; let `rlvr eval` come to its end first")
    envs = json.loads(report.read_text("utf-8"))["envs"]
    lines = [
        f"**{plan.policy}** on **{plan.suite}**, n = {plan.n}, temperature {plan.temperature:g}, seed {plan.seed}",
        "",
        "| environment | avg | 95 % | pass@n | maj@n | tasks | scored | unscored | truncated | failed |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for name, env in envs.items():
        avg = env["avg"]
        cells = (
            ["refused", ""] if env["refused"] or not avg else [f"{avg['value']:.1%}", f"{100 * avg['low']:.1f} to {100 * avg['high']:.1f}"]
        )
        cells += ["" if env["refused"] else _at(env["at"].get(key, {}), env["n"]) for key in ("pass_at", "maj_at")]
        cells += [str(env[key]) for key in ("tasks", "scored", "unscored", "truncated", "failed")]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    write_whole(out, "\n".join(lines) + "\n")


def _at(figures: Mapping[str, Any], n: int) -> str:
    found = figures.get(str(n))
    return f"{found['value']:.1%}" if found else ""


def _inspect(run: Path, plan: Plan, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    created = datetime.fromtimestamp((run / PLAN).stat().st_mtime, UTC).isoformat(timespec="seconds")
    rows: dict[str, list[dict[str, Any]]] = {item.name: [] for item in plan.envs}
    for row in last_rows(run):
        rows[row["env"]].append(row)
    for item in plan.envs:
        write_whole(out / f"{item.name}.json", json.dumps(_log(plan, item.name, plan.n_of(item), rows[item.name], created), indent=1))


def _log(plan: Plan, name: str, n: int, rows: list[dict[str, Any]], created: str) -> dict[str, Any]:
    """One environment as an evaluation log of inspect_ai, version 2 of its format."""
    scorer = plan.verifiers.get(name, "verifier").partition(" ")[0].lower()
    scores = [sample.score for sample in map(sample_of, rows) if sample.score is not None]
    ids = sorted({row["task_id"] for row in rows})
    accuracy = {"accuracy": {"name": "accuracy", "value": sum(scores) / len(scores)}} if scores else {}
    counts = {"scored_samples": len(scores), "unscored_samples": len(rows) - len(scores)}
    return {
        "version": 2,
        "status": "success",
        "eval": {
            "created": created,
            "task": f"rlvr/{name}",
            "dataset": {"name": name, "samples": len(ids), "sample_ids": ids},
            "model": plan.policy,
            "model_generate_config": {"temperature": plan.temperature},
            "config": {"epochs": n},
            "metadata": {"verifier": plan.verifiers.get(name, ""), "seed": plan.seed},
        },
        "results": {
            "total_samples": len(rows),
            "completed_samples": len(rows),
            "scores": [{"name": scorer, "scorer": scorer, **counts, "metrics": accuracy}],
        },
        "samples": [_inspected(plan.policy, scorer, row) for row in rows],
    }


def _inspected(model: str, scorer: str, row: Mapping[str, Any]) -> dict[str, Any]:
    sample = sample_of(row)
    said = {"role": "assistant", "content": sample.text, "source": "generate"}
    stopped = {"terminated": "stop", "truncated": "max_tokens"}.get(sample.finish, "unknown")
    score = {"value": float("nan") if sample.score is None else sample.score, "answer": sample.text, "explanation": sample.reason}
    error = {"message": sample.reason, "traceback": "", "traceback_ansi": ""}
    usage = {"input_tokens": sample.prompt_tokens, "output_tokens": sample.tokens, "total_tokens": sample.prompt_tokens + sample.tokens}
    return {
        "id": sample.task_id,
        "epoch": sample.key[2] + 1,
        "input": row["prompt"],
        "target": _text(row["reference"]),
        "messages": [*row["prompt"], said],
        "output": {"model": model, "choices": [{"message": said, "stop_reason": stopped}], "usage": usage},
        "scores": {scorer: score},
        **({"error": error} if sample.finish == "failed" else {}),
    }


FORMATS: Mapping[str, tuple[Callable[[Path, Plan, Path], None], str]] = {
    "trl-dataset": (_trl, "trl.jsonl"),
    "csv": (_csv, "samples.csv"),
    "parquet": (_parquet, "samples.parquet"),
    "markdown": (_markdown, "report.md"),
    "inspect": (_inspect, "inspect"),
}
"""Each format with who writes it, and what it is called in the run's folder."""
