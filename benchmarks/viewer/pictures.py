"""Make the pictures of docs/view.md from real runs: a page of several seeds, a conversation, and an index. Needs Chromium and Pillow.

The runs of the pictures in the repository: `rlvr train agent_quickstart` for seeds 0 and 1, each also with `env.tools=[]`, in one folder.

    python benchmarks/viewer/pictures.py --runs runs/tool-0 runs/tool-1 runs/alone-0 --index runs --out docs/pictures
"""

from __future__ import annotations

import argparse
import io
import sys
import tempfile
from pathlib import Path

from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[2]))

from rlvr.viewer.index import write_index
from rlvr.viewer.view import write_page
from tests.fixtures.browser import Chromium, Page

SIZE = (1280, 800)
MOST_BYTES = 200_000
READY = "document.getElementById('rows').childElementCount > 0"
WITH_CALLS = "state.shown.findIndex((episode) => run.columns.calls[episode] > 0 && run.columns.score[episode] === 1)"


def saved(page: Page, path: Path, work: Path) -> None:
    """The screen as a PNG of few colours."""
    page.screenshot(work / "shot.png")
    small = Image.open(work / "shot.png").convert("RGB").quantize(192, dither=Image.Dither.NONE)
    data = io.BytesIO()
    small.save(data, "PNG", optimize=True)
    path.write_bytes(data.getvalue())
    print(f"{path}: {len(data.getvalue()) / 1000:.0f} kB")
    if len(data.getvalue()) > MOST_BYTES:
        raise SystemExit(f"{path} is larger than {MOST_BYTES} bytes")


def main() -> None:
    """Write the pages, open them, take the pictures."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--runs", type=Path, nargs="+", required=True, help="training runs; the first has calls of tools")
    arguments.add_argument("--index", type=Path, required=True, help="a folder of runs")
    arguments.add_argument("--out", type=Path, required=True, help="where view.png, view_turns.png and view_runs.png are written")
    given = arguments.parse_args()
    with tempfile.TemporaryDirectory() as folder, Chromium() as chromium:
        work = Path(folder)
        page = chromium.open(
            write_page(given.runs[0], work / "view.html", others=given.runs[1:]).path,
            width=SIZE[0],
            height=SIZE[1],
            fragment="#theme=light",
        )
        page.until(READY)
        saved(page, given.out / "view.png", work)
        page.evaluate(f"choose({WITH_CALLS}, true)")
        page.until("document.querySelector('.call') !== null")
        page.evaluate("document.querySelector('.call').open = true; $('filters').scrollIntoView()")
        saved(page, given.out / "view_turns.png", work)
        page = chromium.open(
            write_index(given.index, work / "index.html", has_page_server=True).path, width=SIZE[0], height=SIZE[1], fragment="#theme=light"
        )
        page.until("document.querySelectorAll('.runs tbody tr').length > 0")
        saved(page, given.out / "view_runs.png", work)


if __name__ == "__main__":
    main()
