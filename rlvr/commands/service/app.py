"""The routes of the service."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route, Router

import rlvr
from rlvr.commands.service import shapes
from rlvr.commands.service.guard import Refused
from rlvr.commands.service.jobs import Job, Jobs, Mismatch, Overloaded
from rlvr.commands.service.openapi import document
from rlvr.commands.service.pool import Pool
from rlvr.commands.service.sessions import Sessions
from rlvr.errors import suggest

LINES = "application/x-ndjson"
SLOW_S = 60.0
"""Timeout of one write: a client that does not read its reply for so long is disconnected."""
LONGEST_KEY = 200
LEFT = 499
"""The status of a request whose client disconnected, for the metrics only."""


class Service:
    """The HTTP routes for the verifiers, sessions and programs of a pool."""

    def __init__(self, pool: Pool, sessions: Sessions, *, most_rows: int) -> None:
        self.pool, self.sessions, self.most_rows = pool, sessions, most_rows
        self.jobs = Jobs(pool, most=most_rows)
        self.gauges: dict[str, Callable[[], float]] = {
            "rows_waiting": lambda: pool.waiting,
            "workers_ready": lambda: pool.alive,
            "sessions_open": lambda: len(sessions.held),
        }

    def router(self) -> Router:
        """Build the ASGI application."""
        post, get = ["POST"], ["GET"]
        routes = [
            Route("/verify", self.verify, methods=post),
            Route("/verify/batch", self.batch, methods=post),
            Route("/openrlhf", self.openrlhf, methods=post),
            Route("/seed_session", self.seed_session, methods=post),
            Route("/run_code", self.run_code, methods=post),
            Route("/tasks", self.task, methods=post),
            Route("/sessions", self.open, methods=post),
            Route("/sessions/{session}/hear", self.hear, methods=post),
            Route("/sessions/{session}/close", self.close, methods=post),
            Route("/healthz", self.healthz, methods=get),
            Route("/metrics", self.metrics, methods=get),
            Route("/openapi.json", self.openapi, methods=get),
        ]
        return Router(routes, default=_nowhere)

    # ---- verdicts

    async def verify(self, request: Request) -> Response:
        """Verify one row; a request in NeMo-Gym's format gets its reward."""
        body = await _object(request)
        theirs = "responses_create_params" in body and "response" in body
        wanted = body.get("verifier") if not theirs else None
        if theirs:
            row = shapes.nemo_gym_row(body)
        else:  # the client's own bytes if they are one line: this avoids copies of a large row
            data = await request.body()
            row = data if b"\n" not in data else shapes.dumped(body)
            body = {}
        lines = await self._lines(request, [row], wanted)
        if not lines:
            return Response(status_code=LEFT)
        self._counted(line := lines[0])
        if theirs:
            return Response(shapes.dumped(shapes.nemo_gym_reply(body, line)), media_type="application/json")
        if b'"error": ' in line and "error" in (said := json.loads(line)):
            raise Refused(422, said["error"])
        return Response(line, media_type="application/json")

    async def batch(self, request: Request) -> Any:
        """Stream verdicts in order of completion, one JSON object a line, each with the `index` of its row."""
        data = await request.body()
        if request.headers.get("content-type", "").partition(";")[0].strip() == LINES:
            rows, verifier = [line for line in data.split(b"\n") if line.strip()], None
        else:
            body = _parsed(data)
            given = body.get("rows")
            if not isinstance(given, list):
                raise Refused(422, 'the body must be {"rows": [...], "verifier": NAME}, or lines with the content type ' + LINES)
            self._few(given)  # before the rows are serialized again, which takes longer than parsing them
            rows, verifier = [shapes.dumped(row) for row in given], body.get("verifier")
        del data
        if not rows:
            raise Refused(422, "there are no rows")
        job = self._job(request, rows, verifier)
        return _Stream(job, kept=bool(_key(request)), counted=self._counted)

    async def openrlhf(self, request: Request) -> Response:
        """Return rewards in the format of OpenRLHF's remote reward model."""
        body = await _object(request)
        rows = shapes.openrlhf_rows(body)
        lines = await self._lines(request, rows, None) if rows else []
        if len(lines) < len(rows):
            return Response(status_code=LEFT)
        self._counted(b"\n".join(lines))
        return JSONResponse(shapes.openrlhf_reply(lines))

    async def _lines(self, request: Request, rows: list[bytes], verifier: Any) -> list[bytes]:
        """Return a line for each row. If the client disconnects, return none and cancel the waiting rows, unless the request had a key."""
        job = self._job(request, rows, verifier)
        ending, leaving = asyncio.create_task(job.all()), asyncio.create_task(_left(request.receive))
        try:
            await asyncio.wait({ending, leaving}, return_when=asyncio.FIRST_COMPLETED)
            return await ending if ending.done() else []
        finally:
            if not ending.done() and not _key(request):
                job.drop()
            for task in (ending, leaving):
                task.cancel()
                with suppress(asyncio.CancelledError, TimeoutError, OSError):
                    await task

    def _job(self, request: Request, rows: list[bytes], verifier: Any) -> Job:
        known = self.pool.settings["verifiers"]
        name = request.query_params.get("verifier") or verifier or next(iter(known), "")
        if not isinstance(name, str) or name not in known:
            raise Refused(422, f"there is no verifier {name!r:.80} here; {suggest(str(name), known)}")
        self._few(rows)
        if not self.pool.alive and self.pool.trouble:
            raise Refused(503, "no worker process is ready; see the log of the service", **{"Retry-After": "5"})
        try:
            return self.jobs.job(name, rows, _key(request))
        except Overloaded:
            self.pool.figures.count("refused", reason="queue")
            wait = min(60, max(1, round(self.pool.soon() / 2)))
            raise Refused(429, f"{self.pool.waiting} rows wait already; try again later", **{"Retry-After": str(wait)}) from None
        except Mismatch as error:
            raise Refused(422, str(error)) from None

    def _few(self, rows: Sequence[object]) -> None:
        if len(rows) > self.most_rows:
            raise Refused(413, f"{len(rows)} rows in one request; at most {self.most_rows} may wait here: send fewer at a time")

    def _counted(self, lines: bytes) -> None:
        rest = lines.count(b'"fault": "')  # quotes inside a reason are escaped, so no reason is counted
        for fault in ("none", "answer", "task", "infra"):
            if rest and (found := lines.count(b'"fault": "' + fault.encode() + b'"')):
                self.pool.figures.count("verdicts", found, fault=fault)
                rest -= found

    # ---- environments and programs

    async def task(self, request: Request) -> Response:
        """Return the prompt of a task, without its reference."""
        return await self._called({**await _object(request), "what": "task"})

    async def open(self, request: Request) -> Response:
        """Open a session of an environment."""
        return _reply(await self.sessions.open(await _object(request)), 201)

    async def hear(self, request: Request) -> Response:
        """Step a session with a turn and return the reply."""
        return _reply(await self.sessions.hear(request.path_params["session"], await _object(request)))

    async def close(self, request: Request) -> Response:
        """Close a session; the reply has the verdict unless the request excludes it."""
        return _reply(await self.sessions.close(request.path_params["session"], await _object(request)))

    async def run_code(self, request: Request) -> Response:
        """Run a program, with request and reply in the format of verl's sandbox."""
        return await self._called({**await _object(request), "what": "run"})

    async def _called(self, body: Mapping[str, Any]) -> Response:
        return _reply(await self.sessions.anywhere(body))

    async def seed_session(self, request: Request) -> Response:
        """Return an empty object: NeMo-Gym calls this route before each episode, but a verifier has no session."""
        return JSONResponse({})

    # ---- about the service

    async def healthz(self, request: Request) -> Response:
        """Return 200 if a worker process is ready, else 503."""
        well = self.pool.alive > 0
        told = {"ok": well, "workers": self.pool.alive, "version": rlvr.__version__}
        return JSONResponse(told, 200 if well else 503)

    async def metrics(self, request: Request) -> Response:
        """Return the metrics in Prometheus' text format."""
        return PlainTextResponse(self.pool.figures.text(self.gauges), media_type="text/plain; version=0.0.4")

    async def openapi(self, request: Request) -> Response:
        """Return the OpenAPI description of the routes."""
        names = (list(self.pool.settings["verifiers"]), list(self.pool.settings.get("envs", {})))
        return JSONResponse(document(rlvr.__version__, *names))


