"""Session handles: a session is created on first use, used by one thread at a time, and closed exactly once."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import re
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from threading import Lock, current_thread, main_thread
from typing import Any, TypeVar, cast

from rlvr.contracts import Environment, Session, StepResult, Transcript, Verifier
from rlvr.contracts.admission import CapacityLimiter, Permit
from rlvr.contracts.chat_request import ChatRequest
from rlvr.contracts.environment import ReplySession
from rlvr.errors import EnvError, describe_exception
from rlvr.mdp.records import (
    load_step_results,
    request_from_json,
    request_to_json,
    step_result_to_json,
    tool_spec_from_json,
    tool_spec_to_json,
    turn_from_json,
    turn_to_json,
)
from rlvr.task import Fault, Message, Task, Verdict
from rlvr.turns import ToolSpec, Turn

T = TypeVar("T")
_logger = logging.getLogger(__name__)

LONE_SURROGATE = re.compile("[\ud800-\udfff]")
"""Surrogates, which cannot be encoded in UTF-8."""

RAISED = "raised"
"""The detail of a verdict without a score whose verifier, session or environment raised; its value is the name of the exception."""


class NonExceptionRaised(RuntimeError):
    """Raised in place of an exception that is none of Python's errors, as a panic of a library in Rust or `pytest.fail` gives."""


def is_from_outside(error: BaseException) -> bool:
    """Whether an exception ends a run or a call from outside. Anything else that somebody's code raises is a failure of that code.

    Python interrupts the main thread alone, and closes or cancels only what is awaited: in any other place the code raised it itself.

    >>> is_from_outside(KeyboardInterrupt()), is_from_outside(asyncio.CancelledError())
    (True, False)
    """
    return isinstance(error, KeyboardInterrupt) and current_thread() is main_thread()


def call_with_exceptions(work: Callable[[], T]) -> T:
    """Call somebody's code; what it raises that is none of Python's errors becomes `NonExceptionRaised`, unless it is from outside."""
    try:
        return work()
    except (Exception, SystemExit):
        raise
    except BaseException as error:
        if is_from_outside(error):
            raise
        raise NonExceptionRaised(describe_exception(error)) from error


async def await_with_exceptions(work: Coroutine[Any, Any, T]) -> T:
    """Await somebody's code, like `call_with_exceptions`, in a task of its own.

    A coroutine that is cancelled or closed raises what the code may raise itself. In a task of its own, only the code can have raised it.
    """
    task = asyncio.ensure_future(_await_without_stopping_the_loop(work))
    try:
        await asyncio.wait([task])
    except asyncio.CancelledError:
        task.cancel()
        await asyncio.wait([task])  # it may have something to close
        raise
    error = asyncio.CancelledError() if task.cancelled() else task.exception()
    if error is None or isinstance(error, Exception):
        return task.result()
    raise NonExceptionRaised(describe_exception(error)) from error


async def _await_without_stopping_the_loop(work: Coroutine[Any, Any, T]) -> T:
    try:
        return await work
    except (KeyboardInterrupt, SystemExit) as error:
        if is_from_outside(error):
            raise
        raise NonExceptionRaised(describe_exception(error)) from error


