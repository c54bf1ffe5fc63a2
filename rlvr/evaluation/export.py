"""Export the samples of an evaluation to other formats.

csv, parquet    one line for each sample
trl-dataset     JSON lines with prompt, completion and label, as TRL's trainers read them; the prompt goes up to the last turn
markdown        the report, for a README or a pull request
inspect         logs that inspect_ai reads and shows, one for each environment
"""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from rlvr.contracts import Tokenizer
from rlvr.errors import ConfigError, MissingExtra, NotFound, escape_control_characters, format_suggestion
from rlvr.evaluation.plan import EvalPlan
from rlvr.evaluation.samples import (
    PLAN_FILE,
    REPORT_FILE,
    atomic_path,
    count_tokens,
    iter_rows,
    load_plan,
    parse_sample,
    replace_surrogates,
    write_atomic,
)
from rlvr.evaluation.statistics import Estimate, mean
from rlvr.evaluation.suite import SuiteItem
from rlvr.mdp.records import tool_spec_from_json
from rlvr.mdp.transcript import decode_messages_after_prompt, load_messages_after_prompt, load_tokenizer_or_none
from rlvr.plugin_files import shorten_plugin_files
from rlvr.registry.plugins import build_from_config
from rlvr.runs.conversation_stats import count_turns_and_calls
from rlvr.runs.run_log import explain_damaged_run, load_run_config

TRAINING_COLUMNS = (
    "step",
    "group",
    "task_id",
    "split",
    "index",
    "score",
    "advantage",
    "stop_reason",
    "fault",
    "reason",
    "tokens",
    "prompt_tokens",
    "turns",
    "calls",
    "text",
)
EVAL_COLUMNS = (
    "env",
    "split",
    "index",
    "sample",
    "task_id",
    "score",
    "stop_reason",
    "fault",
    "reason",
    "tokens",
    "prompt_tokens",
    "turns",
    "calls",
)
CONVERSATION_METRICS = ("turns", "calls", "errors")
"""Metrics of conversations and their tools: means per sample."""
COLUMNS_BY_FILE = {"config.yaml": TRAINING_COLUMNS, PLAN_FILE: (*EVAL_COLUMNS, "prompt", "reference", "text")}
"""The columns of a table by the file that identifies the kind of run: a training run or an evaluation."""


@dataclass(frozen=True, slots=True)
class RunExport:
    """The path of an exported run, and counts of what was left out.

    >>> RunExport(Path("runs/a/trl.jsonl"), {"samples without a score": 3}).skipped_counts
    {'samples without a score': 3}
    """

    path: Path
    skipped_counts: Mapping[str, int]


def write_export(run: str | Path, format_name: str, out: str | Path | None = None) -> RunExport:
    """Write a run in another format; by default into its own folder."""
    if format_name not in EXPORT_FORMATS:
        raise ConfigError(f"--to {format_name!r} is not a format; {format_suggestion(format_name, EXPORT_FORMATS)}")
    write, name = EXPORT_FORMATS[format_name]
    run = Path(run)
    if write in (_write_markdown, _write_inspect) and _is_training_run(run):
        raise ConfigError(
            f"{run} is a training run, and {format_name} needs an evaluation; of a training run, csv, parquet and trl-dataset can be written"
        )
    out = Path(out or run / name)
    if out.exists() and out != run / name:  # only the file of an earlier export is overwritten
        raise ConfigError(f"{out} exists and is not overwritten; choose another --out")
    try:
        with explain_damaged_run(run):
            left_out = write(run, out)
    except OSError as error:
        raise ConfigError(f"{out} cannot be written: {error.strerror}; choose another --out") from error
    return RunExport(out, left_out or {})


def iter_latest_rows(run: Path) -> Iterator[dict[str, Any]]:
    """Return the latest row of each sample, in the order of task and sample."""
    found = {parse_sample(row).key: row for row in iter_rows(run)}
    return (found[key] for key in sorted(found))


def _build_table(run: Path) -> tuple[tuple[str, ...], list[dict[str, Any]]]:
    """Build the columns and the rows of a run: its samples, or its training episodes."""
    columns = next((columns for mark, columns in COLUMNS_BY_FILE.items() if (run / mark).is_file()), ())
    if not columns:
        raise NotFound(
            f"{run} is not a run: it has neither {' nor '.join(COLUMNS_BY_FILE)}; name a folder that `rlvr eval` or `rlvr train` wrote"
        )
    rows = iter_latest_rows(run) if columns is COLUMNS_BY_FILE[PLAN_FILE] else iter_rows(run)
    return columns, [flatten_row(row, columns) for row in rows]


