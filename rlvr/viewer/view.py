"""Write one run, or several for comparison, as a self-contained HTML file that needs no server, network or library.

The page is built from the files in `rlvr/viewer/page/`: a frame, style sheets and scripts. The data of the run is embedded as base64, so
text of a model is never parsed as HTML or as a script. The scripts show text through `textContent` only, and the page's content security
policy forbids all other scripts. The head (curves and metrics) is small and is drawn first; the compressed parts with the episodes follow
(`rlvr.viewer.page_parts`).
"""

from __future__ import annotations

import base64
import hashlib
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlvr.errors import ConfigError, NotFound
from rlvr.evaluation.samples import REPORT_FILE, ROWS_FILE, write_atomic
from rlvr.mdp.transcript import load_tokenizer_or_none
from rlvr.runs.run_log import explain_damaged_run
from rlvr.viewer.comparison import compare_eval_runs, compare_training_runs, group_runs_into_conditions, load_settings
from rlvr.viewer.page_parts import EPISODES_PER_CHUNK, dump_browser_safe_json, pack_episodes
from rlvr.viewer.run_summary import METRICS_FILE, load_viewed_run

logger = logging.getLogger(__name__)
PAGE_FOLDER = Path(__file__).parent / "page"
STYLES = ("page.css", "list.css")
COMMON_SCRIPTS = ("marks.js", "charts.js")
"""The scripts that every page has."""
SCRIPTS = (*COMMON_SCRIPTS, "export.js", "curves.js", "math.js", "run.js", "turns.js", "tokens.js", "episode.js", "list.js", "page.js")
PAGE_MARK = b'content="rlvr view"'
"""Identifies a page written by rlvr, which may be overwritten."""
POLL_INTERVAL_S = 5.0
"""The interval between checks of a watched run; longer if writing its page takes long."""


@dataclass(frozen=True, slots=True)
class WrittenPage:
    """A written page: its path, the number of its episodes or runs, and its size.

    >>> WrittenPage(Path("runs/a/view.html"), num_episodes=1536, size_bytes=90_000).num_episodes
    1536
    """

    path: Path
    num_episodes: int
    size_bytes: int


def write_page(
    run: str | Path,
    out: str | Path | None = None,
    *,
    others: Sequence[str | Path] = (),
    against: str | Path | None = None,
    reload_s: int = 0,
) -> WrittenPage:
    """Write the page of a training run or an evaluation, by default as `view.html` in its folder.

    Other runs of the same kind, `others` and `against`, are shown next to the first run: their curves or metrics, the difference to the
    first run with its interval, and their episodes. Training runs that differ only by their seed are drawn as one curve with a band, except
    `against`, which is always a curve of its own. With `reload_s`, the page reloads itself after this many seconds.
    """
    folders = [Path(folder) for folder in (run, *others, *([against] if against else []))]
    out = Path(out) if out else None
    if out and not may_write_page(out):
        raise _build_overwrite_error(out)
    out = out or folders[0] / "view.html"
    _check_distinct(folders)
    with explain_damaged_run(*folders):
        return _write_page(folders, out, is_compared=bool(against), reload_s=reload_s)


def _write_page(folders: Sequence[Path], out: Path, *, is_compared: bool, reload_s: int) -> WrittenPage:
    heads: list[dict[str, Any]] = []
    parts: dict[str, str] = {}
    for nth, folder in enumerate(folders):
        source = load_viewed_run(folder)
        mine = pack_episodes(source.rows, load_tokenizer_or_none(source.tokenizer), f"{nth}-" if nth else "")
        if not mine.count and not source.head["panels"]:
            raise NotFound(f"{folder} has nothing to show yet: it has no step and no episode; try again later")
        more = mine.panels if source.head["kind"] == "training" else []
        heads.append(source.head | {"episodes": mine.count, "panels": [*source.head["panels"], *more]})
        parts |= mine.parts
        if heads[0]["kind"] != heads[-1]["kind"]:
            raise ConfigError(f"{folders[0]} and {folder} cannot be compared: one is a training run, the other an evaluation")
    head = {"runs": heads, "chunk": EPISODES_PER_CHUNK, "reload_s": reload_s} | _build_runs_data(
        folders, heads, last_is_own_condition=is_compared
    )
    return WrittenPage(out, heads[0]["episodes"], write_page_file(out, render_page("page.html", SCRIPTS, head, parts)))


def _check_distinct(folders: Sequence[Path]) -> None:
    """Raise ConfigError if a run is given twice."""
    twice = [folder for nth, folder in enumerate(folders) if folder.resolve() in [other.resolve() for other in folders[:nth]]]
    if twice:
        raise ConfigError(f"{twice[0]} is given twice; name each run once")


