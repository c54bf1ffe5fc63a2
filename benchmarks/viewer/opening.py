"""Measure how fast the page of a large run opens and responds in a real browser, and that it makes no request.

Makes a run folder of 50,000 episodes through the run log's own records, writes its page, opens it in headless Chromium several times
and measures, as medians: the first paint, the time until the list is shown, and for each filter and search the time from the change to the
frame that shows it. Prints a table and one JSON line, and writes screenshots in both themes. Needs Chromium.

    python benchmarks/viewer/opening.py --work /tmp/viewer
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from rlvr.viewer.view import write_page
from tests.fixtures.browser import Chromium, Page
from tests.fixtures.recorded import recorded_run

PAINT_S, FILTER_MS = 1.0, 200.0
PAINTED = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
READY = "document.getElementById('rows').childElementCount > 0"
CHANGED = """
new Promise((resolve) => {
  const began = performance.now(), field = $("f-%s"), count = $("count"), took = () => performance.now() - began;
  let first = 0;
  const look = () => {
    first ||= count.textContent && took();
    if (count.textContent.endsWith("episodes")) setTimeout(() => resolve([first, took(), count.textContent]));
    else requestAnimationFrame(look);
  };
  count.textContent = "";
  field.value = %s;
  field.dispatchEvent(new Event("input", { bubbles: true }));
  requestAnimationFrame(look);
})
"""
CHANGES = [
    ("verdict", "wrong"), ("verdict", ""), ("fault", "infra"), ("fault", ""), ("end", "truncated"), ("end", ""), ("step", "100-2000"),
    ("task", "train/11"), ("step", ""), ("task", ""), ("search", "12=3"), ("search", "12=34"), ("search", "the engine"), ("search", ""),
]  # fmt: skip


def opened(chromium: Chromium, path: Path, theme: str) -> tuple[Page, dict[str, float]]:
    """The page, and how many seconds its first paint and its list took."""
    page = chromium.open(path, fragment=f"#theme={theme}")
    page.until(READY)
    listed = page.evaluate("performance.now()")
    page.until(f"{PAINTED} > 0")
    return page, {"first_paint_s": page.evaluate(PAINTED) / 1000, "list_s": listed / 1000}


def changes(page: Page) -> list[dict[str, Any]]:
    """Each filter and search: what was left, the time until it was visible, and until complete (a search may show before all is read)."""
    found = []
    for name, value in CHANGES:
        seen, whole, left = page.evaluate(CHANGED % (name, json.dumps(value)))
        found.append({"change": f"{name}={value}", "left": left, "ms": seen, "whole_ms": whole})
    return found


def photographed(page: Page, work: Path, theme: str) -> None:
    """Screenshots of the first view, and of an open episode."""
    page.screenshot(work / f"{theme}.png")
    page.evaluate("choose(state.shown.findIndex((episode) => run.columns.score[episode] === 0.5), true)")
    page.until("document.getElementById('detail').textContent.length > 0")
    page.screenshot(work / f"{theme}-episode.png")
    page.evaluate("close()")


def main() -> None:
    """Create the run, open it, measure; fail if a limit is exceeded."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--work", type=Path, required=True, help="a folder for the run, its page and the screenshots")
    arguments.add_argument("--steps", type=int, default=2500, help="steps of 20 episodes")
    arguments.add_argument("--openings", type=int, default=5)
    given = arguments.parse_args()
    work = given.work.resolve()
    run = work / f"run-{given.steps}"
    if not run.is_dir():
        recorded_run(run, steps=given.steps, groups=4, members=5, longest=200)
    began = time.process_time()
    made = write_page(run)
    wrote = time.process_time() - began
    print(f"{made.episodes:,} episodes, {made.bytes / 1e6:.1f} MB, written in {wrote:.1f} s of a processor")
    openings, asked, complaints = [], [], []
    with Chromium() as chromium:
        for n in range(given.openings):
            theme = ("light", "dark")[n % 2]
            page, times = opened(chromium, made.path, theme)
            openings.append(times)
            asked.append(changes(page))
            if n < 2:
                photographed(page, work, theme)
            complaints += page.errors() + [address for address in page.requests() if not address.startswith(made.path.as_uri())]
            page.ask("Page.close")
    rows = [same[0] | {key: statistics.median(row[key] for row in same) for key in ("ms", "whole_ms")} for same in zip(*asked, strict=True)]
    for row in rows:
        print(f"{row['change']:<18} {row['left']:>26} {row['ms']:>7.0f} ms {row['whole_ms']:>7.0f} ms")
    found = {name: round(statistics.median(times[name] for times in openings), 3) for name in openings[0]}
    found |= {"slowest_first_paint_s": round(max(times["first_paint_s"] for times in openings), 3)}
    found |= {"slowest_filter_ms": round(max(row["ms"] for row in rows)), "slowest_whole_ms": round(max(row["whole_ms"] for row in rows))}
    size = {"episodes": made.episodes, "page_mb": round(made.bytes / 1e6, 1), "write_cpu_s": round(wrote, 1)}
    print(json.dumps(size | found | {"complaints": complaints}))
    raise SystemExit(bool(complaints) or found["first_paint_s"] > PAINT_S or found["slowest_filter_ms"] > FILTER_MS)


if __name__ == "__main__":
    main()
