"""Tool calls of a client of a served session: in OpenAI's format, or in the text in the dialect of the session."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from rlvr.errors import ConfigError
from rlvr.serve.session_host import SessionHost

ARGUMENTS = {"expression": "6500583+27874"}
FENCED = "```calculator\n6500583+27874\n```"


@pytest.fixture
def host() -> Iterator[SessionHost]:
    made = SessionHost({"sums": "calculator_sums", "guess": "guess_number"})
    yield made
    made.close()


def start(host: SessionHost, **how: Any) -> dict[str, Any]:
    return host.handle_request({"what": "open", "session": "s", "env": "sums", "split": "test", "index": 0, **how})


def step(host: SessionHost, **turn: Any) -> dict[str, Any]:
    return host.handle_request({"what": "step", "session": "s", **turn})


@pytest.mark.parametrize(
    "turn",
    [
        {"text": "", "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "calculator", "arguments": ARGUMENTS}}]},
        {"tool_calls": [{"function": {"name": "calculator", "arguments": '{"expression": "6500583+27874"}'}}]},
        {"calls": [{"name": "calculator", "arguments": ARGUMENTS}]},
        {"message": {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "calculator", "arguments": ARGUMENTS}}]}},
        {"text": FENCED},
    ],
)
def test_a_call_is_run_in_each_format(host: SessionHost, turn: dict[str, Any]) -> None:
    start(host)
    said = step(host, **turn)
    assert "6528457" in said["messages"][0]["content"] and not said["done"]
    assert step(host, text="6528457")["done"]
    assert host.handle_request({"what": "close", "session": "s"})["verdict"]["score"] == 1.0


def test_the_dialect_of_the_text_is_chosen_at_the_start(host: SessionHost) -> None:
    start(host, dialect="hermes")
    said = step(host, text='<tool_call>{"name": "calculator", "arguments": {"expression": "6500583+27874"}}</tool_call>')
    assert "6528457" in said["messages"][0]["content"]


def test_a_call_of_an_unknown_tool_gets_a_message_as_a_model_would(host: SessionHost) -> None:
    start(host)
    assert "There is no such tool" in step(host, calls=[{"name": "calculate", "arguments": {}}])["messages"][0]["content"]


@pytest.mark.parametrize(
    ("turn", "words"),
    [
        ({}, "text is None"),
        ({"tool_calls": "calculator"}, "tool_calls are not a list"),
        ({"tool_calls": [7]}, "has no function"),
        ({"calls": [{"name": "a"}], "tool_calls": [{"name": "a"}]}, "give one of them"),
        ({"message": 3}, "message is 3"),
        ({"text": "x", "finish_reason": "max_tokens"}, "finish_reason is 'max_tokens'; allowed: length, stop, tool_calls"),
        ({"text": "x", "finish_reason": {"length": 1}}, "finish_reason is"),
    ],
)
def test_a_wrong_turn_is_refused_and_spends_none(host: SessionHost, turn: dict[str, Any], words: str) -> None:
    start(host)
    with pytest.raises(ConfigError, match=words):
        step(host, **turn)
    assert host.sessions["s"].turns == []


@pytest.mark.parametrize("env", [["sums"], {"name": "sums"}, 7, "sum"])
def test_an_environment_that_is_not_a_name_of_this_server_is_refused(host: SessionHost, env: Any) -> None:
    with pytest.raises(ConfigError, match=r"there is no environment .* here; .*guess, sums"):
        start(host, env=env)


@pytest.mark.parametrize(
    ("how", "words"),
    [({"seed": 0.5}, "seed is 0.5"), ({"dialect": "nope"}, "no dialect 'nope'"), ({"index": 10**4000}, "index is .{,120}$")],
)
@pytest.mark.parametrize("what", ["open", "task"])
def test_a_task_is_refused_for_what_a_session_is_refused_for(host: SessionHost, what: str, how: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        host.handle_request({"what": what, "session": "s", "env": "sums", "split": "test", "index": 0, **how})


def test_calls_where_there_are_no_tools_are_refused(host: SessionHost) -> None:
    start(host, env="guess")
    with pytest.raises(ConfigError, match="has no tools"):
        step(host, calls=[{"name": "calculator", "arguments": {}}])


def test_a_turn_that_alone_makes_the_session_raise_scores_0_and_the_next_client_is_served() -> None:
    made = SessionHost({"counts": "tests/integrations/worlds.py:Counts"})
    try:
        for number, score, fault in ((999, 0.0, "answer"), (3, 1.0, "none")):
            made.handle_request({"what": "open", "session": "s", "env": "counts", "split": "train", "index": 3})
            said = step(made, calls=[{"name": "add", "arguments": {"number": number}}])
            assert said["done"] == (number == 999)
            if not said["done"]:
                step(made, text="3")
            verdict = made.handle_request({"what": "close", "session": "s"})["verdict"]
            assert (verdict["score"], verdict["fault"]) == (score, fault), verdict["reason"]
    finally:
        made.close()