def _build_runs_data(folders: Sequence[Path], heads: list[dict[str, Any]], *, last_is_own_condition: bool) -> dict[str, Any]:
    """Build the data of several runs: distinct names, conditions and differences. `last_is_own_condition`: no other run belongs to its
    condition.
    """
    names = [head["name"] for head in heads]
    for folder, head in zip(folders, heads, strict=True):
        if names.count(head["name"]) > 1:
            head["name"] = f"{folder.resolve().parent.name}/{head['name']}"
    if heads[0]["kind"] == "evaluation":
        return {"labels": [head["name"] for head in heads], "at": [*range(len(heads))]} | (
            {"compared": compare_eval_runs(folders)} if len(heads) > 1 else {}
        )
    settings = [load_settings(folder) for folder in folders]
    if last_is_own_condition:
        settings[-1] |= {"": "B"}
    labels, at = group_runs_into_conditions([head["name"] for head in heads], settings)
    return {"labels": labels, "at": at} | ({"compared": compare_training_runs(folders, labels, at)} if len(heads) > 1 else {})


def watch_run(
    run: str | Path,
    out: str | Path | None = None,
    *,
    others: Sequence[str | Path] = (),
    against: str | Path | None = None,
    on_written: Callable[[WrittenPage], None] = lambda written: None,
    poll_interval_s: float = POLL_INTERVAL_S,
) -> WrittenPage:
    """Rewrite the page whenever the run's logs grow, until the run is finished or Ctrl-C; the last page does not reload.

    While a file of the run cannot be read, the page stays as it was, and the reason is logged.
    """
    run = Path(run)
    load_viewed_run(run)
    if out and not may_write_page(Path(out)):
        raise _build_overwrite_error(Path(out))
    size, told = -1, ""
    pause = poll_interval_s
    with suppress(KeyboardInterrupt):
        while not (run / REPORT_FILE).is_file():
            began = time.monotonic()
            if (now := get_log_size(run)) != size:
                size = now
                try:
                    on_written(write_page(run, out, others=others, against=against, reload_s=math.ceil(pause)))
                except NotFound:  # nothing to show yet
                    pass
                except ConfigError as error:
                    if str(error) != told:
                        logger.warning("the page is not written again: %s", told := str(error))
                pause = max(poll_interval_s, 4 * (time.monotonic() - began))
            time.sleep(pause)
    return write_page(run, out, others=others, against=against)


def may_write_page(path: Path) -> bool:
    """Whether a page may be written to a path: the path is free, or holds an earlier page. It would take the place of a device or a pipe."""
    if not path.is_file():
        return path.is_dir() or not path.exists()  # that nothing can be written there is said when it is tried
    with path.open("rb") as file:
        return PAGE_MARK in file.read(200)


def _build_overwrite_error(path: Path) -> ConfigError:
    return ConfigError(f"{path} exists and is not a page written by rlvr, so it is not overwritten; choose another --out")


def get_log_size(run: Path) -> int:
    """Return the size of a run's logs in bytes."""
    return sum((run / name).stat().st_size for name in (ROWS_FILE, METRICS_FILE) if (run / name).is_file())


def write_page_file(out: Path, text: str) -> int:
    """Write a page atomically and return its size in bytes."""
    try:
        write_atomic(out, text)
    except OSError as error:
        raise ConfigError(f"{out} cannot be written: {error.strerror}; choose another --out") from error
    return out.stat().st_size


def render_page(template_file: str, scripts: Sequence[str], head_data: Mapping[str, Any], parts: Mapping[str, str]) -> str:
    """Build the complete HTML page from a template, its scripts and its data.

    The content security policy of the page allows only its own script, by digest, and no network access.
    """
    style, script = ("".join((PAGE_FOLDER / name).read_text("utf-8") for name in names) for names in (STYLES, scripts))
    policy = f"default-src 'none'; script-src '{_compute_csp_digest(script)}'; style-src '{_compute_csp_digest(style)}'; base-uri 'none'; form-action 'none'"
    data = "\n".join(_make_data_element(name, text) for name, text in parts.items())
    first = _make_data_element("head", base64.b64encode(dump_browser_safe_json(head_data).encode()).decode())
    page = (PAGE_FOLDER / template_file).read_text("utf-8")
    for mark, text in (("POLICY", policy), ("STYLE", style), ("HEAD", first), ("SCRIPT", script), ("DATA", data)):
        before, _, after = page.partition(f"<!--{mark}-->")
        page = before + text + after
    return page


def _make_data_element(name: str, text: str) -> str:
    return f'<script type="text/plain" id="{name}">{text}</script>'


def _compute_csp_digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
