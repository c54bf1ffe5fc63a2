"""Adapter for aviary, a framework for agents that call tools, such as those of ldp.

    make_environment_class   a subclass of aviary's `Environment`; one instance is one conversation

`step` raises an error for an answer that could not be verified.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any

from rlvr.contracts import Environment
from rlvr.errors import ConfigError, EnvError
from rlvr.integrations.rows import find_task, require_score, warn_if_untested
from rlvr.integrations.texts import TextConversation, TextConversationFactory
from rlvr.rollout.rollout_request import derive_seed
from rlvr.task import Message
from rlvr.turns import Call, Turn

TESTED_VERSION = "0.37.0"
warn_if_untested("fhaviary", TESTED_VERSION)


def make_environment_class(
    environment: Environment,
    base: Any,
    *,
    message: Callable[..., Any],
    response: Callable[..., Any],
    tool: Any,
    call_timeout_s: float = 600.0,
) -> type:
    """Make a subclass of aviary's `Environment`: `RlvrEnvironment(split, index)`. Tools use native tool calls; a text is an answer.

    Args:
        environment: any environment.
        base: aviary's `Environment`.
        message: aviary's `Message`.
        response: aviary's `ToolResponseMessage`.
        tool: aviary's `Tool`.
        call_timeout_s: timeout of one call of a session and of one verification, in seconds.
    """
    world = TextConversationFactory(environment, call_timeout_s=call_timeout_s)

    class RlvrEnvironment(base):
        """A conversation."""

        def __init__(self, split: str = "train", index: int = 0) -> None:
            self.task = find_task(environment, {"split": split, "index": index})
            self.state: TextConversation | None = None
            self.tools: list[Any] = []

        async def get_id(self) -> str:
            """Return the id of the task."""
            return self.task.id

        async def reset(self) -> tuple[list[Any], list[Any]]:
            """Open the session; return its first messages and its tools."""
            await self.close()
            conversation = await world.start_conversation_async(self.task, seed=derive_seed("world", self.task.id))
            if conversation.failure:
                raise EnvError(conversation.failure)
            self.state = conversation
            self.tools = [tool.model_validate(dict(spec.to_openai_format())) for spec in conversation.tools]
            return [
                message(role=one["role"], content=one["content"]) for one in conversation.build_prompt(describe_tools=False)
            ], self.tools

        async def step(self, action: Any) -> tuple[list[Any], float, bool, bool]:
            """Handle one turn of the policy: tool calls or a text. Only the last turn has a reward."""
            conversation = self.state
            if conversation is None:
                raise EnvError("there is no conversation: step was called before reset, after a failed reset, or after close; call reset")
            heard = await asyncio.to_thread(conversation.step, _make_turn(action, len(conversation.turns)))
            if conversation.done:
                score = require_score(await asyncio.to_thread(conversation.finish_and_verify), "aviary")
                return [], score, True, bool(conversation.truncation_reason)
            return _convert_replies(heard, _get_tool_calls(action), message, response), 0.0, False, False

        async def close(self) -> None:
            """Close the session."""
            conversation, self.state = self.state, None
            if conversation is not None:
                await asyncio.to_thread(conversation.close)

    return RlvrEnvironment


def _get_tool_calls(action: Any) -> list[Any]:
    return list(getattr(action, "tool_calls", None) or ())


def _make_turn(action: Any, number: int) -> Turn:
    """Convert a message of aviary, with its calls, to a turn of the policy. A message of a tool is refused."""
    if (role := getattr(action, "role", "user")) not in ("assistant", "user"):  # the default role of aviary's messages is user
        raise ConfigError(f"the action is a message of role {role!r}; a turn of the policy has the role assistant")
    calls = (
        Call(f"{number}.{place}", call.function.name, dict(call.function.arguments)) for place, call in enumerate(_get_tool_calls(action))
    )
    text = action.content or ""
    if getattr(action, "content_is_json_str", False):  # content parts, which aviary encodes as JSON text
        parts = json.loads(text)
        text = "".join(str(part.get("text", "")) for part in parts if isinstance(part, dict)) if isinstance(parts, list) else text
    return Turn(text, content=text, calls=tuple(calls))


def _convert_replies(
    messages: Sequence[Message], calls: Sequence[Any], message_class: Callable[..., Any], tool_response_class: Callable[..., Any]
) -> list[Any]:
    """Convert the messages of the session; tool results have the order of the calls."""
    results = [one for one in messages if one["role"] == "tool"]
    found = [
        tool_response_class(content=one["content"], name=call.function.name, tool_call_id=call.id)
        for one, call in zip(results, calls, strict=False)
    ]
    return [*found, *(message_class(role=one["role"], content=one["content"]) for one in messages if one["role"] != "tool")]
