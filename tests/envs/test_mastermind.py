"""The world `mastermind`: what a guess is, what the board answers, and who finds the code."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest

from rlvr import make_env
from rlvr.contracts import Transcript
from rlvr.envs.mastermind import count_matches
from rlvr.errors import ConfigError
from rlvr.mdp.token_mdp import TokenMDP
from rlvr.mdp.tokenizers import ByteTokenizer
from rlvr.task import Task, Verdict
from rlvr.turns import Turn

ENV: Any = make_env("mastermind")
TASKS = [ENV.task(split, index) for split in ENV.splits for index in range(100)]


def play(env: Any, task: Task, said: list[str]) -> tuple[Verdict, list[str], int]:
    """A conversation with a session of its own: the verdict, the replies, and how many turns were taken."""
    session, turns, replies = env.new_session(task, seed=0), [], []
    for text in said[: env.max_turns]:
        turns.append(Turn(text))
        heard = session.step(turns[-1])
        if heard is None:
            break
        replies.append(heard.messages[0]["content"])
    transcript = Transcript(session.select_answer(turns), session.artifacts(), tuple(turns))
    session.close()
    return env.verifier.verify_transcript(task, transcript), replies, len(turns)


@pytest.mark.parametrize("settings", [{}, {"length": 3, "symbols": "1234", "max_turns": 3}, {"length": 5}], ids=str)
def test_the_script_finds_every_code_and_each_guess_fits_what_was_answered(settings: dict[str, Any]) -> None:
    env: Any = make_env("mastermind", **settings)
    tasks = [env.task(split, index) for split in env.splits for index in range(3 if settings.get("length") == 5 else 25)]
    taken = []
    for task in tasks:
        script = env.oracle_turns(task)
        verdict, _, turns = play(env, task, script)
        assert verdict.score == 1.0 and turns == len(script) <= env.max_turns and script == env.oracle_turns(task)
        for place, guess in enumerate(script[:-1]):
            told = [(earlier, count_matches(earlier, task.reference)) for earlier in script[:place]]
            assert all(count_matches(earlier, guess) == counts for earlier, counts in told)
        taken.append(turns)
    assert len(set(taken)) > 1


def test_the_counts_are_those_of_the_game() -> None:
    for guess, code in itertools.product(itertools.product("ABC", repeat=3), repeat=2):
        exact = sum(a == b for a, b in zip(guess, code, strict=True))
        left = [b for a, b in zip(guess, code, strict=True) if a != b]
        misplaced = 0
        for symbol in (a for a, b in zip(guess, code, strict=True) if a != b):
            if symbol in left:
                left.remove(symbol)
                misplaced += 1
        assert count_matches("".join(guess), "".join(code)) == (exact, misplaced)


@pytest.mark.parametrize(
    "text", ["ABCD", " abcd.", "A B C D", "A-B-C-D", "**ABCD**", "My guess is ABCD.", "I'll try: ABCD", "Is it ABCD?", "\\boxed{ABCD}"]
)
def test_a_guess_may_be_written_in_many_ways(text: str) -> None:
    assert ENV.parse_single_guess(text) == "ABCD"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ABC",
        "ABCDE",
        "ABCG",
        "ABCD or ABCE",
        "not ABCD",
        "it is not ABCD",
        "ABCD ABCE",
        "ABCD\nABCE",
        "ABC D E",
        "A" * 100_000,
        "[A-F]{4}",
    ],
    ids=lambda text: text[:12],
)
def test_what_is_not_one_guess_is_none_and_takes_a_turn(text: str) -> None:
    assert ENV.parse_single_guess(text) is None
    verdict, replies, turns = play(ENV, TASKS[0], [text, TASKS[0].reference])
    assert replies == ["write one code of 4 symbols out of A, B, C, D, E, F"] and (verdict.score, turns) == (1.0, 2)
    assert play(ENV, TASKS[0], [text] * 99)[0].score == 0.0 and play(ENV, TASKS[0], [text] * 99)[2] == ENV.max_turns


def test_each_conversation_has_its_own_board() -> None:
    one, two, again = TASKS[0], TASKS[1], TASKS[0]
    boards = [ENV.new_session(task, seed=0) for task in (one, two, again)]
    for board, guess in zip(boards, ("AABB", "CCDD", "EEFF"), strict=True):
        board.step(Turn(guess))
    boards[0].step(Turn("FFFF"))
    found = [[row[0] for row in board.artifacts()["guesses"]] for board in boards]
    assert found == [["AABB", "FFFF"], ["CCDD"], ["EEFF"]]
    exact = count_matches("AABB", one.reference)
    assert boards[0].artifacts()["guesses"][0] == ["AABB", *exact]


def test_who_knows_nothing_finds_next_to_nothing() -> None:
    dice = random.Random(0)
    scores: dict[str, list[float | None]] = {"noop": [], "letters": [], "legal": [], "constant": []}
    for task in TASKS:
        legal = ["".join(dice.choices("ABCDEF", k=4)) for _ in range(10)]
        letters = ["".join(dice.choices("ABCDEFGHIJ \n.,", k=dice.randint(1, 12))) for _ in range(10)]
        for name, said in (("noop", [""] * 10), ("letters", letters), ("legal", legal), ("constant", ["ABCD"] * 10)):
            scores[name].append(play(ENV, task, said)[0].score)
    means = {name: sum(s or 0.0 for s in row) / len(row) for name, row in scores.items()}
    assert None not in itertools.chain(*scores.values())
    assert means["noop"] == 0.0 and means["letters"] <= 0.005 and means["legal"] <= 0.03 and means["constant"] <= 0.02


def test_splits_share_no_code_whatever_the_seed() -> None:
    codes = {split: {ENV.task(split, i).reference for i in range(600)} for split in ENV.splits}
    other: Any = make_env("mastermind", seed=7)
    codes["train"] |= {other.task("train", i).reference for i in range(600)}
    assert codes["train"] and codes["test"] and not codes["train"] & codes["test"]


def test_in_tokens_the_code_is_never_in_what_the_policy_reads() -> None:
    tokenizer = ByteTokenizer()
    mdp = TokenMDP(ENV, tokenizer)
    task = TASKS[3]
    state = mdp.start_conversation(task)
    for text in (guess for guess in ("AABB", "CCDD", "what?", "EEFF") if guess != task.reference):
        mdp.step_turn(state, [*tokenizer.encode(text), min(tokenizer.stop_ids)])
    read = tokenizer.decode([t for t, own in zip(state.tokens, state.action_mask, strict=True) if not own])
    assert read.count("exact") == 1 + 3 and task.reference not in read
    mdp.step_turn(state, [*tokenizer.encode(task.reference), min(tokenizer.stop_ids)])
    episode = mdp.build_episode(state, mdp.verify(state), group="g")
    assert episode.reward == 1.0 and [row[0] for row in episode.meta["session"]["values"]["guesses"]][-1] == task.reference


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"symbols": "AAB"}, "symbols is 'AAB'"), ({"symbols": "aA"}, "each once"), ({"symbols": "A"}, "two or more"),
        ({"symbols": "AB+"}, "letters or digits"), ({"symbols": "ABCDEFGH", "length": 6}, "at most 10,000 codes"),
        ({"length": 1}, "length is 1"), ({"max_turns": 0}, "at least 1"), ({"length": "4"}, "length is '4'"),
    ],
    ids=str,
)  # fmt: skip
def test_what_cannot_be_played_is_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make_env("mastermind", **settings)
