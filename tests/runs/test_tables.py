"""Tables at any width: no number is cut, no name is broken, and the key is always there."""

from __future__ import annotations

import io
from collections.abc import Sequence

import pytest
from rich.console import Console

from rlvr.runs.tables import align_numbers, make_table

HEAD = ("environment", "avg@1", "95 %", "tasks", "scored", "unscored", "truncated", "failed")
ROWS = [("arithmetic_with_steps", "100.0%", "56.6–100.0", "500", "500", "0", "0", "0"), ("mean", "77.5%", "50.0–90.0", "", "", "", "", "")]


def shown(width: int, rows: Sequence[tuple[str, ...]] = ROWS) -> list[str]:
    file = io.StringIO()
    Console(file=file, width=width).print(align_numbers(make_table(HEAD, rows)))
    return [line.rstrip() for line in file.getvalue().splitlines()]


@pytest.mark.parametrize("width", range(24, 121, 4))
def test_every_cell_is_whole_at_every_width(width: int) -> None:
    lines = shown(width)
    assert max(map(len, lines)) <= width
    told = "\n".join(lines)
    for cell in (*(cell for row in ROWS for cell in row if cell not in ("", "0")), *HEAD[1:5]):
        assert cell in told, (width, cell)


def test_columns_of_zeros_go_first_and_then_rows_become_blocks() -> None:
    assert shown(120)[0].split() == [*HEAD[:2], "95", "%", *HEAD[3:]]
    narrow = shown(70)
    assert narrow[0].endswith("scored") and narrow[-1] == "0 everywhere: unscored, truncated, failed"
    assert shown(40)[:2] == ["arithmetic_with_steps", "  avg@1       100.0%"]
    assert "truncated" in shown(70, [(*ROWS[0][:6], "3", "0")])[0] or "truncated   3" in "\n".join(shown(70, [(*ROWS[0][:6], "3", "0")]))
