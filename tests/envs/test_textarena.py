"""The adapter of TextArena, against a stand-in with the faults of the real games."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rlvr
from rlvr.conformance.conversationkit import PlayedConversation, play_conversation
from rlvr.envs.external.textarena import GAMES_WITH_SOLUTION, ONE_PLAYER_GAMES, TWO_PLAYER_GAMES, UNSUPPORTED, TextArena
from rlvr.errors import ConfigError
from rlvr.task import Fault, Verdict

THEIRS = Path(__file__).parents[1] / "fixtures" / "theirs"


@pytest.fixture
def guess(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(THEIRS))
    with rlvr.make_env("textarena") as env:
        yield env


def game(env: Any, *turns: str, index: int = 0) -> Verdict:
    return play_conversation(env, env.task("train", index), turns)[0]


def test_a_game_that_is_won_scores_1_and_one_that_is_not_scores_0(guess: Any) -> None:
    guess.prepare()
    for index in range(4):
        task = guess.task("test", index)
        assert play_conversation(guess, task, guess.oracle_turns(task))[0].score == 1.0
        assert "colour" in task.question and guess.oracle_turns(task)[0] not in task.question
    assert game(guess).score == 0.0 and game(guess, "[1]" if guess.oracle_turns(guess.task("train", 0)) != ["[1]"] else "[2]").score == 0.0


def test_the_policy_reads_what_is_new_without_its_own_words(guess: Any) -> None:
    task = guess.task("train", 0)
    wrong = "[1]" if guess.oracle_turns(task) != ["[1]"] else "[2]"
    play = PlayedConversation(guess, task)
    play.step(f"<think>[9]</think>I say {wrong}.\n**Move: {wrong}**")
    assert play.step_results[-1].messages[0]["content"] in ("higher", "lower")
    play.session_handle.close()


def test_a_turn_with_no_move_or_two_does_not_reach_the_game(guess: Any) -> None:
    right = guess.oracle_turns(guess.task("train", 0))[0]
    play = PlayedConversation(guess, guess.task("train", 0))
    for text in ("", "5", "[1] or [2]", "<think>[1]", "[" * 3000, f"It is not {right}.", f"{right}\nor not", f"not {right}"):
        play.step(text)
        assert "That is no move" in play.step_results[-1].messages[0]["content"]
    play.step(f"It may be [1] or [2].\n{right}")
    assert play.verify_and_close().score == 1.0


def test_a_text_for_a_reward_after_invalid_moves_is_a_lost_game(guess: Any) -> None:
    verdict = game(guess, "[a]", "[b]")
    assert (verdict.score, verdict.fault, verdict.detail["rewards"]) == (0.0, Fault.NONE, [0])


def test_a_reward_that_is_no_number_is_no_score(guess: Any) -> None:
    assert game(guess, "[15]").fault is Fault.INFRA


def test_a_move_that_breaks_the_game_is_the_answers_fault(guess: Any) -> None:
    verdict = game(guess, "[13]")
    assert (verdict.score, verdict.fault) == (0.0, Fault.ANSWER) and "again with the same move" in verdict.reason


def test_a_move_that_hangs_the_game_is_too(guess: Any) -> None:
    guess.host.call_timeout_s = 0.5
    verdict = game(guess, "[14]")
    assert (verdict.score, verdict.fault) == (0.0, Fault.ANSWER), verdict


def test_a_game_that_is_broken_whatever_is_said_gives_no_score(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(THEIRS))
    with rlvr.make_env("textarena", game="Secretary") as env:
        verdict = game(env, "[accept]")
        assert (verdict.score, verdict.fault) == (None, Fault.INFRA) and "the board is gone" in verdict.reason


def test_the_opponent_makes_legal_moves_and_the_same_ones_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(THEIRS))
    with rlvr.make_env("textarena", game="TicTacToe") as env:
        heard = []
        for index in (0, 0, 1):
            play = PlayedConversation(env, env.task("train", index))
            while not (play.step_results and play.step_results[-1].done):
                free = play.step_results[-1].messages[-1]["content"].rsplit("[", 1)[1] if play.step_results else "4]"
                play.step(f"[{free.rstrip(']').split(',')[0]}]")
            heard.append([said.messages for said in play.step_results])
            verdict = play.verify_and_close()
            assert (verdict.score, verdict.detail["rewards"]) == (1.0, [1])  # nine cells: the first player takes the last one
        assert heard[0] == heard[1] != heard[2]


def test_the_tables_agree_and_refusals_say_why() -> None:
    assert not (
        set(ONE_PLAYER_GAMES) & set(TWO_PLAYER_GAMES) or (set(ONE_PLAYER_GAMES) | set(TWO_PLAYER_GAMES)) & set(UNSUPPORTED)
    ) and set(GAMES_WITH_SOLUTION) <= set(ONE_PLAYER_GAMES)
    assert {row["offered"] for row in TextArena.list_support_status()} == {"yes", "no"}
    for settings, words in (
        ({"game": "Wordle"}, "is not offered: it downloads word lists"),
        ({"game": "Tictactoe"}, "did you mean 'TicTacToe'"),
        ({"max_turns": 0}, "max_turns is 0"),
    ):
        with pytest.raises(ConfigError, match=words):
            rlvr.make_env("textarena", **settings)


def test_the_game_runs_with_another_interpreter(tmp_path: Path) -> None:
    other = tmp_path / "python"
    other.write_text(f'#!/bin/sh\nPYTHONPATH={THEIRS} exec {sys.executable} "$@"\n', "utf-8")
    other.chmod(0o755)
    with rlvr.make_env("textarena", python=str(other)) as env:
        env.prepare()
        task = env.task("train", 0)
        assert play_conversation(env, task, env.oracle_turns(task))[0].score == 1.0
    with rlvr.make_env("textarena", python=sys.executable) as env, pytest.raises(ConfigError, match="is not installed for python="):
        env.prepare()
