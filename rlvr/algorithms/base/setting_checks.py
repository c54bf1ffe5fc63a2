"""Invalid combinations of settings, each with the reason and a fix."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from rlvr.errors import ConfigError

if TYPE_CHECKING:
    from rlvr.algorithms.base.algorithm_spec import AlgorithmSpec


def check_setting_combinations(settings: Mapping[str, Any], spec: AlgorithmSpec) -> None:
    """Raise ConfigError for the first invalid combination."""
    for wrong, reason in [*_find_ratio_conflicts(settings), *_find_advantage_conflicts(settings, spec)]:
        if wrong:
            raise ConfigError(reason)


def _find_ratio_conflicts(s: Mapping[str, Any]) -> Iterator[tuple[bool, str]]:
    yield (
        s["beta"] > 0 and s["kl_in"] == "loss" and s["kl_estimator"] == "k1",
        "k1 as a loss has an expected gradient of zero, so beta would have no effect; use kl_in=reward, or k2 or k3_ratio in the loss",
    )
    yield (
        s["beta"] > 0 and s["kl_in"] == "reward" and s["kl_estimator"] != "k1",
        f"{s['kl_estimator']} in the reward gives a biased gradient; only k1 is allowed there: set kl_estimator=k1, or kl_in=loss",
    )
    level, how = s.get("importance_sampling_level", "token"), s["loss_aggregation"]
    yield (
        level != "token" and how != "seq-mean-token-mean",
        f"a {level}-level ratio is one number per answer; {how} would count long answers more often; use "
        "loss_aggregation=seq-mean-token-mean",
    )
    yield (
        how == "seq-mean-token-sum-norm" and s.get("scale_rewards", "none") != "none",
        "a constant length divisor (Dr.GRPO) with advantages divided by their deviation removes the length bias but keeps the difficulty "
        "bias; set scale_rewards=none, or another loss_aggregation",
    )
    yield (
        s["old_from_sampler"] and s["importance_sampling_correction"] != "none",
        "old_from_sampler already corrects the sampler's mismatch in the clipped ratio; importance_sampling_correction would correct it "
        "twice; remove one of them",
    )
    yield (
        s["beta"] > 0 and s.get("divergence", "sampled") != "sampled",
        f"divergence={s.get('divergence')} is a KL to the teacher already, so beta={s['beta']} would add it again; set beta=0",
    )
    delta, epsilon = s.get("delta"), s.get("epsilon", 0.0)
    upper = 1 + (epsilon if s.get("epsilon_high") is None else s["epsilon_high"])
    yield (
        delta is not None and delta <= upper,
        f"delta {delta} is not above the upper clip at {upper:g} and would clip good answers too; raise it",
    )


def _find_advantage_conflicts(s: Mapping[str, Any], spec: AlgorithmSpec) -> Iterator[tuple[bool, str]]:
    traits, name = spec.traits, spec.name
    yield (
        s["whiten"] == "samples" and "per_token" in traits,
        f"the advantage of {name} differs from token to token, so no single number per answer can be whitened; set whiten=tokens or none",
    )
    yield (
        0 < s["max_new_tokens"] < s["overlong_buffer"],
        f"overlong_buffer is {s['overlong_buffer']}, more than max_new_tokens, {s['max_new_tokens']}; set it lower",
    )
    yield (
        s["dynamic_sampling_rounds"] > 1 and ("skips_zero_variance" not in traits or bool(spec.frozen_models)),
        f"dynamic sampling drops groups whose rewards are all equal; with the advantage of {name} such a group still gives a learning "
        "signal; set dynamic_sampling_rounds=1",
    )
    weighs = bool(s.get("reward_weights"))
    yield (
        weighs and (s["overlong_buffer"] > 0 or (s["beta"] > 0 and s["kl_in"] == "reward")),
        "reward_weights uses the verdict's components, so penalties on the single reward would have no effect: set overlong_buffer=0 and "
        "kl_in=loss",
    )
    yield (
        weighs and s["malformed_call_penalty"] > 0,
        "malformed_call_penalty is subtracted from the single reward, which reward_weights does not use; set it to 0",
    )
    yield (
        s["mask_malformed_calls"] and s["malformed_call_penalty"] > 0,
        "mask_malformed_calls excludes turns with a malformed call from the loss, so malformed_call_penalty has no effect on them; set "
        "only one of them",
    )
    yield (
        s["mask_malformed_calls"] and "values" in traits,
        f"mask_malformed_calls excludes single turns from the loss, but {name} needs every token of an answer for its critic; "
        "set mask_malformed_calls=false",
    )
