"""A bandit with one-token answers that are right or wrong: the expected gradient of each preset against its formula.

Every group that could be drawn is given to the algorithm and weighed by its probability, in float64. What is left of an algorithm on a
bandit is its credit: with P the chance of a right answer, the expected gradient is a number times the gradient of P.

    k of G answers are right, and the credit of a right and of a wrong one is a and -b: number = sum_k C(G, k) P^k (1 - P)^(G - k) (a k /
    P + b (G - k) / (1 - P)) / G

`pytest -rP` prints the errors.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from rlvr.conformance.algorithmkit import make_missing_sample_columns
from rlvr.contracts.algorithm import SAMPLE_TOKEN_STATS, LossInputs, TokenStats
from rlvr.episode import Episode, StopReason
from rlvr.registry.plugins import build, list_entries

ARMS, RIGHT = 4, (1, 3)
Credit = Callable[[int, int], tuple[float, float]]


def centred(divisor: Callable[[int, int], float]) -> Credit:
    """The reward minus the mean, divided by something."""
    return lambda k, g: ((1 - k / g) / divisor(k, g), (k / g) / divisor(k, g))


def whole(k: int, g: int) -> tuple[float, float]:
    """The reward itself."""
    return 1.0, 0.0


def others(k: int, g: int) -> tuple[float, float]:
    """The reward minus the mean of the others."""
    return (g - k) / (g - 1), k / (g - 1)


def bessel(k: int, g: int) -> float:
    return math.sqrt(k * (g - k) / g / (g - 1)) + 1e-4


def population(k: int, g: int) -> float:
    return math.sqrt(k * (g - k)) / g


NORMALISED, WHITE = centred(bessel), centred(population)
CASES: dict[str, tuple[dict[str, Any], Credit]] = {
    **dict.fromkeys(("grpo", "dapo", "gspo", "gspo_token", "cispo", "sapo", "high_entropy", "grpo_turns"), ({}, NORMALISED)),
    "clip_cov": ({"clip_cov_lb": 4.99}, NORMALISED),  # no token is a candidate
    "kl_cov": ({}, NORMALISED),  # the penalty has no gradient where nothing has moved
    "gigpo": ({"turn_weight": 0.5}, centred(lambda k, g: bessel(k, g) / 1.5)),  # the turn is the answer: it is counted 1 + 0.5 times
    "gdpo": ({}, WHITE),
    "reinforce_pp": ({"beta": 0.0}, WHITE),
    "reinforce_pp_baseline": ({"beta": 0.0}, WHITE),
    "ppo": ({"beta": 0.0, "num_iterations": 1}, WHITE),  # the critic knows the mean reward
    "gtpo": ({}, centred(lambda k, g: (population(k, g) + 1e-6) / 2)),  # both sides give the same, as all entropies are equal
    **dict.fromkeys(("dr_grpo", "dppo"), ({}, centred(lambda k, g: 1.0))),
    "max_rl": ({}, centred(lambda k, g: k / g)),
    "rloo": ({"beta": 0.0}, others),
    **dict.fromkeys(("reinforce", "reinforce_baseline", "remax"), ({}, whole)),
}
LEFT_OUT = {"dpo", "online_dpo", "online_ipo", "kto", "sft", "best_of_n"}
"""They do not estimate a gradient of the reward."""


def test_every_policy_gradient_is_here() -> None:
    assert {entry.name for entry in list_entries("algorithm")} == {*CASES, *LEFT_OUT, "distill"}


def answer(arm: int, *, greedy: bool = False) -> Episode:
    reward = float(arm in RIGHT)
    return Episode(
        "t", "g", [9, arm], [False, True], [0.0] * 2, [0.0, reward], StopReason.TERMINATED, meta={"greedy": True} if greedy else {}
    )


def spread(members: tuple[int, ...], value: float, extra: int) -> list[list[list[float]]]:
    return [[[0.0, value] for _ in range(len(members) + extra)]]


def expected(algorithm: Any, size: int, theta: Tensor, reference: Tensor | None = None) -> Tensor:
    """The mean over all groups of the gradient of -loss."""
    logs = theta.log_softmax(-1)
    old, best = logs.detach(), int(logs.argmax())
    chance = float(old.exp()[list(RIGHT)].sum())
    total = torch.zeros((), dtype=torch.float64)
    for members in itertools.product(range(ARMS), repeat=size):
        extra = int(algorithm.traits.needs_greedy_sample)
        group = [*(answer(arm) for arm in members), *([answer(best, greedy=True)] if extra else [])]
        known = {**SAMPLE_TOKEN_STATS, "values": chance}
        scores = TokenStats(**{need: spread(members, known[need], extra) for need in algorithm.traits.token_inputs})
        [credit] = algorithm.compute_advantages([group], scores)
        pick = torch.tensor(members)
        columns: dict[str, Any] = {
            "old_logprobs": old[pick],
            "rollout_logprobs": old[pick],
            "advantages": torch.tensor([row[1] for row in credit[:size]], dtype=torch.float64),
        }
        more: dict[str, Any] = {} if reference is None else {"frozen_logprobs": {"reference": reference[pick]}}
        more |= make_missing_sample_columns(algorithm, old[pick], {*columns, *more})
        if algorithm.traits.needs_batch_stats:
            more["batch_stats"] = algorithm.compute_token_batch_stats(columns)
        losses, _ = algorithm.compute_token_losses(
            LossInputs(logprobs=logs[pick], rows=torch.arange(size), num_rows=size, **columns, **more)
        )
        weights = torch.tensor(algorithm.compute_row_weights([1] * size, ["0"] * size, max_length=1), dtype=torch.float64)
        total = total - math.exp(float(old[pick].sum())) * (losses * weights).sum()
    [gradient] = torch.autograd.grad(total, theta)
    return gradient


def formula(credit: Credit, size: int, theta: Tensor) -> Tensor:
    """The number of the module's docstring times the gradient of P. Groups without a right or without a wrong answer give nothing."""
    chance = theta.softmax(-1)[list(RIGHT)].sum()
    [gradient] = torch.autograd.grad(chance, theta)
    p, number = float(chance.detach()), 0.0
    for k in range(size + 1):
        a, b = credit(k, size) if 0 < k < size or credit is whole else (0.0, 0.0)
        number += math.comb(size, k) * p**k * (1 - p) ** (size - k) * (a * k / p + b * (size - k) / (1 - p)) / size
    return number * gradient


