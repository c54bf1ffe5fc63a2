"""The session of an environment with tools: it executes the calls of each turn; a turn without calls is the answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from contextvars import copy_context
from dataclasses import replace
from functools import partial
from threading import Thread
from typing import Any, ClassVar, TypeVar

from rlvr.contracts.sandbox import Sandbox, SandboxSession, SandboxSpec
from rlvr.contracts.session import Session, StepResult
from rlvr.contracts.tool import MAX_RESULT_CHARACTERS, Tool, ToolContext, run_tool_call
from rlvr.errors import ConfigError, format_suggestion
from rlvr.task import Message, Task
from rlvr.turns import Call, CallStatus, ToolResult, ToolSpec, Turn

Value = TypeVar("Value")

MAX_PARALLEL_CALLS = 8
"""The maximum of calls of one turn that run at the same time."""
CALL_AFTER_END_MESSAGE = "Error: this call was not run. An earlier call of the same turn ended the conversation."
TURN_TIMEOUT_MESSAGE = "Error: this call was not run. The earlier calls of the same turn took {seconds:.0f} s, and one turn has {most:g} s."


class ToolSession(Session):
    """One conversation with tools. Subclass it for an environment with its own files, data, initial messages or artifacts.

    Each call of a turn gets one message of role `tool` with its result, in the order of the calls. Neighbouring calls of tools that are
    `parallel` run at the same time. A call that could not be parsed gets an error message instead. A turn without calls is the answer and
    ends the conversation, or is passed to the `inner` session.
    If a tool fails, the conversation has no score, or scores 0 if only its own calls make it fail.
    """

    max_invalid_turns: ClassVar[int] = 3
    """The conversation ends after this many consecutive turns whose calls could all not be executed."""
    turn_timeout_s: ClassVar[float] = 240.0
    """After this time the remaining calls of a turn are skipped, so that no turn exceeds the rollout's own timeout."""
    max_result_characters: ClassVar[int] = MAX_RESULT_CHARACTERS
    """The maximum length of a result. A longer one is truncated in the middle, with a note."""

    def __init__(
        self, task: Task, tools: Sequence[Tool], *, sandbox: Sandbox | None = None, seed: int = 0, inner: Session | None = None
    ) -> None:
        """Create the session; its resources are opened by the first call of `start_tools`.

        Args:
            task: the task of this conversation.
            tools: the environment's tools, which all conversations share.
            sandbox: creates the sandbox session, if one of the tools needs it.
            seed: the seed of the session, the same for all conversations of a group.
            inner: handles the turns without calls and selects the text to verify; None: such a turn is the answer.
        """
        self.task, self.seed, self.inner = task, seed, inner
        self.sandbox_session: SandboxSession | None = None
        """The sandbox session of this conversation; set by `start_tools`."""
        self.final_answer: str | None = None
        """The answer that was given by a call, such as `submit`; None if there is none."""
        self.num_invalid_turns = 0
        """The number of consecutive turns whose calls could all not be executed."""
        self._shared_tools, self._sandbox = tuple(tools), sandbox
        self._tools_by_name: dict[str, Tool] | None = None
        self._specs: list[ToolSpec] = []
        self._exit_stack = ExitStack()

    # ---- for subclasses

    def initial_files(self) -> Mapping[str, bytes]:
        """Return the files of the sandbox session at the start, by relative path."""
        return {}

    def sandbox_spec(self) -> SandboxSpec:
        """Return the spec of the sandbox session. The default has `files` and the default limits."""
        return SandboxSpec(files=self.initial_files())

    def get_data_for_tools(self) -> Mapping[str, Any]:
        """Return data for the tools (`ToolContext.data`), such as the path of a database."""
        return {}

    # ---- the Session interface

    def start_tools(self) -> Sequence[ToolSpec]:
        """Create the sandbox session, start the tools, and return their specs."""
        if self._tools_by_name is None:
            self._open_resources()
        return tuple(self._specs)

    def initial_messages(self) -> Sequence[Message]:
        """Return the initial messages of the inner session."""
        return self.inner.initial_messages() if self.inner else ()

    def step(self, turn: Turn) -> StepResult | None:
        """Execute the calls of the turn; without calls, let the inner session reply, or end the conversation."""
        self.start_tools()
        if not turn.calls_needing_result_or_error:
            self.num_invalid_turns = 0
            return self.inner.step(turn) if self.inner else None
        results: list[ToolResult] = []
        began = time.monotonic()
        for calls in self._group_parallel_calls(turn.calls_needing_result_or_error):
            late = "" if self.final_answer is not None else self._describe_turn_timeout(time.monotonic() - began)
            ended = self.final_answer is not None
            found = [] if late or ended else _run_in_threads([partial(self._run_call, call) for call in calls])
            for place, call in enumerate(calls):
                unrun = late or (CALL_AFTER_END_MESSAGE if self.final_answer is not None else "")
                results.append(ToolResult(call.id, unrun, ok=False) if unrun else found[place])
                if results[-1].done:
                    self.final_answer = results[-1].text
        known = [
            call for call in turn.calls_needing_result_or_error if call.status is CallStatus.OK and call.name in (self._tools_by_name or {})
        ]
        self.num_invalid_turns = 0 if known else self.num_invalid_turns + 1
        told = [_build_tool_message(call, result) for call, result in zip(turn.calls_needing_result_or_error, results, strict=True)]
        return StepResult(
            tuple(told), done=self.final_answer is not None or self.num_invalid_turns >= self.max_invalid_turns, tool_results=tuple(results)
        )

    def select_answer(self, turns: Sequence[Turn]) -> str:
        """Return the submitted answer, else the text of the last turn.

        The answer is empty if the conversation ends with a call. An inner session selects from that answer, or from the turns without
        calls.
        """
        if self.final_answer is not None:
            last: Sequence[Turn] = (Turn(self.final_answer, content=self.final_answer),)
        elif turns and not turns[-1].calls_needing_result_or_error:
            last = [turn for turn in turns if not turn.calls_needing_result_or_error]
        else:
            return ""
        return self.inner.select_answer(last) if self.inner else last[-1].text

    def artifacts(self) -> Mapping[str, Any]:
        """Return the artifacts of the inner session."""
        return self.inner.artifacts() if self.inner else {}

    def close(self) -> None:
        """Tear down the tools, then close the sandbox session and the inner session."""
        self._exit_stack.close()

    # ---- inside

    def _open_resources(self) -> None:
        """Open the inner session, the sandbox session and the tools. `close` releases all of them, even after a failure here."""
        if self.inner:
            self._exit_stack.callback(self.inner.close)
            if self.inner.start_tools():
                raise ConfigError(f"{type(self.inner).__name__} has tools of its own; add these to its environment's `tools` instead")
        if any(tool.needs_sandbox for tool in self._shared_tools):
            if self._sandbox is None:
                needing = next(tool for tool in self._shared_tools if tool.needs_sandbox)
                raise ConfigError(f"{type(needing).__name__} needs a sandbox, and the environment has none; set one (sandbox: docker)")
            self.sandbox_session = self._sandbox.create_session(self.sandbox_spec())
            self._exit_stack.callback(self.sandbox_session.close)
        context = ToolContext(self.sandbox_session, dict(self.get_data_for_tools()), self.seed)
        opened: dict[str, Tool] = {}
        for tool in self._shared_tools:
            one = self._exit_stack.enter_context(tool.session(context))
            for spec in one.specs():
                if spec.name in opened:
                    raise ConfigError(f"two tools are called {spec.name!r}, of {type(opened[spec.name]).__name__} and {type(one).__name__}")
                opened[spec.name] = one
                self._specs.append(spec)
        self._tools_by_name = opened

    def _group_parallel_calls(self, calls: Sequence[Call]) -> list[list[Call]]:
        """Group neighbouring calls that may run at the same time; any other call is a group of its own."""
        groups: list[list[Call]] = []
        was_parallel = False
        for call in calls:
            found = (self._tools_by_name or {}).get(call.name or "") if call.status is CallStatus.OK else None
            is_parallel = found is not None and found.parallel
            if is_parallel and was_parallel and len(groups[-1]) < MAX_PARALLEL_CALLS:
                groups[-1].append(call)
            else:
                groups.append([call])
            was_parallel = is_parallel
        return groups

    def _describe_turn_timeout(self, elapsed_s: float) -> str:
        """Return the error message for a call that exceeds the turn's time limit; empty if it may run."""
        return TURN_TIMEOUT_MESSAGE.format(seconds=elapsed_s, most=self.turn_timeout_s) if elapsed_s >= self.turn_timeout_s else ""

    def _run_call(self, call: Call) -> ToolResult:
        assert self._tools_by_name is not None
        if call.status is CallStatus.OK and call.name not in self._tools_by_name:
            why = f"{call.name!r:.80} is unknown; {format_suggestion(call.name, self._tools_by_name)}"
            call = replace(call, status=CallStatus.UNKNOWN_TOOL, error_detail=why)
        if call.status is not CallStatus.OK:
            return ToolResult(call.id, call.error_message, ok=False)
        return run_tool_call(self._tools_by_name[call.name], call, max_characters=self.max_result_characters)


def _run_in_threads(functions: Sequence[Callable[[], Value]]) -> list[Value]:
    """Run functions at the same time and return their results in order. If some raise, the exception of the first of them is raised.

    >>> _run_in_threads([lambda: 1, lambda: 2])
    [1, 2]
    """
    if len(functions) == 1:
        return [functions[0]()]
    outcomes: dict[int, Value | BaseException] = {}

    def run(place: int) -> None:
        try:
            outcomes[place] = functions[place]()
        except BaseException as error:  # raised below, in the thread that asked
            outcomes[place] = error

    # threads of an executor would be waited for at the end of the process, although a call hangs
    threads = [Thread(target=copy_context().run, args=(run, place), daemon=True) for place in range(len(functions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    results: list[Value] = []
    for place in range(len(functions)):
        outcome = outcomes[place]
        if isinstance(outcome, BaseException):
            raise outcome
        results.append(outcome)
    return results


def _build_tool_message(call: Call, result: ToolResult) -> Message:
    return {"role": "tool", "content": result.text, "name": call.name or "unknown", "tool_call_id": call.id}
