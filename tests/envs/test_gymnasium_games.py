"""Gymnasium's environments as text: what wins, what does not, and what foreign code may do without becoming a score."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import rlvr
from rlvr.conformance.conversationkit import PlayedConversation, play_conversation
from rlvr.contracts import Transcript
from rlvr.envs.external._game_env import GameRewardVerifier
from rlvr.errors import ConfigError
from rlvr.task import Fault, Task, make_user_prompt

ODD = "tests.fixtures.theirs.odd_worlds:Odd-v0"


@pytest.fixture(scope="module")
def lake() -> Iterator[Any]:
    with rlvr.make_env("gymnasium") as env:
        yield env


def test_the_shortest_way_over_the_lake_scores_1(lake: Any) -> None:
    for index in range(3):
        task = lake.task("test", index)
        verdict, play = play_conversation(lake, task, lake.oracle_turns(task))
        assert (verdict.score, play.step_results[-1].done) == (1.0, True)
        assert "A" in task.question and lake.task("train", index).question != task.question


def test_a_hole_ends_the_game_at_0_and_idling_does_not_win(lake: Any) -> None:
    lost = [play_conversation(lake, lake.task("train", index), ["down", "right"] * 12)[0] for index in range(6)]
    assert {verdict.score for verdict in lost} <= {0.0, 1.0} and 0.0 in [verdict.score for verdict in lost]
    idle = play_conversation(lake, lake.task("train", 0), ["up"] * 24)[0]
    assert (idle.score, idle.fault) == (0.0, Fault.NONE)


def test_what_is_no_move_is_told_so_and_changes_nothing(lake: Any) -> None:
    task = lake.task("train", 0)
    play = PlayedConversation(lake, task)
    for said in ("", "hop", "down or right", "It is not down.", "<think>down", "x" * 5000, "down\nright"):
        play.step(said)
        assert play.step_results[-1].messages[0]["content"] == "That is no move. Say one move: left, down, right or up."
    for said in lake.oracle_turns(task):
        play.step(said)
    verdict = play.verify_and_close()
    assert (verdict.score, len(verdict.detail["rewards"])) == (1.0, len(lake.oracle_turns(task)))


@pytest.mark.parametrize(
    "said", ["down", " Down. ", "**down**", "Move: down", "\\boxed{down}", "<answer>down</answer>", "<think>up?</think>down"]
)
def test_a_move_may_be_declared_as_an_answer(lake: Any, said: str) -> None:
    play = PlayedConversation(lake, lake.task("train", 0))
    play.step(said)
    assert play.session_handle.collect_transcript(tuple(play.turns), tuple(play.step_results)).artifacts["moves"] == ["down"]  # type: ignore[union-attr]
    play.session_handle.close()


@pytest.mark.parametrize("id", ["Taxi", "CliffWalking"])
def test_known_ways_win_and_shorter_ones_do_not(id: str) -> None:
    with rlvr.make_env("gymnasium", id=id) as env:
        task = env.task("train", 0)
        assert play_conversation(env, task, env.oracle_turns(task))[0].score == 1.0
        assert play_conversation(env, task, env.oracle_turns(task)[:-1])[0].score == 0.0


def test_nothing_left_to_chance_is_said_to_be_solved() -> None:
    with rlvr.make_env("gymnasium", kwargs={"is_slippery": True}) as env:
        assert env.oracle_turns(env.task("train", 0)) is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "words"),
    [
        ("nan", "the reward 'nan'"),
        ("text", "the reward \"'good'\""),
        ("none", "the reward 'None'"),
        ("true", "the reward 'True'"),
        ("7.5", r"gave 7\.5 in all, outside of 0 to 1"),
        ("raises", "the game failed at move 1 .RuntimeError: the world ended"),
        ("dies", "the game failed at move 1 .*died"),
    ],
)
def test_what_makes_no_sense_is_no_score(mode: str, words: str) -> None:
    with rlvr.make_env("gymnasium", id=ODD, kwargs={"mode": mode}) as env:
        verdict, _ = play_conversation(env, env.task("train", 0), ["1"])
        assert (verdict.score, verdict.fault) == (None, Fault.INFRA)
        assert verdict.reason and __import__("re").search(words, verdict.reason), verdict.reason


def test_a_game_that_hangs_is_no_score_and_costs_no_other_game() -> None:
    with rlvr.make_env("gymnasium", id=ODD, kwargs={"mode": "hangs"}) as env:
        env.host.call_timeout_s = 0.5
        assert play_conversation(env, env.task("train", 0), ["1"])[0].fault is Fault.INFRA
        env.host.call_timeout_s = 10.0
        assert play_conversation(env, env.task("train", 1), ["0"])[0].fault is Fault.NONE


def test_a_game_that_breaks_off_is_not_won() -> None:
    with rlvr.make_env("gymnasium", id=ODD, kwargs={"mode": "cut"}, success_threshold=1.0) as env:
        assert play_conversation(env, env.task("train", 0), ["1"])[0].score == 0.0
    with rlvr.make_env("gymnasium", id=ODD, kwargs={"mode": ""}, success_threshold=1.0) as env:
        assert play_conversation(env, env.task("train", 0), ["1"])[0].score == 1.0


def test_a_world_that_is_no_function_of_its_seed_is_refused() -> None:
    with rlvr.make_env("gymnasium", id=ODD, kwargs={"mode": "unseeded"}) as env:
        task = env.task("train", 0)
        with pytest.raises(rlvr.RlvrError, match="the same seed began with another text"):
            PlayedConversation(env, task)


def test_what_the_environment_reports_beside_the_observation_is_not_shown() -> None:
    with rlvr.make_env("gymnasium", id=ODD, kwargs={"mode": ""}) as env:
        task = env.task("train", 0)
        play = PlayedConversation(env, task)
        play.step("0")
        assert "secret" not in str(task) + str(play.step_results)
        play.session_handle.close()


@pytest.mark.slow
def test_settings_that_make_no_sense_are_one_message_each() -> None:
    for settings, words in (
        ({"id": ""}, "id is ''"),
        ({"max_turns": 0}, "max_turns is 0"),
        ({"success_threshold": 1.0, "scale": [0, 1]}, "both set"),
        ({"scale": [1, 1]}, r"scale is \[1, 1\]"),
    ):
        with pytest.raises(ConfigError, match=words):
            rlvr.make_env("gymnasium", **settings)
    for id, words in (("NoSuchGame-v0", "cannot be played: .*NoSuchGame"), ("CartPole-v1", "r"), ("MountainCarContinuous-v0", "discrete")):
        with rlvr.make_env("gymnasium", id=id) as env, pytest.raises(ConfigError, match=words):
            if id == "CartPole-v1":
                raise ConfigError(env.task("train", 0).question)  # four numbers: it can be written as text
            env.task("train", 0)


def test_rewards_are_judged_by_what_was_declared() -> None:
    judge, scaled = GameRewardVerifier(), Task(make_user_prompt("q"), {"scale": [-1.0, 1.0]}, id="t")
    for rewards, over, score in (([1.0], True, 1.0), ([-1.0], True, 0.0), ([0.5, -0.5], True, 0.5), ([1.0], False, 0.0)):
        assert judge.verify_transcript(scaled, Transcript("", {"rewards": rewards, "over": over})).score == score
    assert judge.verify_transcript(scaled, Transcript("", {"rewards": [2.0], "over": True})).fault is Fault.INFRA
    assert judge.verify(scaled, '{"rewards": [1.0], "over": true}').score == 0.0


def test_a_sum_of_rewards_that_may_be_no_score_is_said_before_the_game() -> None:
    for settings, is_said in (({}, True), ({"scale": [0, 500]}, False), ({"success_threshold": 1}, False), ({"id": "Taxi"}, False)):
        with rlvr.make_env("gymnasium", **{"id": "CartPole", **settings}) as env:
            assert bool(env.warnings) == is_said, settings
    with rlvr.make_env("gymnasium", id="CartPole") as env:
        assert env.warnings[-1].startswith(
            "the score of CartPole is the sum of its rewards, and a game whose sum is below 0 or above 1 gets"
        )