class LazySession:
    """The handle of one conversation's session. Creates it on first use, and closes it exactly once."""

    def __init__(self, environment: Environment, task: Task, *, seed: int, session: Session | None = None, context_window: int = 0) -> None:
        self.environment, self.task, self.seed, self.context_window = environment, task, seed, context_window
        self.warnings = ""
        """Problems that do not change the verdict, for the record."""
        self.current_method = f"{type(environment).__name__}.new_session"
        """The name of the last method called, for error messages when it raises or hangs."""
        self.tools: tuple[ToolSpec, ...] = ()
        """The tools of the session; known once it is open, like `initial_messages`."""
        self.initial_messages: tuple[Message, ...] = ()
        self.masked_turns: tuple[int, ...] = ()
        """The turns that nobody received; known at the end."""
        self.first_request: ChatRequest | None = None
        """The first call of an agent; None for a session without one."""
        self.is_recorded = isinstance(session, ReplayedSession)
        """Whether the session is replayed from a record."""
        self._session = session
        self._is_initialized = False
        self._lock = Lock()
        self._is_busy = self._is_closed = False

    def get_limiters(self) -> Sequence[CapacityLimiter]:
        """Return the limiters that admit this session; request a permit of them before `open`."""
        return self.environment.get_session_limiters(self.task)

    def open(self, permit: Permit | None = None) -> None:
        """Open the session before its first turn. Without a permit, this call waits for what the session needs."""
        with permit or nullcontext():
            self._call_session("open", lambda session: None)

    def step(self, turn: Turn) -> StepResult:
        """Step the session with a turn and return its reply."""
        heard = self._call_session("step", lambda session: session.step(turn))
        if heard is None:
            return StepResult(done=True)
        if not isinstance(heard, StepResult):
            raise TypeError(f"step returned {heard!r:.80}; it must be a StepResult, or None to end the conversation")
        if not heard.done and any(message["role"] == "assistant" for message in heard.messages):
            raise ValueError(
                "step returned a message of the role assistant; that is the policy, so a reply is of the role user, tool or system"
            )
        if any(LONE_SURROGATE.search(message["content"]) for message in heard.messages):
            self.add_warning(f"{self.current_method} returned lone surrogates, which are invalid in text; they were replaced")
            messages = ({**message, "content": LONE_SURROGATE.sub("\ufffd", message["content"])} for message in heard.messages)
            return replace(heard, messages=cast("tuple[Message, ...]", tuple(messages)))
        return heard

    def add_warning(self, warning: str) -> None:
        """Record a problem that does not change the verdict."""
        self.warnings = f"{self.warnings}; {warning}" if self.warnings else warning

    def collect_transcript(self, turns: tuple[Turn, ...], step_results: tuple[StepResult, ...]) -> Transcript | Verdict:
        """Collect the transcript. Never raises: a failure gives a verdict instead."""

        def collect(session: Session) -> Transcript | Verdict:
            ending = _collect_transcript(session, turns, step_results)
            self.masked_turns = tuple(session.masked_turns)
            if session.warning:
                self.add_warning(session.warning)
            return ending

        try:
            return self._call_session("artifacts", collect)
        except (Exception, SystemExit) as error:
            return build_unscored_verdict(self.current_method, error)

    @property
    def session(self) -> Session | None:
        """The session, once it is open and until it is closed."""
        return self._session

    @property
    def is_closed(self) -> bool:
        """Whether the session is closed, or will be as soon as it is idle."""
        return self._is_closed

    @property
    def is_open_and_idle(self) -> bool:
        """Whether the session is open and not in use by a thread."""
        with self._lock:
            return self._session is not None and not self._is_busy

    def close(self) -> None:
        """Close the session now, or when the thread that uses it returns. Thread-safe; may be called more than once."""
        with self._lock:
            self._is_closed, busy = True, self._is_busy
        if not busy:
            self._close_session()

    def _call_session(self, method: str, work: Callable[[Session], T]) -> T:
        with self._lock:
            if self._is_closed or self._is_busy:
                raise EnvError(f"the session of task {self.task.id!r} is {'closed' if self._is_closed else 'in use by another thread'}")
            self._is_busy = True

        def call() -> T:
            if self._session is None:
                opened = self.environment.new_session(self.task, seed=self.seed)
                if not isinstance(opened, Session):
                    raise TypeError(f"{type(self.environment).__name__}.new_session returned {opened!r:.80}; it must be an rlvr.Session")
                self._session = opened
            plain = isinstance(self._session, ReplySession)
            if not (plain or self._is_initialized):
                self._initialize(self._session)
            self.current_method = f"{type(self.environment).__name__}.reply" if plain else f"{type(self._session).__name__}.{method}"
            return work(self._session)

        try:
            return call_with_exceptions(call)
        finally:
            with self._lock:
                self._is_busy = False
                left = self._is_closed
            if left:
                self._close_session()

    def _initialize(self, session: Session) -> None:
        """Query the tools and the initial messages of the session."""
        if session.context_window is not None:
            session.context_window = self.context_window
        self.current_method = f"{type(session).__name__}.start_tools"
        self.tools = tuple(session.start_tools())
        if wrong := [spec for spec in self.tools if not isinstance(spec, ToolSpec)]:
            raise TypeError(f"start_tools returned {wrong[0]!r:.80}; it must be a sequence of rlvr.turns.ToolSpec")
        self.current_method = f"{type(session).__name__}.initial_messages"
        self.initial_messages = tuple(session.initial_messages())
        if wrong_messages := [
            said for said in self.initial_messages if not isinstance(said, Mapping) or not {"role", "content"} <= said.keys()
        ]:
            raise TypeError(f"initial_messages returned {wrong_messages[0]!r:.80}; it must be a sequence of messages with role and content")
        self.current_method = f"{type(session).__name__}.first_request"
        self.first_request = session.first_request()
        if not isinstance(self.first_request, ChatRequest | None):
            raise TypeError(f"first_request returned {self.first_request!r:.80}; it must be a ChatRequest or None")
        self._is_initialized = True

    def _close_session(self) -> None:
        with self._lock:
            session, self._session = self._session, None
        try:
            if session is not None:
                session.close()
        except BaseException as error:
            if is_from_outside(error):
                raise
            self.add_warning(f"{type(session).__name__}.close raised {describe_exception(error)}")


