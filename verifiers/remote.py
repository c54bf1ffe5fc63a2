"""Verify answers with a verifier that `rlvr serve` serves on another machine."""

from __future__ import annotations

import asyncio
import json
import os
import re
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit

from rlvr.contracts import Verifier, VerifierExample
from rlvr.contracts.fault_rule import AnswerAtFault, aretry_and_attribute_failure
from rlvr.contracts.plugin import reject_unused_settings
from rlvr.errors import ConfigError, format_suggestion
from rlvr.task import Fault, Task, Verdict, to_plain_json
from rlvr.verifiers._endpoint import RETRIED_STATUSES, AsyncVerifier, EndpointUnavailable, send_request

BATCH_WAIT_S = 0.002
"""How long an answer waits for others, to be sent in one batch."""
MAX_BATCH_BYTES = 1 << 20
"""Approximate maximum bytes of a request; a single answer may have more."""
CONTROL_ANSWER = "-"
"""The answer that is judged beside one on which the service fails."""
MAX_ANSWER_CHARS = 1_000_000
"""Maximum characters of an answer; a longer answer is not sent and scores 0."""


class _ServiceDown(EndpointUnavailable):
    """Raised for the answers of a request that failed, as one with a harmless answer did."""


class _RowRefused(EndpointUnavailable):
    """Raised for a row that the service refuses, as one whose reference it cannot read."""


@dataclass(frozen=True, slots=True)
class _PendingRow:
    """An answer that waits to be sent: its row, the row with a harmless answer in its place, and where the reply goes."""

    line: bytes
    control: bytes
    reply: asyncio.Future[Mapping[str, Any]]


