"""The gateway over HTTP: each format of a client, streams, errors, retries, clients that go away, and keys."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from rlvr.contracts.chat_request import ChatRequest, build_assistant_message
from rlvr.gateway import server as gateway_server
from rlvr.gateway.calls import MAX_WAITING_CALLS, AgentCalls, ChatReply, GatewayError
from rlvr.gateway.formats import AnthropicMessages, ChatCompletions, Completions, Responses, WireFormat
from rlvr.gateway.server import Gateway
from rlvr.turns import Call, ToolSpec, Turn

TOOL = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
TURN = Turn("...", content="I look.", reasoning="Hm.", calls=(Call("0.0", "bash", {"command": "ls"}),), usage=(12, 7))


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    with Gateway() as running:
        yield running


@contextmanager
def episode(gateway: Gateway, turn: Turn = TURN, *, delay_s: float = 0.0) -> Iterator[tuple[AgentCalls, list[ChatRequest]]]:
    """An episode whose calls are answered with one turn; the requests that were sampled are noted."""
    calls, seen, stop = AgentCalls(), list[ChatRequest](), threading.Event()
    gateway.register(calls)

    def answer() -> None:
        while not stop.is_set():
            if (call := calls.take(timeout_s=0.05)) is not None:
                seen.append(call.request)
                time.sleep(delay_s)
                message = build_assistant_message(turn, call.request)
                reason = "length" if turn.finish_reason == "length" else "tool_calls" if "tool_calls" in message else "stop"
                calls.answer(call, ChatReply(message, reason, *turn.usage))

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    try:
        yield calls, seen
    finally:
        stop.set()
        thread.join()
        gateway.unregister(calls, "the test is over")


def post(gateway: Gateway, path: str, body: Any, key: str, **headers: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection(gateway.url.removeprefix("http://"), timeout=30)
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    connection.request("POST", path, data, {"Authorization": f"Bearer {key}", **headers})
    response = connection.getresponse()
    text = response.read().decode()
    connection.close()
    return response.status, text


def read_events(text: str) -> list[dict[str, Any]]:
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def join_chat(events: list[dict[str, Any]]) -> Any:
    message: dict[str, Any] = {"content": "", "reasoning_content": "", "tool_calls": {}}
    for delta in (choice["delta"] for event in events for choice in event["choices"]):
        message["content"] += delta.get("content") or ""
        message["reasoning_content"] += delta.get("reasoning_content") or ""
        for part in delta.get("tool_calls", ()):
            whole = message["tool_calls"].setdefault(part["index"], {"name": "", "arguments": ""})
            for name, text in part["function"].items():
                whole[name] += text
    return [message["content"], message["reasoning_content"], *message["tool_calls"].values()]


def whole_chat(body: dict[str, Any]) -> Any:
    message = body["choices"][0]["message"]
    return [message["content"], message["reasoning_content"], *(call["function"] for call in message["tool_calls"])]


def join_anthropic(events: list[dict[str, Any]]) -> Any:
    blocks = [dict(event["content_block"]) for event in events if event["type"] == "content_block_start"]
    for event in events:
        if event["type"] == "content_block_delta":
            block, delta = blocks[event["index"]], event["delta"]
            if delta["type"] == "input_json_delta":
                block["input"] = json.loads(delta["partial_json"])
            else:
                name = delta["type"].removesuffix("_delta")
                block[name] = block.get(name, "") + delta[name]
    [stop] = [event["delta"]["stop_reason"] for event in events if event["type"] == "message_delta"]
    return [*blocks, stop]


FORMATS: list[tuple[WireFormat, dict[str, Any], Callable[[Any], Any], Callable[[Any], Any]]] = [
    (
        ChatCompletions(),
        {
            "messages": [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": [{"type": "text", "text": "hi"}]}],
            "tools": [{"type": "function", "function": {"name": "bash", "parameters": TOOL}}],
            "max_completion_tokens": 50,
        },
        whole_chat,
        join_chat,
    ),
    (
        AnthropicMessages(),
        {
            "system": [{"type": "text", "text": "Be brief."}],
            "messages": [{"role": "user", "content": "hi"}],
            "max_tokens": 50,
            "thinking": {"type": "enabled", "budget_tokens": 10},
            "tools": [{"name": "bash", "input_schema": TOOL}, {"type": "web_search_20250305", "name": "web_search"}],
        },
        lambda body: [*body["content"], body["stop_reason"]],
        join_anthropic,
    ),
    (
        Responses(),
        {
            "instructions": "Be brief.",
            "input": "hi",
            "max_output_tokens": 50,
            "tools": [{"type": "function", "name": "bash", "parameters": TOOL}, {"type": "web_search"}],
        },
        lambda body: [[item["type"] for item in body["output"]], body["output"][1]["content"][0]["text"], body["output"][2]["arguments"]],
        lambda events: [
            [event["item"]["type"] for event in events if event["type"] == "response.output_item.added"],
            "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta"),
            "".join(event["delta"] for event in events if event["type"] == "response.function_call_arguments.delta"),
        ],
    ),
]


@pytest.mark.parametrize(("wire", "body", "read_whole", "read_stream"), FORMATS, ids=lambda value: getattr(value, "path", ""))
def test_a_stream_says_what_one_object_says(gateway: Gateway, wire: WireFormat, body: Any, read_whole: Any, read_stream: Any) -> None:
    with episode(gateway) as (calls, seen):
        status, text = post(gateway, wire.path, body, calls.secret)
        assert status == 200, text
        whole = read_whole(json.loads(text))
        status, text = post(gateway, wire.path, {**body, "stream": True}, calls.secret)
        assert status == 200 and read_stream(read_events(text)) == whole
        expected = ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"})
        for request in seen:
            assert tuple({key: m[key] for key in ("role", "content")} for m in request.messages) == expected
            assert request.tools == (ToolSpec("bash", "", TOOL),) and request.max_tokens == 50
    assert "I look." in json.dumps(whole) and "ls" in json.dumps(whole)


def test_a_history_is_read_alike_in_every_format() -> None:
    """A conversation with a call and its result, as each client writes it."""
    chat = ChatCompletions().parse(
        {
            "messages": [
                {"role": "user", "content": "hi"},
                {
                    "role": "assistant",
                    "content": "I look.",
                    "tool_calls": [{"id": "c", "type": "function", "function": {"name": "bash", "arguments": '{"command": "ls"}'}}],
                },
                {"role": "tool", "tool_call_id": "c", "content": "a.txt"},
            ]
        },
        {},
    )
    anthropic = AnthropicMessages().parse(
        {
            "messages": [
                {"role": "user", "content": "hi"},
                {
                    "role": "assistant",
                    "content": [
                        {"type": "thinking", "thinking": "Hm.", "signature": "rlvr"},
                        {"type": "text", "text": "I look."},
                        {"type": "tool_use", "id": "c", "name": "bash", "input": {"command": "ls"}},
                    ],
                },
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": [{"type": "text", "text": "a.txt"}]}]},
            ]
        },
        {},
    )
    responses = Responses().parse(
        {
            "input": [
                {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
                {"type": "reasoning", "id": "r", "summary": []},
                {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
                {"type": "function_call", "call_id": "c", "name": "bash", "arguments": '{"command": "ls"}'},
                {"type": "function_call_output", "call_id": "c", "output": "a.txt"},
            ]
        },
        {},
    )
    without_thoughts = [{key: value for key, value in message.items() if key != "reasoning_content"} for message in anthropic.messages]
    assert [dict(message) for message in chat.messages] == without_thoughts == [dict(message) for message in responses.messages]


def test_a_response_can_be_continued_by_its_id(gateway: Gateway) -> None:
    with episode(gateway, Turn("4", content="4")) as (calls, seen):
        first = json.loads(post(gateway, "/v1/responses", {"input": "2+2=", "instructions": "Be brief."}, calls.secret)[1])
        body = {"input": "sure?", "previous_response_id": first["id"], "instructions": "Be kind."}
        assert post(gateway, "/v1/responses", body, calls.secret)[0] == 200
        assert [message["content"] for message in seen[-1].messages] == ["Be kind.", "2+2=", "4", "sure?"]
        assert post(gateway, "/v1/responses", {**body, "previous_response_id": "resp_other"}, calls.secret)[0] == 404


def test_completions_and_models(gateway: Gateway) -> None:
    with episode(gateway, Turn("4", content="4", finish_reason="length")) as (calls, _):
        reply = json.loads(post(gateway, Completions.path, {"prompt": "2+2=", "max_tokens": 1}, calls.secret)[1])
        assert (reply["choices"][0]["text"], reply["choices"][0]["finish_reason"]) == ("4", "length")
        connection = http.client.HTTPConnection(gateway.url.removeprefix("http://"))
        connection.request("GET", "/v1/models", headers={"x-api-key": calls.secret})
        assert json.loads(connection.getresponse().read())["data"][0]["id"] == "policy"
        connection.close()


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        (ChatCompletions.path, b"{", "no JSON"),
        (ChatCompletions.path, b"[]", "must be a JSON object"),
        (ChatCompletions.path, {"messages": []}, "no message"),
        (ChatCompletions.path, {"messages": "hi"}, "messages is 'hi'"),
        (ChatCompletions.path, {"messages": [{"role": "user", "content": "hi"}], "n": 2}, "n is 2"),
        (ChatCompletions.path, {"messages": [{"role": "robot", "content": "hi"}]}, "'robot'"),
        (ChatCompletions.path, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "'image_url'"),
        (ChatCompletions.path, {"messages": [{"role": "assistant", "content": "so"}]}, "the last message is the assistant's"),
        (ChatCompletions.path, {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 0}, "max_tokens is 0"),
        (ChatCompletions.path, {"messages": [{"role": "user", "content": "hi"}], "stop": [""]}, "stop is"),
        (AnthropicMessages.path, {"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "'image'"),
        (Responses.path, {"input": [{"type": "computer_call"}]}, "'computer_call'"),
    ],
)
def test_what_cannot_be_answered_is_refused_with_its_value(gateway: Gateway, path: str, body: Any, words: str) -> None:
    with episode(gateway) as (calls, seen):
        status, text = post(gateway, path, body, calls.secret)
        assert status == 400 and words in json.loads(text)["error"]["message"] and not seen


def test_only_the_key_of_a_running_episode_opens(gateway: Gateway) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}]}
    with episode(gateway) as (calls, seen), episode(gateway) as (other, others):
        for key in ("", "sk-other", calls.secret[:-1], calls.secret + "x"):
            assert post(gateway, ChatCompletions.path, body, key)[0] == 401
            assert post(gateway, AnthropicMessages.path, body, key)[0] == 401
        assert post(gateway, ChatCompletions.path, body, other.secret)[0] == 200
        assert not seen and len(others) == 1  # one key never reaches another episode
        ended = other.secret
    status, text = post(gateway, ChatCompletions.path, body, ended)
    assert status == 401 and json.loads(text)["error"]["type"] == "authentication_error"


def test_a_call_that_is_sent_again_is_one_sample(gateway: Gateway) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}]}
    with episode(gateway, delay_s=0.3) as (calls, seen):
        first = post(gateway, ChatCompletions.path, body, calls.secret)
        again = post(gateway, ChatCompletions.path, body, calls.secret, **{"x-stainless-retry-count": "1"})
        assert json.loads(first[1])["choices"] == json.loads(again[1])["choices"] and len(seen) == 1
        post(gateway, ChatCompletions.path, body, calls.secret)
        assert len(seen) == 2  # who asks again without saying so gets another sample


def test_a_client_that_goes_away_while_its_reply_is_sampled_finds_it_when_it_comes_back(gateway: Gateway) -> None:
    data = json.dumps({"messages": [{"role": "user", "content": "hi"}]}).encode()
    with episode(gateway, delay_s=1.0) as (calls, seen):
        host, port = gateway.url.removeprefix("http://").split(":")
        for _ in range(2):
            with socket.create_connection((host, int(port))) as connection:
                head = f"POST {ChatCompletions.path} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {calls.secret}\r\nContent-Length: {len(data)}\r\n\r\n"
                connection.sendall(head.encode() + data)
                time.sleep(0.2)
            time.sleep(0.4)  # it is noticed
        assert post(gateway, ChatCompletions.path, data, calls.secret)[0] == 200 and len(seen) == 1


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_was_gone_just_before_its_reply_came_finds_it_when_it_comes_back(gateway: Gateway, stream: bool) -> None:
    data = json.dumps({"messages": [{"role": "user", "content": "hi"}], "stream": stream}).encode()
    with episode(gateway, delay_s=0.1) as (calls, seen):
        host, port = gateway.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as connection:
            head = f"POST {ChatCompletions.path} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {calls.secret}\r\nContent-Length: {len(data)}\r\n\r\n"
            connection.sendall(head.encode() + data)
        time.sleep(0.6)
        assert post(gateway, ChatCompletions.path, data, calls.secret)[0] == 200 and len(seen) == 1


def test_a_call_that_waits_and_whose_client_goes_away_is_not_sampled() -> None:
    calls = AgentCalls()
    request = ChatRequest(({"role": "user", "content": "hi"},))
    call = calls.submit(request, b"a")
    calls.leave(call, is_delivered=False)
    assert calls.take(timeout_s=0) is None
    again = calls.submit(request, b"a")  # it has come back
    assert calls.take(timeout_s=0) is again
    for _ in range(100):
        calls.leave(calls.submit(request, b"b"), is_delivered=False)
    assert len(calls._calls) == 1  # what nobody waits for is not kept


def test_a_client_that_comes_back_gets_its_own_reply_and_not_that_of_an_equal_call() -> None:
    calls, request = AgentCalls(), ChatRequest(({"role": "user", "content": "hi"},))
    one, other = calls.submit(request, b"a"), calls.submit(request, b"a")
    assert one is not other and calls.take(timeout_s=0) is one and calls.take(timeout_s=0) is other
    calls.leave(one, is_delivered=False)
    assert calls.submit(request, b"a", is_retry=True) is one and not one.is_lost


def test_too_many_calls_at_once_are_told_to_come_again() -> None:
    calls = AgentCalls()
    request = ChatRequest(({"role": "user", "content": "hi"},))
    for number in range(MAX_WAITING_CALLS):
        calls.submit(request, str(number).encode())
    with pytest.raises(GatewayError, match="wait already") as error:
        calls.submit(request, b"more")
    assert error.value.status == 429 and error.value.headers == {"Retry-After": "1"}
    calls.close("a test")
    with pytest.raises(GatewayError, match="this episode is over: a test"):
        calls.submit(request, b"late")


def test_what_waits_is_refused_when_the_episode_ends(gateway: Gateway) -> None:
    calls = AgentCalls()
    gateway.register(calls)
    results = list[tuple[int, str]]()
    body = {"messages": [{"role": "user", "content": "hi"}]}
    threads = [threading.Thread(target=lambda: results.append(post(gateway, ChatCompletions.path, body, calls.secret))) for _ in range(3)]
    for thread in threads:
        thread.start()
    time.sleep(0.3)
    gateway.unregister(calls, "it has a verdict")
    for thread in threads:
        thread.join(10)
    assert [status for status, _ in results] == [401] * 3 and "it has a verdict" in results[0][1]


def test_a_stream_is_kept_alive_while_its_reply_is_sampled(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway_server, "QUIET_S", 0.1)
    monkeypatch.setattr(gateway_server, "KEEPALIVE_S", 0.1)
    with episode(gateway, delay_s=0.8) as (calls, _):
        body = {"messages": [{"role": "user", "content": "hi"}], "stream": True}
        status, text = post(gateway, ChatCompletions.path, body, calls.secret)
    assert status == 200 and text.count(": the reply is being sampled") >= 2 and text.endswith("data: [DONE]\n\n")


def test_a_body_without_end_is_refused(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway_server, "MAX_BODY_BYTES", 1000)
    with episode(gateway) as (calls, seen):
        status, _ = post(gateway, ChatCompletions.path, {"messages": [{"role": "user", "content": "x" * 2000}]}, calls.secret)
        assert status == 413 and not seen
