"""The descriptions and allowed values of the algorithm settings. The names follow TRL where it has the setting.

The settings of an algorithm, and their defaults, are the parameters of the functions in its file.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rlvr.algorithms.functions.aggregation import AGGREGATIONS
from rlvr.algorithms.functions.branches import BRANCH_CREDITS
from rlvr.algorithms.functions.kl import KL_ESTIMATORS
from rlvr.algorithms.functions.mismatch import CORRECTIONS
from rlvr.algorithms.functions.preferences import PREFERENCE_LOSSES
from rlvr.algorithms.functions.surrogate import RATIO_LEVELS
from rlvr.algorithms.functions.turn_advantages import BASELINES, TURN_COMPARISONS
from rlvr.errors import ConfigError, format_suggestion
from rlvr.hints import explain_plugin_setting

INFINITY = math.inf
OtherSettings = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: its description, its bounds or choices, and when it has no effect.

    >>> SETTINGS["epsilon"].maximum
    1.0
    """

    description: str
    minimum: float = -INFINITY
    maximum: float = INFINITY
    choices: tuple[str, ...] = ()
    find_inactive_reason: Callable[[OtherSettings], str] = lambda rest: ""
    """Returns the reason why the setting has no effect, given the other settings; empty if it has an effect."""


def _inactive_without_beta(rest: OtherSettings) -> str:
    return "" if rest["beta"] > 0 else "beta is 0"


def _inactive_without_scale(rest: OtherSettings) -> str:
    return "scale_rewards is none" if rest.get("scale_rewards") == "none" else ""


def _inactive_without_buffer(rest: OtherSettings) -> str:
    return "" if rest["overlong_buffer"] > 0 else "overlong_buffer is 0"


def _inactive_without_max_length(rest: OtherSettings) -> str:
    how = rest["loss_aggregation"]
    return (
        ""
        if how == "seq-mean-token-sum-norm" or not _inactive_without_buffer(rest)
        else f"loss_aggregation is {how} and overlong_buffer is 0"
    )


def _inactive_without_sync(rest: OtherSettings) -> str:
    return _inactive_without_beta(rest) or ("" if rest["ref_model_sync_steps"] > 0 else "ref_model_sync_steps is 0")


def _inactive_without_correction(rest: OtherSettings) -> str:
    return "importance_sampling_correction is none" if rest["importance_sampling_correction"] == "none" else ""


def _inactive_without_mask(rest: OtherSettings) -> str:
    how = rest["importance_sampling_correction"]
    return "" if how.endswith("mask") else f"importance_sampling_correction is {how}, and only the masks have a lower bound"


def _inactive_with_ipo(rest: OtherSettings) -> str:
    return "preference_loss is ipo" if rest.get("preference_loss") == "ipo" else ""


