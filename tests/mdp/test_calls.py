"""Conversations with tools, token by token: what the policy reads, and which calls are read from its tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rlvr import make
from rlvr.contracts import Environment, Transcript
from rlvr.dialects.table import get
from rlvr.episode import End
from rlvr.mdp.rules import State, TokenMDP
from rlvr.mdp.tokenizers import ByteTokenizer, CharTokenizer, HFTokenizer
from rlvr.model.weights import exported
from rlvr.task import Task
from rlvr.tools.calculator import Calculator
from rlvr.turns import Call, CallStatus
from tests.tools.desks import Desks, Till

TOK = ByteTokenizer()


def add(amount: object) -> str:
    return get(TOK.dialect).write([Call("", "add", {"amount": amount})], Till().specs())


def play(environment: Environment, turns: Sequence[str], index: int = 5) -> tuple[TokenMDP, State]:
    mdp = TokenMDP(environment, TOK)
    state = mdp.start(environment.task("train", index), seed=4)
    for text in turns:
        mdp.extend(state, [*TOK.encode(text), TOK.eos_id])
    return mdp, state


def test_the_prompt_names_the_tools_and_the_opening_follows() -> None:
    _, state = play(Desks(), [])
    text = TOK.decode(state.tokens)
    assert "!add amount" in text and text.index("make it 12") < text.index("it has 5")
    state.close()


def test_calls_are_read_from_the_tokens_and_their_results_are_written() -> None:
    desks = Desks()
    mdp, state = play(desks, [add(3), add(4), "done"])
    assert state.end is End.TERMINATED and [turn.pending[0].arguments for turn in state.turns[:2]] == [{"amount": 3}, {"amount": 4}]
    assert [heard.results[0].text for heard in state.heard[:2]] == ["8", "12"]
    read = [TOK.decode([token]) for token, acted in zip(state.tokens, state.acted, strict=True) if not acted]
    assert "".join(read).count("12") == 2  # in the question, and as a result
    verdict = mdp.judge(state)
    assert verdict.score == 1.0 and desks.settled
    ending = state.ending
    assert isinstance(ending, Transcript) and (ending.answer, ending.evidence) == ("done", {"total": 12})


def test_a_call_that_cannot_be_read_is_told_and_nothing_happens() -> None:
    mdp, state = play(Desks(), [add("x"), "12"])
    assert state.turns[0].calls[0].status is CallStatus.BAD_ARGUMENTS and "was not run" in state.heard[0].messages[0]["content"]
    assert mdp.judge(state).score == 0.5


def test_a_call_that_was_cut_off_is_not_run() -> None:
    desks = Desks()
    mdp = TokenMDP(desks, TOK, max_new_tokens=len(add(7)))
    state = mdp.start(desks.task("train", 5))
    mdp.extend(state, TOK.encode(add(7)))
    assert state.end is End.TRUNCATED and not state.heard and mdp.judge(state).score == 0.0 and mdp.answer(state) == ""


def test_without_tools_a_world_is_what_it_was() -> None:
    _, state = play(Desks(native=False), ["12"])
    assert state.end is End.TERMINATED and state.turns[0].calls == ()


def test_the_plain_session_of_an_environment_with_tools_asks_reply_for_turns_without_calls() -> None:
    class Twice(Desks):
        open = Environment.open

        def reply(self, task: object, said: Sequence[str]) -> str | None:
            return "again" if len(said) == 1 else None

    environment = Twice(native=False, tools=[Calculator()])
    assert TokenMDP(environment, TOK).worlds
    mdp, state = play(environment, ["!calculator 5+7", "11", "12"])
    assert [heard.messages[0]["content"] for heard in state.heard[:2]] == ["12", "again"] and state.end is End.TERMINATED
    assert mdp.judge(state).score == 0.5 and mdp.answer(state) == "12"


def test_a_saved_character_tokenizer_shows_and_reads_calls_as_before() -> None:
    own = CharTokenizer()
    saved = HFTokenizer(exported(own))
    environment = make("env", "calculator_sums")
    task = environment.task("test", 0)
    before, after = TokenMDP(environment, own), TokenMDP(environment, saved)
    assert after.preview(task).tokens == before.preview(task).tokens and after.calls.gold(task) == before.calls.gold(task)
    for mdp in (before, after):
        state = mdp.start(task)
        for turn in mdp.calls.gold(task) or ():
            mdp.extend(state, [*mdp.tokenizer.encode(turn), mdp.tokenizer.eos_id])
        assert state.end is End.TERMINATED and mdp.judge(state).score == 1.0


def test_several_calls_of_a_script_are_one_turn_where_the_dialect_can_and_else_one_turn_each() -> None:
    class Both(Desks):
        def script(self, task: Task) -> Any:
            return [[Call("", "add", {"amount": 3}), Call("", "add", {"amount": 4})], "done"]

    calls = TokenMDP(Both(), TOK).calls
    task = Both().task("train", 5)
    assert calls.gold(task) == [add(3), add(4), "done"]
    calls.dialect = get("hermes")
    assert [turn.count("<tool_call>") for turn in calls.gold(task) or ()] == [2, 0]
    mdp, state = play(Both(), TokenMDP(Both(), TOK).calls.gold(task) or ())
    assert mdp.judge(state).score == 1.0