class ServiceVerifier(AsyncVerifier):
    """Verification by a remote service; answers are batched into requests, and none occupies a thread while it waits.

    A failed request is retried with the same idempotency key, so that the service verifies each answer once even if its reply was lost. A
    service that is unreachable, overloaded or broken gives no score, and never a score of 0. If it fails on some answers of a batch and
    judges a harmless one, each of them is judged alone, and an answer on which it always fails scores 0 (fault `answer`). Artifacts of a
    session are not sent.

    >>> import rlvr
    >>> rlvr.make_verifier("remote").verify(rlvr.Task(rlvr.make_user_prompt("2+2="), "4", id="t"), "4").score
    1.0
    """

    version = "2"  # 2: an answer on which the service always fails, beside one that it judges, scores 0
    needs = {"verifier": "exact"}
    examples = (VerifierExample("4", correct=("4",), incorrect=("5", "")),)

    def __init__(
        self,
        *,
        verifier: Verifier,
        url: str = "",
        remote_name: str = "",
        token_env: str = "",
        timeout_s: float = 120.0,
        retries: int = 4,
        batch: int = 64,
        concurrency: int = 8,
    ) -> None:
        """Name the service.

        Args:
            verifier: used if there is no url, to try a run without the service; it also says whether scores lie between 0 and 1.
            url: the service, such as http://judges:8765.
            remote_name: which verifier of the service; empty: its first.
            token_env: the environment variable with the service's token.
            timeout_s: the timeout of one request.
            retries: how often a failed request is repeated.
            batch: how many answers one request has at most.
            concurrency: how many requests are open at once.
        """
        if not url:
            reject_unused_settings(
                ServiceVerifier,
                locals(),
                "without url: no service is asked, and the answers are verified here; give url='http://HOST:8765' too",
            )
        for value, name in ((batch, "batch"), (concurrency, "concurrency")):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigError(f"{name} is {value!r}; it must be a whole number above 0")
        self.verifier, self.batch, self.concurrency, self.remote_name = verifier, batch, concurrency, remote_name
        self.has_bounded_score = verifier.has_bounded_score
        self.client = ServiceClient(url, token_env=token_env, timeout_s=timeout_s, retries=retries) if url else None
        super().__init__()
        self._pending: list[_PendingRow] = []
        self._semaphore: asyncio.Semaphore | None = None
        self._send_tasks = set[asyncio.Task[None]]()

    def prepare(self) -> None:
        """Check that the service is reachable, accepts the token and has the verifier."""
        if self.client is None:
            super().prepare()
            return
        names = self._loop.submit(self.client.list_verifiers()).result()
        if self.remote_name and self.remote_name not in names:
            raise ConfigError(
                f"the service at {self.client.url} has no verifier {self.remote_name!r}; {format_suggestion(self.remote_name, names)}"
            )

    async def _averify_answer(self, task: Task, answer: str) -> Verdict:
        if self.client is None:
            return await self.verifier.averify(task, answer)
        if len(answer) > MAX_ANSWER_CHARS:
            return Verdict(0.0, f"the answer has over {MAX_ANSWER_CHARS} characters")
        row = {"id": task.id, "reference": task.reference, "answer": answer, "prompt": list(task.prompt), "meta": to_plain_json(task.meta)}
        try:
            line, control = json.dumps(row).encode(), json.dumps({**row, "answer": CONTROL_ANSWER}).encode()
        except (TypeError, ValueError, RecursionError) as error:
            return Verdict(None, f"the reference of {task.id} cannot be sent as JSON: {error}"[:300], fault=Fault.TASK)
        loop = asyncio.get_running_loop()
        said: asyncio.Future[Mapping[str, Any]] = loop.create_future()
        self._pending.append(_PendingRow(line, control, said))
        if len(self._pending) == 1:
            loop.call_later(BATCH_WAIT_S, self._send_pending)
        elif len(self._pending) >= self.batch:
            self._send_pending()
        try:
            return _parse_verdict(await said)
        except _ServiceDown as error:
            return Verdict(None, f"the service gave no verdict: {error}"[:400], fault=Fault.INFRA)
        except EndpointUnavailable as error:
            return await self._judge_beside_control(line, control, error)

    async def _judge_beside_control(self, line: bytes, control: bytes, error: EndpointUnavailable) -> Verdict:
        """Judge an answer on which a request failed, or whose verdict is none, alone and beside a harmless one; decide whose fault it is."""
        lowest = 0.0

        async def judge_control() -> None:
            nonlocal lowest
            verdict = await self._judge_alone(control)
            if verdict.score is None:
                raise EndpointUnavailable(f"it gives a harmless answer no score either: {verdict.reason}")
            lowest = 0.0 if self.has_bounded_score else min(0.0, verdict.score)  # where rewards are negative, a 0 would pay

        try:
            return await aretry_and_attribute_failure(
                error, judge_control, lambda: self._judge_alone(line), failures=(EndpointUnavailable,), rounds=error.num_control_rounds
            )
        except AnswerAtFault:
            reason = f"the service gives no verdict on this answer, and judges another one: {error}"
            return Verdict(lowest, reason[:400], fault=Fault.ANSWER)
        except _RowRefused as failed:
            return Verdict(None, str(failed), fault=Fault.TASK)
        except EndpointUnavailable as failed:
            return Verdict(None, f"the service gave no verdict: {failed}"[:400], fault=Fault.INFRA)

    async def _judge_alone(self, line: bytes) -> Verdict:
        """Judge one row in a request of its own, sent once."""
        assert self.client is not None
        if self._semaphore is None:
            self._semaphore = asyncio.Semaphore(self.concurrency)
        async with self._semaphore:
            [found] = await self.client.verify_batch([line], verifier=self.remote_name, retries=0)
        return _parse_verdict(found)

    def _send_pending(self) -> None:
        """Send the pending answers in batches."""
        while self._pending:
            count, weight = 0, 0
            while count < min(self.batch, len(self._pending)) and (not count or weight + len(self._pending[count].line) <= MAX_BATCH_BYTES):
                weight += len(self._pending[count].line)
                count += 1
            part, self._pending = self._pending[:count], self._pending[count:]
            sending = asyncio.get_running_loop().create_task(self._send_batch(part))
            self._send_tasks.add(sending)
            sending.add_done_callback(self._send_tasks.discard)

    async def _send_batch(self, part: Sequence[_PendingRow]) -> None:
        """Judge the rows of a request; where it has failed, find out whether the service judges a harmless answer."""
        if self._semaphore is None:
            self._semaphore = asyncio.Semaphore(self.concurrency)
        assert self.client is not None
        lines: Sequence[Mapping[str, Any] | None] = [None] * len(part)
        failure = EndpointUnavailable(f"{self.client.url} replied something else than verdicts")
        try:
            async with self._semaphore:
                lines = await self.client.verify_rows([row.line for row in part], verifier=self.remote_name)
        except EndpointUnavailable as error:
            failure = error
        for line, row in zip(lines, part, strict=True):
            if line is not None and not row.reply.done():
                row.reply.set_result(line)
        if not (open_rows := [row for row in part if not row.reply.done()]):
            return
        kind: type[EndpointUnavailable] = EndpointUnavailable
        if len(open_rows) > 1:  # one harmless answer for all of them: a service that hangs would make each of them wait for its own
            try:
                await self._judge_alone(open_rows[0].control)
            except EndpointUnavailable:
                kind = _ServiceDown
        for row in open_rows:
            if not row.reply.done():
                row.reply.set_exception(kind(str(failure), failure.status, timed_out=failure.timed_out))

    def close(self) -> None:
        """Stop the event loop thread, and close the inner verifier."""
        self._semaphore, self._pending = None, []
        self._loop.close()
        self.verifier.close()


