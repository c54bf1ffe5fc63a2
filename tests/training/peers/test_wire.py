"""Messages between processes: values come back as they were, and episodes travel as columns."""

from __future__ import annotations

import math
import pickle
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch

from rlvr.episode import Episode, StopReason
from rlvr.rollout.episode_encoding import MAGIC
from rlvr.rollout.rollout import RolloutTiming
from rlvr.task import Fault, Verdict
from rlvr.training.distributed.serialization import deserialize, serialize

LONG = 2000


def episode() -> Episode:
    verdict = Verdict(None, reason="no engine", fault=Fault.INFRA, components={"shape": 0.5})
    logprobs = [0.0] * 10 + [float(torch.tensor(-0.1 * k)) for k in range(LONG - 10)]
    rewards = [0.0] * (LONG - 1) + [0.5]
    acted = [False] * 10 + [True] * (LONG - 10)
    return Episode(
        "t", "1:0", [k % 150_000 for k in range(LONG)], acted, logprobs, rewards, StopReason.TERMINATED, 3, verdict, meta={"a": (1, None)}
    )


@pytest.mark.parametrize(
    "value",
    [
        None, True, 7, -(2**70), 0.1, "täxt\n", [], [1, 2.5, "x"], (1, (2,)), {"a": 1, 3: [None], (1, 2): {}}, Path("runs/a"),
        RolloutTiming(1.0, 2.0),
        list(range(100)), [2**40] * 20, [True, False] * 9, [0.1] * 20, [1, 0.5] * 9, tuple(range(20)), [[-0.5] * 12, [1] * 12], [2**70] * 9,
        Fraction(1, 3), [math.inf, -math.inf] * 8, "record", {"tuple": 1}, {"pickle": [0]},
    ],
)  # fmt: skip
def test_every_value_comes_back_with_its_types(value: Any) -> None:
    back = deserialize(serialize(value))
    assert back == value and type(back) is type(value) and repr(back) == repr(value)


def test_an_episode_comes_back_and_takes_less_room_than_a_pickle() -> None:
    told = serialize([[episode()] * 4])
    [[back, *_]] = deserialize(told)
    assert (
        back == episode()
        and back.verdict.fault is Fault.INFRA
        and type(back.action_mask[0]) is bool
        and back.stop_reason is StopReason.TERMINATED
    )
    assert len(serialize([[episode() for _ in range(4)]])) < 0.75 * len(pickle.dumps([[episode() for _ in range(4)]]))


def test_numbers_keep_every_bit_and_a_tensor_its_type() -> None:
    values = [math.pi * k for k in range(50)]
    assert deserialize(serialize(values)) == values  # not rounded to float32
    nan = deserialize(serialize([math.nan] * 9))
    assert all(map(math.isnan, nan))
    for tensor in (torch.randn(3, 4), torch.empty(2, 0), torch.arange(5), torch.tensor(2.0, dtype=torch.float64)):
        back = deserialize(serialize((tensor,)))[0]
        assert torch.equal(back, tensor) and back.dtype is tensor.dtype


def test_a_slice_of_a_large_tensor_travels_without_the_rest_and_without_its_graph() -> None:
    large = torch.arange(100_000.0, requires_grad=True) * 2
    told = serialize({"part": large[10:20]})
    back = deserialize(told)["part"]
    assert torch.equal(back, large[10:20]) and not back.requires_grad and len(told) < 1000
    half = deserialize(serialize([torch.ones(3, dtype=torch.bfloat16)]))[0]
    assert half.dtype is torch.bfloat16 and half.tolist() == [1.0] * 3


def test_groups_of_episodes_travel_as_columns() -> None:
    done = ([[episode()] * 4, [episode()]], "")
    told = serialize(done)
    assert deserialize(told) == done and MAGIC in told


def test_groups_with_metadata_of_another_kind_travel_too() -> None:
    odd = [[Episode("t", "1:0", [1, 2], [False, True], [0.0, -0.5], [0.0, 1.0], StopReason.TERMINATED, meta={"half": Fraction(1, 2)})]]
    assert deserialize(serialize(odd)) == odd
