"""Tables for a terminal of any width: where the columns do not fit, each row is written as a block of names and values; and the console that
writes them.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import replace

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.padding import Padding
from rich.segment import Segment
from rich.table import Column, Table
from rich.text import Text

from rlvr.errors import escape_control_characters


class EscapingConsole(Console):
    r"""A console that writes control characters of its texts as escapes: a terminal would obey those that a model wrote.

    >>> EscapingConsole().print(Text("a\x1b[2Jb"))
    a\x1b[2Jb
    """

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render an object as segments without control characters, except those of the console itself."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(escape_control_characters(segment.text), segment.style)


class StackingTable(Table):
    """A table that never cuts a number or breaks a name.

    A terminal that is too narrow gets it without the columns that are 0 everywhere, or else one block for each row.

    >>> table = make_table(("environment", "avg@1", "95 %"), [("arithmetic", "100.0%", "88.9 to 100.0")])
    >>> Console(width=20).print(table)  # doctest: +NORMALIZE_WHITESPACE
    arithmetic
      avg@1   100.0%
      95 %    88.9 to
              100.0
    """

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self._compute_needed_width(self.columns) <= options.max_width:
            yield from super().__rich_console__(console, options)
            return
        told = [column for k, column in enumerate(self.columns) if k == 0 or any(str(cell) not in ("0", "") for cell in column.cells)]
        zeros = [str(column.header) for column in self.columns if column not in told]
        if zeros and self._compute_needed_width(told) <= options.max_width:
            narrow = copy.copy(self)
            narrow.columns = [replace(column, _index=k) for k, column in enumerate(told)]
            yield from Table.__rich_console__(narrow, console, options)
            yield Text(f"0 everywhere: {', '.join(zeros)}", style="dim")
            return
        yield from self._stack()

    def _stack(self) -> RenderResult:
        """Write each row as a block of names and values."""
        if self.title:
            yield Text(str(self.title), style="bold")
        for cells in zip(*(list(column.cells) for column in self.columns), strict=True):
            key, *values = cells
            if str(key).strip():
                yield Text(str(key), style="bold")
            block = Table.grid(padding=(0, 3))
            for column, value in zip(self.columns[1:], values, strict=True):
                if str(value).strip():
                    block.add_row(Text(str(column.header), style="dim"), value)
            yield Padding(block, (0, 0, 0, 2))

    def _compute_needed_width(self, columns: Sequence[Column]) -> int:
        """Compute the width at which no word is broken. What rich measures is less where columns do not wrap."""
        gap = 2 if self.collapse_padding else 3  # a divider and the padding beside it
        needed = gap * (len(columns) - 1)
        for column in columns:
            texts = [str(column.header), *map(str, column.cells)]
            needed += max(cell_len(part) for text in texts for part in ([text] if column.no_wrap else text.split() or [""]))
        return needed


def make_table(columns: Sequence[str], rows: Iterable[Sequence[str | Text]], *, title: str = "") -> Table:
    """Make a table with a rule under the head only; cells are never parsed as markup."""
    made = StackingTable(
        box=box.SIMPLE_HEAD, title=title or None, title_justify="left", title_style="bold", pad_edge=False, show_edge=False
    )
    for column in columns:
        made.add_column(column, overflow="fold")
    for row in rows:
        made.add_row(*(cell if isinstance(cell, Text) else Text(cell) for cell in row))
    return made


def align_numbers(table: Table, first_column: int = 1) -> Table:
    """Right-align the columns from `first_column` on, which hold numbers, without wrapping."""
    table.collapse_padding = True
    for column in table.columns[first_column:]:
        column.justify = "right"
        column.no_wrap = True
    return table
