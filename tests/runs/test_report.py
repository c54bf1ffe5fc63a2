"""The curve of a run for the terminal."""

from __future__ import annotations

from rlvr.runs.report import plot_curve


def test_a_short_run_is_not_smoothed_and_a_flat_one_has_one_label() -> None:
    title, *lines = plot_curve([0.0, 0.0], "reward").splitlines()
    assert title == "reward" and [line.split("┤")[0].strip() for line in lines[:8]] == [""] * 7 + ["0.00"]
    title, *lines = plot_curve([0.0] * 9 + [1.0], "reward").splitlines()
    assert title == "reward (mean of 5 steps)" and [line.split("┤")[0].strip() for line in lines[:8]] == ["0.20", *[""] * 6, "0.00"]
    assert plot_curve([], "reward") == "reward: nothing to plot"
