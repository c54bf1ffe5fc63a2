"""Agents and clients that send what no server should fall over: the episode is verified, and the others go on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import rlvr
from rlvr.episode import Episode


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def play(
    agent: Callable[..., Any], *, n: int = 1, answers: tuple[str, ...] = ("12",), max_length: int = 10_000, **settings: Any
) -> list[Episode]:
    env = rlvr.make_env("agent", env="arithmetic", function=agent, **settings)
    with rlvr.Rollout(env, "bytes", {"name": "scripted", "answers": list(answers)}, max_length=max_length) as rollout:
        [found] = rollout.sample(env.task("train", 0), n=n, seed=1)
    env.close()
    return found


ARGUMENTS = {
    "nan": '{"a": NaN}',
    "infinity": '{"a": -Infinity}',
    "overflow": '{"a": 1e999}',
    "deep": '{"a": ' * 960 + "1" + "}" * 960,
    "deeper": "[" * 100_000 + "]" * 100_000,
    "long number": '{"a": ' + "9" * 5000 + "}",
}


@pytest.mark.parametrize("arguments", ARGUMENTS.values(), ids=ARGUMENTS)
@pytest.mark.parametrize("is_first", [True, False])
def test_arguments_that_cannot_be_written_again_are_a_text(arguments: str, is_first: bool) -> None:
    async def agent(client: Any, task: Any) -> str:
        if not is_first:
            await client.chat([user("2+2=")])
        call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": arguments}}
        results = [{"role": "tool", "tool_call_id": "a", "content": "bad"}]
        await client.chat([user("3+3="), {"role": "assistant", "content": "", "tool_calls": [call]}, *results])
        return "12"

    [episode] = play(agent)
    assert (episode.error, episode.turns, episode.reward) == ("", 1 if is_first else 2, 0.0)


def test_a_first_call_that_cannot_be_rendered_fails_only_its_episode(monkeypatch: pytest.MonkeyPatch) -> None:
    from rlvr.chat.tool_calling import ToolFormat

    render = ToolFormat.render_conversation

    def fail(self: Any, messages: Any, tools: Any) -> list[int]:
        if "boom" in messages[0]["content"]:
            raise RecursionError("too deep")
        return render(self, messages, tools)

    monkeypatch.setattr(ToolFormat, "render_conversation", fail)
    started = iter(range(2))

    async def agent(client: Any, task: Any) -> str:
        await client.chat([user("boom" if next(started) == 0 else "2+2=")])
        return "11"

    episodes = play(agent, n=2)
    assert sorted((bool(e.error), e.is_scored) for e in episodes) == [(False, True), (True, False)]
    assert "too deep" in "".join(e.error for e in episodes)


def test_more_messages_than_tokens_are_not_rendered(monkeypatch: pytest.MonkeyPatch) -> None:
    from rlvr.chat.tool_calling import ToolFormat

    render = ToolFormat.render_conversation

    def count(self: Any, messages: Any, tools: Any) -> list[int]:
        assert len(messages) < 1000
        return render(self, messages, tools)

    monkeypatch.setattr(ToolFormat, "render_conversation", count)

    async def agent(client: Any, task: Any) -> str:
        await client.chat([user("2+2=")])
        await client.chat([user("")] * 1000)
        return "12"

    [episode] = play(agent, max_length=500)
    assert (episode.error, episode.stop_reason.value, episode.reward) == ("", "truncated", 0.0)
