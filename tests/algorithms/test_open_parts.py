"""Functions in the place of an algorithm's own, what they may see, and the algorithms that are made with them."""

from __future__ import annotations

import copy
import math
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from accelerate import Accelerator

from rlvr.algorithms.base.algorithm_spec import declare_traits
from rlvr.algorithms.functions.covariance import compute_covariance, find_top_fraction_threshold
from rlvr.conformance import check_plugin, list_failures
from rlvr.contracts.algorithm import LossInputs
from rlvr.episode import Episode
from rlvr.errors import ConfigError
from rlvr.registry.plugins import build, load_factory
from rlvr.training.update.learner import Learner, OptimizationSettings, UpdateResult
from tests.algorithms.test_credit import said
from tests.fixtures.gradients import apart, fixed_groups, gradient
from tests.fixtures.learning import factory, tiny_model
from tests.fixtures.two_threads import at_once

MINE = """
import statistics

import numpy as np

from rlvr.algorithms.base.algorithm_spec import declare_traits

SEEN = []


def median(answers, *, scale: float = 1.0):
    return [[scale * (r - statistics.median(group)) for r in group] for group in answers.rewards]


@declare_traits("entropy", "old_logprobs", "reference_logprobs", "per_token")
def looking(answers):
    SEEN.append(answers.token_stats)
    return [[np.full(len(e.tokens), r or 0.0) for e, r in zip(g, rs)] for g, rs in zip(answers.groups, answers.rewards)]


def counted(columns, all_reduce, *, share):
    SEEN.append({name: column.clone() for name, column in columns.items()})
    return columns["advantages"].abs() * share


@declare_traits("needs_token_context", compute_token_batch_stats=counted)
def weighed(x, *, share: float = 0.5):
    SEEN.append((x.tokens, x.episodes, x.turns, x.batch_stats, x.advantages))
    return -x.batch_stats * x.advantages * x.logprobs


@declare_traits(frozen_models=("expert", "amateur"))
def contrast(x, *, pull: float = 0.5):
    return -(x.logprobs - x.old_logprobs).exp() * (x.advantages + pull * (x.frozen_logprobs["expert"] - x.frozen_logprobs["amateur"]))
"""


@pytest.fixture
def mine(tmp_path: Path) -> str:
    (tmp_path / "mine.py").write_text(MINE)
    return str(tmp_path / "mine.py")


def seen(path: str) -> list[Any]:
    found: list[Any] = load_factory("algorithm", f"{path}:median").__globals__["SEEN"]
    return found


def learner(name: str, *, model: Any = None, budget: int = 8192, parts: int = 1, **settings: Any) -> Learner:
    return Learner(
        model or tiny_model(layers=2), build("algorithm", name, **settings),
        OptimizationSettings(learning_rate=1e-3, max_tokens_per_microbatch=budget, minibatches_per_step=parts),
        accelerator=Accelerator(cpu=True), total_steps=3, max_new_tokens=9, frozen_models={"reference": tiny_model(7, layers=2)},
    )  # fmt: skip


# ---- models of its own -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("budget", "settings"), [(8192, {}), (30, {}), (8192, {"beta": 0.1, "kl_in": "reward", "kl_estimator": "k1"})])
def test_a_loss_gets_the_log_probabilities_of_each_model_it_names(mine: str, budget: int, settings: dict[str, Any]) -> None:
    model, models = tiny_model(layers=2), {"reference": tiny_model(2), "expert": tiny_model(3), "amateur": tiny_model(4, layers=2)}
    algorithm = build("algorithm", "grpo", loss=f"{mine}:contrast", loss_aggregation="token-mean", **settings)
    learner = Learner(
        copy.deepcopy(model), algorithm, max_tokens_per_microbatch=budget, accelerator=Accelerator(cpu=True), frozen_models=models
    )
    assert list(learner.frozen_models) == (["reference"] if settings else []) + ["expert", "amateur"]
    update, learned = learner.update_with_diagnostics, list[UpdateResult]()
    learner.update_with_diagnostics = lambda groups: learned.append(update(groups)) or learned[0]  # type: ignore[func-returns-value, method-assign]
    found = gradient(learner, groups := fixed_groups())

    def logs_of(which: Any, e: Episode) -> torch.Tensor:
        logs = which(input_ids=torch.tensor([e.tokens]), use_cache=False).logits[0].log_softmax(-1)
        return torch.stack([logs[t - 1, e.tokens[t]] for t, on in enumerate(e.action_mask) if on])

    parts = []
    for episodes, rows in zip(groups, learned[0].advantages, strict=True):
        for e, row in zip(episodes, rows, strict=True):
            if algorithm.is_in_loss(e):
                new, gap = logs_of(model, e), (logs_of(models["expert"], e) - logs_of(models["amateur"], e)).detach()
                advantages = torch.tensor([a for a, on in zip(row, e.action_mask, strict=True) if on])
                parts.append(-(new - new.detach()).exp() * (advantages + 0.5 * gap))
    wanted = torch.cat([g.flatten() for g in torch.autograd.grad(torch.cat(parts).mean(), list(model.parameters()))])
    assert apart(found, wanted) < 1e-5