def arms(seed: int) -> Tensor:
    return torch.randn(ARMS, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).requires_grad_()


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_the_expected_gradient_is_the_formulas(name: str) -> None:
    settings, credit = CASES[name]
    worst = 0.0
    for seed, size in itertools.product((0, 1), (2, 4)):
        theta, algorithm = arms(seed), build("algorithm", name, **settings)
        truth = formula(credit, size, theta)
        worst = max(worst, float((expected(algorithm, size, theta) - truth).abs().max()))
        assert float(truth.abs().max()) > 1e-3
    print(f"{name}: {worst:.1e}")
    assert worst < 1e-10


def test_max_rl_climbs_the_first_terms_of_the_logarithm() -> None:
    """-sum_k (1 - P)^k / k, k from 1 to G - 1: the series of log P, cut after the size of the group less one."""
    theta = arms(2)
    for size in (2, 3, 5):
        chance = theta.softmax(-1)[list(RIGHT)].sum()
        terms = torch.stack([(1 - chance) ** k / k for k in range(1, size)])
        [truth] = torch.autograd.grad(-terms.sum(), theta)
        assert float((expected(build("algorithm", "max_rl"), size, theta) - truth).abs().max()) < 1e-10


def test_sampled_distillation_descends_the_kl_to_the_teacher() -> None:
    theta, reference = arms(3), arms(4).detach().log_softmax(-1)
    log = theta.log_softmax(-1)
    [truth] = torch.autograd.grad(-0.7 * (log.exp() * (log - reference)).sum(), theta)
    found = expected(build("algorithm", "distill", teacher_weight=0.7), 2, theta, reference)
    error = float((found - truth).abs().max())
    print(f"distill: {error:.1e}")
    assert error < 1e-10 and float(truth.abs().max()) > 1e-3
