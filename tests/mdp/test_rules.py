"""The rules of the token-level MDP, one by one: what ends an episode, what the environment's tokens are, what is judged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlvr.contracts import Environment
from rlvr.episode import StopReason
from rlvr.errors import ConfigError, EnvError
from rlvr.mdp.limits import get_num_tasks
from rlvr.mdp.state import find_last_policy_token
from rlvr.mdp.token_mdp import ConversationState, TokenMDP
from rlvr.mdp.tokenizers import POLICY, USER, ByteTokenizer, CharTokenizer
from rlvr.rollout.rollout import RolloutRequest
from rlvr.task import Fault, Task, make_user_prompt
from rlvr.turns import Call, CallStatus, Turn
from tests.fixtures.worlds import DIGITS, Match, Raises, Sums, Talk, Unable

EOS, ONE, SEVEN = 0, 5, 11
TOK = CharTokenizer(DIGITS)


def start(mdp: TokenMDP, index: int = 3) -> ConversationState:
    return mdp.start_conversation(mdp.environment.task("train", index))


def speak(mdp: TokenMDP, state: ConversationState, ids: Sequence[int]) -> ConversationState:
    for token in ids:
        mdp.step_token(state, token)
    return state


def test_an_episode_begins_with_the_rendered_prompt_and_nothing_acted() -> None:
    mdp = TokenMDP(Sums(), TOK)
    state = start(mdp, 57)
    assert state.tokens == [USER, *TOK.encode("7+1="), POLICY] and not any(state.action_mask)
    assert (state.turn_start, state.num_policy_tokens, state.completions, state.stop_reason) == (len(state.tokens), 0, [], None)


def test_the_log_probabilities_are_those_of_the_tokens_of_the_policy_and_0_elsewhere() -> None:
    mdp = TokenMDP(Talk(), TOK)
    state = start(mdp)
    prompt = len(state.tokens)
    assert mdp.append_turn(state, [ONE, EOS], [-0.5, -0.25])
    mdp.step_session(state)
    mdp.append_reply(state)
    speak(mdp, state, [SEVEN])  # stepped by a caller who does not sample
    replied = len(state.tokens) - prompt - 3
    assert replied > 0 and state.logprobs == [0.0] * prompt + [-0.5, -0.25] + [0.0] * (replied + 1)
    assert len(state.logprobs) == len(state.action_mask) == len(state.tokens)
    state.close()


def test_a_stop_id_terminates_a_single_turn() -> None:
    mdp = TokenMDP(Sums(), TOK, max_new_tokens=3)
    state = speak(mdp, start(mdp), [ONE, EOS])
    assert (state.stop_reason, state.completions) == (StopReason.TERMINATED, ["1"])
    assert state.action_mask[-2:] == [True, True] and find_last_policy_token(state.action_mask) == len(state.tokens) - 1


def test_the_count_cap_truncates_and_a_stop_on_it_does_not() -> None:
    mdp = TokenMDP(Sums(), TOK, max_new_tokens=3)
    assert speak(mdp, start(mdp), [ONE, ONE, ONE]).stop_reason is StopReason.TRUNCATED
    assert speak(mdp, start(mdp), [ONE, ONE, EOS]).stop_reason is StopReason.TERMINATED


def test_the_window_truncates_and_a_stop_on_its_last_place_does_not() -> None:
    prompt = len(start(TokenMDP(Sums(), TOK)).tokens)
    mdp = TokenMDP(Sums(), TOK, max_new_tokens=9, max_length=prompt + 2)
    assert mdp.count_remaining_turn_tokens(start(mdp)) == 2
    assert speak(mdp, start(mdp), [ONE, ONE]).stop_reason is StopReason.TRUNCATED
    assert speak(mdp, start(mdp), [ONE, EOS]).stop_reason is StopReason.TERMINATED


def test_a_truncated_turn_is_heard_as_far_as_it_went() -> None:
    mdp = TokenMDP(Sums(), TOK, max_new_tokens=2)
    assert speak(mdp, start(mdp), [ONE, SEVEN]).completions == ["17"]


def test_the_environments_answer_is_appended_and_not_acted() -> None:
    mdp = TokenMDP(Talk(), TOK)
    state = start(mdp)
    before = len(state.tokens)
    speak(mdp, state, [ONE, ONE, EOS])
    reply = [USER, *TOK.encode("2"), POLICY]
    assert state.stop_reason is None and state.tokens[before:] == [ONE, ONE, EOS, *reply]
    assert state.action_mask[before:] == [True] * 3 + [False] * len(reply)
    assert (state.turn_start, state.num_policy_tokens, state.completions) == (len(state.tokens), 3, ["11"])


def test_a_conversation_the_environment_closes_terminates() -> None:
    mdp = TokenMDP(Talk(), TOK)
    state = speak(mdp, start(mdp), [ONE, EOS, SEVEN, EOS])
    assert (state.stop_reason, state.completions, state.tokens[-1]) == (StopReason.TERMINATED, ["1", "7"], EOS)


def test_the_last_allowed_turn_terminates_if_the_environment_is_done_and_is_cut_if_not() -> None:
    mdp = TokenMDP(Talk(), TOK)
    assert speak(mdp, start(mdp), [ONE, EOS, ONE, EOS, SEVEN, EOS]).stop_reason is StopReason.TERMINATED
    state = speak(mdp, start(mdp), [ONE, EOS, ONE, EOS, ONE, EOS])
    assert (state.stop_reason, state.tokens[-1]) == (StopReason.TRUNCATED, EOS)  # the answer that nobody could take up is not written


def test_a_turn_that_spends_the_last_token_is_cut_where_the_environment_would_go_on() -> None:
    mdp = TokenMDP(Talk(), TOK, max_new_tokens=2)
    state = speak(mdp, start(mdp), [ONE, EOS])
    assert (state.stop_reason, state.tokens[-1]) == (StopReason.TRUNCATED, EOS)


def test_the_reply_takes_from_the_window_and_not_from_the_policys_tokens() -> None:
    mdp = TokenMDP(Talk(chatter=6), TOK, max_new_tokens=3, max_length=100)  # a reply of 8 tokens, one token of the policy's left
    state = speak(mdp, start(mdp), [ONE, EOS])
    assert state.stop_reason is None and mdp.count_remaining_turn_tokens(state) == 1
    assert speak(mdp, state, [SEVEN]).stop_reason is StopReason.TRUNCATED


@pytest.mark.parametrize("room, end", [(2, StopReason.TRUNCATED), (3, StopReason.TRUNCATED), (4, None)])
def test_a_reply_that_fills_the_window_ends_the_conversation(room: int, end: StopReason | None) -> None:
    """A reply of three tokens needs a fourth place, for the policy."""
    length = len(start(TokenMDP(Talk(), TOK)).tokens) + 2
    mdp = TokenMDP(Talk(), TOK, max_length=length + room)
    assert speak(mdp, start(mdp), [ONE, EOS]).stop_reason is end


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 9), st.integers(0, 30), st.integers(1, 4))
def test_turns_in_one_go_and_token_by_token_are_the_same(index: int, cap: int, room: int, chatter: int) -> None:
    environment = Talk(chatter=chatter)
    prompt = len(TOK.render(environment.task("train", index).prompt))
    mdp = TokenMDP(environment, TOK, max_new_tokens=cap, max_length=prompt + 1 + room)
    whole, single = start(mdp, index), start(mdp, index)
    rng = np.random.default_rng(index)
    while whole.stop_reason is None:
        turn = [int(t) for t in rng.integers(1, TOK.vocab_size, mdp.count_remaining_turn_tokens(whole))]
        cut = int(rng.integers(0, len(turn) + 1))
        turn = [*turn[:cut], EOS] if cut < len(turn) else turn
        for token in turn[:-1]:
            mdp.step_token(single, token)
            assert single.stop_reason is None
        mdp.step_token(single, turn[-1])
        mdp.step_turn(whole, turn)
        assert whole == single
        assert len(whole.tokens) == len(whole.action_mask) <= mdp.max_length and whole.num_policy_tokens == sum(whole.action_mask) <= cap
        assert whole.stop_reason is not None or mdp.count_remaining_turn_tokens(whole) >= 1  # whoever has the word can say something


@pytest.mark.parametrize(
    "ids, words",
    [
        ([], "0 tokens"),
        ([ONE] * 4, "where 3 may follow"),
        ([EOS, ONE], "tokens follow a stop id"),
        ([ONE, 16], "allowed: 0 to 15"),
        ([-1, ONE], "allowed: 0 to 15"),
    ],
)
def test_extend_refuses_what_no_sampler_may_return(ids: list[int], words: str) -> None:
    mdp = TokenMDP(Sums(), TOK, max_new_tokens=3)
    state = start(mdp)
    before = list(state.tokens)
    with pytest.raises(EnvError, match=words):
        mdp.step_turn(state, ids)
    assert state.tokens == before


def test_extend_refuses_a_turn_after_the_end() -> None:
    mdp = TokenMDP(Sums(), TOK, max_new_tokens=3)
    state = start(mdp)
    mdp.step_turn(state, [EOS])
    with pytest.raises(EnvError, match="end: terminated"):
        mdp.step_turn(state, [ONE])


class SomeStops(CharTokenizer):
    """Two ids end a turn, as in many chat models."""

    stop_ids = frozenset({EOS, 4})


def test_every_stop_id_of_the_tokenizer_stops() -> None:
    mdp = TokenMDP(Sums(), SomeStops(DIGITS), max_new_tokens=3)
    for stop in (EOS, 4):
        assert speak(mdp, start(mdp), [ONE, stop]).stop_reason is StopReason.TERMINATED


def test_a_verifier_that_raises_gives_no_score() -> None:
    mdp = TokenMDP(Sums(verifier=Raises()), TOK)
    verdict = mdp.verify(speak(mdp, start(mdp), [EOS]))
    assert (verdict.score, verdict.fault) == (None, Fault.INFRA) and "RuntimeError: the judge fell over" in verdict.reason


def test_an_episode_pays_its_score_on_the_last_token_the_policy_chose() -> None:
    mdp = TokenMDP(Talk(), TOK)
    state = speak(mdp, start(mdp, 17), [ONE, EOS, SEVEN, EOS])
    episode = mdp.build_episode(state, mdp.verify(state), group="g", version=4)
    assert episode.rewards == [0.0] * (len(state.tokens) - 1) + [1.0]
    assert (episode.text, episode.turns, episode.stop_reason, episode.policy_version) == ("17", 2, StopReason.TERMINATED, 4)


@pytest.mark.parametrize("status", CallStatus)
def test_an_episode_knows_which_turns_have_a_call_that_could_not_be_read(status: CallStatus) -> None:
    mdp = TokenMDP(Talk(), TOK)
    state = speak(mdp, start(mdp, 17), [ONE, EOS, ONE, EOS, SEVEN, EOS])
    for turn, calls in enumerate([(), (Call("1.0", "f"), Call("1.1", "f", status=status)), (Call("2.0", "f"),)]):
        state.turns[turn] = Turn(state.turns[turn].text, calls=calls)
    episode = mdp.build_episode(state, mdp.verify(state), group="g")
    form = status in (CallStatus.UNCLOSED, CallStatus.BAD_JSON, CallStatus.MALFORMED, CallStatus.NO_NAME)
    assert episode.meta.get("malformed_turns") == ([1] if form else None)
    assert episode.malformed_turn_spans == ([episode.turn_spans[1]] if form else [])
    assert [[state.tokens[t] for t in range(*span)] for span in episode.turn_spans] == [[ONE, EOS], [ONE, EOS], [SEVEN, EOS]]


def test_an_unscored_episode_failed_and_carries_no_reward() -> None:
    mdp = TokenMDP(Sums(verifier=Unable()), TOK)
    state = speak(mdp, start(mdp), [EOS])
    episode = mdp.build_episode(state, mdp.verify(state), group="g")
    assert (episode.stop_reason, episode.reward, episode.is_scored, episode.error) == (
        StopReason.FAILED,
        0.0,
        False,
        "the engine does not answer",
    )


def test_an_episode_that_is_not_over_is_no_record() -> None:
    mdp = TokenMDP(Sums(), TOK)
    state = start(mdp)
    with pytest.raises(EnvError, match="not over"):
        mdp.build_episode(state, Match().verify(state.task, ""), group="g")


class Forgetful(Talk):
    """It uses up what it is given: that is its own copy."""

    def reply(self, task: Task, completions: Sequence[str]) -> str | None:
        return str(len(completions)) if isinstance(completions, list) and completions.pop() == "1" else None

    def select_answer(self, task: Task, completions: Sequence[str]) -> str:
        assert isinstance(completions, list)
        return "".join(completions.pop() for _ in range(len(completions)))


def test_what_an_environment_does_to_its_turns_changes_no_record() -> None:
    mdp = TokenMDP(Forgetful(), TOK)
    state = speak(mdp, start(mdp, 17), [ONE, EOS, SEVEN, EOS])
    episode = mdp.build_episode(state, mdp.verify(state), group="g")
    assert state.completions == ["1", "7"] and (episode.text, episode.turns, episode.stop_reason) == ("71", 2, StopReason.TERMINATED)


class Wordless(Talk):
    def __init__(self, gives: Any) -> None:
        super().__init__()
        self.gives = gives

    def reply(self, task: Task, completions: Sequence[str]) -> str | None:
        return self.gives

    def select_answer(self, task: Task, completions: Sequence[str]) -> str:
        return self.gives


def test_a_reply_and_an_answer_are_texts() -> None:
    mdp = TokenMDP(Wordless(42), TOK)
    verdict = mdp.verify(speak(mdp, start(mdp), [ONE, EOS]))
    assert verdict.fault is Fault.INFRA and "reply gave 42; it must be a text, or None" in verdict.reason
    mdp = TokenMDP(Wordless(None), TOK)
    state = speak(mdp, start(mdp), [ONE, EOS])
    verdict = mdp.verify(state)
    assert verdict.fault is Fault.INFRA and "select_answer() raised TypeError: it returned None, not a text" in verdict.reason
    assert mdp.build_episode(state, verdict, group="g").text == ""


@pytest.mark.parametrize(
    ("name", "value"), [("splits", "test"), ("splits", ()), ("max_turns", "3"), ("max_new_tokens", None), ("max_prompt_tokens", 0)]
)
def test_limits_that_are_none_are_refused_at_once(name: str, value: Any) -> None:
    environment = Talk()
    setattr(environment, name, value)
    with pytest.raises(ConfigError, match=f"Talk.{name} is"):
        TokenMDP(environment, TOK)


@pytest.mark.parametrize("size", ["10", -1, 10.0, True])
def test_a_size_is_a_whole_number_or_none(size: Any) -> None:
    environment = Sums()
    environment.num_tasks = lambda split: size  # type: ignore[method-assign]
    with pytest.raises(EnvError, match=r"Sums.num_tasks\('test'\) is"):
        get_num_tasks(environment, "test")
    environment.num_tasks = lambda split: np.int64(3)  # type: ignore[method-assign,assignment,return-value]
    assert get_num_tasks(environment, "test") == 3


def test_what_is_no_task_is_refused() -> None:
    with pytest.raises(EnvError, match="returned '2\\+2='"):
        TokenMDP(Sums(), TOK).start_conversation("2+2=")  # type: ignore[arg-type]
    with pytest.raises(EnvError, match="returned '2\\+2='"):
        RolloutRequest("2+2=", "g", 0)  # type: ignore[arg-type]


class Mute(Environment):
    """An environment that forgot its verifier."""

    def task(self, split: str, index: int) -> Task:
        return Task(make_user_prompt(""), "", id="t")


def test_what_cannot_pose_tasks_is_refused_at_once() -> None:
    for wrong in (Mute(), object()):
        with pytest.raises(ConfigError, match=r"is not an environment|must be an rlvr\.Verifier"):
            TokenMDP(wrong, TOK)  # type: ignore[arg-type]


def test_a_prompt_without_a_token_is_refused() -> None:
    class Empty(ByteTokenizer):
        def render(self, messages: object, tools: object = ()) -> list[int]:
            return []

    with pytest.raises(EnvError, match="renders to no token"):
        start(TokenMDP(Sums(), Empty()))


@pytest.mark.parametrize(
    ("limits", "said", "cut"),
    [
        ({"max_new_tokens": 3}, [ONE, ONE, ONE], "tokens"),
        ({"max_new_tokens": 2}, [ONE, EOS], "tokens"),
        ({"max_length": 9}, [ONE] * 9, "window"),
        ({}, [ONE, EOS, ONE, EOS, ONE, EOS], "turns"),
        ({}, [ONE, EOS, SEVEN, EOS], ""),
    ],
)
def test_what_ran_out_is_told(limits: dict[str, int], said: list[int], cut: str) -> None:
    mdp = TokenMDP(Talk(), TOK, **limits)
    state = start(mdp)
    speak(mdp, state, said[: mdp.max_length - len(state.tokens)])
    assert state.truncation_reason == cut and (state.stop_reason is StopReason.TRUNCATED) == bool(cut)
    assert mdp.build_episode(state, mdp.verify(state), group="g").meta.get("truncated", "") == cut
