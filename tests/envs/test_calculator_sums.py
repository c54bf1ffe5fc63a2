"""The world `calculator_sums`: its numbers, its split, its script, and what its conversations score."""

from __future__ import annotations

from typing import Any

import pytest

from rlvr import make_env
from rlvr.contracts import SamplingParams
from rlvr.envs.calculator_sums import choose_data_split
from rlvr.errors import ConfigError
from rlvr.mdp.token_mdp import TokenMDP
from rlvr.mdp.tokenizers import CharTokenizer
from rlvr.rollout.rollout import Rollout, RolloutRequest
from rlvr.samplers.scripted import ScriptedSampler
from rlvr.turns import Call


def scores(env: Any, policy: str, tasks: int = 20) -> list[float | None]:
    mdp = TokenMDP(env, CharTokenizer())
    sampler = ScriptedSampler(answer=policy)
    sampler.setup(env, mdp.tokenizer)
    with Rollout(mdp, sampler=sampler) as rollout:
        draws = [RolloutRequest(env.task("test", index), str(index), index) for index in range(tasks)]
        return [
            e.verdict.score if e.verdict is not None else None
            for e in rollout.collect(draws, SamplingParams(stop_ids=mdp.tokenizer.stop_ids))
        ]


def test_the_numbers_have_as_many_digits_as_asked_and_each_pair_is_in_one_split() -> None:
    env = make_env("calculator_sums", digits=[3, 12])
    lengths = set()
    for split in env.splits:
        for index in range(200):
            task = env.task(split, index)
            left, right = task.meta["left"], task.meta["right"]
            assert task == env.task(split, index) and task.question == f"{left}+{right}=" and task.reference == str(left + right)
            assert choose_data_split(left, right) == choose_data_split(right, left) == split
            lengths |= {len(str(left)), len(str(right))}
    assert lengths == set(range(3, 13))


def test_the_script_calls_the_calculator_and_answers_with_its_result() -> None:
    env = make_env("calculator_sums")
    task = env.task("train", 0)
    asked = {"expression": f"{task.meta['left']}+{task.meta['right']}"}
    assert env.oracle_turns(task) == [Call("", "calculator", asked), task.reference]
    assert scores(env, "gold") == [1.0] * 20
    assert scores(env, "noop") == scores(env, "random") == [0.0] * 20


def test_without_tools_the_gold_answer_is_one_turn() -> None:
    env = make_env("calculator_sums", tools=[])
    assert env.oracle_turns(env.task("train", 0)) is None and scores(env, "gold") == [1.0] * 20


def test_a_share_of_the_scripts_answers_at_once() -> None:
    env = make_env("calculator_sums", gold_tool_call_fraction=0.3)
    calling = sum(env.oracle_turns(env.task("train", index)) is not None for index in range(400))
    assert 90 <= calling <= 150


@pytest.mark.parametrize(
    "settings",
    [
        {"digits": 5},
        {"digits": "5"},
        {"digits": [8, 5]},
        {"digits": [1, 5]},
        {"digits": [5, 41]},
        {"gold_tool_call_fraction": 1.5},
        {"gold_tool_call_fraction": True},
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=" is "):
        make_env("calculator_sums", **settings)
