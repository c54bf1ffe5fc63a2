"""The checks of conversations with tools, each of them shown to find a planted defect."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from rlvr.conformance.check_runner import CheckResult, run_checks
from rlvr.conformance.conversationkit import iter_conversation_checks
from rlvr.contracts import Session
from rlvr.contracts.tool import Tool, tool
from rlvr.registry.plugins import build
from rlvr.task import Message, Task
from rlvr.turns import Call
from tests.tools.desks import Desks, Till, TillSession


def found(environment: Any) -> dict[str, CheckResult]:
    return {check.name: check for check in run_checks(iter_conversation_checks(environment))}


SCRIPT, SAME, IDLE, APART, REFUSED, HIDDEN, HOSTILE = (
    "the script of a conversation scores 1",
    "the same seed gives the same results",
    "an answer without any call scores below 1",
    "two conversations side by side do not see each other",
    "wrong arguments are refused and change nothing",
    "the opening and the tools do not contain the answer",
    "whatever a hostile player does gets a score",
)


def test_a_sound_environment_passes_every_check() -> None:
    class Must(Desks):
        requires_tool_call = True

    desks = Must()
    checks = found(desks)
    assert list(checks) == [SCRIPT, SAME, IDLE, APART, REFUSED, HIDDEN, HOSTILE]
    assert all(check.ok and not check.skipped for check in checks.values()), checks
    assert desks.settled


def test_an_environment_of_single_answers_has_only_a_hostile_player() -> None:
    with build("env", "arithmetic") as environment:
        assert list(found(environment)) == [HOSTILE]


def test_what_cannot_be_checked_is_said() -> None:
    with build("env", "arithmetic", tools=["calculator"]) as environment:
        checks = found(environment)
        assert checks[SCRIPT].skipped and "write `oracle_turns(task)`" in checks[SCRIPT].detail and checks[HIDDEN].ok


class Wrong(Desks):
    """Its script does not reach the sum."""

    def oracle_turns(self, task: Task) -> Sequence[str | Call] | None:
        return [Call("", "add", {"amount": 6}), "done"]


class Easy(Desks):
    """It says that calls are needed, and pays for words."""

    requires_tool_call = True

    def oracle_turns(self, task: Task) -> Sequence[str | Call] | None:
        return ["done"]

    def new_session(self, task: Task, *, seed: int) -> Session:
        session = super().new_session(task, seed=seed)
        session.artifacts = lambda: {"total": int(task.reference)}  # type: ignore[method-assign]
        return session


class Shared(Till):
    """One total for all conversations."""

    totals: dict[str, int] = {}

    @tool
    def add(self, amount: int) -> str:
        """Add an amount, and get the total."""
        self.totals["all"] = self.totals.get("all", 0) + amount
        return str(self.totals["all"])


class Told(TillSession):
    """Its opening says the answer."""

    def initial_messages(self) -> Sequence[Message]:
        return ({"role": "user", "content": f"(the answer is {self.task.reference})"},)


class Tells(Desks):
    def new_session(self, task: Task, *, seed: int) -> Session:
        return Told(self, task, seed)


def with_till(till: Tool) -> Desks:
    return Desks(native=False, tools=[till])


@pytest.mark.parametrize(
    ("environment", "check", "told"),
    [
        (Wrong(), SCRIPT, "scored 0"),
        (Easy(), IDLE, "without a call"),
        (with_till(Shared()), SAME, "the results differ"),
        (with_till(Shared()), APART, "the results differ"),
        (Tells(), HIDDEN, "contains the reference"),
    ],
    ids=["script", "idle", "same", "apart", "hidden"],
)
def test_a_defect_is_found(environment: Desks, check: str, told: str) -> None:
    result = found(environment)[check]
    assert not result.ok and told in result.detail, result


def test_wrong_arguments_that_are_accepted_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def careless(self: TillSession, call: Call) -> Any:
        self.tills[0].total += 1
        return original(self, call)

    original = TillSession._run_call
    monkeypatch.setattr(TillSession, "_run_call", careless)
    result = found(Desks())[REFUSED]
    assert not result.ok and "the results differ" in result.detail
