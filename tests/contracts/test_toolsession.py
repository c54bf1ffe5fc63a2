"""Sessions with tools: results in order, answers, failures, and everything closed at the end."""

from __future__ import annotations

import threading
import time

import pytest

from rlvr.contracts import StepResult, ToolSession
from rlvr.contracts.tool import Tool, ToolExample, tool
from rlvr.errors import ConfigError, ToolInfrastructureError
from rlvr.registry.plugins import build
from rlvr.task import Task, make_user_prompt
from rlvr.tools.bash import Bash
from rlvr.tools.calculator import Calculator
from rlvr.tools.submit import Submit
from rlvr.turns import Call, CallStatus, Turn
from tests.tools.desks import Desks, FakeBoxes, Till, TillSession

TASK = Task(make_user_prompt("make it 7"), "7", id="t", meta={"start": 0})


def calls(*calls: Call) -> Turn:
    return Turn("...", calls=calls)


def add(amount: object, number: int = 0, **more: object) -> Call:
    return Call(f"0.{number}", "add", {"amount": amount}, **more)  # type: ignore[arg-type]


def heard(session: ToolSession, turn: Turn) -> StepResult:
    found = session.step(turn)
    assert found is not None
    return found


def till(**settings: object) -> TillSession:
    environment = Desks(**settings)  # type: ignore[arg-type]
    session = environment.new_session(TASK, seed=3)
    assert isinstance(session, TillSession)
    return session


def test_each_call_of_a_turn_gets_its_result_in_order() -> None:
    session = till()
    assert [spec.name for spec in session.start_tools()] == ["add", "close_till"] and session.start_tools() == session.start_tools()
    misread = Call("0.2", "add", status=CallStatus.BAD_JSON, error_detail="no value")
    said = heard(session, calls(add(3), add("x", 1), misread, add(99, 3), Call("0.4", "ad", {}), add(4, 5)))
    assert [message["role"] for message in said.messages] == ["tool"] * 6 and not said.done
    assert [message["tool_call_id"] for message in said.messages] == [f"0.{k}" for k in range(6)]
    assert [result.ok for result in said.tool_results] == [True, False, False, False, False, True]
    assert [message["content"] for message in said.messages] == [result.text for result in said.tool_results]
    assert said.tool_results[0].text == "3" and said.tool_results[5].text == "7"
    assert "not what the tool accepts" in said.tool_results[1].text and said.tool_results[2].text == misread.error_message
    assert said.tool_results[3].text == "Error: that is too much at once" and "did you mean 'add'?" in said.tool_results[4].text
    assert session.artifacts() == {"total": 7}
    session.close()


def test_a_turn_without_calls_is_the_answer_and_a_conversation_that_ends_with_a_call_has_none() -> None:
    session = till()
    session.start_tools()
    final = Turn("it has 7", content="it has 7")
    assert session.step(final) is None and session.select_answer([calls(add(7)), final]) == "it has 7"
    assert session.select_answer([final, calls(add(7))]) == "" and session.select_answer([]) == ""
    session.close()


def test_a_call_that_submits_ends_the_conversation_and_later_calls_of_the_turn_are_not_run() -> None:
    session = till()
    session.start_tools()
    said = heard(session, calls(add(7), Call("0.1", "close_till", {}), add(50, 2)))
    assert said.done and [result.done for result in said.tool_results] == [False, True, False]
    assert "was not run" in said.tool_results[2].text and session.artifacts() == {"total": 7}
    assert session.select_answer([calls()]) == "7"
    session.close()


def test_a_tool_that_breaks_is_raised() -> None:
    session = till()
    session.start_tools()
    with pytest.raises(ToolInfrastructureError, match="the till is on fire"):
        session.step(calls(add(13)))
    session.close()


def test_it_ends_after_some_turns_in_a_row_with_nothing_but_bad_calls() -> None:
    bad, good = calls(Call("0.0", "add", status=CallStatus.BAD_JSON)), calls(add(1))
    session = till()
    assert [heard(session, turn).done for turn in (bad, bad, good, bad, bad, bad)] == [False] * 5 + [True]
    session.close()


def test_a_tool_error_is_no_bad_call() -> None:
    session = till()
    assert not any(heard(session, calls(add(99))).done for _ in range(5))
    session.close()


def test_the_box_has_the_files_and_is_closed_with_the_session() -> None:
    boxes = FakeBoxes()
    session = till(tools=[Bash()], sandbox=boxes)
    assert not boxes.boxes
    session.start_tools()
    assert boxes.boxes[0].files == {"start.txt": b"0"}
    assert heard(session, calls(Call("0.0", "bash", {"command": "echo hi"}))).tool_results[0].text == "echo hi"
    session.close()
    session.close()
    assert boxes.boxes[0].closed == 1


def test_no_box_is_opened_where_no_tool_needs_one() -> None:
    boxes = FakeBoxes()
    session = till(tools=[Calculator()], sandbox=boxes)
    session.start_tools()
    session.close()
    assert not boxes.boxes


class Sinks(Tool):
    """Fails to open."""

    def setup(self) -> None:
        raise OSError("no water")

    @tool
    def sink(self) -> str:
        """Nothing."""
        return ""


