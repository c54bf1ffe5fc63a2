"""Edges that random draws miss: bounds, what is counted and reported, the reference's refresh, names that nobody knows."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from rlvr.algorithms import grpo
from rlvr.algorithms.base.algorithm_spec import declare_traits
from rlvr.algorithms.base.policy_gradient import define_policy_gradient
from rlvr.algorithms.base.settings import find_inactive_settings as reasons
from rlvr.algorithms.functions import advantages as credit
from rlvr.algorithms.functions import kl, mismatch, preferences, surrogate
from rlvr.algorithms.functions.aggregation import compute_row_weights
from rlvr.conformance.algorithmkit import make_episode
from rlvr.contracts.algorithm import LossInputs
from rlvr.episode import Episode, StopReason
from rlvr.errors import ConfigError
from rlvr.task import Fault, Verdict
from tests.fixtures.learning import FRESH, PRESETS, factory, usual

WITH: dict[str, dict[str, Any]] = {
    **{key: {"beta": 0.1} for key in ("ref_model_sync_steps", "kl_target", "kl_horizon")},
    "ref_model_mixup_alpha": {"beta": 0.1, "ref_model_sync_steps": 1},
    "max_new_tokens": {"loss_aggregation": "seq-mean-token-sum-norm", "scale_rewards": "none"},
    **{f"importance_sampling_{bound}": {"importance_sampling_correction": "token_mask"} for bound in ("cap", "floor")},
}
LEAST: dict[str, tuple[float, float]] = {
    "advantage_epsilon": (0.0, -1e-9), "label_smoothing": (0.0, -1e-9), "desirable_weight": (0.0, -1e-9),
    "undesirable_weight": (0.0, -1e-9), "pairs_per_group": (1, 0), "epsilon": (0.0, -1e-9), "epsilon_high": (0.0, -1e-9),
    "delta": (1.3, 0.9), "ratio_max": (1.0, 0.999), "sapo_temperature_pos": (1e-6, 9e-7), "sapo_temperature_neg": (1e-6, 9e-7),
    "max_new_tokens": (0, -1), "overlong_buffer": (0, -1), "dynamic_sampling_rounds": (1, 0), "beta": (0.0, -1e-9),
    "kl_target": (1e-12, 9e-13), "kl_horizon": (1, 0), "ref_model_sync_steps": (0, -1), "ref_model_mixup_alpha": (0.0, -1e-9),
    "gamma": (0.0, -1e-9), "lam": (0.0, -1e-9), "vf_coef": (0.0, -1e-9), "epsilon_value": (0.0, -1e-9), "value_pretraining_steps": (0, -1),
    "turn_discount": (0.0, -1e-9), "turn_weight": (0.0, -1e-9), "malformed_call_penalty": (0.0, -1e-9),
    "num_iterations": (1, 0), "importance_sampling_cap": (1.0, 0.999), "importance_sampling_floor": (0.0, -1e-9),
}  # fmt: skip
MOST: dict[str, tuple[float, float]] = {
    "advantage_epsilon": (1.0, 1.01), "label_smoothing": (0.5, 0.51), "epsilon": (1.0, 1.01), "ref_model_mixup_alpha": (1.0, 1.01),
    "gamma": (1.0, 1.01), "turn_discount": (1.0, 1.01), "lam": (1.0, 1.01), "importance_sampling_floor": (1.0, 1.01),
}  # fmt: skip


def having(setting: str) -> str:
    """An algorithm that has a setting."""
    return next(name for name in ("grpo", *PRESETS) if setting in usual(name))


@pytest.mark.parametrize("name", LEAST)
def test_every_number_has_its_least_and_its_most(name: str) -> None:
    make = factory(having(name))
    for allowed, beyond in [LEAST[name], *([MOST[name]] if name in MOST else [])]:
        make(**{name: allowed, **WITH.get(name, {})})
        with pytest.raises(ConfigError, match=f"{name} is"):
            make(**{name: beyond, **WITH.get(name, {})})
    if name not in MOST:
        far: dict[str, Any] = WITH.get(name, {}) | {name: 10**6}
        make(**far | ({"max_new_tokens": 10**6} if name == "overlong_buffer" else {}))


@pytest.mark.slow
def test_the_defaults_are_those_of_the_papers() -> None:
    wanted = {
        "epsilon": 0.2, "epsilon_high": None, "delta": None, "ratio_max": 5.0, "sapo_temperature_pos": 1.0, "sapo_temperature_neg": 1.05,
        "gamma": 1.0, "lam": 0.95, "vf_coef": 0.1, "epsilon_value": 0.2, "importance_sampling_cap": 2.0, "importance_sampling_floor": 0.5,
        "kl_horizon": 10_000, "ref_model_mixup_alpha": 0.6, "beta": 0.0, "entropy_coef": 0.0, "num_iterations": 1,
        "value_pretraining_steps": 0, "ref_model_sync_steps": 0, "overlong_buffer": 0, "overlong_penalty": 0.5, "max_new_tokens": 0,
        "advantage_epsilon": 1e-4, "label_smoothing": 0.0, "desirable_threshold": 0.5, "desirable_weight": 1.0, "undesirable_weight": 1.0,
        "pairs_per_group": 1, "score_threshold": 0.0, "turn_weight": 1.0, "malformed_call_penalty": 0.0, "whiten": "none",
    }  # fmt: skip
    for setting, value in wanted.items():
        assert usual(having(setting))[setting] == value, setting
    assert [usual(n)["turn_discount"] for n in ("grpo_turns", "gigpo")] == [1.0, 0.95]
    assert [usual(n)["compare_turns"] for n in ("grpo_turns", "gigpo")] == ["index", "state"]


@pytest.mark.parametrize(
    ("name", "settings", "live", "idle"),
    [
        ("grpo", {}, {"epsilon", "epsilon_high", "delta", "advantage_epsilon"}, {"kl_estimator", "kl_in", "importance_sampling_cap",
         "ref_model_mixup_alpha", "max_new_tokens", "overlong_penalty", "ref_model_sync_steps"}),
        ("grpo", {"scale_rewards": "none"}, set(), {"advantage_epsilon"}),
        ("grpo", {"beta": 0.1}, {"kl_estimator", "kl_in", "kl_target", "kl_horizon", "ref_model_sync_steps"}, {"ref_model_mixup_alpha"}),
        ("grpo", {"beta": 0.1, "ref_model_sync_steps": 1}, {"ref_model_mixup_alpha"}, set()),
        ("grpo", {"overlong_buffer": 1}, {"max_new_tokens", "overlong_penalty"}, set()),
        ("dr_grpo", {}, {"max_new_tokens"}, {"advantage_epsilon"}),
        ("grpo", {"importance_sampling_correction": "token_truncate"}, {"importance_sampling_cap"}, {"importance_sampling_floor"}),
        ("grpo", {"importance_sampling_correction": "token_mask"}, {"importance_sampling_cap", "importance_sampling_floor"}, set()),
        ("grpo", {"importance_sampling_correction": "geometric_mask"}, {"importance_sampling_cap", "importance_sampling_floor"}, set()),
        ("dpo", {}, {"label_smoothing", "pairs_per_group"}, {"ref_model_mixup_alpha"}),
        ("online_ipo", {}, {"pairs_per_group"}, {"label_smoothing"}),
    ],
    ids=lambda value: str(sorted(value) if isinstance(value, set) else value),
)  # fmt: skip
def test_a_setting_is_live_where_it_does_something(name: str, settings: dict[str, Any], live: set[str], idle: set[str]) -> None:
    known = reasons(usual(name) | settings)
    assert {key for key in live | idle if key not in known} == live


def test_an_algorithm_in_a_file_chooses_its_groups_and_declares_what_its_loss_does() -> None:
    Groups = list[list[Episode]]

    def keep_long(groups: Groups, *, min_tokens: int = 3) -> tuple[Groups, dict[str, Groups]]:
        kept = [group for group in groups if min(len(e.tokens) for e in group) >= min_tokens]
        return kept, {"short": [group for group in groups if group not in kept]}

    @declare_traits("backprop_zero_advantage", noop_on_policy=("clip",))
    def loss(x: LossInputs, *, clip: float = 0.2, pull: float = 1.0) -> Any:
        return -x.advantages * x.logprobs + pull * x.logprobs

    make = define_policy_gradient("mine", "An example.", grpo.advantage, loss, select_groups=keep_long)
    groups = [[make_episode([1, 2], 1.0), make_episode([1], 0.0)], [make_episode([1, 2, 3], 1.0), make_episode([1, 2], 0.0)]]
    assert make().select_groups(groups) == ([groups[1]], {"short": [groups[0]]})
    assert make(min_tokens=1).select_groups(groups) == (groups, {"short": []})
    assert make().traits.backprop_zero_advantage and make().traits.noop_on_policy == ("clip",)
    assert not factory("grpo")().traits.backprop_zero_advantage and "epsilon" in factory("grpo")().traits.noop_on_policy
    assert factory("distill")().traits.noop_on_policy == ("epsilon", "epsilon_high")  # its other settings do something at every ratio


def test_what_an_algorithm_asks_of_the_learner() -> None:
    def of(**settings: Any) -> tuple[bool, ...]:
        a = factory("grpo")(**settings)
        return (
            a.traits.needs_reference,
            a.traits.needs_entropy,
            bool(a.traits.token_inputs),
            a.traits.backprop_zero_advantage,
            a.traits.use_rollout_logprobs,
            a.traits.one_optimizer_step,
        )

    assert of() == (False,) * 6
    assert of(beta=0.1) == (True, False, False, True, False, False)
    assert of(beta=0.1, kl_estimator="k1", kl_in="reward") == (True, False, True, False, False, False)
    assert of(entropy_coef=0.1) == of(entropy_coef=-0.1) == (False, True, False, True, False, False)
    assert of(old_from_sampler=True) == (False, False, False, False, True, False)
    ppo = factory("ppo")(beta=0.0)
    assert ppo.traits.backprop_zero_advantage and ppo.traits.needs_value and ppo.traits.token_inputs == {"values"}
    assert [factory(n)().traits.one_optimizer_step for n in ("dpo", "kto", "best_of_n")] == [True, True, False]
    assert [factory(n)().traits.needs_kl_samples for n in ("dpo", "kto", "best_of_n")] == [False, True, False]
    assert [factory(n)().traits.use_rollout_logprobs for n in ("sft", "best_of_n", "dpo")] == [True, True, False]
    stale = [factory("grpo")(), factory("grpo")(old_from_sampler=True), *(factory(n)() for n in ("online_dpo", "kto", "best_of_n"))]
    assert [dict(a.traits.off_policy_defaults) for a in stale] == [{"importance_sampling_correction": "token_truncate"}, {}, {}, {}, {}]


def test_the_reference_moves_every_so_many_steps() -> None:
    algorithm, moved = factory("grpo")(beta=0.1, ref_model_sync_steps=3, ref_model_mixup_alpha=0.7), []
    for _ in range(7):
        algorithm.on_step_end([1.0], None)
        moved.append(algorithm.get_reference_update_fraction())
    assert moved == [0.0, 0.0, 0.7, 0.0, 0.0, 0.7, 0.0]
    still = factory("grpo")(beta=0.1)
    assert not still.traits.syncs_reference and factory("grpo")(beta=0.1, ref_model_sync_steps=1).traits.syncs_reference
    still.on_step_end([1.0], None)
    assert still.get_reference_update_fraction() == 0.0


def test_beta_is_steered_by_the_samples_of_the_step() -> None:
    algorithm = factory("grpo")(beta=0.1, kl_target=0.5, kl_horizon=10)
    algorithm.on_step_end([1.0, 0.0], 5.0)
    assert algorithm.beta == pytest.approx(0.1 * (1 + 0.2 * 2 / 10))
    algorithm.on_step_end([], 5.0)
    assert algorithm.beta == pytest.approx(0.1 * (1 + 0.2 * 2 / 10))
    algorithm.on_step_end([1.0] * 5, 0.55)
    assert algorithm.beta == pytest.approx(0.104 * (1 + 0.1 * 5 / 10))


def test_deviation_and_moments_of_few() -> None:
    assert credit.compute_sample_std([]) == credit.compute_sample_std([3.0]) == 0.0 and credit.compute_sample_std(
        [1.0, 3.0]
    ) == pytest.approx(math.sqrt(2))
    assert credit.compute_mean_std_count([]) == (0.0, 0.0, 0.0) and credit.whiten([2.0, 2.0 + 1e-9]) == [0.0, 0.0]
    assert credit.whiten([-1e-8, 1e-8]) == [0.0, 0.0] and credit.compute_mean_std_count([-1e-8, 1e-8])[1] == 1e-8
    assert credit.whiten([]) == [] and credit.whiten([0.0, 1e-7]) == pytest.approx([-1.0, 1.0])
    assert credit.divide_by_std([[1.0]], [[0.5]], "batch", 0.25) == [[2.0]]
    assert credit.has_no_signal([1.0, 1.0 + 2e-6]) is False and credit.has_no_signal([1e6, 1e6 + 0.5]) is True
    assert credit.has_no_signal([0.0, 1e-6]) is True and credit.has_no_signal([-3.0, -3.0 + 2e-6]) is True
    assert [credit.compute_overlong_penalty(n, 10, 4) for n in (5, 7, 9, 11)] == [0.0, -0.25, -0.75, -1.0]


def said(reward: float, *, length: int = 2, after: int = 0, **meta: Any) -> Episode:
    n = 1 + length + after
    return Episode(
        "t", "g", [1] * n, [False] + [True] * length + [False] * after, [0.0] * n, [0.0] * length + [reward] + [0.0] * after,
        StopReason.TERMINATED, verdict=Verdict(reward, ""), meta=meta,
    )  # fmt: skip


def test_the_punishment_stands_on_the_last_token_the_policy_chose() -> None:
    algorithm = factory("reinforce_pp")(whiten="none", beta=0.0, overlong_buffer=4, max_new_tokens=4)
    [rows] = algorithm.compute_advantages([[said(1.0, after=2), said(0.5, length=4)]])
    assert rows[0] == pytest.approx([0.0, 0.75, 0.75, 0.0, 0.0]) and rows[1] == pytest.approx([0.0, 0.0, 0.0, 0.0, 0.0])
    later = factory("reinforce_pp")(whiten="none", beta=0.0, gamma=0.5, overlong_buffer=4, max_new_tokens=4)
    assert later.compute_advantages([[said(1.0)]])[0][0] == pytest.approx([0.0, 0.375, 0.75])


def test_the_punishment_of_a_single_token_before_the_environments_stands_on_it() -> None:
    algorithm = factory("reinforce_pp")(whiten="none", beta=0.0, gamma=0.5, overlong_buffer=1, max_new_tokens=1)
    assert algorithm.compute_advantages([[said(0.75, length=1, after=1)]]) == [[[0.0, 0.25, 0.0]]]


def test_a_critic_gives_an_unscored_answer_nothing() -> None:
    algorithm = factory("ppo")(beta=0.0, whiten="none", gamma=1.0, lam=1.0)
    values = [[[0.0, 0.25, 0.5], [0.0, 0.25, 0.5]]]
    failed = Episode("t", "g", [1, 1, 1], [False, True, True], [0.0] * 3, [0.0] * 3, StopReason.FAILED)
    assert algorithm.compute_advantages([[said(1.0), failed]], values=values) == [[[0.0, 0.75, 0.5], [0.0, 0.0, 0.0]]]
    assert algorithm.value_targets([[said(1.0), failed]], penalties=None, values=values) == [[[0.0, 1.0, 1.0], [0.0, 0.25, 0.5]]]


def test_a_group_whose_greedy_answer_has_no_score_is_silent_at_every_token() -> None:
    """Discounted returns differ from the whole reward, so taking the baseline off would not make them 0."""
    lost = replace(said(0.0, greedy=True), verdict=Verdict(None, "gone", fault=Fault.INFRA))
    rows, others = factory("remax")(gamma=0.5).compute_advantages([[said(1.0), lost], [said(1.0), said(0.5, greedy=True)]])
    assert rows == [[0.0] * 3] * 2 and others == [[0.0, 0.0, 0.5], [0.0] * 3]


def test_the_runs_own_cap_is_taken_where_none_is_set() -> None:
    algorithm = factory("dapo")(overlong_buffer=2, scale_rewards="none")
    algorithm.compute_row_weights([1], ["0"], max_length=9)  # the weights of one step change no setting
    algorithm.set_completion_limit(max_new_tokens=3)
    [[a, b]] = algorithm.compute_advantages([[said(1.0, length=3), said(1.0, length=1)]])
    assert (a[-1], b[-1]) == pytest.approx((-0.25, 0.25))


def test_a_greedy_answer_is_a_member_where_nobody_asked_for_one() -> None:
    group = [said(1.0), said(0.0, greedy=True)]
    assert [row[-1] for row in factory("dr_grpo")().compute_advantages([group])[0]] == [0.5, -0.5]
    assert not factory("remax")().is_in_loss(group[1]) and not factory("grpo")().is_in_loss(said(1.0, mismatched=True))


# ---- what is reported -----------------------------------------------------------------------------------------------------------


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_where_the_clip_or_the_cap_held_is_told() -> None:
    ratio, advantage, new = tensor(0.5, 0.5, 1.0, 3.0, 3.0, 0.8, 1.25), tensor(1, -1, 1, 1, -1, -1, 1), tensor(*[-1.0] * 7)
    clip = surrogate.compute_clipped_loss(ratio, advantage, 0.2, 0.25)
    assert clip.clipped_low.tolist() == [0, 1, 0, 0, 0, 0, 0] and clip.clipped_high.tolist() == [0, 0, 0, 1, 0, 0, 0]
    nothing = surrogate.compute_clipped_loss(ratio, tensor(*[0.0] * 7), 0.2, 0.25)
    assert not nothing.clipped_low.any() and not nothing.clipped_high.any()
    for held in (surrogate.compute_capped_ratio_loss(ratio, advantage, new, 2.0),):
        assert held.clipped_high.tolist() == [0, 0, 0, 1, 1, 0, 0] and held.clipped_low.tolist() == [0.0] * 7
        assert held.loss.tolist() == pytest.approx([0.5, -0.5, 1.0, 2.0, -2.0, -0.8, 1.25])
    assert not surrogate.compute_capped_ratio_loss(tensor(2.0), tensor(1.0), tensor(-1.0), 2.0).clipped_high.any()
    free = surrogate.compute_gated_loss(ratio, advantage, 1.0, 1.05)
    assert free.clipped_low.tolist() == free.clipped_high.tolist() == [0.0] * 7


def test_the_figures_of_a_loss() -> None:
    new, old = tensor(-1.0, -1.0, -1.0, -1.0), tensor(-0.5, -1.5, -0.5, -1.0)
    inputs = LossInputs(
        logprobs=new, old_logprobs=old, rollout_logprobs=old, advantages=tensor(-1, 1, 1, 1), rows=torch.zeros(4, dtype=torch.long), num_rows=1,
        frozen_logprobs={"reference": tensor(-1.0, -1.5, -1.0, -0.5)}, entropy=tensor(1, 2, 3, 4),
    )  # fmt: skip
    loss, figures = factory("grpo")(entropy_coef=0.5, beta=0.1).compute_token_losses(inputs)
    assert figures["clip_ratio/low_mean"].tolist() == [1, 0, 0, 0] and figures["clip_ratio/high_mean"].tolist() == [0, 1, 0, 0]
    assert figures["clip_ratio/region_mean"].tolist() == [1, 1, 0, 0] and figures["entropy"].tolist() == [1, 2, 3, 4]
    k3 = [0.0, math.exp(-0.5) - 0.5, 0.0, math.exp(0.5) - 1.5]
    policy = [0.8, -1.2, -math.exp(-0.5), -1.0]
    assert figures["kl"].tolist() == pytest.approx(k3) and figures["policy_loss"].tolist() == pytest.approx(policy)
    expected = [p + 0.1 * k - 0.5 * h for p, k, h in zip(policy, k3, (1, 2, 3, 4), strict=True)]
    assert loss.tolist() == pytest.approx(expected)


def test_the_quantiles_of_the_raw_ratios() -> None:
    gaps = [(37 * k % 101 - 50) / 100 for k in range(101)]  # -0.50, -0.49 ... 0.50, in disorder
    told = mismatch.compute_mismatch_metrics(tensor(*gaps), tensor(*[0.0] * 101))
    wanted = {"min": -0.5, "p01": -0.49, "median": 0.0, "p99": 0.49, "max": 0.5}
    for name, gap in wanted.items():
        assert told[f"sampling/ratio_{name}"] == pytest.approx(math.exp(gap), abs=1e-12)
    ratios = [math.exp(gap) for gap in gaps]
    assert told["sampling/ratio_mean"] == pytest.approx(math.fsum(ratios) / 101, abs=1e-12)
    assert told["sampling/effective_sample_size"] == pytest.approx(math.fsum(ratios) ** 2 / (101 * math.fsum(r * r for r in ratios)))
    assert told["mismatch_kl"] == pytest.approx(math.fsum(r - 1 - gap for r, gap in zip(ratios, gaps, strict=True)) / 101, abs=1e-12)


# ---- names that nobody knows -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", "a", "k", "k9", "m", "seq", "sequence_tokens", "turn", "token_masks", "zzz"])
def test_an_unknown_name_is_never_taken_for_a_known_one(name: str) -> None:
    x, rows = tensor(0.1, 0.2), torch.tensor([0, 0])
    with pytest.raises(ValueError, match="allowed"):
        surrogate.compute_log_ratio(x, x, rows, 1, name)
    with pytest.raises(ValueError, match="allowed"):
        kl.estimate_kl(x, x, name)
    with pytest.raises(ValueError, match="allowed"):
        mismatch.compute_mismatch_correction(x, x, rows, 1, name, max_ratio=2.0, min_ratio=0.5)
    with pytest.raises(ValueError, match="allowed"):
        compute_row_weights([1, 2], ["a", "b"], name, max_length=3)
    assert credit.divide_by_std([[0.0, 1.0]], [[-0.5, 0.5]], name, 0.0) == [[-0.5, 0.5]]


def test_a_prompt_with_one_token_counts_as_much_as_another() -> None:
    assert compute_row_weights([1, 2, 0], ["a", "b", "c"], "prompt-mean") == [0.5, 0.25, 0.0]


def test_lists_of_unlike_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="zip"):
        credit.divide_by_std([[0.0, 1.0]], [], "group", 0.0)
    with pytest.raises(ValueError, match="zip"):
        credit.sum_normalized_rewards({"a": [[0.0, 1.0]], "b": []}, {"a": 1.0, "b": 1.0}, 0.0)
    with pytest.raises(ValueError, match="1 penalties for 3 tokens"):
        factory("rloo")().compute_advantages([[said(1.0)]], penalties=[[[0.0]]])
    with pytest.raises(ValueError, match="zip"):
        compute_row_weights([1], [], "token-mean")


# ---- preferences -----------------------------------------------------------------------------------------------------------------------


def test_a_tie_is_a_tie_up_to_the_tolerance() -> None:
    assert preferences.find_best_worst_pair([0.0, 1e-6]) is None and preferences.find_best_worst_pair([0.0, 1.1e-6]) == (1, 0)
    assert preferences.select_best([0.0, None]) is None and preferences.select_best([0.0, None], score_threshold=-1.0) == 0
    assert (
        preferences.find_best_worst_pair([]) is None
        and preferences.find_best_worst_pair([1.0]) is None
        and preferences.find_best_worst_pair([1.0, 0.0]) == (0, 1)
    )


def test_what_can_be_learned_from_stored_groups() -> None:
    groups = [[said(1.0), said(0.0), said(0.5), said(0.5)], [said(0.0), said(0.0)]]
    assert [[e.reward for e in g] for g in factory("dpo")().select_offline(groups)] == [[1.0, 0.0]]
    assert [[e.reward for e in g] for g in factory("dpo")(pairs_per_group=2).select_offline(groups)] == [[1.0, 0.0]]
    assert factory("kto")().select_offline(groups) == groups
    assert factory("kto")(desirable_threshold=0.7).select_offline(groups) == groups  # one is above it, and none upon it
    assert [[e.reward for e in g] for g in factory("sft")().select_offline(groups)] == [[1.0]]
    for name, given, reason in (
        ("dpo", groups[1:], "no pair"), ("kto", groups[1:], "are undesirable"), ("kto", [[said(0.5)]], "are desirable"),
        ("sft", groups[1:], "above 0"), *((fresh, groups, "fresh answers") for fresh in FRESH),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=reason):
            factory(name)().select_offline(given)


def test_one_pair_of_a_group_is_taken_where_nobody_says_how_many() -> None:
    pulls = preferences.compute_preference_advantages([[1.0, 0.0, 0.8, 0.2]], [[0.0] * 4], 0.5)
    assert pulls.metrics["preference/num_pairs"] == 1.0
    assert pulls.advantages == [[0.5 * 0.5, -0.5 * 0.5, 0.0, 0.0]]  # beta sigmoid(0)


def test_several_pairs_of_a_group_pull_as_one_mean() -> None:
    group = [said(1.0), said(0.0), said(0.8), said(0.2), said(0.5)]
    shifts = [[0.2, -0.1, 0.0, 0.3, 9.0]]
    one = preferences.compute_preference_advantages([[e.reward for e in group]], shifts, 0.5, max_pairs=2)
    forces = [1 / 2 * preferences.compute_pair_advantage(d, 0.5, "dpo", 0.0) for d in (0.3, -0.3)]
    assert one.advantages[0] == pytest.approx([forces[0], -forces[0], forces[1], -forces[1], 0.0])
    assert one.metrics["rewards/accuracies"] == 0.5 and one.metrics["rewards/chosen"] == pytest.approx(0.1)
    with pytest.raises(ConfigError, match="log-probabilities"):
        factory("dpo")().compute_advantages([group])


@pytest.mark.parametrize(
    ("defaults", "told"),
    [
        ({"no_such": 3}, "the definition of .*no_such"),
        ({"epsilon": "wide"}, "epsilon is 'wide'"),
    ],
)
def test_a_default_of_a_definition_is_checked_like_a_setting(defaults: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        define_policy_gradient("mine", "An example.", grpo.advantage, grpo.loss, **defaults)()
    assert define_policy_gradient("mine", "An example.", grpo.advantage, grpo.loss, epsilon=0.1)().settings.epsilon == 0.1
