"""Functions as policies: in Python, and by path/to/file.py:function; what they get, what they may return, and legal random players."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import rlvr
from rlvr.cli.commands import run_command
from rlvr.contracts import Environment, Verifier
from rlvr.errors import ConfigError
from rlvr.evaluation.evaluate import evaluate
from rlvr.task import Task, Verdict
from rlvr.turns import Call

PLAYER = """
import re

def halve(messages):
    low, high = 1, 100
    asked = [m for m in messages if m["role"] != "system"]
    for said, heard in zip(asked[1::2], asked[2::2]):
        number = int(said["content"])
        low, high = (number + 1, high) if "higher" in heard["content"] else (low, number - 1)
    return str((low + high) // 2)

async def add(messages, tools):
    assert tools[0]["function"]["name"] == "calculator"
    if messages[-1]["role"] == "user":
        return {"content": "", "tool_calls": [{"function": {"name": "calculator", "arguments": {"expression": messages[-1]["content"].strip("=")}}}]}
    return messages[-1]["content"]

def wrong(messages):
    return 4
"""


@pytest.fixture
def player(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "player.py").write_text(PLAYER)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "player.py"


def accuracy(report: Any) -> float:
    (env,) = report.envs.values()
    return float(env.mean_score.value)


def test_a_function_in_a_file_plays_a_conversation(player: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert accuracy(evaluate("guess_number", "player.py:halve", tasks=8)) == 1.0
    assert run_command(["eval", "guess_number", "--policy", "player.py:halve", "--tasks", "2"]) == 0
    assert "player.py:halve on guess_number" in capsys.readouterr().out


def test_a_coroutine_function_calls_tools_in_the_format_of_openai(player: Path) -> None:
    report = evaluate("calculator_sums", "player.py:add", tasks=4)
    assert accuracy(report) == 1.0 and report.envs["calculator_sums"].calls is not None


def test_a_function_returns_calls_as_records() -> None:
    def play(messages: Any) -> Any:
        last = messages[-1]
        return Call("", "calculator", {"expression": last["content"].strip("=")}) if last["role"] == "user" else last["content"]

    assert accuracy(rlvr.evaluate("calculator_sums", play, tasks=4)) == 1.0


def test_coroutines_of_different_conversations_run_at_the_same_time() -> None:
    async def slow(prompt: str) -> str:
        await asyncio.sleep(0.3)
        return "4"

    begun = time.monotonic()
    rlvr.evaluate("arithmetic", slow, tasks=10)
    assert time.monotonic() - begun < 2.5


def test_a_changed_file_is_another_policy(player: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["eval", "guess_number", "--policy", "player.py:halve", "--out", "run", "--tasks"]
    assert run_command([*command, "2"]) == 0
    player.write_text(PLAYER + "\n# changed\n")
    assert run_command([*command, "3"]) == 2 and "policy_weights" in capsys.readouterr().err


def test_what_is_no_turn_is_said(player: Path) -> None:
    env = evaluate("arithmetic", "player.py:wrong", tasks=2).envs["arithmetic"]
    assert env.unscored == 2


@pytest.mark.parametrize("policy", ["no.py:play", "player.py:none"])
def test_a_missing_function_is_a_usage_error(player: Path, policy: str) -> None:
    assert run_command(["eval", "arithmetic", "--policy", policy]) == 2


def test_a_function_with_other_parameters_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"a policy is f\(prompt\)"):
        rlvr.evaluate("arithmetic", lambda a, b: "4", tasks=1)


class Steps(Environment):
    """A game of three steps, in which each word is legal once."""

    max_turns = 3
    max_new_tokens = 60

    class Any(Verifier):
        """Scores 1 if every turn was legal."""

        def verify(self, task: Task, answer: str) -> Verdict:
            words = answer.split()
            return Verdict(float(sorted(words) == ["east", "north", "west"]), answer)

    def __init__(self) -> None:
        self.verifier = self.Any()

    def task(self, split: str, index: int) -> Task:
        return Task(f"Walk {index}.", id=f"steps/{split}/{index}")

    def reply(self, task: Task, completions: Sequence[str]) -> str | None:
        return None if len(completions) == 3 else "go on"

    def select_answer(self, task: Task, completions: Sequence[str]) -> str:
        return " ".join(completions)

    def list_legal_turns(self, task: Task, completions: Sequence[str]) -> list[str]:
        return [word for word in ("north", "east", "west") if word not in completions]


def test_scripted_random_plays_legal_turns_where_the_environment_lists_them() -> None:
    assert accuracy(evaluate(Steps(), "scripted:random", tasks=12)) == 1.0
