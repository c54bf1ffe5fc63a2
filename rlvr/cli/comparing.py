"""`rlvr compare` and `rlvr export`: compare two runs, and write one run in another format."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from rlvr.cli import screen
from rlvr.evaluation.compare import EnvComparison, RunComparison, compare_evaluations
from rlvr.evaluation.export import write_export
from rlvr.runs.tables import align_numbers, make_table

MAX_NAMED_TASKS = 3
"""The maximum of won and lost tasks that are named."""


def compare_runs(first: Path, second: Path, *, force: bool, seed: int, json: bool) -> None:
    """Print the differences between two evaluations, with their uncertainty."""
    found = compare_evaluations(first, second, force=force, seed=seed)
    if json:
        screen.print_json(found.to_dict())
    else:
        print_comparison(screen.make_stdout_console(), found)


def print_comparison(console: Console, found: RunComparison) -> None:
    """Print a line for each environment, then the tasks that were won and lost."""
    console.print(Text.assemble(("A  ", "bold"), str(found.first)))
    console.print(Text.assemble(("B  ", "bold"), str(found.second)))
    console.print()
    p = "p, Holm" if len(found.envs) > 1 else "p"
    head = ("environment", "A", "B", "A - B", "95 %", p, "won", "lost", "MDE")
    console.print(align_numbers(make_table(head, [_format_row(env) for env in found.envs.values()])))
    console.print()
    for env in found.envs.values():
        console.print(
            Text(
                f"{env.name}: A is better on {_format_tasks(env.win_tasks)}; worse on {_format_tasks(env.loss_tasks)}; equal on {env.paired_test.ties}"
            )
        )
    for line in [f"differs: {line}" for line in found.differences] + [f"left out: {line}" for line in found.warnings]:
        console.print(Text(line, style="yellow"))
    if found.unshared_envs:
        console.print(Text(f"in one run only: {', '.join(found.unshared_envs)}", style="yellow"))
    console.print(Text(describe_methods(found), style="dim"))


def describe_methods(found: RunComparison) -> str:
    """Describe how the metrics were computed."""
    tests = " and ".join(sorted({env.paired_test.test for env in found.envs.values()})).replace("mcnemar", "McNemar's exact test")
    return (
        f"Paired by task; tasks with the same question count as one pair. Intervals by resampling tasks, p by {tests}. "
        "MDE, the minimum detectable effect: the true difference that this many tasks show in 4 of 5 comparisons."
    )


def _format_tasks(tasks: Sequence[str]) -> str:
    if not tasks:
        return "none"
    return f"{len(tasks)} ({', '.join(tasks[:MAX_NAMED_TASKS])}{', ...' if len(tasks) > MAX_NAMED_TASKS else ''})"


def _format_row(env: EnvComparison) -> list[str | Text]:
    paired = env.paired_test
    clear = env.adjusted_p < 0.05
    style = ("bold green" if paired.difference > 0 else "bold red") if clear else ""
    return [
        env.name,
        f"{env.first:.1%}",
        f"{env.second:.1%}",
        Text(f"{100 * paired.difference:+.1f}", style=style),
        f"{100 * paired.low:+.1f}, {100 * paired.high:+.1f}",
        _format_p(env.adjusted_p),
        str(paired.wins),
        str(paired.losses),
        f"{100 * paired.detectable:.1f}",
    ]


def _format_p(value: float) -> str:
    return "<0.001" if value < 0.001 else f"{value:.3f}"


def export_run(run: Path, format_name: str, *, out: Path | None, json: bool) -> None:
    """Write a run in another format and print the path."""
    written = write_export(run, format_name, out)
    if json:
        screen.print_json({"run": str(run), "to": format_name, "written": str(written.path), "left_out": written.skipped_counts})
        return
    for what, count in written.skipped_counts.items():
        screen.make_stderr_console().print(Text(f"left out: {count} {what}", style="yellow"))
    screen.make_stdout_console().print(Text(f"written to {written.path}"))
