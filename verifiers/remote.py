"""Verify answers with a verifier that `rlvr serve` serves on another machine."""

from __future__ import annotations

import asyncio
import json
import os
import re
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from rlvr.contracts import Verifier, VerifierExample
from rlvr.contracts.plugin import reject_unused_settings
from rlvr.errors import ConfigError, format_suggestion
from rlvr.task import Fault, Task, Verdict, to_plain_json
from rlvr.verifiers._endpoint import RETRIED_STATUSES, AsyncVerifier, EndpointUnavailable, send_request

BATCH_WAIT_S = 0.002
"""How long an answer waits for others, to be sent in one batch."""
MAX_BATCH_BYTES = 1 << 20
"""Approximate maximum bytes of a request; a single answer may have more."""
MAX_ANSWER_CHARS = 1_000_000
"""Maximum characters of an answer; a longer answer is not sent and scores 0."""


class ServiceVerifier(AsyncVerifier):
    """Verification by a remote service; answers are batched into requests, and none occupies a thread while it waits.

    A failed request is retried with the same idempotency key, so that the service verifies each answer once even if its reply was lost. A
    service that is unreachable, overloaded or broken gives no score, and never a score of 0. Artifacts of a session are not sent.

    >>> import rlvr
    >>> rlvr.make_verifier("remote").verify(rlvr.Task(rlvr.make_user_prompt("2+2="), "4", id="t"), "4").score
    1.0
    """

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
        self._pending: list[tuple[bytes, asyncio.Future[dict[str, Any]]]] = []
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
            line = json.dumps(row).encode()
        except (TypeError, ValueError, RecursionError) as error:
            return Verdict(None, f"the reference of {task.id} cannot be sent as JSON: {error}"[:300], fault=Fault.TASK)
        loop = asyncio.get_running_loop()
        said: asyncio.Future[dict[str, Any]] = loop.create_future()
        self._pending.append((line, said))
        if len(self._pending) == 1:
            loop.call_later(BATCH_WAIT_S, self._send_pending)
        elif len(self._pending) >= self.batch:
            self._send_pending()
        try:
            return _parse_verdict(await said)
        except EndpointUnavailable as error:
            return Verdict(None, f"the service gave no verdict: {error}"[:400], fault=Fault.INFRA)

    def _send_pending(self) -> None:
        """Send the pending answers in batches."""
        while self._pending:
            count, weight = 0, 0
            while count < min(self.batch, len(self._pending)) and (not count or weight + len(self._pending[count][0]) <= MAX_BATCH_BYTES):
                weight += len(self._pending[count][0])
                count += 1
            part, self._pending = self._pending[:count], self._pending[count:]
            sending = asyncio.get_running_loop().create_task(self._send_batch(part))
            self._send_tasks.add(sending)
            sending.add_done_callback(self._send_tasks.discard)

    async def _send_batch(self, part: Sequence[tuple[bytes, asyncio.Future[dict[str, Any]]]]) -> None:
        if self._semaphore is None:
            self._semaphore = asyncio.Semaphore(self.concurrency)
        assert self.client is not None
        try:
            async with self._semaphore:
                lines = await self.client.verify_batch([line for line, _ in part], verifier=self.remote_name)
        except EndpointUnavailable as error:
            for _, said in part:
                if not said.done():
                    said.set_exception(EndpointUnavailable(str(error)))
            return
        for line, (_, said) in zip(lines, part, strict=True):
            if not said.done():
                said.set_result(line)

    def close(self) -> None:
        """Stop the event loop thread, and close the inner verifier."""
        self._semaphore, self._pending = None, []
        self._loop.close()
        self.verifier.close()


class ServiceClient:
    """An asyncio client of `rlvr serve`."""

    def __init__(self, url: str, *, token_env: str = "", timeout_s: float = 120.0, retries: int = 4) -> None:
        """Name the service and the environment variable with its token."""
        if not re.fullmatch(r"https?://[^/@?#\s]+(/[^@?#\s]*)?", url):
            raise ConfigError(
                f"url is {url!r:.80}; it must be such as http://judges:8765, and a token belongs into an environment variable"
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
        except (EndpointUnavailable, ValueError, KeyError, IndexError, TypeError) as error:
            raise ConfigError(f"{self.url} is not a service that can be used: {error}; start one with `rlvr serve`") from None

    async def verify_batch(
        self, rows: Sequence[bytes | Mapping[str, Any]], *, verifier: str = "", idempotency_key: str = ""
    ) -> list[dict[str, Any]]:
        """Verify rows and return the verdicts in order; raises if the service fails. A repeated `idempotency_key` returns the same
        verdicts.
        """
        data = b"\n".join(row if isinstance(row, bytes) else json.dumps(row).encode() for row in rows)
        path = "/verify/batch" + (f"?verifier={quote(verifier, safe='')}" if verifier else "")
        headers = {"Content-Type": "application/x-ndjson", "Idempotency-Key": idempotency_key or uuid.uuid4().hex}
        try:
            found = {line["index"]: line for line in map(json.loads, (await self._request(path, data, headers)).splitlines())}
            return [found[place] for place in range(len(rows))]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise EndpointUnavailable(f"{self.url} replied something else than verdicts ({type(error).__name__})") from None

    async def _request(self, path: str, data: bytes | None, headers: Mapping[str, str]) -> bytes:
        token, why, wait = os.environ.get(self.token_env, "") if self.token_env else "", "", 0.0
        until = time.monotonic() + self.timeout_s * (self.retries + 1)
        for attempt in range(self.retries + 1):
            if attempt:
                await asyncio.sleep(max(0.0, min(wait or 0.25 * 2**attempt, 30.0, until - time.monotonic())))
            try:
                status, said, told = await asyncio.wait_for(send_request(self.url + path, data, token, headers), self.timeout_s)
            except (OSError, EOFError, ValueError, IndexError, TimeoutError) as error:
                why, wait = f"{type(error).__name__}: {error}" if str(error) else f"no reply within {self.timeout_s:g} s", 0.0
                continue
            if status == 200:
                return said
            after = told.get(b"retry-after", b"")
            why, wait = f"status {status}: {said[:200].decode('utf-8', 'replace')}", float(after) if after.isdigit() else 0.0
            if status not in RETRIED_STATUSES:
                break
        raise EndpointUnavailable(f"{self.url}: {why.replace(token, '[token]') if token else why}")


def _parse_verdict(line: Mapping[str, Any]) -> Verdict:
    """Parse a verdict from one line of the reply of `rlvr serve`.

    >>> _parse_verdict({"score": 1.0, "reason": "equal", "fault": "none"}).passed
    True
    """
    if "error" in line:
        return Verdict(None, f"the service refused the row: {line['error']}"[:400], fault=Fault.TASK)
    try:
        needed = {name: line[name] for name in ("score", "reason", "fault")}  # a reply that lacks one is something else than a verdict
        return Verdict(**needed, **{name: line[name] for name in ("components", "detail", "step_rewards") if name in line})
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise EndpointUnavailable(f"the service replied something else than a verdict: {error}"[:200]) from None


make = ServiceVerifier
