"""Chunks of rows for the worker processes, and shared marks of the rows that a worker is verifying."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterable, Sequence

ALONE = 10
"""A row is isolated after this many deaths of processes that held it without verifying it at that moment."""
Told = Callable[[bytes, int], None]
"""Callback for verdict lines (each with the index of its row and a final line feed) and their number."""


class Chunk:
    """Consecutive rows of a request for one worker process, with the callback for their verdicts.

    >>> Chunk("numeric", [b'{"reference": "4", "answer": "4"}'], 7, print).left
    {0}
    """

    __slots__ = ("left", "lost", "place", "rows", "slot", "told", "tries", "verifier")

    def __init__(self, verifier: str, rows: Sequence[bytes], place: int, told: Told, *, tries: int = 0, lost: int = 0) -> None:
        self.verifier, self.rows, self.place, self.told, self.tries, self.lost = verifier, rows, place, told, tries, lost
        """The index of the first row in its request; how many processes died while verifying the row, and while only holding it."""
        self.left, self.slot = set(range(len(rows))), 0

    @property
    def alone(self) -> bool:
        """Whether the chunk needs a process of its own, because one of its rows may have killed a process."""
        return self.tries > 0 or self.lost >= ALONE

    def part(self, rows: range, *, tries: int, lost: int) -> Chunk:
        """Make a chunk of some of the rows.

        >>> Chunk("numeric", [b"{}", b"{}", b"{}"], 7, print).part(range(1, 3), tries=0, lost=1).place
        8
        """
        return Chunk(self.verifier, self.rows[rows.start : rows.stop], self.place + rows.start, self.told, tries=tries, lost=lost)


def runs(numbers: Iterable[int]) -> list[range]:
    """Group ascending numbers into ranges without gaps.

    >>> runs([0, 1, 2, 5, 7, 8])
    [range(0, 3), range(5, 6), range(7, 9)]
    """
    found: list[range] = []
    for number in numbers:
        if found and found[-1].stop == number:
            found[-1] = range(found[-1].start, number + 1)
        else:
            found.append(range(number, number + 1))
    return found


class Marks:
    """The row that a worker is verifying in each of its chunks, in a shared file that survives the death of the worker.

    Unsent verdicts are lost when a worker dies; only the marks tell the server which row was being verified at that moment.

    >>> from tempfile import TemporaryFile
    >>> with TemporaryFile() as file:
    ...     marks = Marks(file.fileno(), slots=2); marks.begin(1, 7)
    ...     found = marks.judged(0, {7, 8}), marks.judged(1, {7, 8}); marks.close()
    >>> found
    (set(), {7})
    """

    ALL = -1

    def __init__(self, descriptor: int, *, slots: int) -> None:
        """Map the file that server and worker share."""
        os.ftruncate(descriptor, 4 * slots)
        self._map = mmap.mmap(descriptor, 4 * slots)
        self._marks = memoryview(self._map).cast("i")

    def begin(self, slot: int, row: int) -> None:
        """Mark a row of the chunk in a slot as being verified."""
        self._marks[slot] = row + 1

    def begin_all(self, slot: int) -> None:
        """Mark all rows of the chunk in a slot as being verified together."""
        self._marks[slot] = self.ALL

    def end(self, slot: int) -> None:
        """Clear the mark of a slot."""
        self._marks[slot] = 0

    def judged(self, slot: int, left: set[int]) -> set[int]:
        """Return the rows without a verdict that are marked as being verified."""
        mark = self._marks[slot]
        return set(left) if mark == self.ALL else left & {mark - 1}

    def close(self) -> None:
        """Unmap the file."""
        self._marks.release()
        self._map.close()
