"""The rows of a request with their verdicts, and a store of the requests that had an `Idempotency-Key`.

A client that repeats a request with the same key gets the verdicts of the first request, including those that are still to come.
Verdicts with fault `infra` are not kept: repeating the request verifies those rows again.
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
"""The maximum size of the jobs that are kept for repeated requests."""
OVERHEAD, ROW_OVERHEAD = 2000, 150
"""The approximate size of a job and of each row in bytes, without their text."""
NO_SCORE = b'"score": null'


class Overloaded(Exception):
    """The queue has no room for the rows of a request."""


class Mismatch(ValueError):
    """An `Idempotency-Key` was used before with other content."""


class Job:
    """The rows of one request, and the verdict lines received so far; any number of readers can stream the lines."""

    def __init__(self, pool: Pool, verifier: str, rows: Sequence[bytes], digest: str = "") -> None:
        self.pool, self.verifier, self.rows, self.digest = pool, verifier, rows, digest
        self.blocks: list[bytes] = []
        """Verdict lines in the order of completion."""
        self.count, self.kept = 0, frozenset[int]()
        """The number of rows with a verdict, and the indices of the rows that had one before the start."""
        self.bytes = OVERHEAD + sum(map(len, rows)) + ROW_OVERHEAD * len(rows)
        self._news = asyncio.Event()
        self.told: Told = self._told

    def start(self) -> None:
        """Submit the rows without a verdict to the pool."""
        self.pool.submit(self.verifier, self.rows, self.told, done=self.kept)

    def _told(self, lines: bytes, count: int) -> None:
        self.blocks.append(lines)
        self.count += count
        self.bytes += len(lines)
        self._news.set()

    @property
    def done(self) -> bool:
        """Whether every row has a line."""
        return self.count == len(self.rows)

    @property
    def failures(self) -> bool:
        """Whether a row has no score because of an infrastructure failure."""
        return any(_failed(line) for block in self.blocks if NO_SCORE in block for line in block.splitlines())

    def again(self) -> Job:
        """Make a job for the same rows that keeps all verdicts but the failed ones."""
        fresh = Job(self.pool, self.verifier, self.rows, self.digest)
        good = [line for line in b"".join(self.blocks).splitlines() if not _failed(line)]
        if good:
            fresh._told(b"\n".join([*good, b""]), len(good))
        fresh.kept = frozenset(map(index_of, good))
        return fresh

    async def ended(self) -> AsyncIterator[bytes]:
        """Yield lines in the order of completion; several readers may iterate at once."""
        sent, lines = 0, 0
        while lines < len(self.rows):
            if len(self.blocks) == sent:
                self._news.clear()
                await self._news.wait()
            lines, blocks = self.count, self.blocks[sent:]
            sent += len(blocks)
            yield b"".join(blocks)

    async def all(self) -> list[bytes]:
        """Wait for all lines and return them in the order of the rows, without the index."""
        lines = [line async for block in self.ended() for line in block.splitlines()]
        return [without_index(line) for line in sorted(lines, key=index_of)]

    def drop(self) -> None:
        """Cancel the rows that no process has yet."""
        self.pool.drop(self.told)


def _failed(line: bytes) -> bool:
    return NO_SCORE in line and b'"fault": "infra"' in line


class Jobs:
    """Starts jobs within the limit of the queue, and keeps those with an `Idempotency-Key`."""

    def __init__(self, pool: Pool, *, most: int) -> None:
        self.pool, self.most = pool, most
        self.kept: OrderedDict[str, Job] = OrderedDict()
        self.fresh = 0
        """Bytes added since the last removal of old jobs."""

    def job(self, verifier: str, rows: Sequence[bytes], key: str) -> Job:
        """Return a started job: the job of this key, or a new one."""
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
        """Start a job; raise Overloaded if the queue has no room for its rows."""
        if self.pool.waiting + len(job.rows) - job.count > self.most:
            raise Overloaded
        job.start()
        return job

    def _trim(self) -> None:
        """Remove the oldest finished jobs. The scan covers all jobs, so it does not run for each request."""
        self.fresh = 0
        size = sum(job.bytes for job in self.kept.values())
        for key in [key for key, job in self.kept.items() if job.done]:
            if size <= REMEMBERED:
                return
            size -= self.kept.pop(key).bytes
