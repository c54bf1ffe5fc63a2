"""The rows of one request and their verdicts, and the memory of requests that carried a key.

A client that repeats a request with the same `Idempotency-Key` gets the verdicts of the first one, also those that come only now.
Verdicts without a score are not remembered: repeating the request judges those rows again.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence

from rlvr.commands.service.chunks import Told
from rlvr.commands.service.pool import Pool
from rlvr.commands.service.rows import index_of, without_index

REMEMBERED = 64 << 20
"""How many bytes of verdicts are remembered for clients that repeat a request."""
OVERHEAD, ROW_OVERHEAD = 2000, 150
"""About how many bytes a job and each of its rows take besides their text."""
NO_SCORE = b'"score": null'


class Overloaded(Exception):
    """Too many rows wait already."""


class Mismatch(ValueError):
    """A key was used for another request."""


class Job:
    """One request: its rows, and a line for each as it ends.

    >>> job = Job(pool, "numeric", rows); job.start()                                         # doctest: +SKIP
    >>> async for lines in job.ended(): ...                                                   # doctest: +SKIP
    """

    def __init__(self, pool: Pool, verifier: str, rows: Sequence[bytes], digest: str = "") -> None:
        self.pool, self.verifier, self.rows, self.digest = pool, verifier, rows, digest
        self.blocks: list[bytes] = []
        """Lines, in the order in which their rows ended."""
        self.count, self.kept = 0, frozenset[int]()
        """How many rows have ended, and the places of those that had before it started."""
        self.bytes = OVERHEAD + sum(map(len, rows)) + ROW_OVERHEAD * len(rows)
        self._news = asyncio.Event()
        self.told: Told = self._told

    def start(self) -> None:
        """Begin to judge the rows that have no verdict."""
        self.pool.submit(self.verifier, self.rows, self.told, done=self.kept)

    def _told(self, lines: bytes, count: int) -> None:
        self.blocks.append(lines)
        self.count += count
        self.bytes += len(lines)
        self._news.set()

    @property
    def done(self) -> bool:
        """Whether every row has its line."""
        return self.count == len(self.rows)

    @property
    def failures(self) -> bool:
        """Whether a verdict is missing because the machinery failed."""
        return any(_failed(line) for block in self.blocks if NO_SCORE in block for line in block.splitlines())

    def again(self) -> Job:
        """A job for the same rows that has the verdicts of this one, without those that failed."""
        fresh = Job(self.pool, self.verifier, self.rows, self.digest)
        good = [line for line in b"".join(self.blocks).splitlines() if not _failed(line)]
        if good:
            fresh._told(b"\n".join([*good, b""]), len(good))
        fresh.kept = frozenset(map(index_of, good))
        return fresh

    async def ended(self) -> AsyncIterator[bytes]:
        """Lines as their rows end; for any number of readers."""
        sent, lines = 0, 0
        while lines < len(self.rows):
            if len(self.blocks) == sent:
                self._news.clear()
                await self._news.wait()
            lines, blocks = self.count, self.blocks[sent:]
            sent += len(blocks)
            yield b"".join(blocks)

    async def all(self) -> list[bytes]:
        """Every row's line, in the order of the rows, without its index."""
        lines = [line async for block in self.ended() for line in block.splitlines()]
        return [without_index(line) for line in sorted(lines, key=index_of)]

    def drop(self) -> None:
        """Nobody waits for it any more: what has not begun is not judged."""
        self.pool.drop(self.told)


def _failed(line: bytes) -> bool:
    return NO_SCORE in line and b'"fault": "infra"' in line


class Jobs:
    """Starts jobs within the bounds of the queue, and remembers those with a key.

    >>> Jobs(pool, most=10_000).job("numeric", rows, key="")                                  # doctest: +SKIP
    """

    def __init__(self, pool: Pool, *, most: int) -> None:
        self.pool, self.most = pool, most
        self.kept: OrderedDict[str, Job] = OrderedDict()
        self.fresh = 0
        """Bytes of the rows that were added since it was last looked whether old jobs must go."""

    def job(self, verifier: str, rows: Sequence[bytes], key: str) -> Job:
        """A job that runs: a new one, or the one that this key began."""
        if not key:
            return self._begun(Job(self.pool, verifier, rows))
        sums = hashlib.sha256(verifier.encode())
        for row in rows:
            sums.update(b"\n" + row)
        known, digest = self.kept.get(key), sums.hexdigest()
        if known is None:
            fresh = self._begun(Job(self.pool, verifier, rows, digest))
            self.kept[key] = fresh
            self.fresh += fresh.bytes
            if self.fresh > REMEMBERED // 16:
                self._trim()
            return fresh
        if known.digest != digest:
            raise Mismatch("this Idempotency-Key was used for a request with other content; use a new key for each request")
        self.kept.move_to_end(key)
        if known.done and known.failures:
            known = self.kept[key] = self._begun(known.again())
        return known

    def _begun(self, job: Job) -> Job:
        """Start a job, if the queue has room for its rows."""
        if self.pool.waiting + len(job.rows) - job.count > self.most:
            raise Overloaded
        job.start()
        return job

    def _trim(self) -> None:
        """Forget the oldest jobs that have ended. It reads all of them, so it is not done for each request."""
        self.fresh = 0
        size = sum(job.bytes for job in self.kept.values())
        for key in [key for key, job in self.kept.items() if job.done]:
            if size <= REMEMBERED:
                return
            size -= self.kept.pop(key).bytes