def flatten_row(row: Mapping[str, Any], columns: Sequence[str]) -> dict[str, Any]:
    """Flatten a sample or an episode into one row of a table."""
    verdict, (read, written) = row["verdict"] or {}, count_tokens(row)
    values = {"score": verdict.get("score"), "fault": verdict.get("fault", ""), "reason": row["error"] or verdict.get("reason", "")}
    values |= {"stop_reason": row.get("finish", row["stop_reason"]), "tokens": written, "prompt_tokens": read}
    values |= {"calls": count_turns_and_calls(row["turns"], row.get("session")).calls}
    values |= {"prompt": _join_prompt(row.get("prompt", [])), "reference": _to_text(row.get("reference"))}
    line = {name: values.get(name, row.get(name)) for name in columns}
    return {name: replace_surrogates(value) if isinstance(value, str) else value for name, value in line.items()}


def _join_prompt(messages: Sequence[Mapping[str, str]]) -> str:
    return "\n\n".join(message["content"] for message in messages)


CONTROL_CHARACTER = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""The first characters of texts that spreadsheets run as formulas, also in their full width."""


def _to_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _write_csv(run: Path, out: Path) -> None:
    columns, lines = _build_table(run)
    with atomic_path(out) as partial, partial.open("w", encoding="utf-8", newline="") as file:
        writer: csv.DictWriter[str] = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows({name: escape_spreadsheet_text(value) for name, value in line.items()} for line in lines)


def escape_spreadsheet_text(value: Any) -> Any:
    r"""Put an apostrophe before a text that a spreadsheet would run as a formula, and escape control characters, which a terminal would
    obey; the policy writes the texts.

    >>> escape_spreadsheet_text("=1+1"), escape_spreadsheet_text("1+1"), escape_spreadsheet_text("-1.5"), escape_spreadsheet_text("\x1b[2J")
    ("'=1+1", '1+1', '-1.5', '\\x1b[2J')
    """
    if not isinstance(value, str):
        return value
    value = CONTROL_CHARACTER.sub(lambda match: f"\\x{ord(match[0]):02x}", value)
    seen = next((place for place, c in enumerate(value) if c.isprintable() and not c.isspace()), 0)  # some programs skip what is not seen
    if not value.startswith(FORMULA_STARTS) and not value.startswith(FORMULA_STARTS, seen):
        return value
    try:
        float(value)
    except ValueError:
        return f"'{value}"
    return value


def _write_parquet(run: Path, out: Path) -> None:
    try:
        import pyarrow
        import pyarrow.parquet
    except ModuleNotFoundError as error:
        raise MissingExtra("pyarrow", "train", "export --to csv") from error
    with atomic_path(out) as partial:
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(_build_table(run)[1]), partial)


def _write_trl(run: Path, out: Path) -> Counter[str]:
    """Write prompt and completion as messages, and whether the answer was right, for SFT and KTO. Samples without a score are skipped.

    In a conversation the last turn is the completion, and all messages before it are the prompt.
    """
    left_out: Counter[str] = Counter()
    tokenizer = _load_tokenizer(run)
    with atomic_path(out) as partial, partial.open("w", encoding="utf-8", errors="replace") as file:
        for row in _iter_rows_with_prompts(run):
            score, turns = (row["verdict"] or {}).get("score"), _load_messages_after_prompt(row, tokenizer)
            if score is None or turns is None:
                left_out["samples without a score" if score is None else UNREADABLE_TURNS] += 1
                continue
            kept = {"prompt": [*row["prompt"], *turns[:-1]], "completion": turns[-1:], "label": score >= 1.0, "score": score}
            if tools := (row.get("session") or {}).get("tools"):
                kept["tools"] = [tool_spec_from_json(tool).to_openai_format() for tool in tools]
            file.write(json.dumps(kept | {"task_id": row["task_id"], "env": row["env"]}, ensure_ascii=False) + "\n")
    return left_out


UNREADABLE_TURNS = "conversations whose turns cannot be read back from their tokens"


def _is_training_run(run: Path) -> bool:
    return (run / "config.yaml").is_file() and not (run / PLAN_FILE).is_file()


def _iter_rows_with_prompts(run: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a run with their prompts; a training run does not record prompts, so its environment rebuilds them."""
    if not _is_training_run(run):
        load_plan(run)
        yield from iter_latest_rows(run)
        return
    config = load_run_config(run)
    with build_from_config("env", config.env) as environment:
        for row in iter_rows(run):
            prompt = [dict(message) for message in environment.task(row["split"], row["index"]).prompt]
            yield {**row, "prompt": prompt, "env": config.env["name"]}


