"""Adapter for NeMo-Gym: a resources server with a route for each tool and `/verify`.

    make_server_class   a subclass of `SimpleResourcesServer`; its agent is `simple_agent` of NeMo-Gym

An answer that could not be verified gets `mask_sample` if the installed version has that field. In older versions `/verify` fails (status
500).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from rlvr.contracts import Environment
from rlvr.errors import ConfigError
from rlvr.integrations.rows import find_task, format_task_key, make_row, parse_split_and_index, require_score, warn_if_untested
from rlvr.integrations.texts import TextConversation, TextConversationFactory
from rlvr.rollout.rollout_request import derive_seed
from rlvr.task import Fault, Verdict
from rlvr.turns import Call, ToolSpec, Turn

TESTED_VERSION = "0.4.0"
ALSO_COMPATIBLE_VERSIONS = ("0.7.0",)
"""Further versions with compatible signatures; 0.7 adds environment servers and needs Python 3.13."""
warn_if_untested("nemo-gym", TESTED_VERSION, *ALSO_COMPATIBLE_VERSIONS)

MAX_OPEN_SESSIONS = 4096
"""Maximum number of stored sessions, since some agents never ask for a verdict."""
RESERVED_ROUTES = frozenset({"verify", "seed_session", "close_session", "aggregate_metrics", "reverify_mode", "mcp"})
"""Routes of NeMo-Gym, which are no valid tool names."""


def make_nemo_row(environment: Environment, split: str, index: int, tools: Sequence[ToolSpec] | None = None) -> dict[str, Any]:
    """Make a row of NeMo-Gym, in the format of OpenAI's Responses. `tools`: the tools of sessions, if given."""
    row = make_row(environment.task(split, index), split, index)
    if tools is None:
        tools = [spec for tool in environment.tools for spec in tool.specs()]
    flat = [
        {"type": "function", "name": t.name, "description": t.description, "parameters": dict(t.parameters), "strict": False} for t in tools
    ]
    return {"responses_create_params": {"input": row["prompt"], "tools": flat}, "label": format_task_key(split, index, row["prompt"])}


def extract_final_text(response: Mapping[str, Any]) -> str:
    """Extract the final text of the policy: the last item of a response if it is a message. Text before a call is not an answer.

    >>> extract_final_text({"output": [{"type": "message", "content": [{"type": "output_text", "text": "4"}]}]})
    '4'
    """
    items = [item for item in response.get("output", ()) if item.get("type") != "reasoning"]
    last = items[-1] if items else {}
    if last.get("type") != "message":
        return ""
    content = last.get("content") or ""
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content if part.get("type") == "output_text")


@dataclass(slots=True)
class ServerSession:
    """A session of the server: its conversation, and later its verdict.

    >>> ServerSession("sums/train/7").verdict is None
    True
    """

    task_id: str
    conversation: TextConversation | None = None
    verdict: Verdict | None = None
    lock: Lock = field(default_factory=Lock)


class NemoSessions:
    """The conversations of a server, by session id.

    The agent posts each call of the policy to the route with the name of the tool, so a policy can also call `seed_session` and `verify`.
    Therefore a session keeps its first task and its first verdict.
    """

    def __init__(self, environment: Environment, *, call_timeout_s: float = 600.0) -> None:
        if environment.traits.replies:
            raise ConfigError(f"{type(environment).__name__} replies to the policy's texts, and NeMo-Gym's simple agent has tools only")
        self.runner = TextConversationFactory(environment, call_timeout_s=call_timeout_s)
        self.sessions, self.lock = dict[str, ServerSession](), Lock()
        probe = self.runner.start_conversation(environment.task(environment.splits[0], 0))
        self.tools = probe.tools
        probe.close()
        if taken := sorted({spec.name for spec in self.tools} & RESERVED_ROUTES):
            self.runner.close()
            raise ConfigError(f"a tool is called {taken[0]!r}, which is a route of NeMo-Gym; give it another name")

    def open_session(self, session_id: str, label: object) -> None:
        """Open the session for the task of a label. An existing session stays as it is, and cannot change its task."""
        self._get_or_open(session_id, label)

    def _get_or_open(self, session: str, label: object) -> ServerSession:
        task = find_task(self.runner.environment, parse_split_and_index(label))
        with self.lock:
            seat = self.sessions.get(session)
            if seat is None:
                left = self._evict_oldest()
                seat = self.sessions[session] = ServerSession(task.id)
                seat.lock.acquire()  # until its conversation has been created
            elif seat.task_id != task.id:
                raise ConfigError(f"the session is about {seat.task_id!r}, and the label {label!r:.80} names another task")
            else:
                return seat
        try:
            seat.conversation = self.runner.start_conversation(task, seed=derive_seed("world", task.id))
        finally:
            seat.lock.release()
        for stale in left:
            stale.close()
        return seat

    def _evict_oldest(self) -> list[TextConversation]:
        """Remove the oldest verified session, else the oldest, if the limit is reached; return conversations to close."""
        if len(self.sessions) < MAX_OPEN_SESSIONS:
            return []
        oldest = next((name for name, seat in self.sessions.items() if seat.verdict is not None), next(iter(self.sessions)))
        conversation = self.sessions.pop(oldest).conversation
        return [] if conversation is None else [conversation]

    def call_tool(self, session_id: str, name: str, arguments: Mapping[str, Any]) -> str:
        """Run a call and return the result for the policy."""
        seat = self.sessions.get(session_id)
        if seat is None:
            return "Error: this call was not run. The session is not open."
        with seat.lock:
            conversation = seat.conversation
            if conversation is None or conversation.done:
                return "Error: this call was not run. The conversation is over."
            conversation.step(Turn("", calls=(Call(f"{len(conversation.turns)}.0", name, dict(arguments)),)))
            if conversation.failure or not conversation.step_results[-1].messages:
                return "Error: the tool failed." if conversation.failure else ""
            return conversation.step_results[-1].messages[0]["content"]

    def finish_and_verify(self, session_id: str, label: object, text: str) -> Verdict:
        """Return the verdict on the final text of a session; later calls return the same verdict.

        Without tools, a missing session is opened.
        """
        if session_id not in self.sessions and self.tools:
            raise ConfigError("verify was called for a session that is not open, so its tool calls are unknown; call /seed_session first")
        seat = self._get_or_open(session_id, label)
        with seat.lock:
            conversation = seat.conversation
            if conversation is not None:
                if text and not conversation.done:
                    conversation.step(Turn(text, content=text))
                seat.verdict, seat.conversation = conversation.finish_and_verify(), None
        if seat.verdict is None:
            return Verdict(None, "the session was closed before it was verified", fault=Fault.INFRA)
        return seat.verdict

    def close_session(self, session_id: str) -> None:
        """Close a session if it is open; may be called repeatedly."""
        seat = self.sessions.get(session_id)
        if seat is not None:
            with seat.lock:
                conversation, seat.conversation = seat.conversation, None
            if conversation is not None:
                conversation.close()

    def close(self) -> None:
        """Close all sessions, the threads and the environment."""
        for session in list(self.sessions):
            self.close_session(session)
        self.runner.close()


