"""The recipes: one file each, typed settings, overrides shown as differences, known-bad mixes refused with the reason."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from typing import Any

import pytest

from rlvr.errors import ConfigError, NotFound
from rlvr.registry.plugins import build, get_parameters, load_factory
from tests.fixtures.learning import PRESETS, usual


def test_every_named_preset_is_there_and_builds() -> None:
    assert {"reinforce", "remax", "rloo", "ppo", "grpo", "dr_grpo", "dapo", "gspo", "cispo", "max_rl", "sft", "dpo", "kto"} <= {*PRESETS}
    assert len(PRESETS) >= 30
    for name in PRESETS:
        algorithm: Any = build("algorithm", name)
        recipe: Any = load_factory("algorithm", name)
        assert vars(algorithm.settings) == recipe.default_settings and set(recipe.defaults) <= set(recipe.default_settings)
        assert not any(differs for _, _, differs in algorithm.describe_settings())
        told = recipe.__doc__ or ""
        assert re.search(r"^paper +\d", told, re.M) and re.search(r"^differs from the paper +\w", told, re.M) and "L " in told


def test_each_recipe_sets_every_half() -> None:
    dr, dapo, gspo, rloo, ppo = (usual(n) for n in ("dr_grpo", "dapo", "gspo", "rloo", "ppo"))
    assert (dr["scale_rewards"], dr["loss_aggregation"]) == ("none", "seq-mean-token-sum-norm")
    assert (dapo["epsilon"], dapo["epsilon_high"], dapo["loss_aggregation"], dapo["beta"]) == (0.2, 0.28, "token-mean", 0.0)
    assert (gspo["epsilon"], gspo["epsilon_high"], gspo["importance_sampling_level"]) == (3e-4, 4e-4, "sequence")
    assert (rloo["beta"], rloo["kl_in"]) == (0.05, "reward")
    assert (ppo["num_iterations"], ppo["lam"]) == (4, 0.95)
    assert usual("reinforce_pp_baseline")["kl_estimator"] == "k2"


def test_the_file_of_grpo_is_short_enough_to_be_read() -> None:
    lines = inspect.getsource(inspect.getmodule(load_factory("algorithm", "grpo").components["loss"])).splitlines()  # type: ignore[attr-defined, arg-type]
    assert len(lines) < 60


def test_the_signature_is_the_schema() -> None:
    shown = get_parameters(load_factory("algorithm", "gspo"))
    assert shown["epsilon"].default == 3e-4 and shown["epsilon"].kind is inspect.Parameter.KEYWORD_ONLY
    assert set(shown) == set(usual("gspo")) and "lam" not in shown and "lam" in usual("ppo") and "vf_coef" not in shown


def test_an_override_is_a_difference() -> None:
    algorithm = build("algorithm", "grpo", epsilon="1e-1", num_iterations=2.0, beta=0, epsilon_high=None)
    assert algorithm.settings.epsilon == 0.1 and algorithm.traits.num_iterations == 2 and type(algorithm.traits.num_iterations) is int
    assert {n for n, _, differs in algorithm.describe_settings() if differs} == {"epsilon", "num_iterations"}


def test_what_an_algorithm_needs_follows_from_its_settings() -> None:
    needs = {
        n: (a.traits.needs_reference, a.traits.needs_value, a.traits.needs_greedy_sample) for n in PRESETS for a in [build("algorithm", n)]
    }
    assert {n for n, (reference, _, _) in needs.items() if reference} == {
        "reinforce_pp",
        "reinforce_pp_baseline",
        "rloo",
        "ppo",
        "dpo",
        "kto",
        "online_dpo",
        "online_ipo",
        "distill",
    }
    assert {n for n, (_, value, _) in needs.items() if value} == {"ppo"} and {n for n, (_, _, g) in needs.items() if g} == {"remax"}
    assert build("algorithm", "grpo", beta=0.1).traits.needs_reference and not build("algorithm", "ppo", beta=0.0).traits.needs_reference


BAD: list[tuple[str, dict[str, Any], str]] = [
    ("grpo", {"beta": 0.1, "kl_estimator": "k1"}, "gradient of zero"),
    ("grpo", {"beta": 0.1, "kl_estimator": "k3", "kl_in": "reward"}, "biased"),
    ("gspo", {"loss_aggregation": "token-mean"}, "one number per answer"),
    ("gspo", {"loss_aggregation": "seq-mean-token-sum"}, "one number per answer"),
    ("dr_grpo", {"scale_rewards": "group"}, "keeps the difficulty bias"),
    ("grpo", {"old_from_sampler": True, "importance_sampling_correction": "token_truncate"}, "twice"),
    ("grpo", {"delta": 1.1}, "not above the upper clip at 1.2 "),
    ("gdpo", {"reward_weights": {"a": 1.0}, "overlong_buffer": 4}, "uses the verdict's components"),
    ("gdpo", {"reward_weights": {"a": 1.0}, "overlong_buffer": 1}, "uses the verdict's components"),
    ("gdpo", {"reward_weights": {"a": 1.0}, "beta": 0.1, "kl_estimator": "k1", "kl_in": "reward"}, "uses the verdict's components"),
    ("grpo", {"loss_aggregation": "token_mean"}, "did you mean 'token-mean'"),
    ("grpo", {"epsilon": -0.1}, "from 0 to 1"),
    ("grpo", {"epsilon": "wide"}, "type float"),
    ("grpo", {"epsilon": float("nan")}, "type float"),
    ("grpo", {"epsilon": None}, "type float"),
    ("grpo", {"num_iterations": 1.5}, "type int"),
    ("grpo", {"num_iterations": 0}, "from 1"),
    ("grpo", {"mask_truncated_completions": "yes"}, "type bool"),
    ("grpo", {"epsilonn": 0.1}, "did you mean 'epsilon'"),
    ("grpo_turns", {"compare_turns": "turn"}, "compare_turns is 'turn'"),
    ("grpo_turns", {"turn_discount": 1.5}, "from 0 to 1"),
    ("gigpo", {"turn_weight": -1}, "from 0 to inf"),
    ("grpo", {"mask_malformed_calls": True, "malformed_call_penalty": 0.1}, "set only one of them"),
    ("gdpo", {"reward_weights": {"a": 1.0}, "malformed_call_penalty": 0.1}, "reward_weights does not use"),
    # settings that another algorithm has
    ("grpo", {"returns": "turns"}, "no setting 'returns'; choose .*advantage=grpo_turns"),
    ("grpo", {"baseline": "leave_one_out"}, "no setting 'baseline'; choose .*advantage=rloo"),
    ("grpo", {"loss_type": "cispo"}, "no setting 'loss_type'; choose .*loss=cispo"),
    ("grpo", {"loss_type": "dr_grpo"}, "whole recipe"),
    ("grpo", {"normalize_then_sum": True}, "advantage=gdpo"),
    *(
        (name, {key: 1.0}, f"{key}=1.0 has no effect in '{name}'")
        for name, key in (
            ("grpo", "lam"),
            ("grpo", "ratio_max"),
            ("grpo", "score_threshold"),
            ("grpo", "label_smoothing"),
            ("grpo", "turn_discount"),
            ("grpo", "reward_weights"),
            ("cispo", "epsilon"),
            ("ppo", "scale_rewards"),
            ("dpo", "desirable_weight"),
            ("dpo", "kl_in"),
            ("dpo", "importance_sampling_correction"),
            ("kto", "whiten"),
            ("kto", "old_from_sampler"),
            ("sft", "beta"),
            ("best_of_n", "scale_rewards"),
            ("online_dpo", "num_iterations"),
            ("dpo", "malformed_call_penalty"),
            ("grpo_turns", "gamma"),
            ("dpo", "mask_malformed_calls"),
            ("grpo_turns", "turn_weight"),
            ("gdpo", "scale_rewards"),
            ("reinforce", "delta"),
        )
    ),
    ("sft", {"loss_aggregation": "seq-mean-token-sum-norm"}, "is for policy gradients"),
    ("online_ipo", {"label_smoothing": 0.1}, "no effect because preference_loss is ipo; change that, or remove label_smoothing"),
    ("online_dpo", {"beta": 0.0}, "relative to a reference"),
    ("kto", {"beta": 0.0}, "relative to a reference"),
    ("kto", {"dynamic_sampling_rounds": 2}, "kto also learns from groups whose rewards are all equal"),
    ("grpo", {"kl_target": 1.0}, "kl_target=1.0 has no effect because beta is 0; change that, or remove kl_target"),
    ("grpo", {"beta": 0.1, "ref_model_mixup_alpha": 1.0}, "no effect because ref_model_sync_steps is 0"),
    ("grpo", {"overlong_penalty": 1.0}, "overlong_penalty=1.0 has no effect because overlong_buffer is 0"),
    ("grpo", {"max_new_tokens": 9}, "because loss_aggregation is seq-mean-token-mean and overlong_buffer is 0"),
    ("grpo", {"scale_rewards": "none", "advantage_epsilon": 0.1}, "no effect because scale_rewards is none"),
    ("grpo", {"importance_sampling_cap": 3.0}, "no effect because importance_sampling_correction is none"),
    (
        "grpo",
        {"importance_sampling_correction": "token_truncate", "importance_sampling_floor": 0.4},
        "no effect because importance_sampling_correction is token_truncate, and only the masks",
    ),
    ("remax", {"whiten": "samples"}, "token to token"),
    ("ppo", {"whiten": "samples"}, "token to token"),
    ("grpo_turns", {"whiten": "samples"}, "token to token"),
    ("gigpo", {"baseline": "running"}, "baseline is 'running'"),
    ("grpo_turns", {"dynamic_sampling_rounds": 3}, "such a group still gives"),
    ("gdpo", {"dynamic_sampling_rounds": 3}, "such a group still gives"),
    ("ppo", {"mask_malformed_calls": True}, "every token of an answer for its critic"),
    # functions by name
    ("grpo", {"advantage": "rlo"}, "did you mean 'rloo'"),
    ("grpo", {"advantage": "dpo"}, "not a policy-gradient algorithm"),
    ("grpo", {"loss": 3}, "loss is 3; it must be the name"),
    ("grpo", {"advantage": "nowhere.py:f"}, "there is no file"),
]


@pytest.mark.parametrize(("name", "overrides", "reason"), BAD, ids=lambda x: str(x))
def test_a_bad_mix_is_refused_with_the_reason(name: str, overrides: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        build("algorithm", name, **overrides)


GOOD: list[tuple[str, dict[str, Any]]] = [
    ("grpo", {"advantage": "reinforce_pp", "whiten": "tokens"}),
    ("gdpo", {"overlong_buffer": 4, "beta": 0.1, "kl_estimator": "k1", "kl_in": "reward"}),
    ("gdpo", {"reward_weights": {"a": 1.0}, "beta": 0.1, "kl_estimator": "k2"}),
    ("gdpo", {"reward_weights": {"a": 1.0}, "beta": 0.0, "kl_in": "loss"}),
    ("ppo", {"whiten": "none"}),
    ("ppo", {"malformed_call_penalty": 0.1}),
    ("gspo", {"advantage": "grpo_turns", "mask_malformed_calls": True}),
    ("gigpo", {"baseline": "leave_one_out", "scale_rewards": "none", "compare_turns": "observation"}),
    ("reinforce", {"advantage": "grpo_turns", "turn_discount": 0.9}),
    ("grpo", {"loss": "cispo", "ratio_max": 2.0}),
    ("online_dpo", {"label_smoothing": 0.1}),
    ("best_of_n", {"loss_aggregation": "seq-mean-token-mean"}),
]


@pytest.mark.parametrize(("name", "overrides"), GOOD, ids=lambda x: str(x))
def test_its_neighbours_are_taken(name: str, overrides: dict[str, Any]) -> None:
    build("algorithm", name, **overrides)


def test_an_unknown_name_gets_a_suggestion() -> None:
    with pytest.raises(NotFound, match="did you mean 'grpo'"):
        load_factory("algorithm", "grop")


def test_the_table_needs_no_torch() -> None:
    code = "import sys; sys.modules['torch'] = None; from rlvr.registry.plugins import build; build('algorithm', 'ppo'); print('fine')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "fine\n", done.stderr
