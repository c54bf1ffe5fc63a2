"""A session under way: opened when it is first needed, driven by one thread at a time, closed exactly once whatever happens."""

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
"""Surrogates, which cannot be encoded."""


class Lease:
    """One conversation's hold on its session.

    >>> lease = Lease(environment, task, seed=0)                                     # doctest: +SKIP
    >>> lease.hear(Turn("500")).messages; lease.close()                              # doctest: +SKIP
    ({'role': 'user', 'content': 'lower'},)
    """

    def __init__(self, environment: Environment, task: Task, *, seed: int, session: Session | None = None) -> None:
        self.environment, self.task, self.seed = environment, task, seed
        self.trouble = ""
        """What went wrong without a change to the verdict: it is recorded."""
        self.asked = f"{type(environment).__name__}.open"
        """What was asked last, by its name: the one to blame when it raises or hangs."""
        self.tools: tuple[ToolSpec, ...] = ()
        """The tools of the session, and what it says first; known once it is open."""
        self.opening: tuple[Message, ...] = ()
        self._session = session
        self._asked = False
        self._lock = Lock()
        self._busy = self._left = False

    def open(self) -> None:
        """Open the session now, and not with its first turn."""
        self._do("open", lambda session: None)

    def hear(self, turn: Turn) -> Heard:
        """What the session answers to a turn."""
        heard = self._do("hear", lambda session: session.hear(turn))
        if heard is None:
            return Heard(over=True)
        if not isinstance(heard, Heard):
            raise TypeError(f"hear gave {heard!r:.80}; it must be a Heard, or None where the conversation is over")
        if any(LONE.search(message["content"]) for message in heard.messages):
            self.note(f"{self.asked} gave lone surrogates, which no text may hold; they were replaced")
            messages = ({**message, "content": LONE.sub("\ufffd", message["content"])} for message in heard.messages)
            return replace(heard, messages=cast("tuple[Message, ...]", tuple(messages)))
        return heard

    def note(self, trouble: str) -> None:
        """Record something that went wrong and changes no verdict."""
        self.trouble = f"{self.trouble}; {trouble}" if self.trouble else trouble

    def collect(self, turns: tuple[Turn, ...], heard: tuple[Heard, ...]) -> Transcript | Verdict:
        """What will be judged. Never raises: what cannot be collected is a verdict at once."""
        try:
            return self._do("evidence", lambda session: _collected(session, turns, heard))
        except (Exception, SystemExit) as error:
            return Verdict(None, f"{self.asked} raised {type(error).__name__}: {error}", fault=Fault.INFRA)

    @property
    def idle(self) -> bool:
        """Whether the session is open and no thread is in it."""
        with self._lock:
            return self._session is not None and not self._busy

    def close(self) -> None:
        """Close the session, now or when the thread that is in it comes back. From any thread, any number of times."""
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
                    raise TypeError(f"{type(self.environment).__name__}.open gave {opened!r:.80}; it must be an rlvr.Session")
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
        """What it offers and says before the policy's first turn."""
        self.asked = f"{type(session).__name__}.tools"
        self.tools = tuple(session.tools())
        if wrong := [spec for spec in self.tools if not isinstance(spec, ToolSpec)]:
            raise TypeError(f"tools gave {wrong[0]!r:.80}; it must be a sequence of rlvr.turns.ToolSpec")
        self.asked = f"{type(session).__name__}.opening"
        self.opening = tuple(session.opening())
        if wrong_messages := [said for said in self.opening if not isinstance(said, Mapping) or not {"role", "content"} <= said.keys()]:
            raise TypeError(f"opening gave {wrong_messages[0]!r:.80}; it must be a sequence of messages with a role and a content")
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
        except (ValueError, RecursionError, OverflowError) as error:  # not finite, too long a number, nested too deep: the answer's doing
            return Verdict(
                0.0, f"the answer left evidence that cannot be stored: {type(error).__name__}: {error}"[:400], fault=Fault.ANSWER
            )
    except (Exception, SystemExit) as error:
        return Verdict(None, f"the {owner}'s {asked}() raised {type(error).__name__}: {error}", fault=Fault.INFRA)
    size = sum(len(name) + (len(value) if isinstance(value, bytes) else len(json.dumps(value))) for name, value in evidence.items())
    if size > session.max_evidence_bytes:
        most = session.max_evidence_bytes
        return Verdict(0.0, f"the answer left {size:,} bytes of evidence, at most {most:,} are judged", fault=Fault.ANSWER)
    return Transcript(answer, evidence, turns, heard)


