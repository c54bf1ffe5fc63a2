"""`rlvr doctor --model DIR --sampler NAME`: how far the sampler's log-probabilities are from the trainer's, and what that means."""

from __future__ import annotations

from rich.text import Text

from rlvr.commands import screen


def examine_sampler(model: str, sampler: str, env: str, *, json: bool) -> int:
    """Measure, print the differences, and end with a verdict; 1 when training on them would be unsound."""
    from rlvr.learn.agreement import measured, verdict

    rows = list(measured(model, sampler, env=env))
    sound, words = verdict(rows)
    if json:
        screen.say_json({"ok": sound, "verdict": words, "rows": [row.record() for row in rows]})
        return int(not sound)
    console = screen.out()
    numbers = [[f"{value:.1e}" for value in (row.median, row.p99, row.largest, row.kl)] for row in rows]
    cells = [(row.precision, f"{row.temperature:g}", row.position, str(row.tokens), *n) for row, n in zip(rows, numbers, strict=True)]
    console.print(Text(f"log-probabilities of {sampler} against the trainer's, {model}", style="bold"))
    console.print(screen.table(("precision", "temperature", "tokens of an answer", "count", "median", "99 %", "largest", "KL"), cells))
    console.print(Text.assemble(screen.mark(sound), " ", words))
    return int(not sound)
