"""Serve the page of a running run, or of a folder of runs: the page is written again as the logs grow, and reloads itself."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from rlvr.errors import RlvrError
from rlvr.evaluation.samples import REPORT_FILE
from rlvr.viewer.index import PAGE_NAME, find_runs, list_run_log_sizes, write_index
from rlvr.viewer.serve import PageServer
from rlvr.viewer.view import POLL_INTERVAL_S, WrittenPage, watch_run, write_page

LAST_PAGE_TIMEOUT_S = 20.0
"""How long the last page of a finished run is served, so that an open browser gets it."""


def serve_run(
    runs: Sequence[Path],
    out: Path | None,
    *,
    against: Path | None = None,
    port: int = 0,
    on_written: Callable[[str, WrittenPage], None] = lambda url, written: None,
    poll_interval_s: float = POLL_INTERVAL_S,
) -> WrittenPage:
    """Serve the page of the first run, compared with the others, until that run is finished or Ctrl-C; `on_written` is called with each
    new page.
    """
    page = out or runs[0] / PAGE_NAME
    with PageServer(lambda path: page if not path and page.is_file() else None, port) as served:
        last = watch_run(
            runs[0],
            out,
            others=runs[1:],
            against=against,
            on_written=lambda written: on_written(served.url, written),
            poll_interval_s=poll_interval_s,
        )
        if served.page_sent.is_set() and (runs[0] / REPORT_FILE).is_file():
            served.page_sent.clear()
            with suppress(KeyboardInterrupt):
                served.page_sent.wait(LAST_PAGE_TIMEOUT_S)
    return last


def serve_index(
    folder: Path,
    out: Path | None,
    *,
    port: int = 0,
    on_written: Callable[[str, WrittenPage], None] = lambda url, written: None,
    poll_interval_s: float = POLL_INTERVAL_S,
    max_polls: int | None = None,
) -> WrittenPage:
    """Serve the index page of a folder and the pages of its runs, each written on request, until Ctrl-C or for `max_polls` polls.

    A page that lies in a run already is never served: it may be anything, such as a link to another file.
    """
    place, writing, written_here = out or folder / "index.html", threading.Lock(), set[Path]()

    def page_of(path: str) -> Path | None:
        if not path:
            return place if place.is_file() else None
        run = next((run for run in find_runs(folder) if f"{run.relative_to(folder).as_posix()}/{PAGE_NAME}" == path), None)
        if run is None:
            return None
        with writing, suppress(RlvrError, OSError):
            if run not in written_here or _is_stale(run):
                write_page(run)
                written_here.add(run)
        return run / PAGE_NAME if run in written_here and (run / PAGE_NAME).is_file() else None

    with PageServer(page_of, port) as served:
        before: object = None
        with suppress(KeyboardInterrupt):
            while max_polls is None or max_polls > 0:
                if (now := list_run_log_sizes(folder)) != before:
                    before = now
                    on_written(served.url, write_index(folder, out, reload_s=math.ceil(poll_interval_s), has_page_server=True))
                max_polls = None if max_polls is None else max_polls - 1
                time.sleep(poll_interval_s)
    return write_index(folder, out)


def _is_stale(run: Path) -> bool:
    """Whether a run has changed since its page was written."""
    page = run / PAGE_NAME
    return not page.is_file() or any(
        path.stat().st_mtime > page.stat().st_mtime for path in run.iterdir() if path.suffix in (".jsonl", ".json", ".yaml")
    )