SETTINGS: Mapping[str, Setting] = {
    # advantages
    "advantage": Setting("Take the advantage of another algorithm, by its name, or your own function: path/to/file.py:function, in Python also a function."),
    "scale_rewards": Setting("Divide by the standard deviation of the rewards: of the group, of the batch, or not at all.",
                             choices=("none", "group", "batch")),
    "advantage_epsilon": Setting("Added to the standard deviation before dividing.", 0.0, 1.0, find_inactive_reason=_inactive_without_scale),
    "whiten": Setting("Shift and scale the finished advantages over the batch: over tokens, over samples (answers), or not.",
                      choices=("none", "tokens", "samples")),
    "reward_weights": Setting("The weight of each component of the verdict. Empty: use the score as the only component."),
    "gamma": Setting("The discount per token.", 0.0, 1.0),
    "lam": Setting("The lambda of GAE.", 0.0, 1.0),
    "compare_turns": Setting("Which turns of a group are compared: with the same index, after the same ids (state), or after the same text "
                             "of the environment (observation).", choices=TURN_COMPARISONS),
    "turn_discount": Setting("The discount per turn. Tokens are not discounted.", 0.0, 1.0),
    "turn_weight": Setting("The weight of the turn's advantage; that of the whole answer has weight 1.", 0.0),
    "baseline": Setting("What is subtracted from a return: the mean of those it is compared with, the mean of the others, or nothing.",
                        choices=BASELINES),
    "malformed_call_penalty": Setting("Subtracted from the reward at the end of each turn with a tool call that could not be read.", 0.0),
    "overlong_buffer": Setting("DAPO's soft penalty: over this many tokens before the limit the reward falls linearly, by overlong_penalty "
                               "at the limit. 0: no penalty.", 0),
    "overlong_penalty": Setting("The maximum penalty. Half the range of the scores, as in the paper, so that a right answer at the limit "
                                "is worth more than a wrong one.", 0.0, find_inactive_reason=_inactive_without_buffer),
    # the loss of the policy
    "loss": Setting("Take the loss of another algorithm, by its name, or your own function: path/to/file.py:function, in Python also a function."),
    "importance_sampling_level": Setting("One ratio for each token, or one for the answer: the tokens' geometric mean (sequence) or their "
                                         "product (completion).", choices=RATIO_LEVELS),
    "epsilon": Setting("How far the ratio may fall below 1 before it is clipped.", 0.0, 1.0),
    "epsilon_high": Setting("How far the ratio may rise above 1 before it is clipped. None: the same as `epsilon`.", 0.0),
    "delta": Setting("The dual clip: bounds the ratio where the advantage is negative.", 1.0),
    "ratio_max": Setting("The largest weight of a token, as an absolute ratio, not as a distance from 1.", 1.0),
    "sapo_temperature_pos": Setting("How fast the gate closes where the advantage is positive.", 1e-6),
    "sapo_temperature_neg": Setting("How fast the gate closes where the advantage is negative.", 1e-6),
    "loss_aggregation": Setting("How token losses are combined: mean over answers of the mean over tokens, one mean over all tokens, "
                                "and so on.", choices=AGGREGATIONS),
    "max_new_tokens": Setting(
        "The limit on an answer, for `seq-mean-token-sum-norm` and `overlong_buffer`. 0: the run's limit.", 0,
        find_inactive_reason=_inactive_without_max_length),
    "mask_truncated_completions": Setting("Exclude answers that reached the limit from the loss."),
    "mask_malformed_calls": Setting("Exclude the turns with a tool call that could not be read from the loss; the other turns of the "
                                    "answer train."),
    "branch_credit": Setting("Where an agent's conversation has branches: each has the whole advantage (all), they share it (even), or only "
                             "the last one is trained (last).", choices=BRANCH_CREDITS),
    "dynamic_sampling_rounds": Setting("Groups whose rewards are all equal give no gradient; others are sampled instead, in up to this "
                                       "many rounds per step.", 1),
    # KL and entropy
    "beta": Setting("The weight of the KL to the reference, or of the reference in a preference loss. 0: no reference model.", 0.0),
    "kl_estimator": Setting("The estimator of a token's KL.", choices=KL_ESTIMATORS, find_inactive_reason=_inactive_without_beta),
    "kl_in": Setting("Whether the KL is a term of the loss or is subtracted from the reward.", choices=("loss", "reward"),
                     find_inactive_reason=_inactive_without_beta),
    "kl_target": Setting("If set, beta adapts to reach this KL: the mean over tokens of k3.", 1e-12, find_inactive_reason=_inactive_without_beta),
    "kl_horizon": Setting("The number of episodes over which beta adapts.", 1, find_inactive_reason=_inactive_without_beta),
    "ref_model_sync_steps": Setting("Move the reference toward the policy every so many steps. 0: never.", 0, find_inactive_reason=_inactive_without_beta),
    "ref_model_mixup_alpha": Setting("How far to move the reference: 1 replaces it by the policy.", 0.0, 1.0,
                                     find_inactive_reason=_inactive_without_sync),
    "entropy_coef": Setting("The weight of the entropy bonus."),
    # critic
    "vf_coef": Setting("The weight of the critic's loss.", 0.0),
    "epsilon_value": Setting("How far a value may move from the old one before its loss is clipped. None: no clipping.", 0.0),
    "value_pretraining_steps": Setting("The number of first steps that train only the critic, on its full loss.", 0),
    # reuse and mismatch
    "num_iterations": Setting("How many times each batch is trained on.", 1),
    "old_from_sampler": Setting("Use the sampler's log-probabilities as the old ones (bypass): no extra forward pass; the clip corrects "
                                "the mismatch."),
    "importance_sampling_correction": Setting("Weight tokens by the trainer's probability over the sampler's, truncated or masked at the "
                                              "cap; `none`: no correction.", choices=CORRECTIONS),
    "importance_sampling_cap": Setting("The largest weight of the importance sampling correction.", 1.0, find_inactive_reason=_inactive_without_correction),
    "importance_sampling_floor": Setting("For the masks: the smallest weight of the importance sampling correction.", 0.0, 1.0,
                                         find_inactive_reason=_inactive_without_mask),
    # single tokens
    "entropy_share": Setting("The share of the tokens that are trained on: those where the policy is least certain.", 0.0, 1.0),
    "entropy_weight": Setting("The share of the reward that is divided by entropy.", 0.0, 1.0),
    "success_threshold": Setting("An answer with at least this score is right."),
    "clip_cov_ratio": Setting("The share of the tokens that get no gradient.", 0.0, 1.0),
    "clip_cov_lb": Setting("Only tokens with a covariance above this are candidates."),
    "clip_cov_ub": Setting("Only tokens with a covariance below this are candidates."),
    "kl_cov_ratio": Setting("The share of the tokens that are penalized for moving away from their old probability.", 0.0, 1.0),
    "kl_cov_coef": Setting("The weight of the penalty on these tokens.", 0.0),
    "dppo_mask_low": Setting("How far the probability of a token with a negative advantage may fall.", 0.0, 1.0),
    "dppo_mask_high": Setting("How far the probability of a token with a positive advantage may rise.", 0.0, 1.0),
    # teacher
    "teacher_weight": Setting("The weight of the teacher's term; the verifier's advantage has weight 1.", 0.0),
    "divergence": Setting("How the policy is compared with the teacher: at the sampled token, as a reward, or over the whole vocabulary, "
                          "as a term of the loss.", choices=("sampled", "reverse_kl", "forward_kl", "jsd")),
    # preferences and imitation
    "preference_loss": Setting("Which loss on the pair of a better and a worse answer.", choices=PREFERENCE_LOSSES),
    "label_smoothing": Setting("The assumed fraction of pairs that the verifier ranks wrongly.", 0.0, 0.5,
                               find_inactive_reason=_inactive_with_ipo),
    "pairs_per_group": Setting("The number of pairs per group: best with worst answer, second best with second worst, and so on.", 1),
    "length_normalised": Setting("Use the mean log-probability over the tokens of an answer instead of the sum."),
    "desirable_threshold": Setting("An answer with at least this score is desirable."),
    "desirable_weight": Setting("The weight of a desirable answer.", 0.0),
    "undesirable_weight": Setting("The weight of an undesirable answer.", 0.0),
    "score_threshold": Setting("The best answer of a group is trained on if its score is above this."),
}  # fmt: skip