def make_server_class(
    environment: Environment, base: Any, answer: Any, *, session_key: str = "session_id", call_timeout_s: float = 600.0
) -> type:
    """Make a subclass of NeMo-Gym's `SimpleResourcesServer`.

    Args:
        environment: an environment that only talks through tools, or a single-turn environment.
        base: NeMo-Gym's `SimpleResourcesServer`.
        answer: NeMo-Gym's `BaseVerifyResponse`.
        session_key: NeMo-Gym's `SESSION_ID_KEY`.
        call_timeout_s: timeout of one call of a session and of one verification, in seconds.
    """
    desk = NemoSessions(environment, call_timeout_s=call_timeout_s)

    async def arguments(request: Any) -> dict[str, Any]:
        given = json.loads(await request.body() or b"{}")
        return given if isinstance(given, dict) else {}

    class RlvrResourcesServer(base):
        """Sessions, tools and verdicts of one environment."""

        def setup_webserver(self) -> Any:
            """Add a route for each tool to the routes of NeMo-Gym."""
            app = super().setup_webserver()
            for spec in desk.tools:
                app.add_route(f"/{spec.name}", self._route(spec.name), methods=["POST"])
            return app

        def _route(self, name: str) -> Any:
            async def called(request: Any) -> Any:
                from starlette.responses import PlainTextResponse

                session = request.session[session_key]
                return PlainTextResponse(await asyncio.to_thread(desk.call_tool, session, name, await arguments(request)))

            return called

        async def seed_session(self, request: Any) -> dict[str, Any]:
            """Open the session of a row. An environment server (since 0.7) sends a session id and expects it back."""
            body = await arguments(request)
            named, row = body.get("resources_session_id"), body.get("task_data") or body
            opening = desk.runner.start_executor.submit(desk.open_session, request.session[session_key], row.get("label"))
            await asyncio.wrap_future(opening)
            return {} if named is None else {"resources_session_id": named}

        async def close_resources_session(self, request: Any) -> dict[str, Any]:
            """Close the session (since 0.7)."""
            await asyncio.to_thread(desk.close_session, request.session[session_key])
            return {"resources_session_id": (await arguments(request)).get("resources_session_id")}

        async def verify(self, request: Any) -> Any:
            """Verify the final text of a response."""
            body = await arguments(request)
            session, text = request.session[session_key], extract_final_text(body.get("response") or {})
            verdict = await asyncio.to_thread(desk.finish_and_verify, session, body.get("label"), text)
            if not verdict.is_scored and "mask_sample" in getattr(answer, "model_fields", {}):
                return answer(**{**body, "reward": 0.0, "mask_sample": True, "failure_reason": verdict.reason})
            return answer(**{**body, "reward": require_score(verdict, "NeMo-Gym")})

    for method in ("seed_session", "close_resources_session", "verify"):  # from the annotation, FastAPI passes the request itself
        getattr(RlvrResourcesServer, method).__annotations__["request"] = _get_request_class()
    return RlvrResourcesServer


def _get_request_class() -> Any:
    """Return the request class of Starlette, or Any if it is not installed."""
    try:
        from starlette.requests import Request
    except ModuleNotFoundError:
        return Any
    return Request
