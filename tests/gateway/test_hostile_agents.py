"""Agents and clients that send what no server should fall over: the episode is verified, and the others go on."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import rlvr
from rlvr.chat.tool_calling import ToolFormat
from rlvr.episode import Episode
from rlvr.gateway import server as gateway_server
from rlvr.gateway.agents import AgentClient
from rlvr.gateway.calls import AgentCalls
from rlvr.gateway.formats import MAX_ITEMS, AnthropicMessages, ChatCompletions, Completions, Responses, WireFormat
from rlvr.gateway.server import Gateway
from tests.gateway.test_server import episode, post


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


@pytest.fixture(scope="module")
def server() -> Iterator[Gateway]:
    with Gateway() as running:
        yield running


HI = {"messages": [user("hi")]}
DEEP: Any = 1
for _ in range(500):
    DEEP = {"a": DEEP}
A_CALL = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
CALLED = {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": DEEP}]}


@pytest.mark.parametrize(
    ("wire", "body", "word"),
    [
        (ChatCompletions, {**HI, "stop": 5}, "stop"),
        (ChatCompletions, {**HI, "stop": ["a"] * 1000}, "stop"),
        (ChatCompletions, {**HI, "stream": True, "stream_options": "usage"}, "stream_options"),
        (Completions, {"prompt": "hi", "stream": True, "stream_options": [1]}, "stream_options"),
        (ChatCompletions, {**HI, "stream": "yes"}, "stream"),
        (ChatCompletions, {"messages": [user("hi"), {"role": "assistant", "tool_calls": ["f"]}, user("hi")]}, "tool_calls"),
        (ChatCompletions, {"messages": [user("hi")] * (MAX_ITEMS + 1)}, "messages"),
        (ChatCompletions, {**HI, "tools": [{"type": "function", "function": {"name": "f", "parameters": DEEP}}]}, "parameters"),
        (ChatCompletions, {"messages": [user("hi"), {"role": "assistant", "tool_calls": [A_CALL] * (MAX_ITEMS + 1)}, user("hi")]}, "calls"),
        (ChatCompletions, {"messages": [user("a" * (17 << 20))]}, "bytes"),
        (Responses, {"input": "hi", "metadata": "a"}, "metadata"),
        (Responses, {"input": "hi", "previous_response_id": ["a"]}, "no response"),
        (AnthropicMessages, {"max_tokens": 5, "messages": [user("hi"), CALLED, user("hi")]}, "arguments"),
    ],
)
def test_a_request_that_cannot_be_read_is_refused_before_anything_is_sampled(
    server: Gateway, wire: type[WireFormat], body: Any, word: str
) -> None:
    with episode(server) as (calls, seen):
        status, text = post(server, wire.path, body, calls.secret)
    assert 400 <= status < 500 and word in json.loads(text)["error"]["message"] and not seen


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize(
    ("wire", "body"),
    [
        (ChatCompletions, {**HI, "model": "\ud800"}),
        (Responses, {"input": "hi", "metadata": {"a": "\ud800"}, "instructions": "\udfff"}),
        (AnthropicMessages, {**HI, "max_tokens": 5, "model": "\ud800"}),
        (Completions, {"prompt": "\ud800", "model": "\ud800"}),
    ],
)
def test_half_a_surrogate_pair_is_answered(server: Gateway, wire: type[WireFormat], body: Any, is_streamed: bool) -> None:
    with episode(server) as (calls, seen):
        status, text = post(server, wire.path, {**body, "stream": is_streamed}, calls.secret)
    assert status == 200 and "I look." in text and len(seen) == 1


def test_a_body_that_takes_long_to_parse_is_refused_and_one_that_is_counted_is_not_parsed(server: Gateway) -> None:
    data = b'{"messages": [' + b"0," * 600_000 + b"0]}"
    with episode(server) as (calls, seen):
        status, said = post(server, ChatCompletions.path, data, calls.secret)
        assert status == 400 and "more than 500,000 commas" in said and not seen
        assert post(server, "/v1/messages/count_tokens", data, calls.secret)[0] == 200
        assert calls.held_bytes == 0


def test_the_bodies_that_an_episode_holds_have_a_limit_and_are_given_back(server: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway_server, "MAX_HELD_BYTES", 100_000)
    body = {"messages": [{"role": "user", "content": "x" * 40_000}]}
    with episode(server, delay_s=0.5) as (calls, seen):
        found: list[int] = []
        threads = [
            threading.Thread(target=lambda: found.append(post(server, ChatCompletions.path, body, calls.secret)[0])) for _ in range(5)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(set(found)) == [200, 429] and 0 < len(seen) < 5
        for wrong in (b"{", b'{"messages": 3}'):
            post(server, ChatCompletions.path, wrong, calls.secret)
        assert calls.held_bytes == 0
        assert post(server, ChatCompletions.path, body, calls.secret)[0] == 200


def test_half_a_surrogate_pair_in_an_error_is_answered(server: Gateway) -> None:
    with episode(server) as (calls, _):
        status, text = post(server, ChatCompletions.path, {**HI, "stop": {"\ud800": 1}}, calls.secret)
    assert status == 400 and json.loads(text)


def test_a_part_without_a_text_is_empty() -> None:
    parts = [{"type": "text", "text": None}, {"type": "text", "text": "a"}]
    assert ChatCompletions().parse({"messages": [{"role": "user", "content": parts}]}, {}).messages[0]["content"] == "\na"


def test_an_agent_that_calls_all_the_time_is_ended_at_its_timeout() -> None:
    async def agent(client: Any, task: Any) -> None:
        while True:
            await client.chat([user("2+2=")])
            await asyncio.sleep(0.01)

    began = time.monotonic()
    [found] = play(agent, timeout_s=0.5, max_turns=100_000)
    assert time.monotonic() - began < 10 and found.reward == 0.0 and "run for 0.5 s" in str(found.meta)


def test_a_function_that_retries_after_every_error_can_be_cancelled() -> None:
    calls = AgentCalls()
    calls.close("it has a verdict")

    async def agent() -> None:
        for _ in range(100_000):  # without a chance to be cancelled it would never end
            try:
                await AgentClient(calls, "http://127.0.0.1").chat([user("2+2=")])
            except Exception:
                continue

    async def cancel() -> None:
        task = asyncio.create_task(agent())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())


def test_a_process_that_clears_its_environment_does_not_outlive_its_episode(tmp_path: Path) -> None:
    source = f"""
