"""`rlvr compare` and `rlvr export`: compare two runs, and write one run in another format."""

from __future__ import annotations

from pathlib import Path

from rich.text import Text

from rlvr.cli import screen
from rlvr.evaluation.compare import compare_evaluations, print_comparison
from rlvr.evaluation.export import write_export


def print_eval_comparison(first: Path, second: Path, *, force: bool, seed: int, json: bool) -> None:
    """Print the differences between two evaluations, with their uncertainty."""
    found = compare_evaluations(first, second, force=force, seed=seed)
    if json:
        screen.print_json(found.to_dict())
    else:
        print_comparison(screen.make_stdout_console(), found)


def export_run(run: Path, format_name: str, *, out: Path | None, json: bool) -> None:
    """Write a run in another format and print the path."""
    written = write_export(run, format_name, out)
    if json:
        screen.print_json({"run": str(run), "to": format_name, "written": str(written.path), "left_out": written.skipped_counts})
        return
    for what, count in written.skipped_counts.items():
        screen.make_stderr_console().print(Text(f"left out: {count} {what}", style="yellow"))
    screen.make_stdout_console().print(Text(f"written to {written.path}"))
