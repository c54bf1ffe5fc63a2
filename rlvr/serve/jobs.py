"""The rows of a request with their verdicts, and a store of the requests that had an `Idempotency-Key`.

A client that repeats a request with the same key gets the verdicts of the first request, including those that are still to come.
Verdicts with fault `infra` are not kept: repeating the request verifies those rows again.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence

from rlvr.serve.chunks import OnLines
from rlvr.serve.pool import ServicePool
from rlvr.serve.rows import parse_row_index, strip_row_index

MAX_REMEMBERED_BYTES = 64 << 20
"""The maximum size of the jobs that are kept for repeated requests."""
JOB_OVERHEAD_BYTES, ROW_OVERHEAD_BYTES = 2000, 150
"""The approximate size of a job and of each row in bytes, without their text."""
NO_SCORE = b'"score": null'


class Overloaded(Exception):
    """The queue has no room for the rows of a request."""


class IdempotencyKeyReused(ValueError):
    """An `Idempotency-Key` was used before with other content."""


class VerifyJob:
    """The rows of one request, and the verdict lines received so far; any number of readers can stream the lines."""

    def __init__(self, pool: ServicePool, verifier: str, rows: Sequence[bytes], digest: str = "") -> None:
        self.pool, self.verifier, self.rows, self.digest = pool, verifier, rows, digest
        self.line_blocks: list[bytes] = []
        """Verdict lines in the order of completion."""
        self.num_done, self.done_rows = 0, frozenset[int]()
        """The number of rows with a verdict, and the indices of the rows that had one before the start."""
        self.size_bytes = JOB_OVERHEAD_BYTES + sum(map(len, rows)) + ROW_OVERHEAD_BYTES * len(rows)
        self._new_lines = asyncio.Event()
        self.on_lines: OnLines = self._add_lines

    def start(self) -> None:
        """Submit the rows without a verdict to the pool."""
        self.pool.submit(self.verifier, self.rows, self.on_lines, done_rows=self.done_rows)

    def _add_lines(self, lines: bytes, count: int) -> None:
        self.line_blocks.append(lines)
        self.num_done += count
        self.size_bytes += len(lines)
        self._new_lines.set()

    @property
    def is_done(self) -> bool:
        """Whether every row has a line."""
        return self.num_done == len(self.rows)

    @property
    def has_infra_failures(self) -> bool:
        """Whether a row has no score because of an infrastructure failure."""
        return any(_is_failed_line(line) for block in self.line_blocks if NO_SCORE in block for line in block.splitlines())

    def make_retry(self) -> VerifyJob:
        """Make a job for the same rows that keeps all verdicts but the failed ones."""
        fresh = VerifyJob(self.pool, self.verifier, self.rows, self.digest)
        good = [line for line in b"".join(self.line_blocks).splitlines() if not _is_failed_line(line)]
        if good:
            fresh._add_lines(b"\n".join([*good, b""]), len(good))
        fresh.done_rows = frozenset(map(parse_row_index, good))
        return fresh

    async def iter_lines(self) -> AsyncIterator[bytes]:
        """Yield lines in the order of completion; several readers may iterate at once."""
        sent, lines = 0, 0
        while lines < len(self.rows):
            if len(self.line_blocks) == sent:
                self._new_lines.clear()
                await self._new_lines.wait()
            lines, blocks = self.num_done, self.line_blocks[sent:]
            sent += len(blocks)
            yield b"".join(blocks)

    async def collect_lines(self) -> list[bytes]:
        """Wait for all lines and return them in the order of the rows, without the index."""
        lines = [line async for block in self.iter_lines() for line in block.splitlines()]
        return [strip_row_index(line) for line in sorted(lines, key=parse_row_index)]

    def cancel_queued_rows(self) -> None:
        """Cancel the rows that no process has yet."""
        self.pool.cancel_rows(self.on_lines)


def _is_failed_line(line: bytes) -> bool:
    return NO_SCORE in line and b'"fault": "infra"' in line


class JobQueue:
    """Starts jobs within the limit of the queue, and keeps those with an `Idempotency-Key`."""

    def __init__(self, pool: ServicePool, *, max_rows: int) -> None:
        self.pool, self.max_rows = pool, max_rows
        self.jobs_by_key: OrderedDict[str, VerifyJob] = OrderedDict()
        self.new_bytes = 0
        """Bytes added since the last removal of old jobs."""

    def get_or_start(self, verifier: str, rows: Sequence[bytes], idempotency_key: str) -> VerifyJob:
        """Return a started job: the job of this key, or a new one."""
        if not idempotency_key:
            return self._start(VerifyJob(self.pool, verifier, rows))
        sums = hashlib.sha256(verifier.encode())
        for row in rows:
            sums.update(b"\n" + row)
        known, digest = self.jobs_by_key.get(idempotency_key), sums.hexdigest()
        if known is None:
            fresh = self._start(VerifyJob(self.pool, verifier, rows, digest))
            self.jobs_by_key[idempotency_key] = fresh
            self.new_bytes += fresh.size_bytes
            if self.new_bytes > MAX_REMEMBERED_BYTES // 16:
                self._forget_old_jobs()
            return fresh
        if known.digest != digest:
            raise IdempotencyKeyReused("this Idempotency-Key was used for a request with other content; use a new key for each request")
        self.jobs_by_key.move_to_end(idempotency_key)
        if known.is_done and known.has_infra_failures:
            known = self.jobs_by_key[idempotency_key] = self._start(known.make_retry())
        return known

    def _start(self, job: VerifyJob) -> VerifyJob:
        """Start a job; raise Overloaded if the queue has no room for its rows."""
        if self.pool.num_waiting_rows + len(job.rows) - job.num_done > self.max_rows:
            raise Overloaded
        job.start()
        return job

    def _forget_old_jobs(self) -> None:
        """Remove the oldest finished jobs. The scan covers all jobs, so it does not run for each request."""
        self.new_bytes = 0
        size = sum(job.size_bytes for job in self.jobs_by_key.values())
        for key in [key for key, job in self.jobs_by_key.items() if job.is_done]:
            if size <= MAX_REMEMBERED_BYTES:
                return
            size -= self.jobs_by_key.pop(key).size_bytes
