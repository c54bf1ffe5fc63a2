"""Session handles: a session is created on first use, used by one thread at a time, and closed exactly once."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from threading import Lock
from typing import Any, TypeVar, cast

from rlvr.contracts import Begun, Environment, Heard, Session, Transcript, Verifier
from rlvr.contracts.environment import Replying
from rlvr.errors import EnvError
from rlvr.mdp.records import heard_from, heard_row, tool_from, tool_row, turn_from, turn_row
from rlvr.task import Fault, Message, Task, Verdict
from rlvr.turns import ToolSpec, Turn

T = TypeVar("T")
LONE = re.compile("[\ud800-\udfff]")
"""Surrogates, which cannot be encoded in UTF-8."""


class Lease:
    """The handle of one conversation's session. Creates it on first use, and closes it exactly once."""

    def __init__(self, environment: Environment, task: Task, *, seed: int, session: Session | None = None) -> None:
        self.environment, self.task, self.seed = environment, task, seed
        self.trouble = ""
        """Problems that do not change the verdict, for the record."""
        self.asked = f"{type(environment).__name__}.open"
        """The name of the last method called, for error messages when it raises or hangs."""
        self.tools: tuple[ToolSpec, ...] = ()
        """The tools of the session; known once it is open, like `initial_messages`."""
        self.opening: tuple[Message, ...] = ()
        self._session = session
        self._asked = False
        self._lock = Lock()
        self._busy = self._left = False

    def open(self) -> None:
        """Open the session before its first turn."""
        self._do("open", lambda session: None)

    def hear(self, turn: Turn) -> Heard:
        """Step the session with a turn and return its reply."""
        heard = self._do("hear", lambda session: session.hear(turn))
        if heard is None:
            return Heard(over=True)
        if not isinstance(heard, Heard):
            raise TypeError(f"step returned {heard!r:.80}; it must be a StepResult, or None to end the conversation")
        if any(LONE.search(message["content"]) for message in heard.messages):
            self.note(f"{self.asked} returned lone surrogates, which are invalid in text; they were replaced")
            messages = ({**message, "content": LONE.sub("\ufffd", message["content"])} for message in heard.messages)
            return replace(heard, messages=cast("tuple[Message, ...]", tuple(messages)))
        return heard

    def note(self, trouble: str) -> None:
        """Record a problem that does not change the verdict."""
        self.trouble = f"{self.trouble}; {trouble}" if self.trouble else trouble

    def collect(self, turns: tuple[Turn, ...], heard: tuple[Heard, ...]) -> Transcript | Verdict:
        """Collect the transcript. Never raises: a failure gives a verdict instead."""
        try:
            return self._do("evidence", lambda session: _collected(session, turns, heard))
        except (Exception, SystemExit) as error:
            return Verdict(None, f"{self.asked} raised {type(error).__name__}: {error}", fault=Fault.INFRA)

    @property
    def idle(self) -> bool:
        """Whether the session is open and not in use by a thread."""
        with self._lock:
            return self._session is not None and not self._busy

    def close(self) -> None:
        """Close the session now, or when the thread that uses it returns. Thread-safe; may be called more than once."""
        with self._lock:
            self._left, busy = True, self._busy
        if not busy:
            self._close()

    def _do(self, method: str, work: Callable[[Session], T]) -> T:
        with self._lock:
            if self._left or self._busy:
                raise EnvError(f"the session of task {self.task.id!r} is {'closed' if self._left else 'in use by another thread'}")
            self._busy = True
        try:
            if self._session is None:
                opened = self.environment.open(self.task, seed=self.seed)
                if not isinstance(opened, Session):
                    raise TypeError(f"{type(self.environment).__name__}.new_session returned {opened!r:.80}; it must be an rlvr.Session")
                self._session = opened
            plain = isinstance(self._session, Replying)
            if not (plain or self._asked):
                self._ask(self._session)
            self.asked = f"{type(self.environment).__name__}.reply" if plain else f"{type(self._session).__name__}.{method}"
            return work(self._session)
        finally:
            with self._lock:
                self._busy = False
                left = self._left
            if left:
                self._close()

    def _ask(self, session: Session) -> None:
        """Query the tools and the initial messages of the session."""
        self.asked = f"{type(session).__name__}.tools"
        self.tools = tuple(session.tools())
        if wrong := [spec for spec in self.tools if not isinstance(spec, ToolSpec)]:
            raise TypeError(f"tools returned {wrong[0]!r:.80}; it must be a sequence of rlvr.turns.ToolSpec")
        self.asked = f"{type(session).__name__}.opening"
        self.opening = tuple(session.opening())
        if wrong_messages := [said for said in self.opening if not isinstance(said, Mapping) or not {"role", "content"} <= said.keys()]:
            raise TypeError(f"initial_messages returned {wrong_messages[0]!r:.80}; it must be a sequence of messages with role and content")
        self._asked = True

    def _close(self) -> None:
        with self._lock:
            session, self._session = self._session, None
        try:
            if session is not None:
                session.close()
        except (Exception, SystemExit) as error:
            self.note(f"{type(session).__name__}.close raised {type(error).__name__}: {error}")