def _collect_transcript(session: Session, turns: tuple[Turn, ...], step_results: tuple[StepResult, ...]) -> Transcript | Verdict:
    owner = "environment" if isinstance(session, ReplySession) else "session"
    if isinstance(session, ReplayedSession) and (verdict := session.record.get("verdict")):
        return Verdict(verdict["score"], verdict["reason"], fault=Fault(verdict["fault"]))
    asked = "select_answer"
    try:
        answer = _require_string(session.select_answer(turns))
        asked = "artifacts"
        left = session.artifacts()
        asked = "artifacts() cannot be stored, storing them"
        evidence = copy_plain_artifacts(left)
    except (Exception, SystemExit) as error:
        return build_unscored_verdict(f"the {owner}'s {asked}{'' if ' ' in asked else '()'}", error)
    size = sum(len(name) + (len(value) if isinstance(value, bytes) else len(json.dumps(value))) for name, value in evidence.items())
    if size > session.max_artifact_bytes:
        most = session.max_artifact_bytes
        return Verdict(0.0, f"the answer left {size:,} bytes of artifacts; at most {most:,} are allowed", fault=Fault.ANSWER)
    return Transcript(answer, evidence, turns, step_results)


def copy_plain_artifacts(artifacts: Mapping[str, Any]) -> dict[str, Any]:
    """Copy artifacts: JSON values and bytes by name; raise TypeError for anything else.

    >>> copy_plain_artifacts({"log.txt": b"done", "moves": (1, 2)})
    {'log.txt': b'done', 'moves': [1, 2]}
    """
    if not isinstance(artifacts, Mapping) or not all(isinstance(name, str) for name in artifacts):
        raise TypeError(f"it returned {artifacts!r:.80}; it must be a mapping of names to JSON values and bytes")
    return {
        name: bytes(value) if isinstance(value, bytes | bytearray) else json.loads(json.dumps(value, allow_nan=False))
        for name, value in artifacts.items()
    }


