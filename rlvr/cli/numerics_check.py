"""`rlvr doctor --model DIR --sampler NAME`: check a model for training, and compare the sampler's probabilities with the trainer's."""

from __future__ import annotations

from rich.text import Text

from rlvr.cli import screen
from rlvr.runs.tables import make_table


def check_sampler_numerics(model: str, sampler: str, env: str, *, device: str | None = None, json: bool) -> int:
    """Measure and print the differences and a conclusion; returns 1 if they are too large for training."""
    from rlvr.training.sampler_mismatch import check_model_folder_numerics, measure_logprob_gaps, summarize_logprob_gaps

    checks, refused = check_model_folder_numerics(model, sampler, device=device)
    rows = list(measure_logprob_gaps(model, sampler, env_name=env, device=device))
    sound, words = summarize_logprob_gaps(rows)
    sound = sound and not refused
    if json:
        told = {"ok": sound, "verdict": refused or words, "checks": [check.to_dict() for check in checks]}
        screen.print_json(told | {"rows": [row.to_dict() for row in rows]})
        return int(not sound)
    console = screen.make_stdout_console()
    console.print(Text(f"{model} against its own plain forward pass, in float32", style="bold"))
    lines = [
        (
            screen.make_status_mark(c.passed),
            c.way,
            "" if c.gap is None else f"{c.gap:.1e}",
            f"{c.allowed:.1e}" if c.gap is not None else "",
            c.note,
        )
        for c in checks
    ]
    console.print(make_table(("", "computed as", "largest difference", "allowed", ""), lines))
    if refused:
        console.print(Text.assemble(screen.make_status_mark(False), " ", refused))
    numbers = [[f"{value:.1e}" for value in (row.median, row.p99, row.largest, row.kl)] for row in rows]
    cells = [(row.precision, f"{row.temperature:g}", row.position, str(row.tokens), *n) for row, n in zip(rows, numbers, strict=True)]
    console.print(Text(f"log-probabilities of {sampler} against the trainer's, {model}", style="bold"))
    console.print(make_table(("precision", "temperature", "tokens of an answer", "count", "median", "99 %", "largest", "KL"), cells))
    console.print(Text.assemble(screen.make_status_mark(sound), " ", words))
    return int(not sound)
