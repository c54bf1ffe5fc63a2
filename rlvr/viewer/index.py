"""Write an index page of the runs under a folder: a sortable table with reward curves, and a chart of the selected runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rlvr.errors import ConfigError, NotFound, RlvrError
from rlvr.evaluation.samples import PLAN_FILE, REPORT_FILE, load_plan
from rlvr.plugin_files import shorten_plugin_files
from rlvr.runs.run_log import load_run_config
from rlvr.viewer.comparison import group_runs_into_conditions, load_settings
from rlvr.viewer.run_summary import list_held_out_accuracies, load_metrics, load_report
from rlvr.viewer.view import COMMON_SCRIPTS, WrittenPage, get_log_size, may_write_page, render_page, write_page_file

MAX_DEPTH = 3
"""The maximum depth of the search for runs."""
MAX_CURVE_POINTS = 120
"""The maximum of points in a reward curve of the index."""
MAX_SETTING_COLUMNS = 3
"""The maximum of columns for settings that differ between the training runs."""
OWN_COLUMNS = frozenset({"env.name", "train.steps"})
"""The settings that every training run shows in a column of its own, whether they differ or not."""
SCRIPTS = (*COMMON_SCRIPTS, "export.js", "curves.js", "index.js")
PAGE_NAME = "view.html"


def is_run(folder: Path) -> bool:
    """Whether a folder is a run folder of `rlvr train` or `rlvr eval`."""
    return any((folder / name).is_file() for name in ("config.yaml", PLAN_FILE))


def find_runs(folder: Path, max_depth: int = MAX_DEPTH) -> list[Path]:
    """Find the runs below a folder, sorted by name. Run folders are not searched, and links are not followed."""
    try:
        below = sorted(path for path in folder.iterdir() if path.is_dir() and not path.is_symlink() and not path.name.startswith("."))
    except OSError:
        return []
    return [run for path in below for run in ([path] if is_run(path) else find_runs(path, max_depth - 1) if max_depth > 1 else [])]


def write_index(folder: str | Path, out: str | Path | None = None, *, reload_s: int = 0, has_page_server: bool = False) -> WrittenPage:
    """Write the index of a folder's runs, by default as `index.html` in it. A run that cannot be read is listed with the reason.

    `has_page_server`: link a page for every run, because the server writes it on request; otherwise link only existing pages.
    """
    folder, out = Path(folder), Path(out) if out else Path(folder) / "index.html"
    if not may_write_page(out):
        raise ConfigError(f"{out} exists and is not a page written by rlvr, so it is not overwritten; choose another --out")
    found = find_runs(folder)
    if not found:
        raise NotFound(
            f"{folder} is not a run and contains none; name a folder that `rlvr train` or `rlvr eval` wrote, or a folder of such folders"
        )
    entries = [_make_index_entry(folder, run, has_page_server=has_page_server) for run in found]
    _add_conditions(found, entries)
    head = {"name": folder.resolve().name, "entries": entries, "reload_s": reload_s, "varied": _find_varied_settings(found, entries)}
    text = render_page("index.html", SCRIPTS, head, {})
    return WrittenPage(out, len(entries), write_page_file(out, text))


def list_run_log_sizes(folder: Path) -> tuple[tuple[str, int], ...]:
    """Return the names of the runs under a folder with the sizes of their logs; the value changes when a run makes progress."""
    return tuple((str(run), get_log_size(run) + (run / REPORT_FILE).is_file()) for run in find_runs(folder))


def _make_index_entry(folder: Path, run: Path, *, has_page_server: bool) -> dict[str, Any]:
    """Build the line of a run in the index."""
    name = run.relative_to(folder).as_posix()
    entry: dict[str, Any] = {"name": name, "page": f"{name}/{PAGE_NAME}" if has_page_server or (run / PAGE_NAME).is_file() else ""}
    changed = max((path.stat().st_mtime for path in run.iterdir() if path.is_file()), default=0.0)
    entry |= {"changed": datetime.fromtimestamp(changed, UTC).isoformat(timespec="minutes"), "finished": (run / REPORT_FILE).is_file()}
    try:
        return entry | (_make_evaluation_entry(run) if (run / PLAN_FILE).is_file() else _make_training_entry(run))
    except (RlvrError, OSError, LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as error:
        return entry | {"kind": "unreadable", "why": " ".join(str(error).split())[:300]}


def _make_training_entry(run: Path) -> dict[str, Any]:
    """Summarize a training run: its environment, its reward, and its held-out accuracy."""
    rows, report, config = load_metrics(run), load_report(run), load_run_config(run)
    rewarded = [(row.get("step", 0), row["reward"]) for row in rows if isinstance(row.get("reward"), int | float)]
    size = -(-len(rewarded) // MAX_CURVE_POINTS) or 1
    blocks = [rewarded[at : at + size] for at in range(0, len(rewarded), size)]
    lines = {"reward": [sum(value for _, value in block) / len(block) for block in blocks]}
    panels = [{"title": "reward", "steps": [block[-1][0] for block in blocks], "lines": lines}] if blocks else []
    found = {
        "kind": "training",
        "what": shorten_plugin_files(str(config.env.get("name", ""))) if config.env else "",
        "with": config.algorithm.get("name", ""),
    }
    found |= {"steps": len(rows), "total": config.train.steps, "panels": panels, "held_out": list_held_out_accuracies(rows, report)}
    last = rewarded[-max(len(rewarded) // 10, 1) :]
    found |= {"reward": sum(value for _, value in last) / len(last) if last else None}
    return found | {name: report.get(name) for name in ("accuracy_before", "accuracy_after", "seconds")}


def _make_evaluation_entry(run: Path) -> dict[str, Any]:
    """Summarize an evaluation: its suite, its policy, and the mean of its environments."""
    plan, envs = load_plan(run), load_report(run).get("envs", {})
    scores = [env["mean_score"]["value"] for env in envs.values() if env["mean_score"] and not env["refused"]]
    found: dict[str, Any] = {
        "kind": "evaluation",
        "what": plan.suite,
        "with": shorten_plugin_files(plan.policy),
        "environments": len(plan.envs),
    }
    return found | {"accuracy_after": sum(scores) / len(scores) if scores and len(scores) == len(envs) else None}


def _add_conditions(runs: Sequence[Path], entries: Sequence[dict[str, Any]]) -> None:
    """Add to each training run its condition: the group of runs with equal settings except the seed."""
    trained = [(run, entry) for run, entry in zip(runs, entries, strict=True) if entry["kind"] == "training"]
    if not trained:
        return
    labels, at = group_runs_into_conditions(
        [entry["name"].rpartition("/")[2] for _, entry in trained], [load_settings(run) for run, _ in trained]
    )
    for (_, entry), place in zip(trained, at, strict=True):
        entry |= {"condition": place, "label": labels[place]}


def _find_varied_settings(runs: Sequence[Path], entries: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Select the settings that differ between training runs: the key of each, and its value in each run."""
    told = {entry["name"]: dict(_list_short_settings(run)) for run, entry in zip(runs, entries, strict=True) if entry["kind"] == "training"}
    keys = list(dict.fromkeys(key for settings in told.values() for key in settings))
    columns = {key: [settings.get(key, "") for settings in told.values()] for key in keys if key not in OWN_COLUMNS}
    alike: dict[tuple[int, ...], str] = {}
    for key, values in columns.items():  # of settings that vary together only the first is shown
        alike.setdefault(tuple(map(values.index, values)), key)
    varied = sorted((key for same, key in alike.items() if len({*same}) > 1), key=lambda key: len({*columns[key]}))[:MAX_SETTING_COLUMNS]
    return [{"key": key, "values": dict(zip(told, columns[key], strict=True))} for key in varied]


def _list_short_settings(run: Path) -> Iterator[tuple[str, str]]:
    """Yield the settings of a run that are short enough for a column."""
    config = load_run_config(run)
    yield "seed", str(config.seed)
    lora = config.model.lora
    yield "model.lora", f"rank {lora.rank}" if lora else "none"
    yield from ((key, text) for key, text in load_settings(run).items() if len(text) <= 40 and key.partition(".lora")[0] != "model")
