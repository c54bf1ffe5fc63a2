"""Adapter for inspect_ai: an environment as a `Task`, with its conversation as the solver and its verifier as the scorer.

Tools use native tool calls; the results of the session return as tool messages. An answer that could not be verified has the value NaN and
the reason, with which inspect_ai leaves a sample out.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import Any

from rlvr.contracts import Environment
from rlvr.errors import ConfigError, EnvError
from rlvr.integrations.rows import make_row, warn_if_untested
from rlvr.integrations.texts import TextConversation, TextConversationFactory
from rlvr.mdp.token_mdp import check_task
from rlvr.rollout.rollout_request import derive_seed
from rlvr.task import Message, to_plain_json
from rlvr.turns import Call, CallStatus, ToolSpec, Turn

TESTED_VERSION = "0.3.285"
warn_if_untested("inspect-ai", TESTED_VERSION)


def make_inspect_task(
    environment: Environment, split: str = "test", indices: Sequence[int] = range(100), *, call_timeout_s: float = 600.0
) -> Any:
    """Make an inspect_ai `Task` from some tasks of an environment.

    Args:
        environment: any environment.
        split: the split of the tasks.
        indices: the indices of the tasks.
        call_timeout_s: timeout of one call of a session and of one verification, in seconds.
    """
    try:
        from inspect_ai import Task
        from inspect_ai.dataset import MemoryDataset, Sample
    except ModuleNotFoundError as error:
        raise ConfigError("inspect_ai is not installed; `pip install inspect-ai`, or evaluate with `rlvr eval`") from error
    size = environment.num_tasks(split)
    kept = [index for index in indices if size is None or index < size]
    rows = [make_row(check_task(environment.task(split, index)), split, index) for index in kept]
    samples = [
        Sample(
            input=_convert_messages(row["prompt"]), target="", id=row["task_id"], metadata={"split": row["split"], "index": row["index"]}
        )
        for row in rows
    ]  # fmt: skip
    world, open_ = TextConversationFactory(environment, call_timeout_s=call_timeout_s), dict[str, TextConversation]()
    name = f"rlvr_{type(environment).__name__.lower()}"
    return Task(dataset=MemoryDataset(samples, name=name), solver=_make_solver(world, open_), scorer=_make_scorer(open_), name=name)


def _make_solver(world: TextConversationFactory, open_: dict[str, TextConversation]) -> Any:
    from inspect_ai.solver import solver

    @solver(name="rlvr_conversation")
    def conversation() -> Any:
        async def solve(state: Any, generate: Any) -> Any:
            task = check_task(world.environment.task(state.metadata["split"], state.metadata["index"]))
            conversation = open_[state.uuid] = await world.start_conversation_async(task, seed=derive_seed("world", task.id, state.epoch))
            state.messages += _convert_messages(conversation.initial_messages)
            state.tools = [_convert_tool(spec) for spec in conversation.tools]
            while not conversation.done:
                state = await generate(state, tool_calls="none")
                said = state.output.message
                turn = _make_turn(said, len(conversation.turns), truncated=state.output.stop_reason in ("max_tokens", "model_length"))
                heard = await asyncio.to_thread(conversation.step, turn)
                state.messages += _convert_replies(heard, said.tool_calls or [])
            state.completed = True
            return state

        return solve

    return conversation()


def _make_scorer(open_: dict[str, TextConversation]) -> Any:
    from inspect_ai.scorer import Score, mean, scorer, stderr

    @scorer(metrics=[mean(), stderr()], name="rlvr_verdict")
    def verdict() -> Any:
        async def score(state: Any, target: Any) -> Any:
            conversation = open_.pop(state.uuid, None)
            if conversation is None:
                raise EnvError("the sample has no conversation; the solver of this task must run before its scorer")
            found = await asyncio.to_thread(conversation.finish_and_verify)
            about = {"fault": found.fault.value, "detail": to_plain_json(dict(found.detail))}
            answer = conversation.turns[-1].text if conversation.turns else ""
            if found.score is None:
                return Score(value=math.nan, answer=answer, explanation=found.reason, reason=found.reason, metadata=about)
            return Score(value=found.score, answer=answer, explanation=found.reason, metadata=about)

        return score

    return verdict()


def _make_turn(message: Any, number: int, *, truncated: bool) -> Turn:
    """Convert a message of the model to a turn. A call that inspect_ai could not parse gets an error status, and is not run."""
    calls = tuple(
        Call(f"{number}.{place}", call.function, dict(call.arguments or {}), CallStatus.BAD_JSON if call.parse_error else CallStatus.OK,
             error_detail=str(call.parse_error or ""))
        for place, call in enumerate(message.tool_calls or [])
    )  # fmt: skip
    return Turn(message.text, content=message.text, calls=calls, finish_reason="length" if truncated else "stop")


def _convert_replies(messages: Sequence[Message], calls: Sequence[Any]) -> list[Any]:
    """Convert the messages of the session to inspect_ai; tool results have the order of the calls."""
    from inspect_ai.model import ChatMessageTool

    results = [message for message in messages if message["role"] == "tool"]
    found = [
        ChatMessageTool(content=message["content"], tool_call_id=call.id, function=call.function)
        for message, call in zip(results, calls, strict=False)
    ]
    return [*found, *_convert_messages([message for message in messages if message["role"] != "tool"])]


def _convert_messages(messages: Sequence[Any]) -> list[Any]:
    from inspect_ai.model import ChatMessageAssistant, ChatMessageSystem, ChatMessageUser

    kinds: dict[str, Any] = {"system": ChatMessageSystem, "assistant": ChatMessageAssistant}
    return [kinds.get(message["role"], ChatMessageUser)(content=message["content"]) for message in messages]


def _convert_tool(spec: ToolSpec) -> Any:
    """Convert a tool, so that inspect_ai describes it to the model. inspect_ai never runs it: the session runs the calls."""
    from inspect_ai.tool import ToolDef, ToolParams

    async def unused(**arguments: Any) -> str:
        raise EnvError(f"{spec.name!r} is run by its session")

    properties = {name: _convert_parameter(name, schema) for name, schema in spec.parameters.get("properties", {}).items()}
    about = ToolParams(properties=properties, required=list(spec.parameters.get("required", ())))
    return ToolDef(unused, name=spec.name, description=spec.description or spec.name, parameters=about).as_tool()


def _convert_parameter(name: str, schema: Any) -> Any:
    from inspect_ai.tool import ToolParam

    return ToolParam.model_validate({"description": name, **schema})
