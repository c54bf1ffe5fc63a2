"""`rlvr check`: run the conformance kit of a plugin and print each check as it finishes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from rich.text import Text

from rlvr.commands import screen
from rlvr.commands.settings import settings_from
from rlvr.conformance.checks import stream


def check_plugin(kind: str, name: str, *, pairs: Sequence[str], json: bool) -> int:
    """Run the kit and print each check; returns 1 if one fails."""
    console = screen.out()
    checks = []
    for check in stream(kind, name, settings_from(pairs)):
        checks.append(check)
        if not json:
            sign = Text("–", style="yellow") if check.skipped else screen.mark(check.ok)
            detail = Text(f"\n    {check.detail}", style="yellow" if check.ok else "red") if check.detail else Text("")
            console.print(Text.assemble(sign, " ", check.name, detail))
    bad = [check for check in checks if not check.ok]
    skipped = sum(check.skipped for check in checks)
    if json:
        screen.say_json({"kind": kind, "name": name, "ok": not bad, "checks": [asdict(check) for check in checks]})
    else:
        note = f", {skipped} skipped" if skipped else ""
        console.print(Text(f"\n{kind} {name}: {len(checks) - len(bad) - skipped} checks passed{note}, {len(bad)} failed", style="bold"))
    return 1 if bad else 0
