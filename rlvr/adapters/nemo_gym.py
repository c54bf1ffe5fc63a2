"""NeMo-Gym: a resources server with a route for each tool and `/verify`.

    server_of   a subclass of `SimpleResourcesServer`; its agent is NeMo-Gym's own `simple_agent`

An answer that could not be judged is marked with `mask_sample` where the installed version has that field; older versions have no word for
it, and `/verify` fails (status 500).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from rlvr.adapters.rows import agreed, label_of, labelled, row_of, score_of, task_of
from rlvr.adapters.texts import Conversation, World
from rlvr.contracts import Environment
from rlvr.errors import ConfigError
from rlvr.rollout.draws import seed_of
from rlvr.task import Fault, Verdict
from rlvr.turns import Call, ToolSpec, Turn

TESTED = "0.4.0"
ALSO = ("0.7.0",)
"""Versions whose signatures fit too; 0.7 adds environment servers, and needs Python 3.13."""
agreed("nemo-gym", TESTED, *ALSO)

MOST_OPEN = 4096
"""How many sessions are remembered: an agent that never asks for a verdict leaves its session behind."""
ROUTES = frozenset({"verify", "seed_session", "close_session", "aggregate_metrics", "reverify_mode", "mcp"})
"""NeMo-Gym's own routes, which no tool may be called."""


def nemo_row(environment: Environment, split: str, index: int, tools: Sequence[ToolSpec] | None = None) -> dict[str, Any]:
    """A row of NeMo-Gym's JSONL, in the shape of OpenAI's Responses. Tools that only a session knows are given: `Desk.tools`."""
    row = row_of(environment.task(split, index), split, index)
    if tools is None:
        tools = [spec for tool in environment.tools for spec in tool.specs()]
    flat = [
        {"type": "function", "name": t.name, "description": t.description, "parameters": dict(t.parameters), "strict": False} for t in tools
    ]
    return {"responses_create_params": {"input": row["prompt"], "tools": flat}, "label": label_of(split, index, row["prompt"])}


def said_in(response: Mapping[str, Any]) -> str:
    """The policy's final text: the last item of a response if it is a message; text before a call is no answer.

    >>> said_in({"output": [{"type": "message", "content": [{"type": "output_text", "text": "4"}]}]})
    '4'
    """
    items = [item for item in response.get("output", ()) if item.get("type") != "reasoning"]
    last = items[-1] if items else {}
    if last.get("type") != "message":
        return ""
    content = last.get("content") or ""
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content if part.get("type") == "output_text")


@dataclass(slots=True)
class Seat:
    """One session of the server: its conversation until it is judged, then its verdict.

    >>> Seat("sums/train/7").verdict is None
    True
    """

    task_id: str
    talk: Conversation | None = None
    verdict: Verdict | None = None
    lock: Lock = field(default_factory=Lock)


class Desk:
    """The conversations of one server, by the id of the session.

    The agent posts each call of the policy to the route of that name, so a policy can name `seed_session` and `verify` too. Hence a session
    has one task and one verdict, the first: what comes later changes neither.

    >>> desk = Desk(make("env", "calculator_sums")); desk.begin("a", label)              # doctest: +SKIP
    >>> desk.call("a", "calculator", {"expression": "2+2"}); desk.verdict("a", label, "4").score    # doctest: +SKIP
    """

    def __init__(self, environment: Environment, *, deadline_s: float = 600.0) -> None:
        if type(environment).reply is not Environment.reply:
            raise ConfigError(f"{type(environment).__name__} replies to the policy's texts, and NeMo-Gym's simple agent has tools only")
        self.world = World(environment, deadline_s=deadline_s)
        self.seats, self.lock = dict[str, Seat](), Lock()
        probe = self.world.begin(environment.task(environment.splits[0], 0))
        self.tools = probe.tools
        probe.close()
        if taken := sorted({spec.name for spec in self.tools} & ROUTES):
            self.world.close()
            raise ConfigError(f"a tool is called {taken[0]!r}, which is a route of NeMo-Gym's own; give it another name")

    def begin(self, session: str, label: object) -> None:
        """Open the session of a label. One that is open or judged stays as it is; it cannot become another task's."""
        self._seat(session, label)

    def _seat(self, session: str, label: object) -> Seat:
        task = task_of(self.world.environment, labelled(label))
        with self.lock:
            seat = self.seats.get(session)
            if seat is None:
                left = self._room()
                seat = self.seats[session] = Seat(task.id)
                seat.lock.acquire()  # until its conversation is there
            elif seat.task_id != task.id:
                raise ConfigError(f"the session is about {seat.task_id!r}, and the label {label!r:.80} names another task")
            else:
                return seat
        try:
            seat.talk = self.world.begin(task, seed=seed_of("world", task.id))
        finally:
            seat.lock.release()
        for stale in left:
            stale.close()
        return seat

    def _room(self) -> list[Conversation]:
        """Room for one more session: the oldest that is judged leaves, else the oldest. What is still to be closed."""
        if len(self.seats) < MOST_OPEN:
            return []
        oldest = next((name for name, seat in self.seats.items() if seat.verdict is not None), next(iter(self.seats)))
        talk = self.seats.pop(oldest).talk
        return [] if talk is None else [talk]

    def call(self, session: str, name: str, arguments: Mapping[str, Any]) -> str:
        """The result of a call, as the policy reads it."""
        seat = self.seats.get(session)
        if seat is None:
            return "Error: this call was not run. The session is not open."
        with seat.lock:
            talk = seat.talk
            if talk is None or talk.over:
                return "Error: this call was not run. The conversation is over."
            talk.hear(Turn("", calls=(Call(f"{len(talk.turns)}.0", name, dict(arguments)),)))
            if talk.trouble or not talk.heard[-1].messages:
                return "Error: the tool failed." if talk.trouble else ""
            return talk.heard[-1].messages[0]["content"]

    def verdict(self, session: str, label: object, text: str) -> Verdict:
        """The verdict on a final text; asked again, the same. A session that is not open is opened, if the environment has no tools."""
        if session not in self.seats and self.tools:
            raise ConfigError("verify came for a session that is not open, and its tools have run elsewhere; call /seed_session first")
        seat = self._seat(session, label)
        with seat.lock:
            talk = seat.talk
            if talk is not None:
                if text and not talk.over:
                    talk.hear(Turn(text, content=text))
                seat.verdict, seat.talk = talk.verdict(), None
        return seat.verdict or Verdict(None, "the session was closed before it was judged", fault=Fault.INFRA)

    def leave(self, session: str) -> None:
        """Close a session, if it is open. Any number of times."""
        seat = self.seats.get(session)
        if seat is not None:
            with seat.lock:
                talk, seat.talk = seat.talk, None
            if talk is not None:
                talk.close()

    def close(self) -> None:
        """Close all sessions, the threads and the environment."""
        for session in list(self.seats):
            self.leave(session)
        self.world.close()