def test_what_was_opened_before_a_failure_is_closed() -> None:
    boxes = FakeBoxes()
    session = till(tools=[Bash(), Sinks()], sandbox=boxes)
    with pytest.raises(OSError, match="no water"):
        session.start_tools()
    session.close()
    assert boxes.boxes[0].closed == 1


@pytest.mark.parametrize(
    ("tools", "told"), [([Till()], "two tools are called 'add'"), ([Bash()], "Bash needs a sandbox, and the environment has none")]
)
def test_tools_that_cannot_be_opened_together_are_refused(tools: list[Tool], told: str) -> None:
    session = till(tools=tools)
    with pytest.raises(ConfigError, match=told):
        session.start_tools()
    session.close()


def test_a_long_result_is_cut_and_says_so() -> None:
    session = ToolSession(TASK, [Loud()])
    session.max_result_characters = 100  # type: ignore[misc]
    session.start_tools()
    result = heard(session, calls(Call("0.0", "shout", {"times": 60}))).tool_results[0]
    assert result.truncated and len(result.text) <= 100 and "left out" in result.text
    session.close()


class Loud(Tool):
    """Says much."""

    examples = (ToolExample("shout", {"times": 1}, "ha"),)

    @tool
    def shout(self, times: int) -> str:
        """Shout."""
        return "ha " * times


class Sleeper(Tool):
    """Takes its time."""

    @tool
    def wait(self) -> str:
        """Wait."""
        time.sleep(0.4)
        return "waited"


def test_a_turn_whose_calls_take_too_long_ends_before_the_rollout_gives_it_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ToolSession, "turn_timeout_s", 0.6)
    session = ToolSession(TASK, [Sleeper()])
    said = heard(session, calls(*(Call(f"0.{number}", "wait", {}) for number in range(5))))
    assert [result.ok for result in said.tool_results] == [True, True, False, False, False] and not said.done
    assert said.tool_results[4].text == "Error: this call was not run. The earlier calls of the same turn took 1 s, and one turn has 0.6 s."
    assert heard(session, calls(Call("1.0", "wait", {}))).tool_results[0].ok
    session.close()


class Meeting(Tool):
    """Calls that wait for each other, so that only calls at the same time come to an end."""

    parallel = True

    def setup(self) -> None:
        self.barrier = threading.Barrier(3)

    @tool
    def meet(self, place: int) -> str:
        """Wait for two other calls; the later ones end first."""
        self.barrier.wait(timeout=20.0)
        time.sleep(0.02 * (7 - place))
        return f"place {place}"

    @tool
    def fail(self, place: int) -> str:
        """Fail, the later ones first."""
        time.sleep(0.02 * (7 - place))
        raise ValueError(f"place {place}")


def meet(number: int, name: str = "meet") -> Call:
    return Call(f"0.{number}", name, {"place": number})


def test_calls_of_parallel_tools_run_at_the_same_time_with_results_in_order() -> None:
    session = ToolSession(TASK, [Meeting(), Sleeper()])
    said = heard(session, calls(meet(0), meet(1), meet(2), Call("0.3", "wait", {}), meet(4), meet(5), meet(6)))
    assert [result.text for result in said.tool_results] == [*(f"place {n}" for n in range(3)), "waited", "place 4", "place 5", "place 6"]
    assert [dict(message)["tool_call_id"] for message in said.messages] == [f"0.{n}" for n in range(7)]
    session.close()


def test_of_parallel_calls_that_fail_the_first_one_is_said() -> None:
    session = ToolSession(TASK, [Meeting()])
    with pytest.raises(ToolInfrastructureError, match="place 0"):
        heard(session, calls(*(meet(number, "fail") for number in range(3))))
    session.close()


def test_no_more_calls_run_at_once_than_the_maximum() -> None:
    session = ToolSession(TASK, [Meeting(), Sleeper()])
    session.start_tools()
    groups = session._group_parallel_calls([*(meet(number) for number in range(10)), Call("0.10", "wait", {}), Call("0.11", "none", {})])
    assert [len(group) for group in groups] == [8, 2, 1, 1]
    session.close()


# ---- the environment that declares them


def test_the_registry_builds_the_tools_of_an_environment() -> None:
    where = "tests/tools/desks.py:Desks"
    with build("env", where, tools=["calculator", {"name": "submit"}, Submit()]) as environment:
        assert [type(one).__name__ for one in environment.tools] == ["Till", "Calculator", "Submit", "Submit"]
    with build("env", where, native=False) as environment:
        assert environment.tools == ()


@pytest.mark.parametrize(
    ("tools", "told"),
    [
        ("calculator", "must be a list, such as \\[calculator\\]"),
        (["calculater"], "did you mean 'calculator'"),
        ({"name": "python"}, "must be a list"),
        (5, "must be a list"),
        ([5], "the tool is 5; give a name or a mapping"),
    ],
)
def test_tools_that_are_no_list_of_tools_are_refused(tools: object, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        build("env", "tests/tools/desks.py:Desks", tools=tools)
