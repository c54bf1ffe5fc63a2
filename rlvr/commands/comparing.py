"""`rlvr compare` and `rlvr export`: compare two runs, and write one run in another format."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from rlvr.commands import screen
from rlvr.evaluation.compare import Comparison, EnvComparison, compare
from rlvr.evaluation.export import export

SHOWN = 3
"""The maximum of won and lost tasks that are named."""


def compare_runs(first: Path, second: Path, *, force: bool, seed: int, json: bool) -> None:
    """Print the differences between two evaluations, with their uncertainty."""
    found = compare(first, second, force=force, seed=seed)
    if json:
        screen.say_json(found.record())
    else:
        show(screen.out(), found)


def show(console: Console, found: Comparison) -> None:
    """Print a line for each environment, then the tasks that were won and lost."""
    console.print(Text.assemble(("A  ", "bold"), str(found.first)))
    console.print(Text.assemble(("B  ", "bold"), str(found.second)))
    console.print()
    p = "p, Holm" if len(found.envs) > 1 else "p"
    head = ("environment", "A", "B", "A - B", "95 %", p, "won", "lost", "MDE")
    console.print(screen.figures(screen.table(head, [_line(env) for env in found.envs.values()])))
    console.print()
    for env in found.envs.values():
        console.print(Text(f"{env.name}: A is better on {_some(env.wins)}; worse on {_some(env.losses)}; equal on {env.paired.ties}"))
    for line in [f"differs: {line}" for line in found.differences] + [f"left out: {line}" for line in found.notes]:
        console.print(Text(line, style="yellow"))
    if found.alone:
        console.print(Text(f"in one run only: {', '.join(found.alone)}", style="yellow"))
    console.print(Text(caption(found), style="dim"))


def caption(found: Comparison) -> str:
    """Describe how the metrics were computed."""
    tests = " and ".join(sorted({env.paired.test for env in found.envs.values()})).replace("mcnemar", "McNemar's exact test")
    return (
        f"Paired by task; tasks with the same question count as one pair. Intervals by resampling tasks, p by {tests}. "
        "MDE, the minimum detectable effect: the true difference that this many tasks show in 4 of 5 comparisons."
    )


def _some(tasks: Sequence[str]) -> str:
    if not tasks:
        return "none"
    return f"{len(tasks)} ({', '.join(tasks[:SHOWN])}{', ...' if len(tasks) > SHOWN else ''})"


def _line(env: EnvComparison) -> list[str | Text]:
    paired = env.paired
    clear = env.adjusted < 0.05
    style = ("bold green" if paired.difference > 0 else "bold red") if clear else ""
    return [
        env.name,
        f"{env.first:.1%}",
        f"{env.second:.1%}",
        Text(f"{100 * paired.difference:+.1f}", style=style),
        f"{100 * paired.low:+.1f}, {100 * paired.high:+.1f}",
        _p(env.adjusted),
        str(paired.wins),
        str(paired.losses),
        f"{100 * paired.detectable:.1f}",
    ]


def _p(value: float) -> str:
    return "<0.001" if value < 0.001 else f"{value:.3f}"


def export_run(run: Path, to: str, *, out: Path | None, json: bool) -> None:
    """Write a run in another format and print the path."""
    written = export(run, to, out)
    if json:
        screen.say_json({"run": str(run), "to": to, "written": str(written.path), "left_out": written.left_out})
        return
    for what, count in written.left_out.items():
        screen.err().print(Text(f"left out: {count} {what}", style="yellow"))
    screen.out().print(Text(f"written to {written.path}"))
