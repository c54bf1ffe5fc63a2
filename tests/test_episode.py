"""The laws of an Episode, checked at birth."""

from __future__ import annotations

import math
from typing import Any

import pytest

from rlvr.episode import Episode, StopReason
from rlvr.task import Fault, Verdict


def episode(**changes: Any) -> Episode:
    good: dict[str, Any] = {
        "task_id": "t",
        "group": "g",
        "tokens": [1, 7, 8, 2, 9, 0],
        "action_mask": [False, True, True, False, True, True],
        "logprobs": [0.0, -0.5, -0.25, 0.0, -1.0, -0.125],
        "rewards": [0.0, 0.0, 0.0, 0.0, 0.0, 0.75],
        "stop_reason": StopReason.TERMINATED,
    }
    return Episode(**(good | changes))


def test_what_can_be_read_off_it() -> None:
    e = episode(verdict=Verdict(0.75, "nearly"))
    assert (e.reward, e.num_policy_tokens, e.prompt_length, e.is_scored) == (0.75, 4, 1, True)
    assert episode(action_mask=[False] * 6, logprobs=[0.0] * 6, rewards=[0.0] * 6).prompt_length == 6


@pytest.mark.parametrize("name", ["action_mask", "logprobs", "rewards"])
@pytest.mark.parametrize("by", [-1, 1])
def test_all_lists_have_one_length(name: str, by: int) -> None:
    value = getattr(episode(), name)
    with pytest.raises(ValueError, match="all lists must have the same length"):
        episode(**{name: value[:by] if by < 0 else [*value, value[0]]})


@pytest.mark.parametrize("name", ["logprobs", "rewards"])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_numbers_are_finite(name: str, bad: float) -> None:
    value = list(getattr(episode(), name))
    value[4] = bad
    with pytest.raises(ValueError, match=rf"{name}\[4\] is"):
        episode(**{name: value})


@pytest.mark.parametrize(
    "wrong, words",
    [
        ({"action_mask": [True] * 6}, "no prompt precedes it"),
        ({"logprobs": [0.0, 0.1, 0.0, 0.0, 0.0, 0.0]}, "above 0"),
        ({"logprobs": [0.0, -0.5, -0.25, -0.1, -1.0, -0.125]}, "did not generate"),
        ({"rewards": [0.0, 0.0, 0.0, 0.5, 0.0, 0.0]}, "did not generate"),
        ({"stop_reason": StopReason.FAILED}, "failed but has a reward"),
        ({"stop_reason": "finished"}, "finished"),
    ],
)
def test_what_cannot_be_is_refused(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        episode(**wrong)


def test_a_failed_or_unjudged_episode_is_not_scored() -> None:
    nothing = [0.0] * 6
    assert not episode(stop_reason=StopReason.FAILED, rewards=nothing).is_scored
    assert not episode(rewards=nothing, verdict=Verdict(None, "no engine", fault=Fault.INFRA)).is_scored
    assert episode(stop_reason=StopReason.TRUNCATED).is_scored


def test_an_end_may_be_written_as_its_word() -> None:
    assert episode(stop_reason="truncated").stop_reason is StopReason.TRUNCATED
