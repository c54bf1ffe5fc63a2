"""An agent of the package openai-agents that answers questions about cards: `read_cards` has a tool that reads them, `answer_alone` has none.

The library runs the loop, offers the tool, checks the arguments of each call and runs it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agents import Agent, MaxTurnsExceeded, OpenAIProvider, RunConfig, RunContextWrapper, Runner, function_tool
from openai import AsyncOpenAI, DefaultAsyncHttpxClient

from rlvr.gateway.agents import AgentClient
from rlvr.task import Task

MAX_CALLS = 5


@function_tool(failure_error_function=lambda context, error: "?")
def read(context: RunContextWrapper[Mapping[str, str]], card: str) -> str:
    """Read a card."""
    return context.context.get(card, "?")


READER = Agent[Mapping[str, str]]("reader", tools=[read], model="policy")
ALONE = Agent[Mapping[str, str]]("alone", model="policy")


async def read_cards(client: AgentClient, task: Task) -> str:
    """Answer with a tool that reads the cards of the task."""
    return await run(READER, client, task, task.meta["cards"])


async def answer_alone(client: AgentClient, task: Task) -> str:
    """Answer without a tool."""
    return await run(ALONE, client, task, {})


async def run(agent: Agent[Any], client: AgentClient, task: Task, cards: Mapping[str, str]) -> str:
    """Let the library run an agent, and return its final output."""
    http = DefaultAsyncHttpxClient(verify=False)  # the gateway is on this machine and speaks no TLS
    async with AsyncOpenAI(base_url=client.base_url, api_key=client.api_key, http_client=http) as model:
        config = RunConfig(model_provider=OpenAIProvider(openai_client=model, use_responses=False), tracing_disabled=True)
        try:
            done = await Runner.run(agent, task.question, context=cards, max_turns=MAX_CALLS, run_config=config)
        except MaxTurnsExceeded:
            return ""
    return str(done.final_output)
