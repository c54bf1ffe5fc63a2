"""Chunks of rows for the worker processes, and shared marks of the rows that a worker is verifying."""

from __future__ import annotations

import mmap
import os
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence

MAX_SHARED_DEATHS = 10
"""A row is isolated after this many deaths of processes that held it without verifying it at that moment."""
OnLines = Callable[[bytes, int], None]
"""Callback for verdict lines (each with the index of its row and a final line feed) and their number."""


class RowChunk:
    """Consecutive rows of a request for one worker process, with the callback for their verdicts.

    >>> RowChunk("numeric", [b'{"reference": "4", "answer": "4"}'], 7, print).pending_rows
    {0}
    """

    __slots__ = (
        "first_index",
        "num_deaths_holding",
        "num_deaths_verifying",
        "on_lines",
        "pending_rows",
        "rows",
        "sent_time",
        "slot",
        "verifier",
    )

    def __init__(
        self,
        verifier: str,
        rows: Sequence[bytes],
        first_index: int,
        on_lines: OnLines,
        *,
        num_deaths_verifying: int = 0,
        num_deaths_holding: int = 0,
    ) -> None:
        self.verifier, self.rows, self.first_index, self.on_lines, self.num_deaths_verifying, self.num_deaths_holding = (
            verifier,
            rows,
            first_index,
            on_lines,
            num_deaths_verifying,
            num_deaths_holding,
        )
        """The index of the first row in its request; how many processes died while verifying the row, and while only holding it."""
        self.pending_rows, self.slot, self.sent_time = set(range(len(rows))), 0, 0.0

    @property
    def needs_own_process(self) -> bool:
        """Whether the chunk needs a process of its own, because one of its rows may have killed a process."""
        return self.num_deaths_verifying > 0 or self.num_deaths_holding >= MAX_SHARED_DEATHS

    def slice_rows(self, rows: range, *, num_deaths_verifying: int, num_deaths_holding: int) -> RowChunk:
        """Make a chunk of some of the rows.

        >>> RowChunk("numeric", [b"{}", b"{}", b"{}"], 7, print).slice_rows(range(1, 3), num_deaths_verifying=0, num_deaths_holding=1).first_index
        8
        """
        return RowChunk(
            self.verifier,
            self.rows[rows.start : rows.stop],
            self.first_index + rows.start,
            self.on_lines,
            num_deaths_verifying=num_deaths_verifying,
            num_deaths_holding=num_deaths_holding,
        )


class FairQueue:
    """Chunks that wait, taken from each request in turn, so that a small request does not wait for the end of a large one.

    >>> queue = FairQueue()
    >>> for name in ("a", "b"):
    ...     for place in range(2 if name == "a" else 1):
    ...         queue.append(RowChunk("numeric", [name.encode()], place, print if name == "a" else repr))
    >>> [queue.take().rows for _ in range(len(queue))]
    [[b'a'], [b'b'], [b'a']]
    """

    def __init__(self) -> None:
        self._requests: OrderedDict[OnLines, deque[RowChunk]] = OrderedDict()
        """The chunks of each request, which is known by its callback; the first request is served next."""

    def __len__(self) -> int:
        return sum(map(len, self._requests.values()))

    def __bool__(self) -> bool:
        return bool(self._requests)

    def __iter__(self) -> Iterator[RowChunk]:
        return (chunk for waiting in list(self._requests.values()) for chunk in list(waiting))

    def append(self, chunk: RowChunk) -> None:
        """Add a chunk as the last of its request."""
        self._requests.setdefault(chunk.on_lines, deque()).append(chunk)

    def appendleft(self, chunk: RowChunk) -> None:
        """Put a chunk before all other chunks of its request; the requests still take turns."""
        self._requests.setdefault(chunk.on_lines, deque()).appendleft(chunk)

    def remove(self, chunk: RowChunk) -> None:
        """Remove a chunk."""
        self._requests[chunk.on_lines].remove(chunk)
        if not self._requests[chunk.on_lines]:
            del self._requests[chunk.on_lines]

    def take(self, may_take: Callable[[RowChunk], bool] = lambda chunk: True) -> RowChunk | None:
        """Remove and return the first chunk of the next request whose chunk may be taken; None if there is none."""
        key = next((key for key, waiting in self._requests.items() if may_take(waiting[0])), None)
        if key is None:
            return None
        chunk = self._requests[key].popleft()
        if self._requests[key]:
            self._requests.move_to_end(key)
        else:
            del self._requests[key]
        return chunk


def group_into_ranges(numbers: Iterable[int]) -> list[range]:
    """Group ascending numbers into ranges without gaps.

    >>> group_into_ranges([0, 1, 2, 5, 7, 8])
    [range(0, 3), range(5, 6), range(7, 9)]
    """
    found: list[range] = []
    for number in numbers:
        if found and found[-1].stop == number:
            found[-1] = range(found[-1].start, number + 1)
        else:
            found.append(range(number, number + 1))
    return found


class ProgressMarks:
    """The row that a worker is verifying in each of its chunks, in a shared file that survives the death of the worker.

    Unsent verdicts are lost when a worker dies; only the marks tell the server which row was being verified at that moment.

    >>> from tempfile import TemporaryFile
    >>> with TemporaryFile() as file:
    ...     marks = ProgressMarks(file.fileno(), slots=2); marks.mark_row(1, 7)
    ...     found = marks.find_rows_in_progress(0, {7, 8}), marks.find_rows_in_progress(1, {7, 8}); marks.close()
    >>> found
    (set(), {7})
    """

    ALL_ROWS = -1

    def __init__(self, fd: int, *, slots: int) -> None:
        """Map the file that server and worker share."""
        os.ftruncate(fd, 4 * slots)
        self._map = mmap.mmap(fd, 4 * slots)
        self._marks = memoryview(self._map).cast("i")

    def mark_row(self, slot: int, row: int) -> None:
        """Mark a row of the chunk in a slot as being verified."""
        self._marks[slot] = row + 1

    def mark_joint_verification(self, slot: int) -> None:
        """Mark all rows of the chunk in a slot as being verified together."""
        self._marks[slot] = self.ALL_ROWS

    def clear(self, slot: int) -> None:
        """Clear the mark of a slot."""
        self._marks[slot] = 0

    def find_rows_in_progress(self, slot: int, pending_rows: set[int]) -> set[int]:
        """Return the rows without a verdict that are marked as being verified."""
        mark = self._marks[slot]
        return set(pending_rows) if mark == self.ALL_ROWS else pending_rows & {mark - 1}

    def close(self) -> None:
        """Unmap the file."""
        self._marks.release()
        self._map.close()