def test_a_model_that_is_named_and_not_given_is_said(mine: str, tmp_path: Path) -> None:
    algorithm = {"name": "grpo", "loss": f"{mine}:contrast"}
    with pytest.raises(ConfigError, match=r"compares with a model 'amateur'; give frozen_models=\{'amateur': model\}"):
        Learner(tiny_model(), algorithm, accelerator=Accelerator(cpu=True), frozen_models={"expert": tiny_model(1)})
    (tmp_path / "wrong.py").write_text(MINE.replace('("expert", "amateur")', '("entropy",)'))
    with pytest.raises(ConfigError, match="a frozen model cannot be called 'entropy', which is an input of the loss"):
        build("algorithm", "grpo", loss=f"{tmp_path / 'wrong.py'}:contrast")


def test_an_algorithm_with_models_of_its_own_passes_its_kit(mine: str) -> None:
    checks = check_plugin("algorithm", "grpo", loss=f"{mine}:contrast")
    assert not list_failures(checks) and "it follows another model, not only the score" in str(checks)


# ---- functions by name -----------------------------------------------------------------------------------------------------


def test_a_function_in_a_file_brings_its_settings_and_keeps_the_others(mine: str) -> None:
    group = [said(1.0), said(0.25), said(0.0)]
    algorithm = factory("grpo")(advantage=f"{mine}:median", scale=2, epsilon=0.1)
    assert [row[-1] for row in algorithm.compute_advantages([group])[0]] == [1.5, 0.0, -0.5]
    assert algorithm.settings.epsilon == 0.1 and {n for n, _, differs in algorithm.describe_settings() if differs} == {
        "advantage",
        "scale",
        "epsilon",
    }
    with pytest.raises(ConfigError, match=r"scale_rewards='none' has no effect in 'grpo', which has no such setting"):
        build("algorithm", "grpo", advantage=f"{mine}:median", scale_rewards="none")
    with pytest.raises(ConfigError, match="scale is 'much'; it must be of type float"):
        build("algorithm", "grpo", advantage=f"{mine}:median", scale="much")


def test_a_python_function_is_a_component(mine: str) -> None:
    group = [said(1.0), said(0.25), said(0.0)]
    function = load_factory("algorithm", f"{mine}:median")
    algorithm = build("algorithm", "grpo", advantage=function, scale=2)
    assert [row[-1] for row in algorithm.compute_advantages([group])[0]] == [1.5, 0.0, -0.5]
    assert algorithm.settings.advantage.endswith(":median")
    with pytest.raises(ConfigError, match=r"advantage is 5; it must be the name of an algorithm, a function, or path/to/file\.py:function"):
        build("algorithm", "grpo", advantage=5)


def test_the_function_of_another_algorithm_takes_the_defaults_of_the_recipe() -> None:
    assert build("algorithm", "dr_grpo", advantage="grpo_turns").settings.scale_rewards == "none"
    mixed = build("algorithm", "grpo", loss="cispo", ratio_max=3.0)
    assert mixed.settings.ratio_max == 3.0 and not hasattr(mixed.settings, "epsilon")
    group = [[said(1.0), said(0.0), said(0.0)]]
    assert factory("grpo")(advantage="rloo").compute_advantages(group) == factory("rloo")().compute_advantages(group)


