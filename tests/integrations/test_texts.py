"""Rows, final texts and conversations in texts."""

from __future__ import annotations

import time
from typing import Any

import pytest

from rlvr.errors import ConfigError, EnvError
from rlvr.integrations.rows import find_task, format_task_key, make_rows, parse_split_and_index, require_score, warn_if_untested
from rlvr.integrations.texts import FinalTextVerifier, TextConversationFactory
from rlvr.task import Fault, Verdict
from rlvr.turns import Call, Turn, extract_final_text
from tests.fixtures.worlds import First, Raises, Sums, Unable
from tests.integrations.worlds import Counts, Hangs, SlowJudge, Twice, Watched


def test_rows_name_tasks_and_hold_no_reference() -> None:
    rows = make_rows(First(), "test", 3, start=2)
    assert [row["index"] for row in rows] == [2, 3, 4]
    assert set(rows[0]) == {"prompt", "split", "index", "task_id"}
    assert [find_task(First(), row).id for row in rows] == [row["task_id"] for row in rows]


@pytest.mark.parametrize(
    ("split", "count", "start", "words"),
    [("dev", 3, 0, "'dev'"), ("test", 501, 0, "500"), ("test", 2, 499, "499 to 501"), ("test", 0, 0, "use fewer")],
)
def test_rows_that_do_not_exist_are_refused(split: str, count: int, start: int, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make_rows(First(), split, count, start=start)


def test_rows_without_end_need_a_count() -> None:
    with pytest.raises(ConfigError, match="count"):
        make_rows(Sums(), "train")


@pytest.mark.parametrize("role", ["assistant", "user", "system"])
def test_a_prompt_that_continues_after_the_question_is_another_question(role: str) -> None:
    row = make_rows(Sums(), "train", 1, start=3)[0]
    row["prompt"].append({"role": role, "content": "The answer is 7."})
    with pytest.raises(ConfigError, match=r"asks 'The answer is 7\.'.* write the rows again"):
        find_task(Sums(), row)


def test_a_split_that_the_environment_lacks_is_named() -> None:
    with pytest.raises(ConfigError, match=r"the split .nowhere.; Sums has train, test"):
        find_task(Sums(), {"split": "nowhere", "index": 1})


def test_rows_made_with_other_settings_are_refused() -> None:
    (row,) = make_rows(Sums(below=50), "train", 1, start=7)
    with pytest.raises(ConfigError, match=r"asks '7\+0=', and Sums asks '2\+1=' there"):
        find_task(Sums(below=5), row)
    with pytest.raises(ConfigError, match="names no task"):
        find_task(Sums(), {"prompt": row["prompt"]})
    with pytest.raises(ConfigError, match="index -1 names no task"):  # a list would give its last task
        find_task(Sums(), {"split": "train", "index": -1})


@pytest.mark.parametrize("asked", [["2+1="], [7], b"2+1=", {"role": "user"}, []])
def test_a_prompt_in_another_form_is_another_question(asked: object) -> None:
    with pytest.raises(ConfigError, match="and Sums asks"):
        find_task(Sums(), {"split": "train", "index": 7, "prompt": asked})


@pytest.mark.parametrize("label", ["", "4", None, "{}", "[1]", '{"index": 7}', "[" * 100_000], ids=range(7))
def test_a_label_that_names_no_task_is_refused(label: object) -> None:
    with pytest.raises(ConfigError, match="the label is"):
        parse_split_and_index(label)
    assert parse_split_and_index(format_task_key("train", 7)) == {"split": "train", "index": 7}


@pytest.mark.parametrize(
    ("completion", "text"),
    [
        ("4", "4"),
        ([{"role": "assistant", "content": "4"}], "4"),
        ([{"role": "assistant", "content": "5"}, {"role": "tool", "content": "4"}], ""),
        ([{"role": "assistant", "content": "4", "tool_calls": [{}]}], ""),
        ([{"role": "tool", "content": "4"}, {"role": "assistant", "content": None}], ""),
        ([{"role": "assistant", "content": [{"type": "text", "text": "4"}]}], "4"),
        ([], ""),
    ],
)
def test_the_answer_is_what_the_policy_said_last(completion: Any, text: str) -> None:
    assert extract_final_text(completion) == text


def test_a_score_that_is_missing_stops_where_there_is_no_word_for_it() -> None:
    assert require_score(Verdict(0.0, "wrong"), "verl") == 0.0
    with pytest.raises(EnvError, match=r"the engine is gone.*verl has no way"):
        require_score(Verdict(None, "the engine is gone", fault=Fault.INFRA), "verl")


def test_another_version_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    warn_if_untested("pytest", pytest.__version__)
    with pytest.warns(UserWarning, match=r"pytest .* is installed; this adapter was tested with 1\.0"):
        warn_if_untested("pytest", "1.0")


def test_texts_are_judged_in_order_and_what_fails_has_no_score() -> None:
    env = First()
    tasks = [env.task("train", index) for index in range(4)]
    scorer = FinalTextVerifier(env)
    assert [v.score for v in scorer.verify_all(tasks, [str(tasks[0].reference), "x", str(tasks[2].reference), ""])] == [1, 0, 1, 0]
    scorer.close()
    for judge in (Unable(), Raises(), First(verifier=Raises())):
        broken = FinalTextVerifier(judge)
        assert [(v.score, v.fault) for v in broken.verify_all(tasks[:1], ["4"])] == [(None, Fault.INFRA)]
        broken.close()


def test_a_verdict_that_comes_too_late_is_no_score() -> None:
    scorer = FinalTextVerifier(SlowJudge(), workers=1, call_timeout_s=0.1)
    began = time.monotonic()
    verdicts = scorer.verify_all([First().task("train", 0)] * 2, ["4", "5"])
    assert [verdict.score for verdict in verdicts] == [None, None]
    assert time.monotonic() - began < 2.0
    scorer.close()


@pytest.mark.parametrize("env", [Counts(), Twice()])
def test_a_conversation_is_not_judged_by_its_last_text(env: Any) -> None:
    with pytest.raises(ConfigError, match="is a conversation"):
        FinalTextVerifier(env)


def test_a_conversation_with_replies() -> None:
    with TextConversationFactory(Twice()) as world:
        talk = world.start_conversation(world.environment.task("train", 7))
        assert [message["content"] for message in talk.build_prompt()] == ["What is 7?"]
        assert talk.step_text("7") == [{"role": "user", "content": "Are you sure?"}]
        assert not talk.done
        assert talk.step_text("7") == []
        assert talk.done and talk.finish_and_verify().score == 1.0
        with pytest.raises(EnvError, match="is over"):
            talk.step_text("8")


def test_a_conversation_with_tools_in_text() -> None:
    with TextConversationFactory(Counts()) as world:
        talk = world.start_conversation(world.environment.task("train", 7))
        about = talk.build_prompt()[0]
        assert about["role"] == "system" and "add" in about["content"]
        call = world.dialect.format_calls([Call("0.0", "add", {"number": 7})], talk.tools)
        (result,) = talk.step_text(call)
        assert result["role"] == "user" and "The count is 7." in result["content"]
        talk.step_text("7")
        assert talk.finish_and_verify().score == 1.0
    assert not Watched.alive


def test_what_a_tool_printed_is_no_answer() -> None:
    with TextConversationFactory(Counts()) as world:
        talk = world.start_conversation(world.environment.task("train", 7))
        for _ in range(3):
            talk.step(Turn("", calls=(Call("0.0", "add", {"number": 0, "note": "7"}),)))
        assert (talk.truncation_reason, talk.done, talk.finish_and_verify().score) == ("turns", True, 0.0)


def test_a_turn_that_was_cut_is_not_heard_but_judged() -> None:
    with TextConversationFactory(Counts()) as world:
        talk = world.start_conversation(world.environment.task("train", 7))
        assert talk.step_text("7", truncated=True) == []
        assert (talk.step_results, talk.truncation_reason, talk.finish_and_verify().score) == ([], "tokens", 1.0)


def test_a_call_that_breaks_its_tool_is_an_own_0() -> None:
    with TextConversationFactory(Counts()) as world:
        talk, other = (
            world.start_conversation(world.environment.task("train", 7)),
            world.start_conversation(world.environment.task("train", 8)),
        )
        assert talk.step(Turn("", calls=(Call("0.0", "add", {"number": 999}),))) == []
        assert (talk.done, talk.finish_and_verify().score, talk.finish_and_verify().fault) == (True, 0.0, Fault.ANSWER)
        other.step_text("8")
        assert other.finish_and_verify().score == 1.0
    assert not Watched.alive


def test_a_session_that_hangs_is_no_score() -> None:
    with TextConversationFactory(Hangs(), call_timeout_s=0.1) as world:
        talk = world.start_conversation(world.environment.task("train", 7))
        began = time.monotonic()
        talk.step_text("7")
        assert talk.finish_and_verify().score is None and "0.1 s" in talk.finish_and_verify().reason
        assert time.monotonic() - began < 0.9
