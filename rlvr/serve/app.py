"""The routes of the service."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route, Router

import rlvr
from rlvr.errors import format_suggestion
from rlvr.serve import trainer_formats as shapes
from rlvr.serve.guard import RequestError
from rlvr.serve.jobs import IdempotencyKeyReused, JobQueue, Overloaded, VerifyJob
from rlvr.serve.openapi import build_openapi_document
from rlvr.serve.pool import ServicePool
from rlvr.serve.rows import MAX_VALUES, has_too_many_values
from rlvr.serve.sessions import SessionManager

NDJSON = "application/x-ndjson"
SEND_TIMEOUT_S = 60.0
"""Timeout of one write: a client that does not read its reply for so long is disconnected."""
MAX_KEY_CHARS = 200
CLIENT_CLOSED_STATUS = 499
"""The status of a request whose client disconnected, for the metrics only."""


class JSONMethodNotAllowedRoute(Route):  # type: ignore[misc]
    """A route whose answer to a wrong method is an error in JSON, as all errors of the service are."""

    async def handle(self, scope: Any, receive: Any, send: Any) -> None:
        """Handle a request, or refuse its method."""
        allowed = ", ".join(sorted(self.methods or ()))
        if scope["method"] not in (self.methods or ()):
            raise RequestError(405, f"{scope['path']} takes no {scope['method']}; send {allowed}", Allow=allowed)
        await super().handle(scope, receive, send)


class ServiceRoutes:
    """The HTTP routes of `rlvr serve`: verdicts, sessions of environments, and programs, with the pool that does the work."""

    def __init__(self, pool: ServicePool, sessions: SessionManager, *, max_rows: int) -> None:
        self.pool, self.sessions, self.max_rows = pool, sessions, max_rows
        self.jobs = JobQueue(pool, max_rows=max_rows)
        self.gauges: dict[str, Callable[[], float]] = {
            "rows_waiting": lambda: pool.num_waiting_rows,
            "workers_ready": lambda: pool.num_ready_workers,
            "sessions_open": lambda: len(sessions.sessions),
        }

    def build_router(self) -> Router:
        """Build the ASGI application."""
        post, get = ["POST"], ["GET"]
        routes = [
            JSONMethodNotAllowedRoute("/verify", self.verify, methods=post),
            JSONMethodNotAllowedRoute("/verify/batch", self.batch, methods=post),
            JSONMethodNotAllowedRoute("/openrlhf", self.openrlhf, methods=post),
            JSONMethodNotAllowedRoute("/seed_session", self.seed_session, methods=post),
            JSONMethodNotAllowedRoute("/run_code", self.run_code, methods=post),
            JSONMethodNotAllowedRoute("/tasks", self.get_task_prompt, methods=post),
            JSONMethodNotAllowedRoute("/sessions", self.open_session, methods=post),
            JSONMethodNotAllowedRoute("/sessions/{session}/step", self.step_session, methods=post),
            JSONMethodNotAllowedRoute("/sessions/{session}/close", self.close_session, methods=post),
            JSONMethodNotAllowedRoute("/healthz", self.healthz, methods=get),
            JSONMethodNotAllowedRoute("/metrics", self.metrics, methods=get),
            JSONMethodNotAllowedRoute("/openapi.json", self.openapi, methods=get),
        ]
        return Router(routes, default=_raise_not_found)

    # ---- verdicts

    async def verify(self, request: Request) -> Response:
        """Verify one row; a request in NeMo-Gym's format gets its reward."""
        body = await _read_object(request)
        theirs = "responses_create_params" in body and "response" in body
        wanted = body.get("verifier") if not theirs else None
        if theirs:
            row = shapes.parse_nemo_gym_request(body)
        else:  # the client's own bytes if they are one line: this avoids copies of a large row
            data = await request.body()
            row = data if b"\n" not in data else shapes.dump_json(body)
            body = {}
        lines = await self._verify_rows(request, [row], wanted)
        if not lines:
            return Response(status_code=CLIENT_CLOSED_STATUS)
        self._count_verdicts(line := lines[0])
        if theirs:
            return Response(shapes.dump_json(shapes.format_nemo_gym_reply(body, line)), media_type="application/json")
        if b'"error": ' in line and "error" in (said := json.loads(line)):
            raise RequestError(422, said["error"])
        return Response(line, media_type="application/json")

    async def batch(self, request: Request) -> Any:
        """Stream verdicts in order of completion, one JSON object a line, each with the `index` of its row."""
        data = await request.body()
        if request.headers.get("content-type", "").partition(";")[0].strip() == NDJSON:
            rows, verifier = [line for line in data.split(b"\n") if line.strip()], None
        else:
            body = _parse_object(data)
            given = body.get("rows")
            if not isinstance(given, list):
                raise RequestError(422, 'the body must be {"rows": [...], "verifier": NAME}, or lines with the content type ' + NDJSON)
            self._check_row_count(given)  # before the rows are serialized again, which takes longer than parsing them
            rows, verifier = [shapes.dump_json(row) for row in given], body.get("verifier")
        del data
        if not rows:
            raise RequestError(422, "there are no rows")
        job = self._submit_job(request, rows, verifier)
        return _VerdictStream(job, has_key=bool(_get_idempotency_key(request)), on_lines=self._count_verdicts)

    async def openrlhf(self, request: Request) -> Response:
        """Return rewards in the format of OpenRLHF's remote reward model."""
        body = await _read_object(request)
        rows = shapes.parse_openrlhf_request(body)
        lines = await self._verify_rows(request, rows, None) if rows else []
        if len(lines) < len(rows):
            return Response(status_code=CLIENT_CLOSED_STATUS)
        self._count_verdicts(b"\n".join(lines))
        return JSONResponse(shapes.format_openrlhf_reply(lines))

    async def _verify_rows(self, request: Request, rows: list[bytes], verifier: Any) -> list[bytes]:
        """Return a line for each row. If the client disconnects, return none and cancel the waiting rows, unless the request had a key."""
        job = self._submit_job(request, rows, verifier)
        ending, leaving = asyncio.create_task(job.collect_lines()), asyncio.create_task(_wait_for_disconnect(request.receive))
        try:
            await asyncio.wait({ending, leaving}, return_when=asyncio.FIRST_COMPLETED)
            return await ending if ending.done() else []
        finally:
            if not ending.done() and not _get_idempotency_key(request):
                job.cancel_queued_rows()
            for task in (ending, leaving):
                task.cancel()
                with suppress(asyncio.CancelledError, TimeoutError, OSError):
                    await task

    def _submit_job(self, request: Request, rows: list[bytes], verifier: Any) -> VerifyJob:
        known = self.pool.settings["verifiers"]
        if unknown := [key for key in request.query_params if key != "verifier"] or request.query_params.getlist("verifier")[1:]:
            raise RequestError(
                422, f"the query has {unknown[0]!r:.80}, which chooses nothing; ?verifier=NAME is all that it may have, once"
            )
        name = request.query_params.get("verifier") or verifier or next(iter(known), "")
        if not isinstance(name, str) or name not in known:
            raise RequestError(422, f"there is no verifier {name!r:.80} here; {format_suggestion(str(name), known)}")
        self._check_row_count(rows)
        if not self.pool.num_ready_workers and self.pool.setup_error:
            raise RequestError(503, "no worker process is ready; see the log of the service", **{"Retry-After": "5"})
        try:
            return self.jobs.get_or_start(name, rows, _get_idempotency_key(request))
        except Overloaded:
            self.pool.metrics.count("refused", reason="queue")
            wait = min(60, max(1, round(self.pool.estimate_wait_s() / 2)))
            raise RequestError(
                429, f"{self.pool.num_waiting_rows} rows wait already; try again later", **{"Retry-After": str(wait)}
            ) from None
        except IdempotencyKeyReused as error:
            raise RequestError(422, str(error)) from None

    def _check_row_count(self, rows: Sequence[object]) -> None:
        if len(rows) > self.max_rows:
            raise RequestError(413, f"{len(rows)} rows in one request; at most {self.max_rows} may wait here: send fewer at a time")

    def _count_verdicts(self, lines: bytes) -> None:
        rest = lines.count(b'"fault": "')  # quotes inside a reason are escaped, so no reason is counted
        for fault in ("none", "answer", "task", "infra"):
            if rest and (found := lines.count(b'"fault": "' + fault.encode() + b'"')):
                self.pool.metrics.count("verdicts", found, fault=fault)
                rest -= found

    # ---- environments and programs

    async def get_task_prompt(self, request: Request) -> Response:
        """Return the prompt of a task, without its reference."""
        return await self._call_worker({**await _read_object(request), "what": "task"})

    async def open_session(self, request: Request) -> Response:
        """Open a session of an environment."""
        body = await _read_object(request)
        leaving = asyncio.create_task(_wait_for_disconnect(request.receive))
        try:
            return _make_response(await self.sessions.open_session(body, leaving), 201)
        finally:
            leaving.cancel()
            with suppress(asyncio.CancelledError, TimeoutError, OSError):
                await leaving

    async def step_session(self, request: Request) -> Response:
        """Step a session with a turn and return the reply."""
        return _make_response(await self.sessions.step_session(request.path_params["session"], *await _read_keyed_object(request)))

    async def close_session(self, request: Request) -> Response:
        """Close a session; the reply has the verdict unless the request excludes it."""
        return _make_response(await self.sessions.close_session(request.path_params["session"], *await _read_keyed_object(request)))

    async def run_code(self, request: Request) -> Response:
        """Run a program, with request and reply in the format of verl's sandbox."""
        return await self._call_worker({**await _read_object(request), "what": "run"})

    async def _call_worker(self, body: Mapping[str, Any]) -> Response:
        return _make_response(await self.sessions.call_any_worker(body))

    async def seed_session(self, request: Request) -> Response:
        """Return an empty object: NeMo-Gym calls this route before each episode, but a verifier has no session."""
        return JSONResponse({})

    # ---- about the service

    async def healthz(self, request: Request) -> Response:
        """Return 200 if a worker process is ready, else 503."""
        well = self.pool.num_ready_workers > 0
        told = {"ok": well, "workers": self.pool.num_ready_workers, "version": rlvr.__version__}
        return JSONResponse(told, 200 if well else 503)

    async def metrics(self, request: Request) -> Response:
        """Return the metrics in Prometheus' text format."""
        return PlainTextResponse(self.pool.metrics.to_prometheus(self.gauges), media_type="text/plain; version=0.0.4")

    async def openapi(self, request: Request) -> Response:
        """Return the OpenAPI description of the routes."""
        names = (list(self.pool.settings["verifiers"]), list(self.pool.settings.get("envs", {})))
        return JSONResponse(build_openapi_document(rlvr.__version__, *names))