# ---- what functions see ------------------------------------------------------------------------------------------------------


def test_an_advantage_sees_old_reference_and_entropy_of_every_token(mine: str) -> None:
    model, groups = tiny_model(layers=2), fixed_groups()
    expected = {}
    for name, source in (("old", model), ("reference", tiny_model(7, layers=2))):
        with torch.no_grad():
            expected[name] = [[source(input_ids=torch.tensor([e.tokens])).logits[0].log_softmax(-1) for e in group] for group in groups]
    learner("grpo", model=model, budget=24, advantage=f"{mine}:looking", beta=0.1).update(groups)
    [scores] = seen(mine)
    for g, group in enumerate(groups):
        for i, e in enumerate(group):
            for t, on in enumerate(e.action_mask):
                if not on or not e.is_scored:
                    continue
                logs = expected["old"][g][i][t - 1]
                assert scores.old_logprobs[g][i][t] == pytest.approx(float(logs[e.tokens[t]]), abs=1e-5)
                assert scores.reference_logprobs[g][i][t] == pytest.approx(float(expected["reference"][g][i][t - 1][e.tokens[t]]), abs=1e-5)
                assert scores.entropy[g][i][t] == pytest.approx(float(-(logs.exp() * logs).sum()), abs=1e-5)


def test_a_loss_sees_each_token_and_the_whole_batch_before_each_step(mine: str) -> None:
    groups = fixed_groups()
    rows = [e for group in groups for e in group if e.is_scored]
    learner("grpo", budget=24, parts=2, loss=f"{mine}:weighed", share=0.25).update(groups)
    whole = [s for s in seen(mine) if isinstance(s, dict)]
    parts = [s for s in seen(mine) if isinstance(s, tuple)]
    assert len(whole) == 2 and len(parts) > 2
    for tokens, episodes, turns, prepared, advantages in parts:
        assert torch.allclose(prepared, advantages.abs() * 0.25)
        for r in episodes.unique().tolist():
            e, own = rows[r], episodes == r
            assert tokens[own].tolist() == [t for t, on in zip(e.tokens, e.action_mask, strict=True) if on]
            wanted = [k for k, (start, stop) in enumerate(e.turn_spans) for _ in range(start, stop)]
            assert turns[own].tolist() == wanted
    moved = sum(len(s["old_logprobs"]) for s in whole)
    assert moved == sum(len(p[0]) for p in parts) and all(s["old_logprobs"].abs().min() > 0 for s in whole)


COVARIANT: dict[str, dict[str, Any]] = {"clip_cov": {"clip_cov_lb": -1.0, "clip_cov_ratio": 0.3}, "kl_cov": {"kl_cov_ratio": 0.3}}


def test_what_is_prepared_does_not_depend_on_the_micro_batches() -> None:
    for name, settings in COVARIANT.items():
        a, b = (gradient(learner(name, budget=budget, num_iterations=2, **settings), fixed_groups()) for budget in (24, 8192))
        assert apart(a, b) < 1e-5


@pytest.mark.parametrize(("name", "settings"), [("rloo", {"old_from_sampler": True}), ("dppo", {"advantage": "high_entropy"})])
def test_old_from_the_sampler_where_the_credit_needs_the_trainers_too(name: str, settings: dict[str, Any]) -> None:
    """The ratio is to the sampler, and the mismatch is measured against the trainer before the step."""
    subject, groups = learner(name, **settings), fixed_groups()
    taken: list[LossInputs] = []
    losses = subject.algorithm.compute_token_losses
    vars(subject.algorithm)["compute_token_losses"] = lambda x: (taken.append(x), losses(x))[1]  # type: ignore[func-returns-value]
    metrics = subject.update(groups)
    assert taken and all(torch.equal(x.old_logprobs, x.rollout_logprobs) for x in taken)
    assert metrics["mismatch_kl"] > 0 and math.isfinite(metrics["loss"])


