"""`rlvr view`: write a run as one HTML file."""

from __future__ import annotations

from pathlib import Path

from rich.text import Text

from rlvr.commands import screen
from rlvr.viewer.view import Written, view, watch


def view_run(run: Path, *, out: Path | None, against: Path | None, follow: bool, json: bool) -> None:
    """Write the page and print its path; with `follow`, write it again while the run continues."""
    if json:
        written = watch(run, out, against=against) if follow else view(run, out, against=against)
        screen.say_json({"run": str(run), "written": str(written.path), "episodes": written.episodes, "bytes": written.bytes})
    elif follow:
        screen.out().print(Text(f"watching {run}; open the page once, it reloads itself. Ctrl-C stops watching."))
        _say(watch(run, out, against=against, told=_say))
    else:
        _say(view(run, out, against=against))


def _say(written: Written) -> None:
    screen.out().print(Text(f"{written.episodes:,} episodes, {written.bytes / 1e6:.1f} MB, written to {written.path}"))
