"""Environments behind a WebSocket: a server that fails in any way is no score, and no session is continued in another one."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rlvr.conformance.conversationkit import PlayedConversation, play_conversation
from rlvr.envs.external._foreign_host import ForeignProcessLost
from rlvr.errors import ConfigError
from rlvr.registry.plugins import build
from rlvr.task import Fault, Verdict

SERVER = [sys.executable, str(Path(__file__).parents[2] / "fixtures" / "theirs" / "openenv_server.py"), "{port}"]


@pytest.fixture(scope="module")
def guess() -> Iterator[Any]:
    with build("env", "openenv", server=SERVER, success_threshold=1.0, max_turns=6) as env:
        env.prepare()
        yield env


def secret(env: Any, index: int = 0) -> str:
    """The right answer, as the stand-in draws it."""
    return str(random.Random(env.task("train", index).reference["seed"]).randint(1, 9))


def said(env: Any, *turns: str, index: int = 0) -> Verdict:
    return play_conversation(env, env.task("train", index), turns)[0]


def test_a_right_answer_scores_1_and_a_wrong_one_0(guess: Any) -> None:
    for index in range(3):
        right = secret(guess, index)
        assert said(guess, right, index=index).score == 1.0
        assert said(guess, *["0"] * 6, index=index).score == 0.0
        assert said(guess, "0", "<think>no</think>", right, index=index).score == 1.0


def test_metadata_never_reaches_the_policy(guess: Any) -> None:
    task = guess.task("train", 0)
    assert "The day is" in task.question and "secret" not in task.question and "metadata" not in task.question
    play = PlayedConversation(guess, task)
    play.step("0")
    assert [message["content"] for message in play.step_results[-1].messages] == ["wrong"]
    play.session_handle.close()


@pytest.mark.parametrize("how", [{"scale": [0, 1]}, {"success_threshold": 1.0}], ids=["scale", "won"])
@pytest.mark.parametrize("turn", ["pay 7.5", "pay nan", "pay text", "pay none"])
def test_a_reward_that_makes_no_sense_is_no_score(turn: str, how: dict[str, Any]) -> None:
    with build("env", "openenv", server=SERVER, **how) as env:
        verdict = said(env, turn)
        assert (verdict.score, verdict.fault) == (None, Fault.INFRA), verdict


@pytest.mark.parametrize("turn", ["raise", "noise", "exit"])
def test_a_server_that_fails_or_is_gone_is_no_score_and_the_next_conversation_works(turn: str) -> None:
    with build("env", "openenv", server=SERVER, success_threshold=1.0) as env:
        verdict = said(env, "0", turn, secret(env))
        assert (verdict.score, verdict.fault) == (None, Fault.INFRA), verdict
        assert said(env, secret(env)).score == 1.0  # the server is started again


def test_a_step_that_hangs_ends_its_session_and_no_other_one_takes_its_place(guess: Any) -> None:
    guess.host.call_timeout_s = 0.5
    try:
        task = guess.task("train", 0)
        hanging, other = PlayedConversation(guess, task), PlayedConversation(guess, task)
        began = time.monotonic()
        hanging.step("hang")
        assert time.monotonic() - began < 10
        hanging.step(secret(guess))
        verdict = hanging.verify_and_close()
        assert (verdict.score, verdict.fault) == (None, Fault.INFRA) and "nothing within 0.5 s" in verdict.reason
        other.step(secret(guess))
        assert other.verify_and_close().score == 1.0
    finally:
        guess.host.call_timeout_s = 30.0


def test_a_connection_that_failed_is_not_opened_again(guess: Any) -> None:
    world = guess.host.new_instance()
    world.call("reset", seed=1)
    with pytest.raises(ForeignProcessLost, match="nothing within"):
        world.call("step", timeout_s=0.2, move={"guess": "hang"})
    with pytest.raises(ForeignProcessLost, match="is closed"):
        world.call("step", move={"guess": "1"})


def test_a_message_that_nobody_waited_for_is_not_the_answer_to_the_next_action(guess: Any) -> None:
    verdict = said(guess, "echo", secret(guess))
    assert (verdict.score, verdict.fault) == (None, Fault.INFRA) and "before it was asked" in verdict.reason, verdict


def test_an_episode_that_is_over_before_the_first_action_cannot_be_played() -> None:
    with (
        build("env", "openenv", server=SERVER, success_threshold=1.0, reset={"fault": "over"}) as env,
        pytest.raises(ConfigError, match="over before"),
    ):
        env.task("train", 0)


def test_an_action_that_alone_breaks_a_step_is_the_answers_fault() -> None:
    with build("env", "openenv", server=SERVER, success_threshold=1.0, safe_actions=[{"guess": "0"}]) as env:
        verdict = said(env, "0", "raise")
        assert (verdict.score, verdict.fault) == (0.0, Fault.ANSWER), verdict


def test_an_action_that_is_refused_changes_nothing(guess: Any) -> None:
    play = PlayedConversation(guess, guess.task("train", 0))
    play.step("refuse")
    assert "refused: cannot refuse" in play.step_results[-1].messages[0]["content"]
    play.step("")
    assert "no action" in play.step_results[-1].messages[0]["content"]
    play.step(secret(guess))
    assert play.verify_and_close().score == 1.0


def test_a_server_that_is_ours_ends_with_the_environment() -> None:
    env = build("env", "openenv", server=SERVER)
    env.prepare()
    process: Any = env.host._process
    env.close()
    assert process.poll() is not None
    env.close()


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({}, "either url"),
        ({"url": "here"}, "write for example"),
        ({"server": ["serve"]}, "{port}"),
        ({"url": "http://x", "success_threshold": 1, "scale": [0, 1]}, "both set"),
        ({"url": "http://x", "scale": [1, 0]}, "low, high"),
        ({"url": "http://x", "max_turns": 0}, "at least 1"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        build("env", "openenv", **settings)


def test_a_server_that_does_not_start_is_one_message() -> None:
    with build("env", "openenv", server=["false", "{port}"]) as env, pytest.raises(ConfigError, match="ended at once with status 1"):
        env.prepare()
    with build("env", "openenv", url="http://127.0.0.1:9") as env, pytest.raises(ConfigError, match="cannot be played"):
        env.task("train", 0)


class Form:
    """A host whose schema is given."""

    def __init__(self, properties: dict[str, Any]) -> None:
        self.properties = properties

    def ensure_started(self) -> Any:
        return {"action": {"properties": self.properties}}


@pytest.mark.parametrize(
    ("properties", "text", "action"),
    [
        ({"n": {"type": "integer"}}, "4", {"n": 4}),
        ({"n": {"type": "integer"}}, "<answer>4</answer>", {"n": 4}),
        ({"n": {"type": "integer"}}, "4.5", None),
        ({"n": {"type": "integer"}}, "true", None),
        ({"n": {"type": "number"}}, "4.5", {"n": 4.5}),
        ({"a": {"type": "integer"}, "b": {"type": "string"}}, '{"a": 1, "b": "x"}', {"a": 1, "b": "x"}),
        ({"a": {"type": "integer"}, "b": {"type": "string"}}, '{"a": "1"}', None),
        ({"a": {"type": "integer"}, "b": {"type": "string"}}, '{"metadata": {}}', None),
        ({"a": {"type": "integer"}, "b": {"type": "string"}}, "1", None),
        ({"a": {"anyOf": []}}, "[[1]]", {"a": [[1]]}),
        ({"a": {"anyOf": []}}, "not JSON", None),
        ({"a": {"anyOf": []}}, "null", {"a": None}),
        ({"a": {"type": "object"}}, "[]", None),
        ({"a": {"anyOf": []}}, "[" * 900 + "]" * 900, None),
        ({"a": {"type": "array"}}, "[" * 960 + "]" * 960, None),
    ],
)
def test_a_turn_is_read_by_the_schema(properties: dict[str, Any], text: str, action: Any) -> None:
    env = build("env", "openenv", url="http://127.0.0.1:9")
    env.host = Form(properties)
    assert env.parse_move(text) == action
    assert "no action" in env.format_no_move_reply()
