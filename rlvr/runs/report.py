"""Plot the reward curve of a finished run, in the terminal and as a PNG."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

BRAILLE_BITS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""The bits of a braille character, two columns by four rows."""


def compute_trailing_mean(values: Sequence[float], window: int) -> list[float]:
    """Compute the trailing mean over `window` values.

    >>> compute_trailing_mean([0.0, 1.0, 1.0], 2)
    [0.0, 0.5, 1.0]
    """
    return [sum(values[max(0, i - window + 1) : i + 1]) / min(i + 1, window) for i in range(len(values))]


def plot_curve(values: Sequence[float], name: str, *, encoding: str = "utf-8") -> str:
    """Plot the curve of a run for the terminal, smoothed if it has enough steps; in ASCII where `encoding` has no braille."""
    window = 5 if len(values) >= 10 else 1
    plot = _plot_braille(compute_trailing_mean(values, window), title=f"{name} (mean of 5 steps)" if window > 1 else name)
    try:
        plot.encode(encoding)
        return plot
    except (UnicodeEncodeError, LookupError):
        return _convert_plot_to_ascii(plot)


def _convert_plot_to_ascii(plot: str) -> str:
    """Convert a plot of braille characters to ASCII: the height of a point in its line is `'`, `-`, `.`, and `|` if it spans several.

    >>> _convert_plot_to_ascii("1.0 ┤⠁⣀⡇")
    "1.0 |'.|"
    """
    return "".join(_convert_character(sign) for sign in plot)


def _convert_character(sign: str) -> str:
    if not 0x2800 <= ord(sign) <= 0x28FF:
        return {"┤": "|", "└": "+", "─": "-"}.get(sign, sign if sign.isascii() else "?")
    bits = ord(sign) - 0x2800
    rows = [row for row, pair in enumerate(BRAILLE_BITS) if bits & (pair[0] | pair[1])]
    if not rows:
        return " "
    return "|" if rows[-1] - rows[0] > 1 else "'--."[rows[0]] if len(rows) == 1 else "-"


def _plot_braille(values: Sequence[float], *, width: int = 60, height: int = 8, title: str = "") -> str:
    """Plot a curve in braille characters with axis labels, for any terminal."""
    if not values:
        return f"{title}: nothing to plot"
    low, high = min(values), max(values)
    low, high = (0.0 if 0 <= low < 0.2 else low), (1.0 if 0.8 < high <= 1 else high)
    span = (high - low) or 1.0
    columns, rows = width * 2, height * 4
    cells = [[0] * width for _ in range(height)]
    for x in range(columns):
        value = values[min(len(values) - 1, x * len(values) // columns)]
        y = rows - 1 - round((value - low) / span * (rows - 1))
        cells[y // 4][x // 2] |= BRAILLE_BITS[y % 4][x % 2]
    lines = ["".join(chr(0x2800 + bits) for bits in row) for row in cells]
    labels = [f"{high:.2f}" if high > low else "", *[""] * (height - 2), f"{low:.2f}"]
    edge = max(6, *map(len, labels))
    body = "\n".join(f"{label:>{edge}} ┤{line}" for label, line in zip(labels, lines, strict=True))
    return f"{title}\n{body}\n{'':>{edge}} └{'─' * width}\n{'':>{edge + 2}}step 1{f'step {len(values)}':>{width - 6}}"


def save_reward_plot(path: Path, rewards: Sequence[float], accuracy_before: float | None, accuracy_after: float | None) -> None:
    """Save the reward curve as a PNG, with the held-out accuracy before and after training as lines."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4))
    axes = figure.subplots(gridspec_kw={"left": 0.15, "right": 0.98, "top": 0.97, "bottom": 0.25})
    steps = range(1, len(rewards) + 1)
    axes.plot(steps, rewards, color="#9db8d9", linewidth=1, label="mean reward of each step")
    axes.plot(steps, compute_trailing_mean(rewards, 10), color="#1f4e8c", linewidth=2, label="mean reward of the last 10 steps")
    for value, name, style, colour in ((accuracy_before, "before", ":", "#6b6b6b"), (accuracy_after, "after", "--", "#b5541c")):
        if value is not None:
            axes.axhline(value, color=colour, linestyle=style, linewidth=1.4, label=f"held-out score {name} training: {value:.3g}")
    if all(0 <= reward <= 1 for reward in rewards):  # also if no step has one
        axes.set_ylim(-0.02, 1.02)
    axes.set(xlabel="step", ylabel="reward, held-out score", xlim=(1, max(len(rewards), 2)))
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    figure.legend(frameon=False, loc="lower center", ncols=2, fontsize=9)  # below the curves, so that it covers none
    figure.savefig(path, dpi=130, pil_kwargs={"compress_level": 1})