def _load_tokenizer(run: Path) -> Tokenizer | None:
    return load_tokenizer_or_none(load_run_config(run).tokenizer_name if _is_training_run(run) else load_plan(run).policy.partition(":")[2])


def _load_messages_after_prompt(row: Mapping[str, Any], tokenizer: Tokenizer | None) -> list[dict[str, Any]] | None:
    """Load the messages after the prompt; None for a conversation that cannot be decoded from its tokens."""
    if recorded := load_messages_after_prompt(row.get("session") or {}):
        return recorded
    if row["turns"] <= 1:
        return [{"role": "assistant", "content": row["text"]}]
    return decode_messages_after_prompt(row, tokenizer) if tokenizer else None


def _write_markdown(run: Path, out: Path) -> None:
    plan = load_plan(run)
    report = run / REPORT_FILE
    if not report.is_file():
        raise NotFound(f"{run} has no {REPORT_FILE} yet; let `rlvr eval` finish first")
    envs = json.loads(report.read_text("utf-8"))["envs"]
    conversation_columns = list_conversation_metrics(envs)
    head = ["avg", "95 %", "pass@n", "maj@n", "tasks", "scored", "unscored", "truncated", "failed", *conversation_columns]
    policy, suite = (_escape_markdown(text) for text in (shorten_plugin_files(plan.policy), plan.suite))
    lines = [f"**{policy}** on **{suite}**, {plan.sampling_summary}, seed {plan.seed}", ""]
    lines += [f"| environment | {' | '.join(head)} |", f"|---|{'---:|' * len(head)}"]
    for name, env in envs.items():
        avg = env["mean_score"]
        cells = ["refused", ""] if env["refused"] or not avg else [str(Estimate.from_dict(avg)), Estimate.from_dict(avg).format_interval()]
        cells += ["" if env["refused"] else _format_at_n(env["metrics_at_k"].get(key, {}), env["n"]) for key in ("pass_at", "maj_at")]
        cells += [str(env[key]) for key in ("tasks", "scored", "unscored", "truncated", "failed")]
        cells += ["" if env.get(key) is None else f"{env[key]:.3g}" for key in conversation_columns]
        lines.append(f"| {_escape_markdown(name)} | {' | '.join(cells)} |")
    write_atomic(out, "\n".join(lines) + "\n")


def _escape_markdown(text: str) -> str:
    r"""Escape what would end a cell of a table, or be read as HTML, a link or an image.

    >>> _escape_markdown("a|b <img>\n![x](y)")
    'a\\|b &lt;img> !\\[x](y)'
    """
    return " ".join(escape_control_characters(text).split()).replace("<", "&lt;").replace("|", "\\|").replace("[", "\\[")


