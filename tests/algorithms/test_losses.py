"""Every loss against a naive loop over tokens in float64: values and gradients, random masks, lengths and numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from rlvr.algorithms.functions import kl, mismatch, surrogate
from rlvr.algorithms.functions.aggregation import AGGREGATIONS, compute_row_weights
from rlvr.algorithms.functions.loss_terms import compute_value_loss
from rlvr.contracts.algorithm import LossInputs
from tests.fixtures.learning import FRESH, factory

L_MAX = 7
quick = settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))


class World:
    """Padded [rows, time] numbers with a mask, as a naive reader of the papers would hold them."""

    def __init__(self, seed: int, rows: int = 4, time: int = 5, spread: float = 0.5) -> None:
        g = torch.Generator().manual_seed(seed)

        def normal() -> Tensor:
            return torch.randn(rows, time, generator=g, dtype=torch.float64)

        self.mask = torch.rand(rows, time, generator=g) < 0.6
        self.mask[0] = True
        if seed % 3 == 0:
            self.mask[-1] = False  # a row with no trainable token at all
        self.new = (-1.0 + spread * normal()).requires_grad_()
        self.old, self.sampler, self.reference = (self.new.detach() + spread * normal() for _ in range(3))
        self.entropy = normal().abs().requires_grad_()
        self.values = normal().requires_grad_()
        self.old_values, self.returns = self.values.detach() + 0.3 * normal(), normal()
        per_row = torch.randn(rows, 1, generator=g, dtype=torch.float64)
        self.advantages = per_row.expand(rows, time) if seed % 2 else normal()
        self.prepared = (torch.rand(rows, time, generator=g) < 0.3).double()
        """Which tokens Clip-Cov and KL-Cov have chosen; how they choose has tests of its own."""
        self.prompts = [str(i // 2) for i in range(rows)]
        self.lengths = self.mask.sum(1).tolist()

    def inputs(self, *, critic: bool = False, entropy: bool = True) -> LossInputs:
        m = self.mask
        rows = torch.arange(m.shape[0])[:, None].expand(m.shape)[m]
        return LossInputs(
            logprobs=self.new[m],
            old_logprobs=self.old[m],
            rollout_logprobs=self.sampler[m],
            advantages=self.advantages[m],
            rows=rows,
            num_rows=m.shape[0],
            frozen_logprobs={"reference": self.reference[m]},
            entropy=self.entropy[m] if entropy else None,
            values=self.values[m] if critic else None,
            old_values=self.old_values[m] if critic else None,
            returns=self.returns[m] if critic else None,
            batch_stats=self.prepared[m],
        )

    def weights(self, how: str) -> Tensor:
        per_row = compute_row_weights(self.lengths, self.prompts, how, max_length=L_MAX)
        return torch.tensor(per_row, dtype=torch.float64)[:, None].expand(self.mask.shape)[self.mask]


def naive_aggregate(world: World, token: Callable[[int, int], Any], how: str) -> Any:
    """The definitions of the papers, one loop each."""
    rows = [[t for t in range(world.mask.shape[1]) if world.mask[i, t]] for i in range(world.mask.shape[0])]
    alive = [i for i, ts in enumerate(rows) if ts]
    if how == "seq-mean-token-mean":
        return sum(sum(token(i, t) for t in rows[i]) / len(rows[i]) for i in alive) / len(alive)
    if how == "token-mean":
        return sum(token(i, t) for i in alive for t in rows[i]) / sum(len(ts) for ts in rows)
    if how == "seq-mean-token-sum":
        return sum(token(i, t) for i in alive for t in rows[i]) / len(alive)
    if how == "seq-mean-token-sum-norm":
        return sum(sum(token(i, t) for t in rows[i]) for i in alive) / (len(alive) * L_MAX)
    total, prompts = 0.0, sorted({world.prompts[i] for i in alive})
    for p in prompts:
        members = [i for i in alive if world.prompts[i] == p]
        total = total + sum(token(i, t) for i in members for t in rows[i]) / sum(len(rows[i]) for i in members)
    return total / len(prompts)


def naive_ratio(w: World, i: int, t: int, level: str) -> Any:
    steps = [s for s in range(w.mask.shape[1]) if w.mask[i, s]]
    gaps: list[Any] = [w.new[i, s] - w.old[i, s] for s in steps]
    if level == "token":
        return torch.exp(w.new[i, t] - w.old[i, t])
    if level == "completion":
        return torch.exp(sum(gaps))
    mean = sum(gaps) / len(gaps)
    if level == "sequence":
        return torch.exp(mean)
    return torch.exp(mean.detach()) * torch.exp(w.new[i, t] - w.new[i, t].detach())


def naive_surrogate(w: World, i: int, t: int, s: Any) -> Any:
    if hasattr(s, "dppo_mask_low"):
        r, p, was, a = (
            torch.exp(w.new[i, t] - w.sampler[i, t]),
            math.exp(float(w.new[i, t].detach())),
            math.exp(float(w.sampler[i, t])),
            w.advantages[i, t],
        )
        return 0.0 * r if (a > 0 and p - was > s.dppo_mask_high) or (a < 0 and was - p > s.dppo_mask_low) else -r * a
    if hasattr(s, "kl_cov_coef"):
        gap = w.new[i, t] - w.old[i, t]
        return -torch.exp(gap) * w.advantages[i, t] + s.kl_cov_coef * w.prepared[i, t] * abs(gap)
    if hasattr(s, "clip_cov_ratio"):
        own = naive_surrogate(w, i, t, SimpleNamespace(epsilon=s.epsilon, epsilon_high=s.epsilon_high, delta=None))
        return own.detach() if w.prepared[i, t] else own
    r, a = naive_ratio(w, i, t, getattr(s, "importance_sampling_level", "token")), w.advantages[i, t]
    if hasattr(s, "teacher_weight"):
        a = a + s.teacher_weight * (w.reference[i, t] - w.old[i, t])
    if hasattr(s, "epsilon"):
        high = s.epsilon if s.epsilon_high is None else s.epsilon_high
        held = min(max(r, r.new_tensor(1 - s.epsilon)), r.new_tensor(1 + high))
        inner = r * a if getattr(s, "delta", None) is None else min(r, r.new_tensor(s.delta)) * a
        return -min(inner, held * a)
    if hasattr(s, "sapo_temperature_pos"):
        tau = s.sapo_temperature_pos if a > 0 else s.sapo_temperature_neg
        return -a * (4 / tau) / (1 + torch.exp(-tau * (r - 1)))
    return -min(float(r.detach()), s.ratio_max) * a * w.new[i, t]


def naive_kl(w: World, i: int, t: int, kind: str) -> Any:
    d = w.new[i, t] - w.reference[i, t]
    k3 = torch.exp(-d) + d - 1
    return {"k1": d, "k2": d * d / 2, "k3": k3, "k3_ratio": torch.exp(w.new[i, t] - w.old[i, t]) * k3}[kind]


def naive_value(w: World, i: int, t: int, epsilon: float | None) -> Any:
    free = (w.values[i, t] - w.returns[i, t]) ** 2
    if epsilon is None:
        return free / 2
    gap = w.values[i, t] - w.old_values[i, t]
    held = w.old_values[i, t] + min(max(gap, gap.new_tensor(-epsilon)), gap.new_tensor(epsilon))
    return max(free, (held - w.returns[i, t]) ** 2) / 2


def naive_correction(w: World, i: int, t: int, s: Any) -> float:
    how = s.importance_sampling_correction
    if how == "none":
        return 1.0
    gaps = [float(w.old[i, k] - w.sampler[i, k]) for k in range(w.mask.shape[1]) if w.mask[i, k]]
    one = float(w.old[i, t] - w.sampler[i, t])
    r = math.exp(one if how.startswith("token") else sum(gaps) if how.startswith("sequence") else sum(gaps) / len(gaps))
    inside = s.importance_sampling_floor <= r <= s.importance_sampling_cap
    if how.endswith("truncate"):
        return float(min(r, s.importance_sampling_cap))
    return inside * (1.0 if how == "geometric_mask" else r)


def same(ours: Tensor, naive: Tensor, *leaves: Tensor) -> None:
    """One value, and one gradient for every leaf, to 1e-10."""
    ours, naive = (x + sum(leaf.sum() for leaf in leaves) * 0 for x in (ours, naive))  # both in the graph, even when all is clipped
    mine = torch.autograd.grad(ours, leaves, allow_unused=True, retain_graph=True)
    theirs = torch.autograd.grad(naive, leaves, allow_unused=True, retain_graph=True)
    assert float((ours - naive).detach().abs()) < 1e-10
    for a, b in zip(mine, theirs, strict=True):
        zero = torch.zeros(())
        assert float(((zero if a is None else a) - (zero if b is None else b)).abs().max()) < 1e-10


VARIANTS: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in FRESH),
    ("grpo", {"beta": 0.3}),
    ("grpo", {"beta": 0.3, "kl_estimator": "k2"}),
    ("grpo", {"beta": 0.3, "kl_estimator": "k3_ratio"}),
    ("grpo", {"delta": 1.5}),
    ("grpo", {"entropy_coef": 0.1, "loss_aggregation": "prompt-mean"}),
    ("ppo", {"epsilon_value": None}),
    *(("grpo", {"importance_sampling_correction": how}) for how in mismatch.CORRECTIONS if how != "none"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "overrides"), VARIANTS, ids=lambda x: str(x))
@quick
@given(seed=st.integers(0, 10_000), spread=st.sampled_from([0.01, 0.3, 1.0]))
def test_every_preset_is_the_naive_loop(name: str, overrides: dict[str, Any], seed: int, spread: float) -> None:
    w, algorithm = World(seed, spread=spread), factory(name)(**overrides)
    s, critic = algorithm.settings, algorithm.traits.needs_value

    def token(i: int, t: int) -> Any:
        loss = naive_surrogate(w, i, t, s) * naive_correction(w, i, t, s)
        if s.beta and s.kl_in == "loss":
            loss = loss + s.beta * naive_kl(w, i, t, s.kl_estimator)
        if s.entropy_coef:
            loss = loss - s.entropy_coef * w.entropy[i, t]
        return loss + s.vf_coef * naive_value(w, i, t, s.epsilon_value) if critic else loss

    losses, figures = algorithm.compute_token_losses(w.inputs(critic=critic))
    assert all(len(v) == len(losses) for v in figures.values())
    same((losses * w.weights(s.loss_aggregation)).sum(), naive_aggregate(w, token, s.loss_aggregation), w.new, w.values, w.entropy)


@pytest.mark.parametrize("how", AGGREGATIONS)
@quick
@given(seed=st.integers(0, 10_000))
def test_every_aggregation_is_the_naive_loop(how: str, seed: int) -> None:
    w = World(seed)
    same((w.new[w.mask] * w.weights(how)).sum(), naive_aggregate(w, lambda i, t: w.new[i, t], how), w.new)


# ---- the geometry of the clip ---------------------------------------------------------------------------------------------


def slope(make: Callable[[Tensor], surrogate.SurrogateLoss], log_ratio: float) -> float:
    x = torch.tensor([log_ratio], dtype=torch.float64, requires_grad=True)
    [g] = torch.autograd.grad(make(x).loss.sum(), x)
    return float(g)


@pytest.mark.parametrize("a", [1.0, -1.0])
@pytest.mark.parametrize("r", [0.5, 0.79, 0.81, 1.0, 1.27, 1.29, 3.0])
def test_the_clip_stops_the_gradient_exactly_where_it_should(a: float, r: float) -> None:
    advantage = torch.tensor([a], dtype=torch.float64)
    x = math.log(r)
    held = (a > 0 and r > 1.28) or (a < 0 and r < 0.8)
    result = surrogate.compute_clipped_loss(torch.tensor([r], dtype=torch.float64), advantage, 0.2, 0.28)
    assert (slope(lambda z: surrogate.compute_clipped_loss(z.exp(), advantage, 0.2, 0.28), x) == 0) == held
    assert bool(result.clipped_low + result.clipped_high) == held and bool(result.clipped_high) == (held and a > 0)
    assert (slope(lambda z: surrogate.compute_clipped_loss(z.exp(), advantage, 0.2, 0.28, 2.0), x) == 0) == (held or (a < 0 and r > 2.0))
    assert slope(lambda z: surrogate.compute_capped_ratio_loss(z.exp(), advantage, z, 2.0), x) == pytest.approx(-a * min(r, 2.0))


def test_the_soft_gate_has_slope_one_and_fades() -> None:
    for a in (1.0, -1.0):
        advantage = torch.tensor([a], dtype=torch.float64)

        def gate(z: Tensor, a: Tensor = advantage) -> surrogate.SurrogateLoss:
            return surrogate.compute_gated_loss(z.exp(), a, 1.0, 1.05)

        slopes = [abs(slope(gate, math.log(r))) / r for r in (1, 1.5, 2, 4, 8)]
        assert slopes[0] == pytest.approx(1.0) and slopes == sorted(slopes, reverse=True)


def test_a_huge_gap_stays_finite() -> None:
    new = torch.tensor([0.0, -1e4], dtype=torch.float64, requires_grad=True)
    old, rows = torch.tensor([-1e4, 0.0], dtype=torch.float64), torch.tensor([0, 1])
    for level in surrogate.RATIO_LEVELS:
        assert torch.isfinite(surrogate.compute_log_ratio(new, old, rows, 2, level).exp()).all()
    assert all(torch.isfinite(kl.estimate_kl(new, old, kind)).all() for kind in kl.KL_ESTIMATORS)


# ---- mismatch --------------------------------------------------------------------------------------------------------------


def test_a_perfect_sampler_needs_no_correction_and_measures_clean() -> None:
    old, rows = torch.full((6,), -1.5, dtype=torch.float64), torch.tensor([0, 0, 0, 1, 1, 2])
    for how in mismatch.CORRECTIONS[1:]:
        assert torch.equal(
            mismatch.compute_mismatch_correction(old, old, rows, 3, how, max_ratio=2.0, min_ratio=0.5), torch.ones(6, dtype=torch.float64)
        )
    row = mismatch.compute_mismatch_metrics(old, old)
    assert row["sampling/effective_sample_size"] == 1.0 and row["mismatch_kl"] == 0.0 and row["sampling/ratio_max"] == 1.0


def test_measurements_are_of_the_raw_ratios() -> None:
    old, sampler = torch.tensor([0.0, math.log(4.0)]), torch.tensor([0.0, 0.0])
    row = mismatch.compute_mismatch_metrics(old, sampler)
    assert row["sampling/ratio_max"] == pytest.approx(4.0) and row["sampling/ratio_min"] == 1.0
    assert row["sampling/effective_sample_size"] == pytest.approx(25 / 34)
    assert row["mismatch_kl"] == pytest.approx((3 - math.log(4.0)) / 2)
    assert mismatch.compute_mismatch_metrics(old[:0], sampler[:0]) == {}


def test_the_adaptive_coefficient_moves_toward_its_target() -> None:
    controller = kl.KLController(0.1, target=0.5, horizon=100)
    controller.update(5.0, 50)
    high = controller.beta
    controller.update(0.0, 100)
    assert high == pytest.approx(0.11) and controller.beta == pytest.approx(0.088)
    few = kl.KLController(0.1, target=0.5, horizon=10)
    few.update(0.0, 256)  # one step of many horizons
    assert few.beta == pytest.approx(0.08)
    fixed = kl.KLController(0.1)
    fixed.update(5.0, 50)
    assert fixed.beta == 0.1


def test_value_pretraining_trains_the_critic_alone_and_then_stops() -> None:
    w, algorithm = World(1), factory("ppo")(value_pretraining_steps=2)
    for step in range(4):
        losses, _ = algorithm.compute_token_losses(w.inputs(critic=True))
        policy, critic = torch.autograd.grad(losses.sum(), (w.new, w.values))
        assert (not policy.any()) == (step < 2) == algorithm.is_critic_warmup and float(critic.abs().sum()) > 0
        algorithm.on_step_end([1.0], None)
        resumed = factory("ppo")(value_pretraining_steps=2)
        resumed.load_state_dict(algorithm.state_dict())
        assert algorithm.is_critic_warmup == resumed.is_critic_warmup == (step + 1 < 2)
        algorithm = resumed


def test_value_loss_takes_the_worse_side() -> None:
    v, old, returns = (torch.tensor([x], dtype=torch.float64) for x in (1.0, 0.0, 1.0))
    assert float(compute_value_loss(v, old, returns, None)) == 0.0
    assert float(compute_value_loss(v, old, returns, 0.2)) == pytest.approx(0.32)
