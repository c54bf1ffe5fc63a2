"""`rlvr view`: a run as one HTML file."""

from __future__ import annotations

from pathlib import Path

from rich.text import Text

from rlvr.commands import screen
from rlvr.view import view


def view_run(run: Path, *, out: Path | None, json: bool) -> None:
    """Write the page and say where it is."""
    written = view(run, out)
    if json:
        screen.say_json({"run": str(run), "written": str(written.path), "episodes": written.episodes, "bytes": written.bytes})
    else:
        screen.out().print(Text(f"{written.episodes:,} episodes, {written.bytes / 1e6:.1f} MB, written to {written.path}"))
