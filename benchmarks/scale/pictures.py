"""Draw what the simulation found, for docs/cluster.md.

python benchmarks/scale/simulate.py --only tail > tail.jsonl python benchmarks/scale/simulate.py --only internet --workers 200 1000 5000
10000 > internet.jsonl python benchmarks/scale/pictures.py tail.jsonl internet.jsonl [--out docs/pictures]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("agg")
from matplotlib import pyplot

matplotlib.rcParams["svg.hashsalt"] = "rlvr"  # the same file for the same numbers


def rows_of(path: Path) -> list[dict[str, Any]]:
    """The rows of the simulation, without its last line."""
    return [row for line in path.read_text("utf-8").splitlines() if "rule" in (row := json.loads(line))]


def saved(figure: Any, path: Path) -> None:
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def tail(rows: list[dict[str, Any]], path: Path) -> None:
    """Seconds of a step by rule, and the published ones."""
    rows = [row for row in rows if row["machines"] == 64 and row["rule"] != "synchronous"][::-1]
    figure, axes = pyplot.subplots(figsize=(7.5, 4), layout="constrained")
    places = range(len(rows))
    axes.barh(places, [row["step_s"] for row in rows], color="#4c78a8", label="simulated")
    for same, marker, label in ((True, "D", "published, the same rule"), (False, "o", "published, another rule")):
        known = [(row["published_s"], place) for place, row in zip(places, rows, strict=True) if row.get("same_rule") is same]
        if known:
            axes.plot(*zip(*known, strict=True), marker, color="#e45756", label=label)
    for place, row in zip(places, rows, strict=True):
        axes.text(
            max(row["step_s"], row.get("published_s", 0)) + 8,
            place,
            f"{row['step_s']:.0f} s, age {row['mean_age']:.1f}",
            va="center",
            fontsize=8,
        )
    axes.set_yticks(places, [row["rule"] for row in rows])
    axes.set_xlim(0, 1.25 * max(row["step_s"] for row in rows))
    axes.set_xlabel("seconds of a step; age of a trained token in steps")
    axes.legend(loc="lower right", fontsize=8)
    saved(figure, path)


def internet(rows: list[dict[str, Any]], path: Path) -> None:
    """Seconds of a step, and what the pool takes of them, by the number of workers."""
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9, 4.2), layout="constrained")
    for name in dict.fromkeys((row["rule"], row["note"]) for row in rows):
        known = [row for row in rows if (row["rule"], row["note"]) == name]
        workers = [row["machines"] for row in known]
        style = {"marker": "o", "label": ", ".join(name), "linestyle": "--" if name[1].startswith("whole") else "-"}
        left.plot(workers, [row["step_s"] for row in known], **style)
        right.plot(workers, [row["pool_us_a_group"] * row["machines"] / 1e6 for row in known], **style)
    left.axhline(300, color="#888888", linewidth=1, linestyle=":")
    left.text(200, 300, " the trainer alone", va="bottom", fontsize=8, color="#555555")
    for axes, label in ((left, "seconds of a step"), (right, "seconds that the pool computes in a step")):
        axes.set(xscale="log", yscale="log", xlabel="workers", ylabel=label)
        axes.set_xticks(sorted({row["machines"] for row in rows}), minor=False)
        axes.minorticks_off()
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter("{x:,g}")
    left.set_yticks([300, 500, 1000, 2000, 5000, 10_000])
    handles, names = left.get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=3, fontsize=8, frameon=False)
    saved(figure, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tail", type=Path)
    parser.add_argument("internet", type=Path)
    parser.add_argument("--out", type=Path, default=Path("docs/pictures"))
    args = parser.parse_args()
    tail(rows_of(args.tail), args.out / "schedules.svg")
    internet(rows_of(args.internet), args.out / "lent_machines.svg")


if __name__ == "__main__":
    main()
