"""Function calling: calls are compared with the listed ones, or by the state that they lead to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import rlvr
from rlvr.conformance.conversationkit import play_conversation
from rlvr.envs.external._foreign.calls import iter_minimal_expected_calls, match_allowed_arguments, match_calls
from rlvr.errors import ConfigError
from rlvr.integrations.texts import TextConversationFactory
from rlvr.mdp.token_mdp import TokenMDP
from rlvr.mdp.tokenizers import load_tokenizer
from rlvr.task import Fault, Verdict
from rlvr.turns import Call

THEIRS = Path(__file__).parents[2] / "fixtures" / "theirs"


def env_of(monkeypatch: pytest.MonkeyPatch, category: str) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(THEIRS))
    with rlvr.make_env("bfcl", category=category) as env:
        env.prepare()
        yield env


@pytest.fixture
def single(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    yield from env_of(monkeypatch, "parallel")


@pytest.fixture
def long(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    yield from env_of(monkeypatch, "multi_turn_base")


def call(name: str, **given: Any) -> Call:
    return Call("0.0", name, given)


def judged(env: Any, *turns: Any) -> Verdict:
    return play_conversation(env, env.task("train", 0), turns)[0]


def test_the_listed_calls_in_any_order_score_1_and_nothing_else_does(single: Any) -> None:
    for split in single.splits:
        for index in range(single.num_tasks(split)):
            task = single.task(split, index)
            assert play_conversation(single, task, single.oracle_turns(task))[0].score == 1.0
    one, two = single.oracle_turns(single.task("train", 0))[0]
    assert judged(single, [two, one]).score == 1.0
    wrong: Sequence[Any] = (
        [one],
        [one, one],
        [one, two, two],
        [one, call("shape_area", base=99, height=3.0)],
        "Done.",
        "",
        [one, call("other")],
    )
    for turn in wrong:
        assert judged(single, turn).score == 0.0, turn
    stringly = call("shape_area", **{**two.arguments, "base": str(two.arguments["base"])})
    assert judged(single, [one, stringly]).score == 0.0


def test_several_calls_may_come_one_in_each_turn(single: Any) -> None:
    one, two = single.oracle_turns(single.task("train", 0))[0]
    assert judged(single, [one], [two], "Done.").score == 1.0 and judged(single, [two], [one]).score == 1.0
    for turns in (([one], "Done."), ([one], "Done.", [two]), ([one], [one], "Done."), ([one], [two], [two], "Done."), ([one], [one, two])):
        assert judged(single, *turns).score == 0.0, turns


def test_several_calls_are_right_in_a_dialect_with_one_call_in_a_turn(single: Any) -> None:
    mdp = TokenMDP(single, load_tokenizer("bytes"))
    assert mdp.tool_format.dialect.is_plain_text
    task = single.task("train", 0)
    texts = mdp.tool_format.build_oracle_turns(task)
    assert texts is not None and len(texts) == 3, "each call is a turn of its own"
    with TextConversationFactory(single, dialect=mdp.tool_format.dialect.name) as world:
        talk = world.start_conversation(task)
        for text in texts:
            assert not talk.done
            talk.step_text(text)
        assert talk.done and talk.finish_and_verify().score == 1.0


def test_a_conversation_is_judged_after_each_request(long: Any) -> None:
    for split in long.splits:
        for index in range(long.num_tasks(split)):
            task = long.task(split, index)
            assert play_conversation(long, task, long.oracle_turns(task))[0].score == 1.0
    create = long.oracle_turns(long.task("train", 0))[0][0]
    show = call("show", id=1)
    assert judged(long, create, "Done.", call("show", id=7), show, "Done.").score == 1.0  # a call that fails changes nothing
    for turns in (
        (create, "Done."),
        (create, "Done.", "Done."),
        (create, create, "Done.", show, "Done."),
        ("Done.",),
        (call("erase"), "Done."),
    ):
        verdict = judged(long, *turns)
        assert (verdict.score, verdict.fault) == (0.0, Fault.NONE), (turns, verdict)
    assert "request 1 of 2: the state of TicketAPI differs" in judged(long, "Done.").reason


def test_a_service_may_return_what_json_has_no_word_for(long: Any) -> None:
    script = long.oracle_turns(long.task("train", 0))
    verdict, play = play_conversation(long, long.task("train", 0), [call("measure"), *script])
    assert verdict.score == 1.0 and play.tool_results[0] == (True, "{'size': Fraction(1, 2)}")


def test_a_method_that_is_not_listed_cannot_be_called(long: Any) -> None:
    _, play = play_conversation(
        long, long.task("train", 0), [[call("_load_scenario", scenario={}), call("erase"), call("tickets"), call("show", id="1")]]
    )
    assert [ok for ok, _ in play.tool_results] == [False] * 4 and all("was not run" in text for _, text in play.tool_results)


def test_a_call_that_hangs_is_the_answers_fault(long: Any) -> None:
    long.host.call_timeout_s = 0.7
    verdict = judged(long, call("wait", seconds=60))
    assert (verdict.score, verdict.fault) == (0.0, Fault.ANSWER), verdict


def test_services_that_are_gone_are_no_score(long: Any) -> None:
    task = long.task("train", 0)
    session = long.new_session(task, seed=0)
    session.start_tools()
    long.host.close()
    long.host.target = "rlvr.envs.external._foreign.nothing:Nothing"
    from rlvr.turns import Turn

    session.step(Turn("", calls=(call("show", id=1),)))
    verdict = long.verifier.verify_transcript(task, rlvr.Transcript("", session.artifacts()))
    assert (verdict.score, verdict.fault) == (None, Fault.INFRA), verdict
    session.close()


def test_two_conversations_do_not_see_each_other(long: Any) -> None:
    task = long.task("train", 0)
    script = long.oracle_turns(task)
    assert [play_conversation(long, task, script)[0].score for _ in range(2)] == [1.0, 1.0]


@pytest.mark.parametrize(
    ("given", "wanted", "right"),
    [
        ({"x": 1}, {"x": [1, 2]}, True),
        ({"x": 1.0}, {"x": [1]}, True),
        ({"x": True}, {"x": [1]}, False),
        ({"x": 1}, {"x": [True]}, False),
        ({"x": "1"}, {"x": [1]}, False),
        ({"x": " New  York"}, {"x": ["new york"]}, True),
        ({"x": "NewYork"}, {"x": ["New York"]}, False),
        ({}, {"x": [1, ""]}, True),
        ({}, {"x": [1]}, False),
        ({"x": 1, "y": 1}, {"x": [1]}, False),
        ({"x": [1, 2]}, {"x": [[1, 2]]}, True),
        ({"x": [2, 1]}, {"x": [[1, 2]]}, False),
        ({"x": {"a": 1}}, {"x": [{"a": [1, 2], "b": [3, ""]}]}, True),
        ({"x": {"a": 1, "c": 1}}, {"x": [{"a": [1]}]}, False),
        ({"x": [{"a": 1}]}, {"x": [[{"a": [1]}]]}, True),
        ({"x": None}, {"x": [None]}, True),
    ],
)
def test_values_are_compared_and_not_converted(given: Any, wanted: Any, right: bool) -> None:
    assert match_allowed_arguments(given, wanted) is right
    assert match_calls([{"f": wanted}], [{"name": "f", "arguments": given}]) is right


def test_equal_calls_are_matched_in_a_moment() -> None:
    """One after the other, in any order of trying them, would be 11! ways."""
    same, call = {"f": {"x": [1]}}, {"name": "f", "arguments": {"x": 1}}
    assert not match_calls([*[same] * 11, {"g": {}}], [call] * 12)
    assert match_calls([same] * 12, [call] * 12)


def test_a_call_that_fits_two_listed_ones_is_given_to_the_one_that_needs_it() -> None:
    truth = [{"f": {"x": [1, 2]}}, {"f": {"x": [2, 3]}}, {"f": {"x": [1]}}]
    calls = [{"name": "f", "arguments": {"x": x}} for x in (1, 2, 3)]
    assert match_calls(truth, calls) and match_calls(truth, calls[::-1])
    assert not match_calls(truth, [calls[1], calls[1], calls[2]])


def test_no_calls_match_no_list_that_has_some() -> None:
    assert not match_calls([{"f": {}}], []) and match_calls([], []) and list(iter_minimal_expected_calls([], {})) == []


@pytest.mark.parametrize("category", ["irrelevance", "memory", "simple_pyton"])
def test_categories_that_are_not_offered_are_refused(category: str) -> None:
    with pytest.raises(ConfigError, match=r"not offered|did you mean"):
        rlvr.make_env("bfcl", category=category)