import json, os, sys, time, urllib.request
head = {{"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}}
body = json.dumps({{"messages": [{{"role": "user", "content": "hi"}}]}}).encode()
urllib.request.urlopen(urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, head)).read()
if os.fork() == 0:
    os.setsid()
    with open({str(tmp_path / "pid")!r}, "w") as file:
        file.write(str(os.getpid()))
    os.execve(sys.executable, [sys.executable, "-c", "import time; time.sleep(60)"], {{}})
while not os.path.exists({str(tmp_path / "pid")!r}) or b"sleep(60)" not in open(
    "/proc/" + (open({str(tmp_path / "pid")!r}).read() or "self") + "/cmdline", "rb").read():
    time.sleep(0.01)
"""
    env = rlvr.make_env("agent", env="arithmetic", command=[sys.executable, "-c", source], trusted=True)
    with rlvr.Rollout(env, "bytes", {"name": "scripted", "answers": ["11"]}) as rollout:
        [[found]] = rollout.sample(env.task("train", 0))
    env.close()
    process = int((tmp_path / "pid").read_text())
    try:
        assert found.reward == 1.0 and not is_running(process)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def is_running(process: int) -> bool:
    for _ in range(100):  # a killed process stays until its parent has waited for it
        try:
            if Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] in "ZX":
                return False
        except OSError:
            return False
        time.sleep(0.02)
    return True
