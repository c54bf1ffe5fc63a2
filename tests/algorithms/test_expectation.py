"""Exact expectations: a policy so small that every sequence can be listed, its true gradient against the estimators' mean.

Three tokens, at most three of them; token 0 ends the sequence. Nothing is sampled: each group that could be drawn is
given to the algorithm and weighed by its probability, in float64.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from rlvr.algorithms.functions import kl
from rlvr.contracts.algorithm import LossInputs
from rlvr.episode import Episode, StopReason
from tests.fixtures.learning import factory

L_MAX = 3
SEQUENCES = [s for n in (1, 2, 3) for s in itertools.product(range(3), repeat=n) if all(s[:-1]) and (n == 3 or s[-1] == 0)]
PREFIXES = sorted({s[:t] for s in SEQUENCES for t in range(len(s))})


class Tabular:
    """Logits for every prefix, a reward for every sequence."""

    def __init__(self, seed: int = 0) -> None:
        g = torch.Generator().manual_seed(seed)
        self.theta = torch.randn(len(PREFIXES), 3, generator=g, dtype=torch.float64).requires_grad_()
        self.reference = torch.randn(len(PREFIXES), 3, generator=g, dtype=torch.float64)
        self.behaviour = torch.randn(len(PREFIXES), 3, generator=g, dtype=torch.float64)
        self.rewards = torch.rand(len(SEQUENCES), generator=g, dtype=torch.float64).tolist()

    @staticmethod
    def steps(table: Tensor, sequence: tuple[int, ...]) -> Tensor:
        logs = table.log_softmax(-1)
        return torch.stack([logs[PREFIXES.index(sequence[:t]), a] for t, a in enumerate(sequence)])

    def objective(self, beta: float = 0.0) -> Tensor:
        """J, less beta times KL(policy || reference)."""
        total = torch.zeros((), dtype=torch.float64)
        for s, r in zip(SEQUENCES, self.rewards, strict=True):
            log, ref = self.steps(self.theta, s).sum(), self.steps(self.reference, s).sum()
            total = total + log.exp() * (r - beta * (log - ref))
        return total

    def gradient(self, beta: float = 0.0) -> Tensor:
        [g] = torch.autograd.grad(self.objective(beta), self.theta)
        return g

    def value(self, prefix: tuple[int, ...]) -> float:
        """The exact expected reward from a prefix on."""
        ends = [(s, r) for s, r in zip(SEQUENCES, self.rewards, strict=True) if s[: len(prefix)] == prefix]
        logs = [(float(self.steps(self.theta.detach(), s)[len(prefix) :].sum()), r) for s, r in ends]
        return math.fsum(math.exp(log) * r for log, r in logs)


def as_episode(sequence: tuple[int, ...], reward: float, *, greedy: bool = False) -> Episode:
    n = len(sequence)
    return Episode(
        "t", "g", [9, *sequence], [False] + [True] * n, [0.0] * (n + 1), [0.0] * n + [reward], StopReason.TERMINATED,
        meta={"greedy": True} if greedy else {},
    )  # fmt: skip


def expected_gradient(world: Tabular, algorithm: Any, size: int, *, off_policy: bool = False, exact_v: bool = False) -> Tensor:
    """The mean over all groups of `size`, each weighed by its probability, of the gradient of -loss."""
    sampling = world.behaviour if off_policy else world.theta.detach()
    logs = [world.steps(world.theta, s) for s in SEQUENCES]
    olds = [world.steps(sampling, s) for s in SEQUENCES]
    refs = [world.steps(world.reference, s) for s in SEQUENCES]
    best = max(range(len(SEQUENCES)), key=lambda k: float(olds[k].sum()))
    total = torch.zeros((), dtype=torch.float64)
    for members in itertools.product(range(len(SEQUENCES)), repeat=size):
        group = [as_episode(SEQUENCES[k], world.rewards[k]) for k in members]
        penalties = values = None
        if "penalties" in algorithm.traits.token_inputs:
            penalties = [[[0.0, *(algorithm.beta * (olds[k] - refs[k])).tolist()] for k in members]]
        if exact_v:
            values = [[[0.0, *(world.value(SEQUENCES[k][:t]) for t in range(len(SEQUENCES[k])))] for k in members]]
        if algorithm.traits.needs_greedy_sample:
            group.append(as_episode(SEQUENCES[best], world.rewards[best], greedy=True))
            assert penalties is None
        [advantages] = algorithm.compute_advantages([group], penalties=penalties, values=values)
        lengths = [len(SEQUENCES[k]) for k in members]
        weights = algorithm.compute_row_weights(lengths, ["0"] * size, max_length=L_MAX)
        rows = torch.tensor([i for i, n in enumerate(lengths) for _ in range(n)])
        old = torch.cat([olds[k] for k in members])
        flat = [a for row, n in zip(advantages, lengths, strict=False) for a in row[1 : n + 1]]
        inputs = LossInputs(
            logprobs=torch.cat([logs[k] for k in members]), old_logprobs=old, rollout_logprobs=old, advantages=torch.tensor(flat, dtype=torch.float64),
            rows=rows, num_rows=size,
        )  # fmt: skip
        losses, _ = algorithm.compute_token_losses(inputs)
        probability = math.exp(math.fsum(float(olds[k].sum()) for k in members))
        total = total - probability * (losses * torch.tensor(weights, dtype=torch.float64)[rows]).sum()
    [g] = torch.autograd.grad(total, world.theta)
    return g


def near(a: Tensor, b: Tensor) -> bool:
    return float((a - b).abs().max()) < 1e-10


def test_the_world_is_whole() -> None:
    world = Tabular()
    assert len(SEQUENCES) == 15 and sum(math.exp(world.steps(world.theta.detach(), s).sum()) for s in SEQUENCES) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("name", "overrides", "size", "scale"),
    [
        ("reinforce", {}, 1, 1.0),
        ("reinforce", {"advantage": "reinforce_pp"}, 1, 1.0),
        ("reinforce", {}, 2, 1.0),
        ("reinforce_baseline", {}, 1, 1.0),
        ("remax", {}, 1, 1.0),
        ("rloo", {"beta": 0.0}, 2, 1.0),
        ("rloo", {}, 2, 1.0),
        ("reinforce_pp", {"whiten": "none", "loss_aggregation": "seq-mean-token-sum"}, 1, 1.0),
        ("dr_grpo", {}, 2, 1 / 2 / L_MAX),
        ("grpo", {"scale_rewards": "none", "loss_aggregation": "seq-mean-token-sum"}, 2, 1 / 2),
    ],
)
@pytest.mark.parametrize("seed", [0, 1])
def test_unbiased_estimators_are_unbiased(name: str, overrides: dict[str, Any], size: int, scale: float, seed: int) -> None:
    world, algorithm = Tabular(seed), factory(name)(**overrides)
    algorithm.on_step_end([0.37], None)  # the running baseline of earlier steps
    assert near(
        expected_gradient(world, algorithm, size),
        scale * world.gradient(algorithm.beta if "penalties" in algorithm.traits.token_inputs else 0.0),
    )


@pytest.mark.parametrize("lam", [0.0, 0.5, 0.95, 1.0])
def test_ppo_with_the_exact_values_is_unbiased_for_every_lambda(lam: float) -> None:
    world = Tabular()
    algorithm = factory("ppo")(beta=0.0, whiten="none", loss_aggregation="seq-mean-token-sum", lam=lam)
    assert near(expected_gradient(world, algorithm, 1, exact_v=True), world.gradient())


def test_the_whole_answers_ratio_is_exact_off_policy_too() -> None:
    world, algorithm = Tabular(), factory("rloo")(beta=0.0, epsilon=1.0, epsilon_high=1e9)
    assert near(expected_gradient(world, algorithm, 2, off_policy=True), world.gradient())


@pytest.mark.parametrize("name", ["grpo", "dapo", "gspo", "gspo_token", "cispo", "sapo", "reinforce_pp_baseline", "gdpo"])
def test_the_biased_ones_are_measured(name: str) -> None:
    """Their bias is printed (`pytest -rP` shows it): direction as a cosine, length as a ratio."""
    world, algorithm = Tabular(), factory(name)()
    truth, mean = world.gradient(), expected_gradient(world, algorithm, 2)
    cosine = float((truth * mean).sum() / (truth.norm() * mean.norm()))
    print(f"{name}: cosine with the true gradient {cosine:.4f}, length {float(mean.norm() / truth.norm()):.3f} of it")
    assert not near(mean, truth) and cosine > 0.5


@pytest.mark.parametrize(
    ("kind", "direction"), [("k1", "none"), ("k2", "policy||reference"), ("k3", "reference||policy"), ("k3_ratio", "policy||reference")]
)
def test_what_each_kl_estimator_descends_as_a_loss(kind: str, direction: str) -> None:
    g = torch.Generator().manual_seed(3)
    theta = torch.randn(4, generator=g, dtype=torch.float64).requires_grad_()
    log, ref = theta.log_softmax(-1), torch.randn(4, generator=g, dtype=torch.float64).log_softmax(-1)
    ratio = (log - log.detach()).exp()
    [mean] = torch.autograd.grad((log.detach().exp() * kl.estimate_kl(log, ref, kind, ratio)).sum(), theta, retain_graph=True)
    truths = {"policy||reference": (log.exp() * (log - ref)).sum(), "reference||policy": (ref.exp() * (ref - log)).sum()}
    for name, value in truths.items():
        [truth] = torch.autograd.grad(value, theta, retain_graph=True)
        assert near(mean, truth) == (name == direction)
    assert near(mean, torch.zeros(4, dtype=torch.float64)) == (direction == "none")


@pytest.mark.parametrize("kind", ["k1", "k3"])
def test_k1_and_k3_are_unbiased_values(kind: str) -> None:
    g = torch.Generator().manual_seed(4)
    log, ref = (torch.randn(5, generator=g, dtype=torch.float64).log_softmax(-1) for _ in range(2))
    truth = float((log.exp() * (log - ref)).sum())
    assert float((log.exp() * kl.estimate_kl(log, ref, kind)).sum()) == pytest.approx(truth, abs=1e-12)
