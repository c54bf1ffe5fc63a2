"""Serve the page of a running run, or of a folder of runs: the page is written again as the logs grow, and reloads itself."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from rlvr.errors import RlvrError
from rlvr.evaluation.samples import REPORT
from rlvr.viewer.index import PAGE_NAME, index, runs_in, state_of
from rlvr.viewer.serve import Served
from rlvr.viewer.view import PAUSE_S, Written, size_of, view, watch

LAST_LOOK_S = 20.0
"""How long the last page of a finished run is served, so that an open browser gets it."""


def live(
    runs: Sequence[Path],
    out: Path | None,
    *,
    against: Path | None = None,
    port: int = 0,
    told: Callable[[str, Written], None] = lambda url, written: None,
    pause_s: float = PAUSE_S,
) -> Written:
    """Serve the page of the first run, compared with the others, until it is finished or Ctrl-C. `told` is called with each new page."""
    page = out or runs[0] / PAGE_NAME
    with Served(lambda path: page if not path and page.is_file() else None, port) as served:
        last = watch(runs[0], out, others=runs[1:], against=against, told=lambda written: told(served.url, written), pause_s=pause_s)
        if served.sent.is_set() and (runs[0] / REPORT).is_file():
            served.sent.clear()
            with suppress(KeyboardInterrupt):
                served.sent.wait(LAST_LOOK_S)
    return last


def live_index(
    folder: Path,
    out: Path | None,
    *,
    port: int = 0,
    told: Callable[[str, Written], None] = lambda url, written: None,
    pause_s: float = PAUSE_S,
    turns: int | None = None,
) -> Written:
    """Serve the index of a folder and the pages of its runs, each written on request, until Ctrl-C or for `turns` polls."""
    place, writing = out or folder / "index.html", threading.Lock()

    def page_of(path: str) -> Path | None:
        if not path:
            return place if place.is_file() else None
        run = next((run for run in runs_in(folder) if f"{run.relative_to(folder).as_posix()}/{PAGE_NAME}" == path), None)
        if run is None:
            return None
        with writing, suppress(RlvrError, OSError):
            if _stale(run):
                view(run)
        return run / PAGE_NAME if (run / PAGE_NAME).is_file() else None

    with Served(page_of, port) as served:
        before: object = None
        with suppress(KeyboardInterrupt):
            while turns is None or turns > 0:
                if (now := state_of(folder)) != before:
                    before = now
                    told(served.url, index(folder, out, reload_s=math.ceil(pause_s), served=True))
                turns = None if turns is None else turns - 1
                time.sleep(pause_s)
    return index(folder, out)


def _stale(run: Path) -> bool:
    """Whether a run has no page, or has changed since its page was written."""
    page = run / PAGE_NAME
    if not page.is_file():
        return size_of(run) > 0
    return any(path.stat().st_mtime > page.stat().st_mtime for path in run.iterdir() if path.suffix in (".jsonl", ".json", ".yaml"))