class ReplayedSession(Session):
    """Replays a recorded session: it returns the recorded replies without side effects.

    >>> ReplayedSession({"step_results": [{"messages": [], "done": True}], "answer": "4"}).step(Turn("4")).done
    True
    """

    def __init__(self, record: Mapping[str, Any]) -> None:
        self.record, self.next_turn = record, 0
        self._step_results = load_step_results(record)

    def start_tools(self) -> Sequence[ToolSpec]:
        """Return the recorded tools."""
        return [tool_spec_from_json(row) for row in self.record.get("tools", ())]

    def initial_messages(self) -> Sequence[Message]:
        """Return the recorded initial messages."""
        return tuple(self.record.get("initial_messages", ()))

    def first_request(self) -> ChatRequest | None:
        """Return the recorded first call of an agent."""
        return request_from_json(self.record["first_request"]) if "first_request" in self.record else None

    def step(self, turn: Turn) -> StepResult | None:
        """Return the next recorded reply."""
        if self.next_turn >= len(self._step_results):
            raise EnvError(f"turn {self.next_turn} was not recorded")
        self.next_turn += 1
        return self._step_results[self.next_turn - 1]

    def select_answer(self, turns: Sequence[Turn]) -> str:
        """Return the recorded answer."""
        return str(self.record["answer"])

    def artifacts(self) -> Mapping[str, Any]:
        """Return the recorded artifacts."""
        files = {name: base64.b64decode(data) for name, data in self.record.get("files", {}).items()}
        return {**self.record.get("values", {}), **files}


def build_session_record(
    session_handle: LazySession, turns: Sequence[Turn], step_results: Sequence[StepResult], collected: Transcript | Verdict | None
) -> dict[str, Any]:
    """Build the record of a session as plain JSON, for `ReplayedSession`."""
    record: dict[str, Any] = {"seed": session_handle.seed} | (
        {"tools": [tool_spec_to_json(spec) for spec in session_handle.tools]} if session_handle.tools else {}
    )
    record |= (
        {"initial_messages": [dict(message) for message in session_handle.initial_messages]} if session_handle.initial_messages else {}
    )
    record |= {"turns": [turn_to_json(turn) for turn in turns], "step_results": []}
    if (previous := session_handle.first_request) is not None:
        record["first_request"] = request_to_json(previous)
    for said in step_results:
        record["step_results"].append(step_result_to_json(said, previous))
        previous = said.request or previous
    if collected is None:
        return record
    if isinstance(collected, Verdict):
        return record | {"verdict": collected.to_dict()}
    files = {name: base64.b64encode(value).decode() for name, value in collected.artifacts.items() if isinstance(value, bytes)}
    values = {name: value for name, value in collected.artifacts.items() if name not in files}
    return record | {"answer": collected.answer} | ({"values": values} if values else {}) | ({"files": files} if files else {})


def load_recorded_transcript(record: Mapping[str, Any]) -> Transcript | Verdict:
    """Load the transcript from a session record, or the verdict if the transcript could not be collected.

    >>> load_recorded_transcript({"seed": 7, "step_results": [], "answer": "4"}).answer
    '4'
    """
    if verdict := record.get("verdict"):
        return Verdict(verdict["score"], verdict["reason"], fault=Fault(verdict["fault"]))
    turns, heard = tuple(map(turn_from_json, record.get("turns", ()))), tuple(load_step_results(record))
    return Transcript(str(record["answer"]), ReplayedSession(record).artifacts(), turns, heard)


def verify_answer_safely(verifier: Verifier, task: Task, get_answer: Callable[[], str]) -> Verdict:
    """Verify the text that `get_answer` returns. If it or the verifier raises, exits or returns a wrong type, the verdict has no score
    and an infrastructure fault.
    """
    try:
        text = _require_string(call_with_exceptions(get_answer))
    except (Exception, SystemExit) as error:
        return build_unscored_verdict("the environment's select_answer()", error)
    return verify_transcript_safely(verifier, task, text)


