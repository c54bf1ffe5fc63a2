"""Conversations with tools, token by token: what the policy reads, and which calls are read from its tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rlvr import make_env
from rlvr.chat.dialects.table import get_dialect
from rlvr.contracts import Environment, Transcript
from rlvr.episode import StopReason
from rlvr.mdp.token_mdp import ConversationState, TokenMDP
from rlvr.mdp.tokenizers import ByteTokenizer, CharTokenizer, HFTokenizer
from rlvr.models.model_loading import to_transformers_tokenizer
from rlvr.task import Task
from rlvr.tools.calculator import Calculator
from rlvr.turns import Call, CallStatus
from tests.tools.desks import Desks, Till

TOK = ByteTokenizer()


def add(amount: object) -> str:
    return get_dialect(TOK.dialect).format_calls([Call("", "add", {"amount": amount})], Till().specs())


def play(environment: Environment, turns: Sequence[str], index: int = 5) -> tuple[TokenMDP, ConversationState]:
    mdp = TokenMDP(environment, TOK)
    state = mdp.start_conversation(environment.task("train", index), seed=4)
    for text in turns:
        mdp.step_turn(state, [*TOK.encode(text), TOK.eos_id])
    return mdp, state


def test_the_prompt_names_the_tools_and_the_opening_follows() -> None:
    _, state = play(Desks(), [])
    text = TOK.decode(state.tokens)
    assert "!add amount" in text and text.index("make it 12") < text.index("it has 5")
    state.close()


def test_calls_are_read_from_the_tokens_and_their_results_are_written() -> None:
    desks = Desks()
    mdp, state = play(desks, [add(3), add(4), "done"])
    assert state.stop_reason is StopReason.TERMINATED and [turn.calls_needing_result_or_error[0].arguments for turn in state.turns[:2]] == [
        {"amount": 3},
        {"amount": 4},
    ]
    assert [heard.tool_results[0].text for heard in state.step_results[:2]] == ["8", "12"]
    read = [TOK.decode([token]) for token, acted in zip(state.tokens, state.action_mask, strict=True) if not acted]
    assert "".join(read).count("12") == 2  # in the question, and as a result
    verdict = mdp.verify(state)
    assert verdict.score == 1.0 and desks.settled
    ending = state.collected
    assert isinstance(ending, Transcript) and (ending.answer, ending.artifacts) == ("done", {"total": 12})


def test_a_call_that_cannot_be_read_is_told_and_nothing_happens() -> None:
    mdp, state = play(Desks(), [add("x"), "12"])
    assert state.turns[0].calls[0].status is CallStatus.BAD_ARGUMENTS and "was not run" in state.step_results[0].messages[0]["content"]
    assert mdp.verify(state).score == 0.5


def test_a_call_that_was_cut_off_is_not_run() -> None:
    desks = Desks()
    mdp = TokenMDP(desks, TOK, max_new_tokens=len(add(7)))
    state = mdp.start_conversation(desks.task("train", 5))
    mdp.step_turn(state, TOK.encode(add(7)))
    assert (
        state.stop_reason is StopReason.TRUNCATED
        and not state.step_results
        and mdp.verify(state).score == 0.0
        and mdp.get_verified_answer(state) == ""
    )


def test_without_tools_a_world_is_what_it_was() -> None:
    _, state = play(Desks(native=False), ["12"])
    assert state.stop_reason is StopReason.TERMINATED and state.turns[0].calls == ()


def test_the_plain_session_of_an_environment_with_tools_asks_reply_for_turns_without_calls() -> None:
    class Twice(Desks):
        new_session = Environment.new_session

        def reply(self, task: object, said: Sequence[str]) -> str | None:
            return "again" if len(said) == 1 else None

    environment = Twice(native=False, tools=[Calculator()])
    assert TokenMDP(environment, TOK).has_sessions
    mdp, state = play(environment, ["!calculator 5+7", "11", "12"])
    assert [heard.messages[0]["content"] for heard in state.step_results[:2]] == [
        "12",
        "again",
    ] and state.stop_reason is StopReason.TERMINATED
    assert mdp.verify(state).score == 0.5 and mdp.get_verified_answer(state) == "12"


def test_a_saved_character_tokenizer_shows_and_reads_calls_as_before() -> None:
    own = CharTokenizer()
    saved = HFTokenizer(to_transformers_tokenizer(own))
    environment = make_env("calculator_sums")
    task = environment.task("test", 0)
    before, after = TokenMDP(environment, own), TokenMDP(environment, saved)
    assert after.preview_prompt(task).tokens == before.preview_prompt(task).tokens and after.tool_format.build_oracle_turns(
        task
    ) == before.tool_format.build_oracle_turns(task)
    for mdp in (before, after):
        state = mdp.start_conversation(task)
        for turn in mdp.tool_format.build_oracle_turns(task) or ():
            mdp.step_turn(state, [*mdp.tokenizer.encode(turn), mdp.tokenizer.eos_id])
        assert state.stop_reason is StopReason.TERMINATED and mdp.verify(state).score == 1.0


def test_several_calls_of_a_script_are_one_turn_where_the_dialect_can_and_else_one_turn_each() -> None:
    class Both(Desks):
        def oracle_turns(self, task: Task) -> Any:
            return [[Call("", "add", {"amount": 3}), Call("", "add", {"amount": 4})], "done"]

    calls = TokenMDP(Both(), TOK).tool_format
    task = Both().task("train", 5)
    assert calls.build_oracle_turns(task) == [add(3), add(4), "done"]
    calls.dialect = get_dialect("hermes")
    assert [turn.count("<tool_call>") for turn in calls.build_oracle_turns(task) or ()] == [2, 0]
    mdp, state = play(Both(), TokenMDP(Both(), TOK).tool_format.build_oracle_turns(task) or ())
    assert mdp.verify(state).score == 1.0
