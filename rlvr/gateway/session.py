"""The session of an agent's episode: it starts the agent, and hands each of its calls to the rollout as the next turn."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rlvr.contracts.chat_request import ChatRequest, build_assistant_message
from rlvr.contracts.session import Session, StepResult
from rlvr.errors import EnvError
from rlvr.gateway.agents import RunningAgent
from rlvr.gateway.calls import AgentCalls, ChatReply, ModelCall
from rlvr.gateway.server import Gateway
from rlvr.turns import ToolSpec, Turn

POLL_S = 0.2
MAX_QUOTE = 300


class AgentSession(Session):
    """An agent that plays one episode. Its calls are answered one after the other, in the order in which they arrive.

    The episode ends when the agent ends. One that calls nothing for `idle_timeout_s`, or runs longer than `timeout_s`, is killed; what it
    has done until then is verified.
    """

    def __init__(
        self,
        gateway: Gateway,
        start: Callable[[AgentCalls, Session | None], RunningAgent],
        *,
        inner: Session | None = None,
        timeout_s: float = 600.0,
        idle_timeout_s: float = 240.0,
    ) -> None:
        """Prepare the session; `start_tools` starts the agent.

        Args:
            gateway: receives the agent's calls.
            start: starts the agent, given its calls and the session of the task.
            inner: the session of the task, with its files; None for a task without one.
            timeout_s: how long the agent may run.
            idle_timeout_s: how long it may run without a call.
        """
        self.gateway, self.inner, self.timeout_s, self.idle_timeout_s = gateway, inner, timeout_s, idle_timeout_s
        self.calls = AgentCalls()
        if inner is not None:
            self.max_artifact_bytes = inner.max_artifact_bytes  # type: ignore[misc]  # of this session, as the files are the task's
        self._start = start
        self._agent: RunningAgent | None = None
        self._call: ModelCall | None = None
        self._answered: list[ModelCall] = []
        """The call that each turn has answered."""
        self._deadline = 0.0

    def start_tools(self) -> Sequence[ToolSpec]:
        """Open the session of the task, and start the agent. It has tools of its own."""
        if self.inner is not None:
            self.inner.start_tools()
        self.gateway.register(self.calls)
        self._agent = self._start(self.calls, self.inner)
        self._deadline = time.monotonic() + self.timeout_s
        return ()

    def first_request(self) -> ChatRequest | None:
        """Wait for the agent's first call.

        Raises:
            EnvError: the agent ended without one.
        """
        request = self._take_next_call()
        if request is None:
            output = "" if self._agent is None else " ".join(self._agent.read_output().split())[-MAX_QUOTE:]
            how = f": {self.warning}" if self.warning else ""
            raise EnvError(f"the agent ended before it called the model{how}{f'; its output ends: {output}' if output else ''}")
        return request

    def step(self, turn: Turn) -> StepResult | None:
        """Answer the agent's call, and wait for its next one, or for its end."""
        assert self._call is not None
        message = build_assistant_message(turn, self._call.request, f"call_{len(self._answered)}")
        reason = "length" if turn.finish_reason == "length" else "tool_calls" if "tool_calls" in message else "stop"
        stop = next((text for text in self._call.request.stop if text in turn.text), "")
        self.calls.answer(self._call, ChatReply(message, reason, *turn.usage, stop))
        self._answered.append(self._call)
        request = self._take_next_call()
        return StepResult(done=True) if request is None else StepResult(request=request)

    def _take_next_call(self) -> ChatRequest | None:
        """Take the next call; None once the agent has ended, or was killed at one of its limits."""
        assert self._agent is not None
        idle_deadline = time.monotonic() + self.idle_timeout_s
        while True:
            ended = self._agent.get_end()
            now = time.monotonic()
            if ended is None and now > self._deadline:  # also if it calls all the time
                self._end_agent(f"run for {self.timeout_s:g} s")
                return None
            if (call := self.calls.take(timeout_s=0 if ended is not None else POLL_S)) is not None:
                if time.monotonic() > self._deadline:  # something that the agent has left calls on
                    self._end_agent(f"run for {self.timeout_s:g} s")
                    self.warning = "; ".join(filter(None, (ended, self.warning)))
                    return None
                self._call = call
                return call.request
            if ended is not None:
                self.warning = ended
                return None
            if now > idle_deadline:
                self._end_agent(f"called nothing for {self.idle_timeout_s:g} s")
                return None

    def _end_agent(self, limit: str) -> None:
        """End an agent at one of its limits."""
        assert self._agent is not None
        self.warning = f"the agent had {limit} and was ended"
        self._agent.kill()

    def select_answer(self, turns: Sequence[Turn]) -> str:
        """Return what the agent returned, or the text of the policy's last turn without calls."""
        if self._agent is not None and self._agent.final_answer is not None:
            return self._agent.final_answer
        answers = [turn for turn in turns if not turn.calls_needing_result_or_error]
        last = [replace(turn, text=turn.content) for turn in answers[-1:]]
        return self.inner.select_answer(last) if self.inner is not None else last[0].text if last else ""

    def artifacts(self) -> Mapping[str, Any]:
        """End the agent, and return the artifacts of the task's session."""
        if self._agent is not None:
            self._agent.kill()
        self.masked_turns = tuple(turn for turn, call in enumerate(self._answered) if call.is_lost)
        if self.inner is None:
            return {}
        left = self.inner.artifacts()
        self.warning = "; ".join(filter(None, (self.warning, self.inner.warning)))
        return left

    def close(self) -> None:
        """Refuse further calls, end the agent, and close the session of the task."""
        try:
            self.gateway.unregister(self.calls, "a limit of the run is reached, or it has a verdict")
            if self._agent is not None:
                self._agent.close()
        finally:
            if self.inner is not None:
                self.inner.close()