UNKNOWN_SETTING = Setting("")
"""The entry of a setting of a user's function."""

SETTING_REPLACEMENTS: Mapping[str, str] = {
    "returns": "choose the advantage of another algorithm: advantage=grpo_turns, advantage=gigpo or advantage=reinforce_pp (to go)",
    "baseline": "choose the advantage of another algorithm, such as advantage=rloo, or an algorithm by its name",
    "loss_type": "choose the loss of another algorithm, such as loss=cispo, loss=sapo or loss=reinforce",
    "normalize_then_sum": "choose the advantage of gdpo: advantage=gdpo",
}
"""Settings that an algorithm may lack, and their replacements."""
TRL_LOSS_ALGORITHMS = ("grpo", "dapo", "dr_grpo")
"""TRL's values of `loss_type` that are algorithms here, by the same names."""
TRL_LOSS_TYPES = (*TRL_LOSS_ALGORITHMS, "bnpo", "luspo")


def format_unknown_settings(algorithm: str, unknown: Mapping[str, Any], known: Mapping[str, Any]) -> str:
    """Format the error message for settings that an algorithm does not have, given with their values."""
    idle = [name for name in unknown if name in SETTINGS and name not in SETTING_REPLACEMENTS]
    foreign = [f"{name!r}; {_explain_unknown_setting(name, value, known)}" for name, value in unknown.items() if name not in idle]
    without_effect = [
        f"{name}={unknown[name]!r} has no effect in {algorithm!r}, which has no such setting; remove it. Allowed: {', '.join(known)}"
        for name in idle
    ]
    return "; and ".join([*([f"algorithm {algorithm!r} has no setting {'; and no '.join(foreign)}"] if foreign else []), *without_effect])