def _collected(session: Session, turns: tuple[Turn, ...], heard: tuple[Heard, ...]) -> Transcript | Verdict:
    owner = "environment" if isinstance(session, Replying) else "session"
    if isinstance(session, Recorded) and (verdict := session.record.get("verdict")):
        return Verdict(verdict["score"], verdict["reason"], fault=Fault(verdict["fault"]))
    asked = "answer"
    try:
        answer = text_of(session.answer(turns))
        asked = "evidence"
        left = session.evidence()
        try:
            evidence = plain_evidence(left)
        except (ValueError, RecursionError, OverflowError) as error:  # not finite, too long a number, nested too deep: caused by the answer
            return Verdict(
                0.0, f"the answer left artifacts that cannot be stored: {type(error).__name__}: {error}"[:400], fault=Fault.ANSWER
            )
    except (Exception, SystemExit) as error:
        return Verdict(None, f"the {owner}'s {asked}() raised {type(error).__name__}: {error}", fault=Fault.INFRA)
    size = sum(len(name) + (len(value) if isinstance(value, bytes) else len(json.dumps(value))) for name, value in evidence.items())
    if size > session.max_evidence_bytes:
        most = session.max_evidence_bytes
        return Verdict(0.0, f"the answer left {size:,} bytes of artifacts; at most {most:,} are allowed", fault=Fault.ANSWER)
    return Transcript(answer, evidence, turns, heard)


def plain_evidence(evidence: Mapping[str, Any]) -> dict[str, Any]:
    """Copy artifacts: JSON values and bytes by name; raise TypeError for anything else.

    >>> plain_evidence({"log.txt": b"done", "moves": (1, 2)})
    {'log.txt': b'done', 'moves': [1, 2]}
    """
    if not isinstance(evidence, Mapping) or not all(isinstance(name, str) for name in evidence):
        raise TypeError(f"it returned {evidence!r:.80}; it must be a mapping of names to JSON values and bytes")
    return {
        name: bytes(value) if isinstance(value, bytes | bytearray) else json.loads(json.dumps(value, allow_nan=False))
        for name, value in evidence.items()
    }


class Recorded(Session):
    """Replays a recorded session: it returns the recorded replies without side effects.

    >>> Recorded({"heard": [{"messages": [], "over": True}], "answer": "4"}).hear(Turn("4")).over
    True
    """

    def __init__(self, record: Mapping[str, Any]) -> None:
        self.record, self.place = record, 0

    def tools(self) -> Sequence[ToolSpec]:
        """Return the recorded tools."""
        return [tool_from(row) for row in self.record.get("tools", ())]

    def opening(self) -> Sequence[Message]:
        """Return the recorded initial messages."""
        return tuple(self.record.get("opening", ()))

    def hear(self, turn: Turn) -> Heard | None:
        """Return the next recorded reply."""
        if self.place >= len(self.record["heard"]):
            raise EnvError(f"turn {self.place} was not recorded")
        self.place += 1
        return heard_from(self.record["heard"][self.place - 1])

    def answer(self, turns: Sequence[Turn]) -> str:
        """Return the recorded answer."""
        return str(self.record["answer"])

    def evidence(self) -> Mapping[str, Any]:
        """Return the recorded artifacts."""
        files = {name: base64.b64decode(data) for name, data in self.record.get("files", {}).items()}
        return {**self.record.get("values", {}), **files}


