"""Any environment with tools: its own tasks and verdicts, and calls before the answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from rlvr.contracts import Environment, SamplingParams, ToolSession
from rlvr.contracts.environment import ReplySession
from rlvr.envs.with_tools import WithTools
from rlvr.episode import Episode, StopReason
from rlvr.errors import ConfigError, NotFound
from rlvr.mdp.token_mdp import TokenMDP
from rlvr.mdp.tokenizers import load_tokenizer
from rlvr.registry.plugins import build
from rlvr.rollout.rollout import Rollout, RolloutRequest
from rlvr.samplers.scripted import ScriptedSampler
from rlvr.task import StepReward, Task, Verdict, make_user_prompt
from rlvr.tools.calculator import Calculator
from rlvr.tools.python import Python

TOK = load_tokenizer("chars:0123456789+-*=! ")


def episode(environment: Environment, answers: Sequence[str], index: int = 0) -> Episode:
    mdp, sampler = TokenMDP(environment, TOK), ScriptedSampler(answers=list(answers))
    sampler.setup(environment, TOK)
    with Rollout(mdp, sampler=sampler) as rollout:
        (found,) = rollout.collect([RolloutRequest(environment.task("train", index), "g", 0)], SamplingParams(stop_ids=TOK.stop_ids))
    return found


def sums(**settings: Any) -> Environment:
    environment: Environment = build("env", "arithmetic", levels=["2+2"], tools=["calculator"], **settings)
    return environment


def test_a_call_then_the_answer() -> None:
    with sums() as environment:
        task = environment.task("train", 0)
        found = episode(environment, [f"!{task.question[:-1]}", task.reference])
    assert (found.reward, found.turns, found.stop_reason) == (1.0, 2, StopReason.TERMINATED)
    said = found.meta["session"]
    assert said["step_results"][0]["messages"][0]["content"] == task.reference and said["tools"][0]["name"] == "calculator"
    assert said["turns"][0]["calls"][0] | {"id": ""} == {
        "id": "", "name": "calculator", "arguments": {"expression": task.question[:-1]}, "raw": f"!{task.question[:-1]}"
    }  # fmt: skip
    assert said["step_results"][0]["tool_results"][0]["ok"] and said["step_results"][0]["tool_results"][0]["text"] == task.reference


def test_both_ways_to_write_it_are_the_same() -> None:
    with sums(max_turns=4) as short, build("env", "with_tools", env={"name": "arithmetic", "levels": ["2+2"]}, max_turns=4) as long:
        assert isinstance(short, WithTools) and isinstance(long, WithTools)
        assert short.task("test", 3) == long.task("test", 3) and short.max_turns == long.max_turns == 4
        assert [type(tool) for tool in short.tools] == [type(tool) for tool in long.tools]


def test_without_tools_it_is_the_environment_itself() -> None:
    with build("env", "arithmetic", tools=[]) as environment:
        task = environment.task("train", 0)
        assert environment.max_turns == 1 and isinstance(environment.new_session(task, seed=0), ReplySession)
        assert episode(environment, [task.reference]).reward == 1.0


def test_a_conversation_keeps_its_own_turns() -> None:
    with build("env", "guess_number", tools=["calculator"]) as environment:
        secret = int(environment.task("train", 0).reference)
        found = episode(environment, ["!1+1", str(secret - 1), str(secret)])
        assert environment.max_turns == 12 and found.reward == 1.0 and found.turns == 3
        assert [heard["messages"][0]["content"] for heard in found.meta["session"]["step_results"][:2]] == ["2", "higher"]


class Climb(Environment):
    """Say 1, then 2: each is worth half, when it is said."""

    max_turns, max_new_tokens = 3, 20

    def __init__(self) -> None:
        self.verifier = build("verifier", "exact")

    def task(self, split: str, index: int) -> Task:
        return Task(make_user_prompt("1"), "2", id="climb")

    def reply(self, task: Task, completions: Sequence[str]) -> str | None:
        return None if completions[-1] == "2" else "+1"

    def step_rewards(self, task: Task, completions: Sequence[str], verdict: Verdict) -> Sequence[StepReward]:
        return [StepReward(0.5, turn=completions.index("1")), StepReward(0.5)]


def test_what_a_turn_of_a_conversation_earned_is_paid_in_that_turn() -> None:
    environment = WithTools(env=Climb(), tools=[Calculator()])
    found = episode(environment, ["!1+1", "1", "!3", "2"])
    spans = [sum(found.rewards[start:end]) for start, end in found.turn_spans]
    assert (spans, found.reward) == ([0.0, 0.5, 0.0, 0.5], 1.0)
    only = episode(environment, ["1", "2"])
    assert [sum(only.rewards[start:end]) for start, end in only.turn_spans] == [0.5, 0.5]


def test_an_answer_by_submit_is_judged() -> None:
    with build("env", "arithmetic", levels=["2+2"], tools=["calculator", "submit"], max_new_tokens=100) as environment:
        task = environment.task("train", 0)
        assert isinstance(environment.new_session(task, seed=0), ToolSession)
        tokenizer = load_tokenizer("bytes")
        sampler = ScriptedSampler(answers=[f"!submit {task.reference}"])
        sampler.setup(environment, tokenizer)
        with Rollout(TokenMDP(environment, tokenizer), sampler=sampler) as rollout:
            (found,) = rollout.collect([RolloutRequest(task, "g", 0)], SamplingParams(stop_ids=tokenizer.stop_ids))
        assert (found.reward, found.text, found.stop_reason) == (1.0, task.reference, StopReason.TERMINATED)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"tools": ["calculater"]}, "no tool is called 'calculater'; did you mean 'calculator'"),
        ({"tools": "calculator"}, "tools is 'calculator'; it must be a list, such as \\[calculator\\]"),
        ({"tools": ["calculator"], "levls": []}, "env 'arithmetic' has no setting 'levls'"),
        ({"tools": ["python"], "sandbox": None}, "the sandbox is None; give a name or a mapping with a 'name'"),
        ({"tools": [{"name": "calculator", "digits": 2}]}, "tool 'calculator' has no setting 'digits'"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], told: str) -> None:
    with pytest.raises((ConfigError, NotFound), match=told):
        build("env", "arithmetic", **settings)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"tools": ["calculator"], "max_turns": 1}, "max_turns is 1, and a tool call takes a turn"),
        ({"tools": ["calculator"], "dialect": "gemma"}, "dialect is 'gemma', whose calls end with <tool_call|>"),
        ({"tools": ["calculator"], "dialect": "hermess"}, "there is no dialect 'hermess'; did you mean 'hermes'"),
    ],
)
def test_what_cannot_be_driven_is_refused_before_anything_is_sampled(settings: dict[str, Any], told: str) -> None:
    with build("env", "arithmetic", **settings) as environment, pytest.raises((ConfigError, NotFound), match=told):
        TokenMDP(environment, TOK)


def test_a_tool_that_needs_a_box_needs_a_sandbox() -> None:
    with (
        build("env", "arithmetic") as environment,
        pytest.raises(ConfigError, match="the tool Python, which needs a sandbox, and no sandbox"),
    ):
        TokenMDP(WithTools(env=environment, tools=[Python()]), TOK)


def test_an_environment_that_has_tools_is_not_wrapped() -> None:
    with pytest.raises(ConfigError, match="has tools of its own"):
        build("env", "with_tools", env={"name": "tests/tools/desks.py:Desks"})


def test_the_window_has_room_for_the_description_of_the_tools() -> None:
    with sums() as environment, build("env", "arithmetic", levels=["2+2"]) as plain:
        described = TokenMDP(environment, TOK).start_conversation(environment.task("train", 0))
        described.close()
        without = TokenMDP(plain, TOK).start_conversation(plain.task("train", 0))
        more = len(described.tokens) - len(without.tokens)
        assert more > 10 and TokenMDP(environment, TOK).max_length == plain.max_prompt_tokens + more + 2 * environment.max_new_tokens


@pytest.mark.docker
def test_python_in_a_box_keeps_its_variables_within_a_conversation() -> None:
    with build("env", "arithmetic", levels=["2+2"], tools=["python"], max_new_tokens=200) as environment:
        task, tokenizer = environment.task("train", 0), load_tokenizer("bytes")
        sampler = ScriptedSampler(answers=[f"!x = {task.question[:-1]}", "!print(x)", task.reference])
        sampler.setup(environment, tokenizer)
        with Rollout(TokenMDP(environment, tokenizer), sampler=sampler) as rollout:
            found = rollout.collect([RolloutRequest(task, "g", number) for number in range(2)], SamplingParams(stop_ids=tokenizer.stop_ids))
    for one in found:
        results = [heard["tool_results"][0] for heard in one.meta["session"]["step_results"][:2]]
        assert one.reward == 1.0 and results[1]["text"] == task.reference and results[1]["duration_s"] > 0, (one.error, results)
