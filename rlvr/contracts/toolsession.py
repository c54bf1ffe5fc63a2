"""The session of an environment with tools: it executes the calls of each turn; a turn without calls is the answer."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, ClassVar

from rlvr.contracts.sandbox import Box, Place, Sandbox
from rlvr.contracts.session import Heard, Session
from rlvr.contracts.tool import MAX_CHARACTERS, Tool, ToolContext, run_call
from rlvr.errors import ConfigError, suggest
from rlvr.task import Message, Task
from rlvr.turns import Call, CallStatus, Result, ToolSpec, Turn

LATE = "Error: this call was not run. An earlier call of the same turn ended the conversation."
TOO_LONG = "Error: this call was not run. The earlier calls of the same turn took {seconds:.0f} s, and one turn has {most:g} s."


class ToolSession(Session):
    """One conversation with tools. Subclass it for an environment with its own files, data, initial messages or artifacts.

    Each call of a turn gets one message of role `tool` with its result, in the order of the calls. A call that could not be parsed gets
    an error message instead. A turn without calls is the answer and ends the conversation, or is passed to the `inner` session.
    If a tool fails, the conversation has no score.
    """

    max_bad_calls: ClassVar[int] = 3
    """The conversation ends after this many consecutive turns whose calls could all not be executed."""
    max_seconds: ClassVar[float] = 240.0
    """After this time the remaining calls of a turn are skipped, so that no turn exceeds the rollout's own timeout."""
    max_characters: ClassVar[int] = MAX_CHARACTERS
    """The maximum length of a result. A longer one is truncated in the middle, with a note."""

    def __init__(
        self, task: Task, tools: Sequence[Tool], *, sandbox: Sandbox | None = None, seed: int = 0, inner: Session | None = None
    ) -> None:
        """Create the session; its resources are opened by the first call of `tools`.

        Args:
            task: the task of this conversation.
            tools: the environment's tools, which all conversations share.
            sandbox: creates the sandbox session, if one of the tools needs it.
            seed: the seed of the session, the same for all conversations of a group.
            inner: handles the turns without calls and selects the text to verify; None: such a turn is the answer.
        """
        self.task, self.seed, self.inner = task, seed, inner
        self.box: Box | None = None
        """The sandbox session of this conversation; set by `tools`."""
        self.final: str | None = None
        """The answer that was given by a call, such as `submit`; None if there is none."""
        self.bad = 0
        """The number of consecutive turns whose calls could all not be executed."""
        self._shared, self._sandbox = tuple(tools), sandbox
        self._opened: dict[str, Tool] | None = None
        self._specs: list[ToolSpec] = []
        self._held = ExitStack()

    # ---- for subclasses

    def files(self) -> Mapping[str, bytes]:
        """Return the files of the sandbox session at the start, by relative path."""
        return {}

    def place(self) -> Place:
        """Return the spec of the sandbox session. The default has `files` and the default limits."""
        return Place(files=self.files())

    def data(self) -> Mapping[str, Any]:
        """Return data for the tools (`ToolContext.data`), such as the path of a database."""
        return {}

    # ---- the Session interface

    def tools(self) -> Sequence[ToolSpec]:
        """Create the sandbox session, start the tools, and return their specs."""
        if self._opened is None:
            self._open()
        return tuple(self._specs)

    def opening(self) -> Sequence[Message]:
        """Return the initial messages of the inner session."""
        return self.inner.opening() if self.inner else ()

    def hear(self, turn: Turn) -> Heard | None:
        """Execute the calls of the turn. Without calls, the conversation ends or the inner session replies."""
        self.tools()
        if not turn.pending:
            self.bad = 0
            return self.inner.hear(turn) if self.inner else None
        results: list[Result] = []
        began = time.monotonic()
        for call in turn.pending:
            late = LATE if self.final is not None else self._too_long(time.monotonic() - began)
            results.append(Result(call.id, late, ok=False) if late else self._run(call))
            if results[-1].over:
                self.final = results[-1].text
        known = [call for call in turn.pending if call.status is CallStatus.OK and call.name in (self._opened or {})]
        self.bad = 0 if known else self.bad + 1
        told = [_message(call, result) for call, result in zip(turn.pending, results, strict=True)]
        return Heard(tuple(told), over=self.final is not None or self.bad >= self.max_bad_calls, results=tuple(results))

    def answer(self, turns: Sequence[Turn]) -> str:
        """Return the submitted answer, else the last turn if it has no calls. A conversation that ends with a call has an empty answer."""
        if self.final is not None:
            last: Sequence[Turn] = (Turn(self.final, content=self.final),)
        elif turns and not turns[-1].pending:
            last = [turn for turn in turns if not turn.pending]
        else:
            return ""
        return self.inner.answer(last) if self.inner else last[-1].text

    def evidence(self) -> Mapping[str, Any]:
        """Return the artifacts of the inner session."""
        return self.inner.evidence() if self.inner else {}

    def close(self) -> None:
        """Tear down the tools, then close the sandbox session and the inner session."""
        self._held.close()

    # ---- inside

    def _open(self) -> None:
        """Open the inner session, the sandbox session and the tools. `close` releases all of them, even after a failure here."""
        if self.inner:
            self._held.callback(self.inner.close)
            if self.inner.tools():
                raise ConfigError(f"{type(self.inner).__name__} has tools of its own; add these to its environment's `tools` instead")
        if any(tool.needs_box for tool in self._shared):
            if self._sandbox is None:
                needing = next(tool for tool in self._shared if tool.needs_box)
                raise ConfigError(f"{type(needing).__name__} needs a sandbox, and the environment has none; set one (sandbox: docker)")
            self.box = self._sandbox.open(self.place())
            self._held.callback(self.box.close)
        context = ToolContext(self.box, dict(self.data()), self.seed)
        opened: dict[str, Tool] = {}
        for tool in self._shared:
            one = self._held.enter_context(tool.session(context))
            for spec in one.specs():
                if spec.name in opened:
                    raise ConfigError(f"two tools are called {spec.name!r}, of {type(opened[spec.name]).__name__} and {type(one).__name__}")
                opened[spec.name] = one
                self._specs.append(spec)
        self._opened = opened

    def _too_long(self, seconds: float) -> str:
        """Return the error message for a call that exceeds the turn's time limit; empty if it may run."""
        return TOO_LONG.format(seconds=seconds, most=self.max_seconds) if seconds >= self.max_seconds else ""

    def _run(self, call: Call) -> Result:
        assert self._opened is not None
        if call.status is CallStatus.OK and call.name not in self._opened:
            why = f"{call.name!r:.80} is unknown; {suggest(call.name, self._opened)}"
            call = replace(call, status=CallStatus.UNKNOWN_TOOL, why=why)
        if call.status is not CallStatus.OK:
            return Result(call.id, call.told, ok=False)
        return run_call(self._opened[call.name], call, max_characters=self.max_characters)


def _message(call: Call, result: Result) -> Message:
    return {"role": "tool", "content": result.text, "name": call.name or "unknown", "tool_call_id": call.id}