class ServiceClient:
    """An asyncio client of `rlvr serve`."""

    def __init__(self, url: str, *, token_env: str = "", timeout_s: float = 120.0, retries: int = 4) -> None:
        """Name the service and the environment variable with its token."""
        if not _is_service_url(url):
            raise ConfigError(
                f"url is {_hide_credentials(url)!r:.80}; it must be such as http://judges:8765, and a token belongs into an environment variable"
            )
        if isinstance(retries, bool) or not isinstance(retries, int) or retries < 0 or not timeout_s > 0:
            raise ConfigError(f"retries is {retries!r} and timeout_s {timeout_s!r}; they must be a whole number from 0 and seconds above 0")
        self.url, self.token_env, self.timeout_s, self.retries = url.rstrip("/"), token_env, timeout_s, retries

    async def list_verifiers(self) -> list[str]:
        """List the verifiers of the service; ConfigError if it cannot be used."""
        try:
            data = await self._request("/openapi.json", None, {})
            parameters = json.loads(data)["paths"]["/verify"]["post"]["parameters"]
            return list(parameters[0]["schema"]["enum"])
        except EndpointUnavailable as error:
            raise ConfigError(f"{self.url} is not a service that can be used: {error}; start one with `rlvr serve`") from None
        except (ValueError, LookupError, TypeError, RecursionError):
            raise ConfigError(f"{self.url} serves something else than verifiers of rlvr; start a service with `rlvr serve`") from None

    async def verify_batch(
        self, rows: Sequence[bytes | Mapping[str, Any]], *, verifier: str = "", idempotency_key: str = "", retries: int | None = None
    ) -> list[dict[str, Any]]:
        """Verify rows and return the verdicts in order; raises if the service fails. A repeated `idempotency_key` returns the same
        verdicts. `retries` replaces that of the client.
        """
        found = await self.verify_rows(rows, verifier=verifier, idempotency_key=idempotency_key, retries=retries)
        if missing := found.count(None):
            raise EndpointUnavailable(f"{self.url} replied something else than verdicts on {missing} of {len(rows)} rows")
        return [line for line in found if line is not None]

    async def verify_rows(
        self, rows: Sequence[bytes | Mapping[str, Any]], *, verifier: str = "", idempotency_key: str = "", retries: int | None = None
    ) -> list[dict[str, Any] | None]:
        """Verify rows like `verify_batch`, with None for a row on which the reply has no verdict or two that differ."""
        data = b"\n".join(row if isinstance(row, bytes) else json.dumps(row).encode() for row in rows)
        path = "/verify/batch" + (f"?verifier={quote(verifier, safe='')}" if verifier else "")
        headers = {"Content-Type": "application/x-ndjson", "Idempotency-Key": idempotency_key or uuid.uuid4().hex}
        reply = await self._request(path, data, headers, retries=retries)
        found, contradicted = dict[int, dict[str, Any]](), set[int]()
        for line in map(_parse_line, reply.splitlines()):
            if line is None or type(place := line.get("index")) is not int:
                continue
            if found.setdefault(place, line) != line:
                contradicted.add(place)
        return [None if place in contradicted else found.get(place) for place in range(len(rows))]

    async def _request(self, path: str, data: bytes | None, headers: Mapping[str, str], *, retries: int | None = None) -> bytes:
        token, why, wait, timed_out = os.environ.get(self.token_env, "") if self.token_env else "", "", 0.0, False
        retries = self.retries if retries is None else retries
        until = time.monotonic() + self.timeout_s * (retries + 1)
        for attempt in range(retries + 1):
            if attempt:
                await asyncio.sleep(max(0.0, min(wait or 0.25 * 2**attempt, 30.0, until - time.monotonic())))
            try:
                status, said, told = await asyncio.wait_for(send_request(self.url + path, data, token, headers), self.timeout_s)
            except (OSError, EOFError, ValueError, IndexError, TimeoutError) as error:
                why, wait = f"{type(error).__name__}: {error}" if str(error) else f"no reply within {self.timeout_s:g} s", 0.0
                if timed_out := isinstance(error, TimeoutError):
                    break  # one answer may be the cause, and the others wait for it
                continue
            if status == 200:
                return said
            after = told.get(b"retry-after", b"")
            why, wait = f"status {status}: {said[:200].decode('utf-8', 'replace')}", float(after) if after.isdigit() else 0.0
            if status not in RETRIED_STATUSES:
                break
        raise EndpointUnavailable(f"{self.url}: {why.replace(token, '[token]') if token else why}", timed_out=timed_out)