def verify_batch_safely(verifier: Verifier, tasks: Sequence[Task], answers: Sequence[Any]) -> list[Verdict]:
    """Verify answers in this thread: in one call if the verifier takes batches, else, or if that fails, one after the other.

    >>> from rlvr.registry.plugins import build
    >>> [verdict.score for verdict in verify_batch_safely(build("verifier", "exact"), [Task("2+2=", "4")] * 2, ["4", "5"])]
    [1.0, 0.0]
    """
    if verifier.traits.has_batch_method and len(answers) > 1 and all(isinstance(answer, str) for answer in answers):
        try:
            found = call_with_exceptions(lambda: [*verifier.verify_many([*tasks], [*answers])])  # lists of its own, which it may change
        except (Exception, SystemExit) as error:
            _logger.debug("a batch of %d answers failed, so each is verified alone", len(answers), exc_info=error)
        else:
            if len(found) == len(answers):
                return [_check_verdict(verifier, verdict) for verdict in found]
    return [
        verify_transcript_safely(verifier, task, answer)
        if isinstance(answer, str)
        else Verdict(None, f"the answer is {answer!r:.60}; it must be a text", fault=Fault.INFRA)
        for task, answer in zip(tasks, answers, strict=True)
    ]


def verify_transcript_safely(
    verifier: Verifier, task: Task, transcript: Transcript | str, *, raised: tuple[type[Exception], ...] = ()
) -> Verdict:
    """Verify a transcript or an answer. If the verifier fails, the verdict has no score and an infrastructure fault.

    `raised`: the errors that are raised instead, because more of the same would follow.
    """
    try:
        if isinstance(transcript, str) and not verifier.traits.takes_transcript:  # building a transcript costs as much as a fast verifier
            verdict: object = verifier.verify(task, transcript)
        else:
            verdict = verifier.verify_transcript(task, Transcript(transcript) if isinstance(transcript, str) else transcript)
        return _check_verdict(verifier, verdict)
    except raised:
        raise
    except BaseException as error:
        if is_from_outside(error):
            raise
        return build_unscored_verdict(type(verifier).__name__, error)


async def averify_transcript_safely(verifier: Verifier, task: Task, transcript: Transcript) -> Verdict:
    """Await the verdict on a transcript. If the verifier fails, the verdict has no score and an infrastructure fault."""
    try:
        return _check_verdict(verifier, await await_with_exceptions(verifier.averify_transcript(task, transcript)))
    except Exception as error:
        return build_unscored_verdict(type(verifier).__name__, error)


def build_unscored_verdict(name: str, error: BaseException) -> Verdict:
    """Build the verdict on something that raised: no score, until it is known whose fault that is (`rlvr.mdp.answer_faults`).

    >>> build_unscored_verdict("Board.step", KeyError("a1")).reason
    "Board.step raised KeyError: 'a1'"
    """
    return Verdict(None, f"{name} raised {describe_exception(error)}", fault=Fault.INFRA, detail={RAISED: type(error).__name__})


def _check_verdict(verifier: Verifier, given: object) -> Verdict:
    """Return the verdict, or one without a score if the verifier may not give it."""
    name = type(verifier).__name__
    if not isinstance(given, Verdict):
        return Verdict(None, f"{name} returned {given!r:.80}, not a Verdict", fault=Fault.INFRA, detail={RAISED: "TypeError"})
    if given.score is not None and not 0 <= given.score <= 1 and verifier.has_bounded_score:
        wrong = f"{name} returned the score {given.score:g}, outside of 0 to 1; scale it, or set has_bounded_score = False on the verifier"
        return Verdict(None, wrong, fault=Fault.INFRA, detail={RAISED: "ValueError"})
    return given


def _require_string(value: object) -> str:
    """Return the value if it is a string; raise TypeError otherwise.

    >>> _require_string("4")
    '4'
    """
    if not isinstance(value, str):
        raise TypeError(f"it returned {value!r:.80}, not a text")
    return value