def list_conversation_metrics(envs: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """List the conversation metrics that a report has: none if all its environments are single-turn without tools.

    >>> list_conversation_metrics({"a": {"turns": 2.0}, "b": {"turns": 1.0, "calls": None}})
    ['turns']
    """
    talking = [env for env in envs.values() if env.get("turns", 1) > 1 or env.get("calls") is not None]
    return [key for key in CONVERSATION_METRICS if any(env.get(key) is not None for env in talking)]


def _format_at_n(figures: Mapping[str, Any], n: int) -> str:
    found = figures.get(str(n))
    return str(Estimate.from_dict(found)) if found else ""


def _write_inspect(run: Path, out: Path) -> Counter[str]:
    plan, tokenizer, left_out = load_plan(run), _load_tokenizer(run), Counter[str]()
    out.mkdir(parents=True, exist_ok=True)
    created = datetime.fromtimestamp((run / PLAN_FILE).stat().st_mtime, UTC).isoformat(timespec="seconds")
    status = "success" if (run / REPORT_FILE).is_file() else "started"
    rows: dict[str, list[dict[str, Any]]] = {item.name: [] for item in plan.envs}
    for row in iter_latest_rows(run):
        turns = _load_messages_after_prompt(row, tokenizer)
        left_out[f"first turns of {UNREADABLE_TURNS}"] += turns is None
        rows[row["env"]].append(row | {"said": turns or [{"role": "assistant", "content": row["text"]}]})
    for item in plan.envs:
        log = _build_inspect_log(plan, item, rows[item.name], created, status)
        write_atomic(out / f"{_quote_file_name(item.name)}.json", replace_surrogates(json.dumps(log, indent=1, ensure_ascii=False)))
    return +left_out


def _quote_file_name(name: str) -> str:
    """Quote an environment's name as a file name; forbidden characters are percent-encoded."""
    return re.sub(r'[%/\\:*?"<>|\x00-\x1f]', lambda found: quote(found[0], safe=""), name)


def _build_inspect_log(plan: EvalPlan, item: SuiteItem, rows: list[dict[str, Any]], created: str, status: str) -> dict[str, Any]:
    """Build the evaluation log of one environment for inspect_ai, version 2 of its format."""
    name, n, temperature = item.name, plan.get_samples_per_task(item), plan.get_temperature(item)
    scorer = plan.verifiers.get(name, "verifier").partition(" ")[0].lower()
    scores: dict[int, list[float]] = {}
    """By task, because the accuracy is a mean over tasks."""
    for sample in map(parse_sample, rows):
        if sample.score is not None:
            scores.setdefault(sample.key[1], []).append(sample.score)
    scored = sum(map(len, scores.values()))
    ids = sorted({row["task_id"] for row in rows})
    accuracy = {"accuracy": {"name": "accuracy", "value": mean([mean(task) for task in scores.values()])}} if scores else {}
    counts = {"scored_samples": scored, "unscored_samples": len(rows) - scored}
    return {
        "version": 2,
        "status": status,
        "eval": {
            "created": created,
            "task": f"rlvr/{name}",
            "dataset": {"name": name, "samples": len(ids), "sample_ids": ids},
            "model": plan.policy,
            "model_generate_config": {"temperature": temperature},
            "config": {"epochs": n},
            "metadata": {"verifier": plan.verifiers.get(name, ""), "seed": plan.seed},
        },
        "results": {
            "total_samples": len(rows),
            "completed_samples": len(rows),
            "scores": [{"name": scorer, "scorer": scorer, **counts, "metrics": accuracy}],
        },
        "samples": [_build_inspect_sample(plan.policy, scorer, row) for row in rows],
    }


def _build_inspect_sample(model: str, scorer: str, row: Mapping[str, Any]) -> dict[str, Any]:
    sample = parse_sample(row)
    said = [_to_inspect_message(message) for message in row["said"]]
    last = [message for message in said if message["role"] == "assistant"][-1]
    stopped = {"terminated": "stop", "truncated": "max_tokens"}.get(sample.stop_reason, "unknown")
    score = {"value": float("nan") if sample.score is None else sample.score, "answer": sample.text, "explanation": sample.reason}
    error = {"message": sample.reason, "traceback": "", "traceback_ansi": ""}
    usage = {"input_tokens": sample.prompt_tokens, "output_tokens": sample.tokens, "total_tokens": sample.prompt_tokens + sample.tokens}
    return {
        "id": sample.task_id,
        "epoch": sample.key[2] + 1,
        "input": row["prompt"],
        "target": _to_text(row["reference"]),
        "messages": [*row["prompt"], *said],
        "output": {"model": model, "choices": [{"message": last, "stop_reason": stopped}], "usage": usage},
        "scores": {scorer: score},
        **({"error": error} if sample.stop_reason == "failed" else {}),
    }


def _to_inspect_message(message: dict[str, Any]) -> dict[str, Any]:
    """Convert a message to the format of inspect_ai, which differs for calls and results."""
    if message["role"] == "tool":
        return {"role": "tool", "content": message["content"], "tool_call_id": message["tool_call_id"], "function": message["name"]}
    if message["role"] != "assistant":
        return message
    calls = [
        {"id": call["id"], "function": call["function"]["name"], "arguments": _parse_arguments(call["function"]["arguments"])}
        for call in message.get("tool_calls", ())
    ]
    return (
        {key: value for key, value in message.items() if key != "tool_calls"}
        | {"source": "generate"}
        | ({"tool_calls": calls} if calls else {})
    )


def _parse_arguments(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    return found if isinstance(found, dict) else {"unreadable": text}


EXPORT_FORMATS: Mapping[str, tuple[Callable[[Path, Path], Mapping[str, int] | None], str]] = {
    "trl-dataset": (_write_trl, "trl.jsonl"),
    "csv": (_write_csv, "samples.csv"),
    "parquet": (_write_parquet, "samples.parquet"),
    "markdown": (_write_markdown, "report.md"),
    "inspect": (_write_inspect, "inspect"),
}
"""Each format with its writer, which returns counts of what it leaves out, and its file name in the run's folder."""