def _is_service_url(url: str) -> bool:
    """Return whether a url is one of a service: without credentials and query, and with a port that can be."""
    if not re.fullmatch(r"https?://[^/@?#\s]+(/[^@?#\s]*)?", url):
        return False
    try:
        parts = urlsplit(url)
        return bool(parts.hostname) and parts.port != 0  # the port raises beyond 65535
    except ValueError:
        return False


def _hide_credentials(url: str) -> str:
    """Return a url whose user, password and query are not shown: messages are logged.

    >>> _hide_credentials("http://me:secret@judges?key=1")
    'http://...@judges?...'
    """
    return re.sub(r"\?.*", "?...", re.sub(r"(//|^)[^/]*@", r"\1...@", url), flags=re.DOTALL)


def _parse_line(line: bytes) -> dict[str, Any] | None:
    """Parse one line of a reply; None if it is no JSON object."""
    try:
        said = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return said if isinstance(said, dict) else None


def _parse_verdict(line: Mapping[str, Any]) -> Verdict:
    """Parse a verdict from one line of the reply of `rlvr serve`.

    >>> _parse_verdict({"score": 1.0, "reason": "equal", "fault": "none"}).passed
    True
    """
    if "error" in line:
        raise _RowRefused(f"the service refused the row: {line['error']}"[:400])
    try:
        needed = {name: line[name] for name in ("score", "reason", "fault")}  # a reply that lacks one is something else than a verdict
        return Verdict(**needed, **{name: line[name] for name in ("components", "detail", "step_rewards") if name in line})
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise EndpointUnavailable(f"the service replied something else than a verdict: {error}"[:200]) from None


make = ServiceVerifier
