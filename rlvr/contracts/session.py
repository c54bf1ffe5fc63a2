"""The session contract: the state of one conversation, the messages that the policy receives, and the artifacts to verify."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from rlvr.contracts.chat_request import ChatRequest
from rlvr.task import Message, check_payable
from rlvr.turns import ToolResult, ToolSpec, Turn


@dataclass(frozen=True, slots=True)
class StepResult:
    """The reply of a session to one policy turn.

    >>> StepResult(({"role": "user", "content": "higher"},)).done
    False
    """

    messages: tuple[Message, ...] = ()
    """The messages that the policy receives before its next turn. If the conversation is done, they are only recorded."""
    done: bool = False
    """True if the conversation ends here."""
    tool_results: tuple[ToolResult, ...] = ()
    """The result of each call of the turn, for the record."""
    reward: float = 0.0
    """What the turn earned, as in Gymnasium: the verifier `session_reward` adds it up. Another verifier may ignore it."""
    request: ChatRequest | None = None
    """A conversation that replaces all that was said, as an agent's next call brings it; the messages are then for the record alone. None: the
    messages are the reply."""

    def __post_init__(self) -> None:
        if isinstance(self.messages, str):
            raise ValueError(f"the messages of a StepResult are a text; write StepResult(make_user_prompt({self.messages!r:.60}))")
        object.__setattr__(self, "messages", tuple(self.messages))
        check_payable(self.reward, "the reward of a StepResult")
        if not self.messages and not self.done and self.request is None:
            raise ValueError("a StepResult has no message and does not end the conversation; give a message, or done=True")
        for message in self.messages:
            whole = isinstance(message, Mapping) and all(isinstance(message.get(key), str) for key in ("role", "content"))
            if not whole or not message["role"]:
                raise ValueError(f"a message of a session is {{'role', 'content'}} with text, got {message!r:.200}")


@dataclass(frozen=True, slots=True)
class Transcript:
    """A finished conversation as a verifier receives it: answer, artifacts, turns and step results, as plain records, so that
    verification can be repeated later.

    >>> Transcript("4").artifacts
    {}
    """

    answer: str
    """The text to verify."""
    artifacts: Mapping[str, Any] = field(default_factory=dict)
    """The artifacts that the session collected at its end: JSON values, and bytes for files."""
    turns: tuple[Turn, ...] = ()
    step_results: tuple[StepResult, ...] = ()
    """One for each completed policy turn."""


class Session(ABC):
    """The state of one conversation: a board, a shell, a database. Used by one thread at a time, not always the same one.

    A session is created for one conversation and closed exactly once: at the end, after an error or a timeout, or when sampling is
    cancelled. If a method exceeds its timeout, the session is closed when the method returns.

    >>> class Echo(Session):
    ...     def step(self, turn: Turn) -> StepResult:
    ...         return StepResult(({"role": "user", "content": turn.text},))
    """

    max_artifact_bytes: ClassVar[int] = 1 << 20
    """The maximum total size of the artifacts. An answer with larger artifacts scores 0."""
    masked_turns: Sequence[int] = ()
    """The turns that are not trained on: nobody received them, because the client of an agent was gone, or they are summaries that are not to be
    trained. Read at the end."""
    context_window: int | None = None
    """How many tokens the conversation may have. Set it to 0 to ask: the rollout then writes the limit here before the first turn, and each turn
    has its `usage`. None: the session does not need it."""
    warning: str = ""
    """A problem of this conversation that does not change the verdict, for the record; read at the end. Empty: none."""

    def start_tools(self) -> Sequence[ToolSpec]:
        """Return the tools of the policy. Called once, before the prompt is rendered; slow preparation belongs here."""
        return ()

    def initial_messages(self) -> Sequence[Message]:
        """Return messages that follow the task's prompt. Called once, after `start_tools`."""
        return ()

    def first_request(self) -> ChatRequest | None:
        """Return the first call of an agent, which replaces the task's prompt; None for a session without an agent. Called once, after
        `initial_messages`.
        """
        return None

    @abstractmethod
    def step(self, turn: Turn) -> StepResult | None:
        """Process a completed policy turn and return the reply; None ends the conversation.

        Not called for a turn that the token limit of the conversation truncated. Called for the last allowed turn, though the policy
        does not see the reply.
        """

    def select_answer(self, turns: Sequence[Turn]) -> str:
        """Return the text to verify. Called once, at the end. The default is the last turn, even if it was truncated."""
        return turns[-1].text if turns else ""

    def artifacts(self) -> Mapping[str, Any]:
        """Return artifacts for the verifier: JSON values, and bytes for files. Called once, at the end, after `select_answer`."""
        return {}

    def close(self) -> None:  # noqa: B027 -- the default session has no resources
        """Release the resources of this conversation. Called once."""