def plain_evidence(evidence: Mapping[str, Any]) -> dict[str, Any]:
    """An independent copy: JSON values and bytes by name; a TypeError for anything else.

    >>> plain_evidence({"log.txt": b"done", "moves": (1, 2)})
    {'log.txt': b'done', 'moves': [1, 2]}
    """
    if not isinstance(evidence, Mapping) or not all(isinstance(name, str) for name in evidence):
        raise TypeError(f"it gave {evidence!r:.80}; it must be a mapping of names to JSON values and bytes")
    return {
        name: bytes(value) if isinstance(value, bytes | bytearray) else json.loads(json.dumps(value, allow_nan=False))
        for name, value in evidence.items()
    }


class Recorded(Session):
    """A session that was recorded: it answers what it answered then, and nothing happens again.

    >>> Recorded({"heard": [{"messages": [], "over": True}], "answer": "4"}).hear(Turn("4")).over
    True
    """

    def __init__(self, record: Mapping[str, Any]) -> None:
        self.record, self.place = record, 0

    def tools(self) -> Sequence[ToolSpec]:
        """The tools that it had then."""
        return [tool_from(row) for row in self.record.get("tools", ())]

    def opening(self) -> Sequence[Message]:
        """What it said first."""
        return tuple(self.record.get("opening", ()))

    def hear(self, turn: Turn) -> Heard | None:
        """What was answered then, turn by turn."""
        if self.place >= len(self.record["heard"]):
            raise EnvError(f"turn {self.place} was not recorded")
        self.place += 1
        return heard_from(self.record["heard"][self.place - 1])

    def answer(self, turns: Sequence[Turn]) -> str:
        """What was judged then."""
        return str(self.record["answer"])

    def evidence(self) -> Mapping[str, Any]:
        """What was left then."""
        files = {name: base64.b64decode(data) for name, data in self.record.get("files", {}).items()}
        return {**self.record.get("values", {}), **files}


def session_record(lease: Lease, turns: Sequence[Turn], heard: Sequence[Heard], ending: Transcript | Verdict | None) -> dict[str, Any]:
    """What `Recorded` reads, as plain JSON.

    >>> session_record(Lease(environment, task, seed=7), [], [Heard(over=True)], Transcript("4"))        # doctest: +SKIP
    {'seed': 7, 'turns': [], 'heard': [{'messages': [], 'over': True}], 'answer': '4'}
    """
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
    """What was to be judged when a session was recorded: the answer with its evidence, or the verdict if there was one already.

    >>> recorded_ending({"seed": 7, "heard": [], "answer": "4"}).answer
    '4'
    """
    if verdict := record.get("verdict"):
        return Verdict(verdict["score"], verdict["reason"], fault=Fault(verdict["fault"]))
    turns, heard = tuple(map(turn_from, record.get("turns", ()))), tuple(map(heard_from, record["heard"]))
    return Transcript(str(record["answer"]), Recorded(record).evidence(), turns, heard)


def judged(verifier: Verifier, task: Task, answer: Callable[[], str]) -> Verdict:
    """A verdict on a text, whatever the verifier does: one that raises, exits or returns nonsense is the machinery's fault, never a score.

    >>> judged(make("verifier", "numeric"), Task("t", user("2+2="), "4"), lambda: "4").score        # doctest: +SKIP
    1.0
    """
    try:
        text = text_of(answer())
    except (Exception, SystemExit) as error:
        return Verdict(None, f"the environment's answer() raised {type(error).__name__}: {error}", fault=Fault.INFRA)
    return judged_whole(verifier, task, text)


def judged_whole(verifier: Verifier, task: Task, said: Transcript | str) -> Verdict:
    """The same for a whole conversation with its evidence, or for an answer alone."""
    try:
        if isinstance(said, str) and type(verifier).judge is Verifier.judge:  # making a transcript would cost as much as a fast verifier
            verdict: object = verifier.verify(task, said)
        else:
            verdict = verifier.judge(task, Transcript(said) if isinstance(said, str) else said)
        return verdict if isinstance(verdict, Verdict) else _no_verdict(verifier, verdict)
    except (Exception, SystemExit) as error:
        return Verdict(None, f"{type(verifier).__name__} raised {type(error).__name__}: {error}", fault=Fault.INFRA)


def begun(verifier: Verifier, task: Task, transcript: Transcript) -> Begun:
    """The same, and where the verdict must be waited for, a function that does so without a thread."""
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
    """Whether a verifier may have to wait for a verdict, so that it is to be asked with `begun`."""
    kind = type(verifier)
    return kind.begin is not Verifier.begin or (kind.averify is not Verifier.averify and kind.judge is Verifier.judge)


def _no_verdict(verifier: Verifier, given: object) -> Verdict:
    return Verdict(None, f"{type(verifier).__name__} returned {given!r:.80}, not a Verdict", fault=Fault.INFRA)


def text_of(answer: object) -> str:
    """What must be a text, if it is one.

    >>> text_of("4")
    '4'
    """
    if not isinstance(answer, str):
        raise TypeError(f"it gave {answer!r:.80}, not a text")
    return answer