def session_record(lease: Lease, turns: Sequence[Turn], heard: Sequence[Heard], ending: Transcript | Verdict | None) -> dict[str, Any]:
    """Build the record of a session as plain JSON, for `RecordedSession`."""
    record: dict[str, Any] = {"seed": lease.seed} | ({"tools": [tool_row(spec) for spec in lease.tools]} if lease.tools else {})
    record |= {"opening": [dict(message) for message in lease.opening]} if lease.opening else {}
    record |= {"turns": [turn_row(turn) for turn in turns], "heard": [heard_row(said) for said in heard]}
    if ending is None:
        return record
    if isinstance(ending, Verdict):
        return record | {"verdict": ending.record()}
    files = {name: base64.b64encode(value).decode() for name, value in ending.evidence.items() if isinstance(value, bytes)}
    values = {name: value for name, value in ending.evidence.items() if name not in files}
    return record | {"answer": ending.answer} | ({"values": values} if values else {}) | ({"files": files} if files else {})


def recorded_ending(record: Mapping[str, Any]) -> Transcript | Verdict:
    """Load the transcript from a session record, or the verdict if the transcript could not be collected.

    >>> recorded_ending({"seed": 7, "heard": [], "answer": "4"}).answer
    '4'
    """
    if verdict := record.get("verdict"):
        return Verdict(verdict["score"], verdict["reason"], fault=Fault(verdict["fault"]))
    turns, heard = tuple(map(turn_from, record.get("turns", ()))), tuple(map(heard_from, record["heard"]))
    return Transcript(str(record["answer"]), Recorded(record).evidence(), turns, heard)


def judged(verifier: Verifier, task: Task, answer: Callable[[], str]) -> Verdict:
    """Verify a text. If the verifier raises, exits or returns a wrong type, the verdict has no score and an infrastructure fault."""
    try:
        text = text_of(answer())
    except (Exception, SystemExit) as error:
        return Verdict(None, f"the environment's answer() raised {type(error).__name__}: {error}", fault=Fault.INFRA)
    return judged_whole(verifier, task, text)


def judged_whole(verifier: Verifier, task: Task, said: Transcript | str) -> Verdict:
    """Verify a transcript or an answer. If the verifier fails, the verdict has no score and an infrastructure fault."""
    try:
        if isinstance(said, str) and type(verifier).judge is Verifier.judge:  # building a transcript would cost as much as a fast verifier
            verdict: object = verifier.verify(task, said)
        else:
            verdict = verifier.judge(task, Transcript(said) if isinstance(said, str) else said)
        return verdict if isinstance(verdict, Verdict) else _no_verdict(verifier, verdict)
    except (Exception, SystemExit) as error:
        return Verdict(None, f"{type(verifier).__name__} raised {type(error).__name__}: {error}", fault=Fault.INFRA)


def begun(verifier: Verifier, task: Task, transcript: Transcript) -> Begun:
    """Start verification; return the verdict, or an async function that returns it. Failures give an infrastructure fault."""
    try:
        found: object = verifier.begin(task, transcript)
    except (Exception, SystemExit) as error:
        return Verdict(None, f"{type(verifier).__name__} raised {type(error).__name__}: {error}", fault=Fault.INFRA)
    if isinstance(found, Verdict):
        return found
    return partial(_waited, verifier, found) if callable(found) else _no_verdict(verifier, found)


async def _waited(verifier: Verifier, found: Callable[[], Awaitable[object]]) -> Verdict:
    try:
        verdict = await found()
        return verdict if isinstance(verdict, Verdict) else _no_verdict(verifier, verdict)
    except (Exception, SystemExit) as error:
        return Verdict(None, f"{type(verifier).__name__} raised {type(error).__name__}: {error}", fault=Fault.INFRA)


def waits(verifier: Verifier) -> bool:
    """Return whether a verifier is asynchronous, so that verification must be awaited."""
    kind = type(verifier)
    return kind.begin is not Verifier.begin or (kind.averify is not Verifier.averify and kind.judge is Verifier.judge)


def _no_verdict(verifier: Verifier, given: object) -> Verdict:
    return Verdict(None, f"{type(verifier).__name__} returned {given!r:.80}, not a Verdict", fault=Fault.INFRA)


def text_of(answer: object) -> str:
    """Return the value if it is a string; raise TypeError otherwise.

    >>> text_of("4")
    '4'
    """
    if not isinstance(answer, str):
        raise TypeError(f"it returned {answer!r:.80}, not a text")
    return answer
