"""`rlvr view`: write runs as one HTML file, or an index of many."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.text import Text

from rlvr.cli import screen
from rlvr.viewer.index import find_runs, is_run, write_index
from rlvr.viewer.live import serve_index, serve_run
from rlvr.viewer.view import WrittenPage, watch_run, write_page


def view_runs(runs: Sequence[Path], *, out: Path | None, against: Path | None, serve_live: bool, port: int, json: bool) -> None:
    """Write the HTML page of one run, of several next to each other, or the index of a folder; with `serve_live`, serve it while it
    changes.
    """
    first, others = runs[0], runs[1:]
    many = not others and not against and not is_run(first) and bool(find_runs(first))

    def once() -> WrittenPage:
        return write_index(first, out) if many else write_page(first, out, others=others, against=against)

    if json:
        written = watch_run(first, out, others=others, against=against) if serve_live and not many else once()
        counted = "runs" if many else "episodes"
        screen.print_json({"run": str(first), "written": str(written.path), counted: written.num_episodes, "bytes": written.size_bytes})
        return
    if not serve_live:
        _print_written(once(), many=many)
        return
    told: set[str] = set()

    def print_update(url: str, written: WrittenPage) -> None:
        if not told:
            told.add(url)
            screen.make_stdout_console().print(
                Text(f"open {url} on this machine; the page reloads itself. Ctrl-C ends it."), soft_wrap=True
            )
        _print_written(written, many=many)

    last = (
        serve_index(first, out, port=port, on_written=print_update)
        if many
        else serve_run(runs, out, against=against, port=port, on_written=print_update)
    )
    _print_written(last, many=many)


def _print_written(written: WrittenPage, *, many: bool) -> None:
    what = "runs" if many else "episodes"
    screen.make_stdout_console().print(
        Text(f"{written.num_episodes:,} {what}, {written.size_bytes / 1e6:.1f} MB, written to {written.path}")
    )
