"""The pictures of learning curves: one way to draw them, and the same file for the same numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Line:
    """One run in a picture.

    >>> Line("grpo", "#1f4e8c", ([0.0, 10.0],), [0.2, 0.9]).style
    '-'
    """

    name: str
    """Lines of one name share an entry in the legend."""
    colour: str
    along: tuple[Sequence[float], ...]
    """For each panel, where the points are: steps, seconds, ..."""
    heights: Sequence[float]
    style: str = "-"


def plotted(
    lines: Sequence[Line], path: Path, *, units: Sequence[str], height: str, levels: Sequence[tuple[str, float, str]] = (), start: float = 0
) -> None:
    """Draw every line in one panel for each unit; `levels` are horizontal lines: name, height, style. PNG or SVG, by the file's name."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "rlvr"  # the same file for the same numbers
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9 if len(units) > 1 else 7, 4), layout="constrained")
    panels = figure.subplots(1, len(units), sharey=True, squeeze=False)[0]
    for where, (axes, unit) in enumerate(zip(panels, units, strict=True)):
        named = set[str]()
        for line in lines:
            label = None if where or line.name in named else line.name
            named.add(line.name)
            axes.plot(line.along[where], line.heights, color=line.colour, linestyle=line.style, linewidth=1.5, label=label)
        for name, level, style in levels:
            axes.axhline(level, color="#666666", linestyle=style, linewidth=1, label=None if where else name)
        axes.set(xlabel=unit, ylabel=None if where else height, ylim=(0, 1.02), xlim=(start, None))
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
    figure.legend(frameon=False, loc="outside lower center", ncols=4, fontsize=9)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None, dpi=110)
