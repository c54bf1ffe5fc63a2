"""`session_reward`: a session says what each turn earned, and the verifier adds it up."""

from __future__ import annotations

from typing import Any

import pytest

import rlvr
from rlvr import Environment, Session, StepResult, Task, Transcript, Verifier
from rlvr.conformance import check_env, list_failures
from rlvr.mdp.records import step_result_from_json, step_result_to_json
from rlvr.task import Fault, Message, make_user_prompt
from rlvr.turns import Turn

SAID: tuple[Message, ...] = ({"role": "user", "content": "go on"},)


class Stairs(Environment):
    """Each turn that says `up` earns a quarter, and the fourth turn ends the game."""

    max_turns, max_new_tokens, max_prompt_tokens = 4, 64, 64
    needs = {"verifier": "session_reward"}
    splits = ("train", "test")

    def __init__(self, *, verifier: Verifier) -> None:
        self.verifier = verifier

    def task(self, split: str, index: int) -> Task:
        return Task(
            make_user_prompt(f"Climb the stairs of the {split} house number {index}: say up."),
            {"scale": [0, 1]},
            id=f"stairs/{split}/{index}",
        )

    def new_session(self, task: Task, *, seed: int) -> Session:
        return StairsSession()

    def oracle_turns(self, task: Task) -> list[str]:
        return ["up"] * 4


class StairsSession(Session):
    def __init__(self) -> None:
        self.turns = 0

    def step(self, turn: Turn) -> StepResult:
        self.turns += 1
        return StepResult(SAID, done=self.turns == 4, reward=0.25 * (turn.content.strip() == "up"))


def verify(rewards: list[float], reference: Any) -> rlvr.Verdict:
    results = tuple(StepResult(SAID, reward=reward) for reward in rewards)
    with rlvr.make_verifier("session_reward") as verifier:
        return verifier.verify_transcript(Task(make_user_prompt("?"), reference, id="t"), Transcript("", step_results=results))


def test_the_score_is_the_sum_and_each_turn_is_credited_with_its_own() -> None:
    verdict = verify([0.25, 0.0, 0.5], {"scale": [0, 1]})
    assert verdict.score == 0.75 and [(part.turn, part.amount) for part in verdict.step_rewards] == [(0, 0.25), (2, 0.5)]
    verdict = verify([0.5, -1.0], {"scale": [-1, 1]})
    assert verdict.score == 0.25 and [(part.turn, part.amount) for part in verdict.step_rewards] == [(0, 0.25), (1, -0.5), (1, 0.5)]
    assert verify([0.0, 0.0], {"scale": [-1, 1]}).score == 0.5 and verify([], {"scale": [-1, 1]}).score == 0.0


@pytest.mark.parametrize("reference", [None, "", {}, {"scale": [1, 0]}, {"scale": [0]}, {"scale": ["0", 1]}, {"scale": [0, float("inf")]}])
def test_a_reference_without_a_scale_gives_no_score(reference: Any) -> None:
    assert verify([0.5], reference).fault is Fault.TASK


def test_a_sum_below_the_scale_is_the_policy_s_own_0() -> None:
    verdict = verify([0.25, -3.0], {"scale": [0, 1]})
    assert verdict.score == 0.0 and "below its scale" in verdict.reason and not verdict.step_rewards


def test_a_sum_above_the_scale_gives_no_score() -> None:
    verdict = verify([0.75, 0.5], {"scale": [0, 1]})
    assert verdict.score is None and verdict.fault is Fault.INFRA and "1.25" in verdict.reason


@pytest.mark.parametrize("reward", [float("nan"), float("inf"), True, "1"])
def test_a_reward_is_a_finite_number(reward: Any) -> None:
    with pytest.raises(ValueError, match="must be a finite number"):
        StepResult(SAID, reward=reward)


def test_the_record_keeps_the_reward() -> None:
    result = StepResult(SAID, reward=0.25)
    assert step_result_from_json(step_result_to_json(result)) == result
    assert "reward" not in step_result_to_json(StepResult(SAID))


def test_an_environment_that_pays_for_steps_is_played_and_evaluated() -> None:
    assert rlvr.evaluate(f"{__file__}:Stairs", policy=lambda messages: "up", tasks=2).accuracy == 1.0
    assert rlvr.evaluate(f"{__file__}:Stairs", policy=lambda messages: "stay", tasks=2).accuracy == 0.0
    failed = list_failures(check_env(f"{__file__}:Stairs"))
    assert not failed, failed
