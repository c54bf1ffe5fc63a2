"""The conversation of an episode, as the page is given it: every call with its state in words, and nothing twice."""

from __future__ import annotations

from rlvr.viewer.conversation_view import build_conversation_view
from tests.fixtures.recorded import agent_session


def test_each_call_has_its_state_in_words_its_output_and_what_was_cut() -> None:
    talk = build_conversation_view(agent_session())
    assert talk is not None
    calls = [call for turn in talk["turns"] for call in turn.get("calls", ())]
    assert [call["state"] for call in calls] == ["ok", "not run: unknown tool", "not run: bad json", "ok", "error"]
    assert calls[0] == {
        "name": "python",
        "state": "ok",
        "arguments": [["code", "print(6 * 7)\n"], ["seconds", "3"]],
        "output": "42",
        "duration_s": 0.25,
    }
    assert [call.get("cut", False) for call in calls] == [False, False, False, True, False]
    assert calls[2]["arguments"] == "{broken", "what cannot be read is shown as it was written"


def test_a_result_is_shown_once_and_other_messages_as_replies() -> None:
    talk = build_conversation_view(agent_session())
    assert talk is not None
    assert [turn.get("replies") for turn in talk["turns"]] == [None, None, [["user", "Go on."]], None]
    assert talk["opening"] == [["user", "Use the tools."]] and talk["tools"][1] == ["bash", "Run a command."]
    assert talk["turns"][0]["reasoning"] == "six sevens" and talk["turns"][1]["cut"] is True
    assert talk["turns"][3] == {"said": "42"}, "the text of a plain turn is not repeated"


def test_a_call_that_nothing_answered_says_so_and_a_record_of_an_earlier_version_is_left_out() -> None:
    session = agent_session()
    session["step_results"] = session["step_results"][:2]
    talk = build_conversation_view(session)
    assert talk is not None and [call["state"] for call in talk["turns"][2]["calls"]] == ["no result"] * 2
    assert (
        build_conversation_view({}) is None
        and build_conversation_view({"step_results": [{"messages": [], "done": True}], "answer": "4"}) is None
    )


def test_what_the_session_left_for_the_verifier_is_shown() -> None:
    session = agent_session() | {"values": {"sold": 3}, "files": {"a.txt": "aGVsbG8=", "b.bin": "/w=="}}
    talk = build_conversation_view(session)
    assert talk is not None and talk["left"] == [["sold", "3"], ["a.txt", "hello"], ["b.bin", "1 bytes that are no text"]]
    long = build_conversation_view(agent_session() | {"values": {"log": "x" * 50_000}})
    assert long is not None and len(long["left"][0][1]) < 21_000
    plain = build_conversation_view({"turns": [{"text": "4"}], "step_results": []})
    assert plain is not None and "left" not in plain