def _explain_unknown_setting(name: str, value: Any, known: Mapping[str, Any]) -> str:
    if name == "loss_type" and value in TRL_LOSS_TYPES:
        made = f", rlvr.make_algorithm({value!r})" if value in TRL_LOSS_ALGORITHMS else ""
        return f"{value!r} names a whole recipe; choose it by algorithm name{made}, or set loss_aggregation ({', '.join(AGGREGATIONS)})"
    if name in SETTING_REPLACEMENTS:
        return SETTING_REPLACEMENTS[name]
    return explain_plugin_setting("algorithm", name, known) or format_suggestion(name, known)


def coerce_setting(name: str, value: Any, kind: str) -> Any:
    """Convert a user's value of a setting to its declared type: YAML reads 3e-4 as text, and 0 as an integer."""
    if not kind or (value is None and "None" in kind):
        return value
    try:
        if value is None:
            raise TypeError
        if kind.startswith("float") and not isinstance(value, bool) and math.isfinite(float(value)):
            return float(value)
        if kind == "int" and not isinstance(value, bool) and float(value) == int(value):
            return int(value)
        if "Mapping" in kind and isinstance(value, Mapping) and value:
            return {str(key): float(weight) for key, weight in value.items()}
    except (TypeError, ValueError, OverflowError):
        pass
    if (kind == "bool" and isinstance(value, bool)) or (kind == "str" and isinstance(value, str)):
        return value
    if kind == "str" and (choices := SETTINGS.get(name, UNKNOWN_SETTING).choices):
        raise ConfigError(f"{name} is {value!r}; {format_suggestion(str(value), choices)}")
    if kind in ("float", "float | None", "int", "bool", "str") or "Mapping" in kind:
        raise ConfigError(f"{name} is {value!r}; it must be of type {kind}")
    return value


def check_setting_value(name: str, value: Any) -> None:
    """Raise an error for a value outside the bounds or choices of a setting."""
    setting = SETTINGS.get(name, UNKNOWN_SETTING)
    if setting.choices and value not in setting.choices:
        raise ConfigError(f"{name} is {value!r}; {format_suggestion(str(value), setting.choices)}")
    if isinstance(value, int | float) and not setting.minimum <= value <= setting.maximum:
        raise ConfigError(f"{name} is {value}; it must be from {setting.minimum:g} to {setting.maximum:g}")


def find_inactive_settings(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings that have no effect with the current values of the others, each with the reason."""
    reasons = {name: SETTINGS.get(name, UNKNOWN_SETTING).find_inactive_reason(settings) for name in settings}
    return {name: reason for name, reason in reasons.items() if reason}
