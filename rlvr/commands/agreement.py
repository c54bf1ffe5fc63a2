"""`rlvr doctor --model DIR --sampler NAME`: compare the sampler's log-probabilities with the trainer's, and judge the difference."""

from __future__ import annotations

from rich.text import Text

from rlvr.commands import screen


def examine_sampler(model: str, sampler: str, env: str, *, device: str | None = None, json: bool) -> int:
    """Measure and print the differences and a verdict; returns 1 if training on them would be unsound."""
    from rlvr.learn.agreement import measured, verdict

    rows = list(measured(model, sampler, env=env, device=device))
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
