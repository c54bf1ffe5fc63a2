"""`rlvr doctor --model DIR --sampler NAME`: check a model for training, and compare the sampler's probabilities with the trainer's."""

from __future__ import annotations

from rich.text import Text

from rlvr.commands import screen


def examine_sampler(model: str, sampler: str, env: str, *, device: str | None = None, json: bool) -> int:
    """Measure and print the differences and a conclusion; returns 1 if they are too large for training."""
    from rlvr.learn.agreement import examined, measured, verdict

    checks, refused = examined(model, sampler, device=device)
    rows = list(measured(model, sampler, env=env, device=device))
    sound, words = verdict(rows)
    sound = sound and not refused
    if json:
        told = {"ok": sound, "verdict": refused or words, "checks": [check.record() for check in checks]}
        screen.say_json(told | {"rows": [row.record() for row in rows]})
        return int(not sound)
    console = screen.out()
    console.print(Text(f"{model} against its own plain forward pass, in float32", style="bold"))
    lines = [
        (screen.mark(c.ok), c.way, "" if c.gap is None else f"{c.gap:.1e}", f"{c.allowed:.1e}" if c.gap is not None else "", c.note)
        for c in checks
    ]
    console.print(screen.table(("", "computed as", "largest difference", "allowed", ""), lines))
    if refused:
        console.print(Text.assemble(screen.mark(False), " ", refused))
    numbers = [[f"{value:.1e}" for value in (row.median, row.p99, row.largest, row.kl)] for row in rows]
    cells = [(row.precision, f"{row.temperature:g}", row.position, str(row.tokens), *n) for row, n in zip(rows, numbers, strict=True)]
    console.print(Text(f"log-probabilities of {sampler} against the trainer's, {model}", style="bold"))
    console.print(screen.table(("precision", "temperature", "tokens of an answer", "count", "median", "99 %", "largest", "KL"), cells))
    console.print(Text.assemble(screen.mark(sound), " ", words))
    return int(not sound)