class _VerdictStream:
    """A streamed reply. If the client disconnects, waiting rows are cancelled, unless the request had a key."""

    def __init__(self, job: VerifyJob, *, has_key: bool, on_lines: Callable[[bytes], None]) -> None:
        self.job, self.has_key, self.on_lines = job, has_key, on_lines

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        sending, leaving = asyncio.create_task(self._send(send)), asyncio.create_task(_wait_for_disconnect(receive))
        try:
            await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            whole = sending.done() and not sending.cancelled() and sending.exception() is None
            for task in (sending, leaving):
                task.cancel()
                with suppress(asyncio.CancelledError, TimeoutError, OSError):
                    await task
            if not whole and not self.has_key:
                self.job.cancel_queued_rows()
        if not whole and sending.done() and not sending.cancelled():
            raise ConnectionError("the client took too long")

    async def _send(self, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", NDJSON.encode())]})
        async for lines in self.job.iter_lines():
            async with asyncio.timeout(SEND_TIMEOUT_S):
                await send({"type": "http.response.body", "body": lines, "more_body": True})
            self.on_lines(lines)
        await send({"type": "http.response.body", "body": b""})


async def _raise_not_found(scope: Any, receive: Any, send: Any) -> None:
    raise RequestError(404, f"there is no route {scope['path']!r:.80}; /openapi.json lists them")


async def _wait_for_disconnect(receive: Any) -> None:
    """Wait until the client disconnects."""
    while (await receive())["type"] != "http.disconnect":
        pass


def _make_response(said: dict[str, Any], status: int = 200) -> Response:
    """Convert the result of a call into a response, or raise its error."""
    if "error" in said:
        raise RequestError(int(said.get("status", 500)), str(said["error"]))
    return JSONResponse(said, status)


def _get_idempotency_key(request: Request) -> str:
    key: str = request.headers.get("idempotency-key", "")
    if len(key) > MAX_KEY_CHARS:
        raise RequestError(422, f"an Idempotency-Key has at most {MAX_KEY_CHARS} characters")
    return key


async def _read_keyed_object(request: Request) -> tuple[dict[str, Any], str, str]:
    """Read the object of a request, its `Idempotency-Key` and the digest of its content."""
    data = await request.body()
    return _parse_object(data), (key := _get_idempotency_key(request)), hashlib.sha256(data).hexdigest() if key else ""


async def _read_object(request: Request) -> dict[str, Any]:
    return _parse_object(await request.body())


def _parse_object(data: bytes) -> dict[str, Any]:
    if has_too_many_values(data):
        raise RequestError(
            413, f"the body has more than {MAX_VALUES:,} values; send fewer rows, or one row per line with the content type {NDJSON}"
        )
    try:
        body = json.loads(data)
    except (ValueError, RecursionError) as error:  # the message has places and counts, and no text of the body
        raise RequestError(422, f"the body is not JSON that can be read: {error}"[:200]) from None
    if not isinstance(body, dict):
        raise RequestError(422, f"the body is a {type(body).__name__}, and must be an object")
    return body
