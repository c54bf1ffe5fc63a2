"""Turns and calls are counted from the records of sessions: what was written, what failed, and nothing that a model made up as a name."""

from __future__ import annotations

from typing import Any

import pytest

from rlvr.episode import Episode, StopReason
from rlvr.runs.conversation_stats import compute_conversation_metrics, compute_tool_time_metrics, count_turns_and_calls
from tests.fixtures.recorded import agent_session


def episode(turns: int, session: dict[str, Any] | None = None) -> Episode:
    meta = {"session": session} if session else {}
    return Episode("t", "g", [5, 6], [False, True], [0.0, -0.1], [0.0, 1.0], StopReason.TERMINATED, turns=turns, meta=meta)


def test_every_call_is_counted_once_and_those_that_failed_are_errors() -> None:
    found = count_turns_and_calls(4, agent_session())
    assert (found.turns, found.calls, found.errors) == (4, 5, 3) and found.seconds == pytest.approx(1.76)
    assert found.by_tool == {"python": 1, "bash": 2}, "a name that the model made up is not a column"


def test_a_call_in_the_reasoning_of_an_answer_is_no_call() -> None:
    thought = {"id": "0.0", "name": "python", "arguments": {}, "status": "in_thought"}
    session = agent_session() | {"turns": [{"text": "4", "content": "4", "calls": [thought]}], "step_results": []}
    assert count_turns_and_calls(1, session).calls == 0


def test_metrics_are_means_over_all_answers_and_absent_without_tools() -> None:
    plain = agent_session() | {"tools": []}
    assert (
        compute_conversation_metrics([episode(1), episode(3, plain)]) == {"turns/mean_per_episode": 2.0}
        and compute_tool_time_metrics([episode(3, plain)]) == {}
    )
    row = compute_conversation_metrics([episode(4, agent_session()), episode(2)])
    assert row == {
        "turns/mean_per_episode": 3.0,
        "tools/calls_per_episode": 2.5,
        "tools/errors_per_episode": 1.5,
        "tools/bash/calls": 1.0,
        "tools/python/calls": 0.5,
    }
    assert compute_tool_time_metrics([episode(4, agent_session())] * 2) == {"tools/total_time": pytest.approx(3.52)}
