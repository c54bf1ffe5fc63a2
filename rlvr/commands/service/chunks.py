"""Rows on their way to a worker process, and which of them it is judging right now."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterable, Sequence

ALONE = 10
"""After how many deaths of a process that only had a row, and did not judge it then, the row is judged alone."""
Told = Callable[[bytes, int], None]
"""Gets lines with verdicts, each with the index of its row and a line feed at its end, and how many they are."""


class Chunk:
    """Consecutive rows of a request that one process judges, and whom to tell.

    >>> Chunk("numeric", [b'{"reference": "4", "answer": "4"}'], 7, print).left
    {0}
    """

    __slots__ = ("left", "lost", "place", "rows", "slot", "told", "tries", "verifier")

    def __init__(self, verifier: str, rows: Sequence[bytes], place: int, told: Told, *, tries: int = 0, lost: int = 0) -> None:
        self.verifier, self.rows, self.place, self.told, self.tries, self.lost = verifier, rows, place, told, tries, lost
        """`place` is that of the first row. How many processes died while they judged it, and how many that only had it."""
        self.left, self.slot = set(range(len(rows))), 0

    @property
    def alone(self) -> bool:
        """Whether a process that has it must have nothing else, because it may have killed one."""
        return self.tries > 0 or self.lost >= ALONE

    def part(self, rows: range, *, tries: int, lost: int) -> Chunk:
        """Some of its rows as another chunk.

        >>> Chunk("numeric", [b"{}", b"{}", b"{}"], 7, print).part(range(1, 3), tries=0, lost=1).place
        8
        """
        return Chunk(self.verifier, self.rows[rows.start : rows.stop], self.place + rows.start, self.told, tries=tries, lost=lost)


def runs(numbers: Iterable[int]) -> list[range]:
    """Ascending numbers as ranges without gaps.

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
    """The row that is being judged in each chunk of a process, in a file that can be read after its death.

    Verdicts that were not sent yet are lost with a process, so the server could not tell the row that was being judged from its neighbours.

    >>> from tempfile import TemporaryFile
    >>> with TemporaryFile() as file:
    ...     marks = Marks(file.fileno(), slots=2); marks.begin(1, 7)
    ...     found = marks.judged(0, {7, 8}), marks.judged(1, {7, 8}); marks.close()
    >>> found
    (set(), {7})
    """

    ALL = -1

    def __init__(self, descriptor: int, *, slots: int) -> None:
        """Map the file, which both processes have open."""
        os.ftruncate(descriptor, 4 * slots)
        self._map = mmap.mmap(descriptor, 4 * slots)
        self._marks = memoryview(self._map).cast("i")

    def begin(self, slot: int, row: int) -> None:
        """The row is judged from now on, and no other of its chunk."""
        self._marks[slot] = row + 1

    def begin_all(self, slot: int) -> None:
        """All rows of a chunk are judged together."""
        self._marks[slot] = self.ALL

    def end(self, slot: int) -> None:
        """No row of the chunk is judged."""
        self._marks[slot] = 0

    def judged(self, slot: int, left: set[int]) -> set[int]:
        """Which of the rows without a verdict are being judged."""
        mark = self._marks[slot]
        return set(left) if mark == self.ALL else left & {mark - 1}

    def close(self) -> None:
        """Release the memory."""
        self._marks.release()
        self._map.close()