class _Stream:
    """A streamed reply. If the client disconnects, waiting rows are cancelled, unless the request had a key."""

    def __init__(self, job: Job, *, kept: bool, counted: Callable[[bytes], None]) -> None:
        self.job, self.kept, self.counted = job, kept, counted

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        sending, leaving = asyncio.create_task(self._send(send)), asyncio.create_task(_left(receive))
        try:
            await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            whole = sending.done() and not sending.cancelled() and sending.exception() is None
            for task in (sending, leaving):
                task.cancel()
                with suppress(asyncio.CancelledError, TimeoutError, OSError):
                    await task
            if not whole and not self.kept:
                self.job.drop()
        if not whole and sending.done() and not sending.cancelled():
            raise ConnectionError("the client took too long")

    async def _send(self, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", LINES.encode())]})
        async for lines in self.job.ended():
            async with asyncio.timeout(SLOW_S):
                await send({"type": "http.response.body", "body": lines, "more_body": True})
            self.counted(lines)
        await send({"type": "http.response.body", "body": b""})


async def _nowhere(scope: Any, receive: Any, send: Any) -> None:
    raise Refused(404, f"there is no route {scope['path']!r:.80}; /openapi.json lists them")


async def _left(receive: Any) -> None:
    """Wait until the client disconnects."""
    while (await receive())["type"] != "http.disconnect":
        pass


def _reply(said: dict[str, Any], status: int = 200) -> Response:
    """Convert the result of a call into a response, or raise its error."""
    if "error" in said:
        raise Refused(int(said.get("status", 500)), str(said["error"]))
    return JSONResponse(said, status)


def _key(request: Request) -> str:
    key: str = request.headers.get("idempotency-key", "")
    if len(key) > LONGEST_KEY:
        raise Refused(422, f"an Idempotency-Key has at most {LONGEST_KEY} characters")
    return key


async def _object(request: Request) -> dict[str, Any]:
    return _parsed(await request.body())


def _parsed(data: bytes) -> dict[str, Any]:
    try:
        body = json.loads(data)
    except (ValueError, RecursionError):
        raise Refused(422, "the body is not JSON") from None
    if not isinstance(body, dict):
        raise Refused(422, f"the body is a {type(body).__name__}, and must be an object")
    return body