# ---- the algorithms that need it, against loops over their definitions -----------------------------------------------------------


PUBLISHED: dict[str, dict[str, Any]] = {
    "gtpo": {"entropy_weight": 0.1, "success_threshold": 0.5, "epsilon": 0.2, "epsilon_high": 0.28},
    "high_entropy": {"entropy_share": 0.2, "advantage_epsilon": 1e-4, "epsilon_high": 0.28, "mask_truncated_completions": True},
    "clip_cov": {"clip_cov_ratio": 0.0002, "clip_cov_lb": 1.0, "clip_cov_ub": 5.0, "epsilon": 0.2},
    "kl_cov": {"kl_cov_ratio": 0.002, "kl_cov_coef": 1.0},
    "dppo": {"dppo_mask_low": 0.2, "dppo_mask_high": 0.2, "scale_rewards": "none", "old_from_sampler": True},
    "max_rl": {"epsilon": 0.2},
}
"""The settings of the papers."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_settings_are_the_published_ones(name: str) -> None:
    settings = vars(build("algorithm", name).settings)
    assert {key: settings[key] for key in PUBLISHED[name]} == PUBLISHED[name] and settings["loss_aggregation"] == "token-mean"


def test_max_rl_is_its_definition() -> None:
    rewards = [1.0, 0.0, 0.0, 1.0, 0.0]
    [got] = factory("max_rl")().compute_advantages([[said(r) for r in rewards]])
    assert [row[-1] for row in got] == pytest.approx([(r - 0.4) / 0.4 for r in rewards])
    assert factory("max_rl")().compute_advantages([[said(0.0), said(0.0)], [said(None), said(1.0)]]) == [[[0.0] * 3] * 2] * 2


def entropies(groups: list[list[Episode]]) -> Any:
    dice = np.random.default_rng(0)
    return [[np.where(e.action_mask, dice.uniform(0.05, 2.0, len(e.tokens)), 0.0) for e in group] for group in groups]


def test_only_the_most_uncertain_tokens_are_trained_on() -> None:
    groups = fixed_groups()
    known = entropies(groups)
    plain = factory("grpo")().compute_advantages(groups)
    got = factory("high_entropy")(entropy_share=0.2).compute_advantages(groups, entropy=known)
    flat = sorted(
        h for g, group in enumerate(groups) for i, e in enumerate(group) if e.is_scored for h in known[g][i][np.array(e.action_mask)]
    )
    kept = 0
    for g, group in enumerate(groups):
        for i, e in enumerate(group):
            for t, on in enumerate(e.action_mask):
                high = on and e.is_scored and known[g][i][t] in flat[-int(0.2 * len(flat)) :]
                kept += bool(high)
                assert got[g][i][t] == (plain[g][i][t] if high else 0.0)
    assert kept == int(0.2 * len(flat))


def naive_gtpo(group: list[Episode], known: Any, b: float) -> list[list[float]]:
    right = [e.is_scored and e.reward >= 0.5 for e in group]
    own = [[max(1e-3, h) for h, on in zip(hs, e.action_mask, strict=True) if on] for hs, e in zip(known, group, strict=True)]

    def shaped(good: bool) -> list[list[float]]:
        out = []
        for e, hs, mine in zip(group, own, right, strict=True):
            row = []
            for t, h in enumerate(hs):
                peers = [o[t] for o, r, p in zip(own, right, group, strict=True) if r == good and p.is_scored and len(o) > t]
                weigh = (lambda x: x) if good else (lambda x: 1 / x)
                share = weigh(h) / (sum(map(weigh, peers)) / len(peers)) if peers else 1.0
                row.append((e.reward if good else -1.0) * (1 - b + b * share) if mine == good else 0.0)
            out.append(row)
        return out

    total = [[0.0] * len(hs) for hs in own]
    for good in (True, False):
        if not any(r == good and e.is_scored for r, e in zip(right, group, strict=True)):
            continue
        rows = shaped(good)
        flat = [x for row, e in zip(rows, group, strict=True) if e.is_scored for x in row]
        mean, std = statistics.fmean(flat), statistics.pstdev(flat)
        total = [[a + (x - mean) / (std + 1e-6) for a, x in zip(old, row, strict=True)] for old, row in zip(total, rows, strict=True)]
    return [row if e.is_scored else [0.0] * len(row) for row, e in zip(total, group, strict=True)]


@pytest.mark.parametrize("weight", [0.0, 0.1, 0.5])
def test_gtpo_is_the_naive_loop(weight: float) -> None:
    groups = fixed_groups(3)
    known = entropies(groups)
    got = factory("gtpo")(entropy_weight=weight).compute_advantages(groups, entropy=known)
    for g, group in enumerate(groups):
        scored = [e.reward for e in group if e.is_scored]
        for e, row, wanted in zip(group, got[g], naive_gtpo(group, known[g], weight), strict=True):
            flat = max(scored) - min(scored) <= 1e-6
            assert [a for a, on in zip(row, e.action_mask, strict=True) if on] == pytest.approx([0.0] * len(wanted) if flat else wanted)


def test_gtpo_takes_the_score_of_a_right_answer() -> None:
    groups = [[said(0.0), said(1.0), said(None)]]
    for row, wanted in zip(
        factory("gtpo")(success_threshold=0.0, entropy_weight=0.0).compute_advantages(groups, entropy=entropies(groups))[0],
        (-1.0, 1.0, 0.0),
        strict=True,
    ):
        assert [a for a, on in zip(row, groups[0][0].action_mask, strict=True) if on] == pytest.approx([wanted] * 2, abs=1e-5)


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def inputs(**columns: torch.Tensor) -> LossInputs:
    rows: Any = {"rows": torch.zeros(len(columns["logprobs"]), dtype=torch.long), "num_rows": 1}
    return LossInputs(**{"rollout_logprobs": columns["old_logprobs"], **rows, **columns})


def test_the_covariance_is_over_all_processes() -> None:
    a, logs = [1.0, -1.0, 0.5], [-1.0, -2.0, -0.5]
    cov = compute_covariance({"advantages": tensor(*a), "old_logprobs": tensor(*logs)}, list)
    mean_a, mean_l = statistics.fmean(a), statistics.fmean(logs)
    assert cov.tolist() == pytest.approx([(x - mean_a) * (y - mean_l) for x, y in zip(a, logs, strict=True)])
    doubled = compute_covariance({"advantages": tensor(*a), "old_logprobs": tensor(*logs)}, lambda sums: [2 * s for s in sums])
    assert doubled.tolist() == pytest.approx(cov.tolist())


def test_the_largest_are_taken_over_all_processes() -> None:
    values = np.array([0.5, -2.0, 3.0, 1.0, 2.0])
    for share, wanted in ((0.0, 1), (0.2, 1), (0.4, 2), (0.7, 3), (1.0, 5)):
        assert (values >= find_top_fraction_threshold(values, share, list)).sum() == wanted
    assert (
        find_top_fraction_threshold(np.array([1.0, 1.0]), 0.5, list) <= 1.0
        and find_top_fraction_threshold(np.zeros(0), 0.5, list) is not None
    )
    halves = [values[:2], values[2:]]
    bounds = at_once([lambda all_reduce, part=part: find_top_fraction_threshold(part, 0.4, all_reduce) for part in halves])
    assert bounds[0] == bounds[1] and [(part >= bounds[0]).sum() for part in halves] == [0, 2]


def test_clip_cov_takes_the_gradient_of_the_chosen_tokens_only() -> None:
    new = tensor(-1.0, -1.0, -1.0).requires_grad_()
    old, advantages = tensor(-1.1, -1.1, -1.1), tensor(1.0, -1.0, 1.0)
    x = inputs(logprobs=new, old_logprobs=old, advantages=advantages, batch_stats=tensor(0.0, 1.0, 0.0))
    loss, _ = build("algorithm", "clip_cov").compute_token_losses(x)
    plain, _ = build("algorithm", "grpo").compute_token_losses(x)
    assert torch.equal(loss.detach(), plain.detach())
    [g], [p] = torch.autograd.grad(loss.sum(), new), torch.autograd.grad(plain.sum(), new)
    assert g.tolist() == [float(p[0]), 0.0, float(p[2])] and p[1] != 0
    columns = {"advantages": tensor(3.0, -3.0, 0.1, 1.0), "old_logprobs": tensor(-0.1, -3.0, -1.0, -2.0)}
    cov = compute_covariance(columns, list)
    wanted = max(c for c in cov.tolist() if 1.0 < c < 5.0)
    assert build("algorithm", "clip_cov").compute_token_batch_stats(columns).tolist() == [float(c == wanted) for c in cov.tolist()]
    assert not build("algorithm", "clip_cov", clip_cov_lb=90.0, clip_cov_ub=99.0).compute_token_batch_stats(columns).any()


def test_clip_cov_chooses_between_its_bounds_and_not_at_them() -> None:
    columns = {"advantages": tensor(3.0, -3.0, 1.0, -1.0), "old_logprobs": tensor(-1.0, -3.0, -1.0, -3.0)}
    assert compute_covariance(columns, list).tolist() == [3.0, 3.0, 1.0, 1.0]
    assert build("algorithm", "clip_cov", clip_cov_lb=0.5, clip_cov_ub=3.0).compute_token_batch_stats(columns).tolist() == [
        0.0,
        0.0,
        1.0,
        1.0,
    ]
    assert not build("algorithm", "clip_cov", clip_cov_lb=1.0, clip_cov_ub=3.0).compute_token_batch_stats(columns).any()


def test_kl_cov_holds_the_tokens_that_vary_most() -> None:
    algorithm = build("algorithm", "kl_cov", kl_cov_ratio=0.5, kl_cov_coef=2.0)
    columns = {"advantages": tensor(3.0, -3.0, 0.1, -0.1), "old_logprobs": tensor(-0.1, -3.0, -1.0, -2.0)}
    cov = compute_covariance(columns, list)
    assert algorithm.compute_token_batch_stats(columns).tolist() == [float(c in sorted(cov.tolist())[-2:]) for c in cov.tolist()]
    new, old = tensor(-1.0, -2.0), tensor(-1.5, -1.5)
    loss, _ = algorithm.compute_token_losses(
        inputs(logprobs=new, old_logprobs=old, advantages=tensor(1.0, 1.0), batch_stats=tensor(0.0, 1.0))
    )
    assert loss.tolist() == pytest.approx([-math.exp(0.5), -math.exp(-0.5) + 2.0 * 0.5])


def test_dppo_leaves_out_what_moved_too_far_in_the_direction_of_its_advantage() -> None:
    sampler, moved = tensor(*[math.log(0.4)] * 6), [0.65, 0.55, 0.65, 0.15, 0.25, 0.15]
    advantages = tensor(1.0, 1.0, -0.5, -1.0, -1.0, 0.5)
    new = tensor(*map(math.log, moved)).requires_grad_()
    loss, figures = build("algorithm", "dppo").compute_token_losses(
        inputs(logprobs=new, old_logprobs=sampler, rollout_logprobs=sampler, advantages=advantages)
    )
    kept = [0, 1, 1, 0, 1, 1]
    wanted = [-k * p / 0.4 * float(a) for k, p, a in zip(kept, moved, advantages, strict=True)]
    assert loss.tolist() == pytest.approx(wanted)
    assert figures["clip_ratio/high_mean"].tolist() == [1, 0, 0, 0, 0, 0] and figures["clip_ratio/low_mean"].tolist() == [0, 0, 0, 1, 0, 0]
    [g] = torch.autograd.grad(loss.sum(), new)
    assert g.tolist() == pytest.approx(wanted)  # the derivative of -r A with respect to the log-probability is -r A


def test_kl_cov_does_not_hold_a_token_by_a_rounding_error() -> None:
    """At the first optimizer step l is l_old up to rounding; the sign of the error must not become a gradient."""
    algorithm = build("algorithm", "kl_cov", kl_cov_ratio=1.0, kl_cov_coef=100.0)
    old = torch.tensor([-1.0, -2.0, -0.5, -3.0], dtype=torch.float64)
    new = (old + torch.tensor([3e-7, -3e-7, 0.0, 1e-2], dtype=torch.float64)).requires_grad_()
    prepared, rows = torch.ones(4, dtype=torch.float64), torch.zeros(4, dtype=torch.long)
    inputs = LossInputs(
        logprobs=new,
        old_logprobs=old,
        rollout_logprobs=old,
        advantages=torch.zeros(4, dtype=torch.float64),
        rows=rows,
        num_rows=1,
        batch_stats=prepared,
    )
    [found] = torch.autograd.grad(algorithm.compute_token_losses(inputs)[0].sum(), new)
    assert found.tolist() == [0.0, 0.0, 0.0, 100.0]


def test_the_covariance_is_about_the_mean_of_all_processes() -> None:
    mine, theirs = (
        {"advantages": tensor(3.0, -1.0), "old_logprobs": tensor(-0.5, -3.0)},
        {"advantages": tensor(10.0), "old_logprobs": tensor(-7.0)},
    )
    whole = {name: torch.cat([mine[name], theirs[name]]) for name in mine}
    other = [1.0, 10.0, -7.0]  # how many tokens the other process has, and their sums
    found = compute_covariance(mine, lambda numbers: [a + b for a, b in zip(numbers, other, strict=True)])
    assert found.tolist() == pytest.approx(compute_covariance(whole, list)[:2].tolist())
    assert found.tolist() != pytest.approx(compute_covariance(mine, list).tolist())


def test_a_trait_that_no_record_has_is_refused() -> None:
    with pytest.raises(ConfigError, match="there is no trait 'zero_variance'"):
        declare_traits("requires_group", "zero_variance")


@pytest.mark.parametrize(
    "result",
    [
        "None",
        "0.5",
        "[[0.5] * 3]",
        "answers.rewards[:1]",
        "[['a'] * len(g) for g in answers.groups]",
        "[[[0.5, 1.0]] * len(g) for g in answers.groups]",
    ],
)
def test_an_advantage_that_returns_something_else_is_named(tmp_path: Path, result: str) -> None:
    (tmp_path / "own.py").write_text(f"def wrong(answers):\n    return {result}\n", "utf-8")
    algorithm: Any = build("algorithm", "grpo", advantage=f"{tmp_path / 'own.py'}:wrong")
    groups = fixed_groups()
    with pytest.raises(ConfigError, match=r"the advantage .*own.py:wrong returned .* it must return a list with one list for each group"):
        algorithm.compute_advantages(groups)


@pytest.mark.parametrize("result", ["[[None] * len(g) for g in answers.groups]", "[[float('nan')] * len(g) for g in answers.groups]"])
def test_an_advantage_with_a_number_that_is_not_finite_is_named(tmp_path: Path, result: str) -> None:
    (tmp_path / "own.py").write_text(f"def wrong(answers):\n    return {result}\n", "utf-8")
    algorithm: Any = build("algorithm", "grpo", advantage=f"{tmp_path / 'own.py'}:wrong")
    with pytest.raises(
        ConfigError, match=r"the advantage .*own.py:wrong returned .* not finite; return 0.0 for an answer that has no score"
    ):
        algorithm.compute_advantages(fixed_groups())


@pytest.mark.parametrize(
    ("result", "got"),
    [
        ("None", "None"),
        ("3.0", "3.0"),
        ("(x.logprobs * x.advantages).mean()", r"a tensor of shape \(\)"),
        ("x.logprobs[:1]", r"a tensor of shape \(1,\)"),
    ],
)
def test_a_loss_that_is_not_one_number_for_each_token_is_named(tmp_path: Path, result: str, got: str) -> None:
    (tmp_path / "own.py").write_text(f"def wrong(x):\n    return {result}\n", "utf-8")
    algorithm: Any = build("algorithm", "grpo", loss=f"{tmp_path / 'own.py'}:wrong")
    x = inputs(logprobs=tensor(-1.0, -2.0), old_logprobs=tensor(-1.0, -2.0), advantages=tensor(1.0, -1.0))
    with pytest.raises(
        ConfigError, match=rf"the loss .*own.py:wrong returned {got} for 2 tokens; it must return a tensor with the loss of each token"
    ):
        algorithm.compute_token_losses(x)