def server_of(environment: Environment, base: Any, answer: Any, *, session_key: str = "session_id", deadline_s: float = 600.0) -> type:
    """A subclass of NeMo-Gym's `SimpleResourcesServer`.

    Args:
        environment: one that talks through tools alone, or of one turn.
        base: NeMo-Gym's `SimpleResourcesServer`.
        answer: NeMo-Gym's `BaseVerifyResponse`.
        session_key: NeMo-Gym's `SESSION_ID_KEY`.
        deadline_s: how long one call of a session, or one verdict, may take.
    """
    desk = Desk(environment, deadline_s=deadline_s)

    async def arguments(request: Any) -> dict[str, Any]:
        given = json.loads(await request.body() or b"{}")
        return given if isinstance(given, dict) else {}

    class RlvrResourcesServer(base):
        """Sessions, tools and verdicts of one environment."""

        def setup_webserver(self) -> Any:
            """NeMo-Gym's routes, and one for each tool."""
            app = super().setup_webserver()
            for spec in desk.tools:
                app.add_route(f"/{spec.name}", self._route(spec.name), methods=["POST"])
            return app

        def _route(self, name: str) -> Any:
            async def called(request: Any) -> Any:
                from starlette.responses import PlainTextResponse

                session = request.session[session_key]
                return PlainTextResponse(await asyncio.to_thread(desk.call, session, name, await arguments(request)))

            return called

        async def seed_session(self, request: Any) -> dict[str, Any]:
            """Open the session of a row. An environment server (since 0.7) names the session, and expects its name back."""
            body = await arguments(request)
            named, row = body.get("resources_session_id"), body.get("task_data") or body
            await asyncio.to_thread(desk.begin, request.session[session_key], row.get("label"))
            return {} if named is None else {"resources_session_id": named}

        async def close_resources_session(self, request: Any) -> dict[str, Any]:
            """Close the session (since 0.7)."""
            await asyncio.to_thread(desk.leave, request.session[session_key])
            return {"resources_session_id": (await arguments(request)).get("resources_session_id")}

        async def verify(self, request: Any) -> Any:
            """Judge the final text of a response."""
            body = await arguments(request)
            session, text = request.session[session_key], said_in(body.get("response") or {})
            verdict = await asyncio.to_thread(desk.verdict, session, body.get("label"), text)
            if not verdict.scored and "mask_sample" in getattr(answer, "model_fields", {}):
                return answer(**{**body, "reward": 0.0, "mask_sample": True, "failure_reason": verdict.reason})
            return answer(**{**body, "reward": score_of(verdict, "NeMo-Gym")})

    for method in ("seed_session", "close_resources_session", "verify"):  # FastAPI reads the annotation: the request itself is handed over
        getattr(RlvrResourcesServer, method).__annotations__["request"] = _request_type()
    return RlvrResourcesServer


def _request_type() -> Any:
    """Starlette's request, where NeMo-Gym's web framework is installed."""
    try:
        from starlette.requests import Request
    except ModuleNotFoundError:
        return Any
    return Request
