"""PolicyGradient: the shared base of the policy-gradient algorithms. Their advantages and losses are in their own files.

    compute_advantages    rewards minus penalties  ->  the file's `advantage`  ->  one number per token
    compute_token_losses  the file's `loss`  ->  times the mismatch correction, plus KL, entropy and critic terms

Torch is not imported: only methods of the given tensors are used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from rlvr.algorithms.base.algorithm_spec import DECLARABLE_INPUTS, AlgorithmSpec
from rlvr.algorithms.base.setting_checks import check_setting_combinations
from rlvr.algorithms.base.settings import find_inactive_settings
from rlvr.algorithms.functions import advantages as credit
from rlvr.algorithms.functions import aggregation as aggregate
from rlvr.algorithms.functions import branches, kl, mismatch
from rlvr.algorithms.functions import loss_terms as terms
from rlvr.algorithms.functions import turn_advantages as turns
from rlvr.algorithms.functions.advantages import AllReduce, single_process_all_reduce
from rlvr.algorithms.functions.answer_batch import AnswerBatch, Groups, Numbers, TokenMasks, expand_to_tokens, whiten_token_advantages
from rlvr.algorithms.functions.surrogate import SurrogateLoss
from rlvr.contracts.algorithm import (
    EMPTY_TOKEN_STATS,
    TRAITS_BY_NAME,
    TRAITS_BY_SETTING,
    Algorithm,
    AlgorithmTraits,
    LossInputs,
    NestedValues,
    SettingValue,
    TokenStats,
)
from rlvr.episode import Episode
from rlvr.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor


def _check_advantages(found: Any, groups: Groups, shown_name: str) -> None:
    """Raise ConfigError unless there is a number, or one for each token, for every answer of every group."""
    try:
        fits = [len(row) for row in found] == [len(group) for group in groups]
        values = [np.asarray(value, dtype=float) for row in found for value in row] if fits else []
    except (TypeError, ValueError):
        fits, values = False, []
    episodes = [e for group in groups for e in group]
    if not fits or any(value.shape not in ((), (len(e.tokens),)) for value, e in zip(values, episodes, strict=True)):
        raise ConfigError(
            f"the advantage {shown_name} returned {repr(found)[:80]} for {len(groups)} groups; it must return a list with one list for each "
            "group, which has a number for each of its answers, or with per_token one for each token of an answer"
        )


def _check_finite(found: Any, answers: AnswerBatch, shown_name: str) -> None:
    """Raise ConfigError if a user's advantage makes numbers that are not finite from rewards that are: a policy whose weights are NaN gives
    such rewards too (with a KL penalty), and its step is then skipped and counted.
    """
    rewards = [value for row in answers.rewards for value in row if value is not None]
    values = [np.asarray(value, dtype=float) for row in found for value in row]  # None becomes NaN
    if np.isfinite(rewards).all() and not all(np.isfinite(value).all() for value in values):
        raise ConfigError(
            f"the advantage {shown_name} returned {repr(found)[:80]}, in which a number is not finite; return 0.0 for an answer that has no "
            "score (its reward is None), and look for a division by 0"
        )


def _check_loss(found: Any, inputs: LossInputs, shown_name: str) -> None:
    """Raise ConfigError unless there is one number for each token: the mean of a batch would be added once for each token, in silence."""
    shape = getattr(found, "shape", None)
    if shape != inputs.logprobs.shape:
        got = repr(found)[:80] if shape is None else f"a tensor of shape {tuple(shape)}"
        raise ConfigError(
            f"the loss {shown_name} returned {got} for {len(inputs.logprobs)} tokens; it must return a tensor with the loss of each token, such as "
            "-x.advantages * x.logprobs; algorithm.loss_aggregation says how they become one number"
        )


class PolicyGradient(Algorithm):
    """An algorithm with an advantage for each token and a loss made of ratio and advantage.

    >>> from rlvr.algorithms.grpo import make
    >>> make(scale_rewards="none").traits.needs_reference
    False
    """

    common_settings: Mapping[str, tuple[Any, str]] = {
        "whiten": ("none", "str"), "malformed_call_penalty": (0.0, "float"), "overlong_buffer": (0, "int"),
        "overlong_penalty": (0.5, "float"), "loss_aggregation": ("seq-mean-token-mean", "str"), "max_new_tokens": (0, "int"),
        "mask_truncated_completions": (False, "bool"), "mask_malformed_calls": (False, "bool"), "branch_credit": ("all", "str"),
        "beta": (0.0, "float"), "kl_estimator": ("k3", "str"), "kl_in": ("loss", "str"), "kl_target": (None, "float | None"),
        "kl_horizon": (10_000, "int"), "ref_model_sync_steps": (0, "int"), "ref_model_mixup_alpha": (0.6, "float"),
        "entropy_coef": (0.0, "float"), "importance_sampling_correction": ("none", "str"), "importance_sampling_cap": (2.0, "float"),
        "importance_sampling_floor": (0.5, "float"), "vf_coef": (0.1, "float"), "epsilon_value": (0.2, "float | None"),
        "value_pretraining_steps": (0, "int"),
        **{field.metadata["setting"]: (field.default, str(field.type)) for field in TRAITS_BY_SETTING},
    }  # fmt: skip
    """The settings of all policy-gradient algorithms: default and type. Those that are traits stand in `AlgorithmTraits`."""
    critic_settings = ("vf_coef", "epsilon_value", "value_pretraining_steps")
    """The common settings that only apply to algorithms with a critic."""

    def __init__(self, spec: AlgorithmSpec, settings: Mapping[str, Any]) -> None:
        check_setting_combinations(settings, spec)
        self.name, self.spec, self.settings = spec.name, spec, SimpleNamespace(**settings)
        self.advantage, self.loss = spec.bind_settings("advantage", settings), spec.bind_settings("loss", settings)
        s = self.settings
        self.traits = _build_traits(s, spec)
        self.has_penalties = bool(s.malformed_call_penalty or s.overlong_buffer)
        self.is_policy_loss_only = not (self.traits.needs_reference or self.traits.needs_entropy or self.traits.needs_value)
        """True if the loss has no KL, entropy or critic term."""
        self.controller = kl.KLController(
            s.beta, target=s.kl_target, horizon=s.kl_horizon, sync_every=s.ref_model_sync_steps, mixup=s.ref_model_mixup_alpha
        )
        self.critic_warmup_steps = s.value_pretraining_steps if self.traits.needs_value else 0
        self.is_critic_warmup = self.critic_warmup_steps > 0
        self.max_new_tokens = s.max_new_tokens
        """The limit on the completion length; if it is not set, the run's limit after `set_completion_limit`."""
        self._running_mean_reward, self._running_weight = 0.0, 0.0

    @property
    def beta(self) -> float:
        """The current KL coefficient."""
        return self.controller.beta

    def describe_settings(self) -> list[SettingValue]:
        """Return every active setting."""
        settings = vars(self.settings)
        unused = find_inactive_settings(settings)
        return [SettingValue(key, value, value != self.spec.default_settings[key]) for key, value in settings.items() if key not in unused]

    def set_completion_limit(self, *, max_new_tokens: int) -> None:
        """Use the run's limit on the completion length, if the settings have none."""
        self.max_new_tokens = self.settings.max_new_tokens or max_new_tokens
        if self.settings.overlong_buffer or self.settings.loss_aggregation == "seq-mean-token-sum-norm":
            self._check_max_length(self.max_new_tokens)

    def select_groups(self, groups: Sequence[list[Episode]]) -> tuple[list[list[Episode]], dict[str, list[list[Episode]]]]:
        """Return the groups to train on, and the others by reason: the file's `select_groups`, or all."""
        if "select_groups" not in self.spec.components:
            return super().select_groups(groups)
        kept, others = self.spec.bind_settings("select_groups", vars(self.settings))(groups)
        return list(kept), dict(others)

    # ---- credit ---------------------------------------------------------------------------------------------------

    def compute_advantages(
        self, groups: Groups, token_stats: TokenStats = EMPTY_TOKEN_STATS, *, all_reduce: AllReduce = single_process_all_reduce
    ) -> NestedValues:
        """Compute the advantage of every token; 0.0 for non-policy tokens and for episodes without a score."""
        if self.traits.needs_value and (forked := next((e for group in groups for e in group if e.segments), None)) is not None:
            raise ConfigError(
                f"the conversation of {forked.task_id!r} has {len(forked.branches)} branches, and the returns of a critic are those of one line "
                f"of tokens; use an algorithm without a critic, such as grpo or rloo, instead of {self.name}"
            )
        less = self.has_penalties or token_stats.penalties is not None
        earned = self._subtract_penalties(groups, token_stats.penalties) if less else [[e.rewards for e in group] for group in groups]
        counted = [[self.is_in_advantages(e) for e in group] for group in groups]
        answers = AnswerBatch(groups, earned, counted, token_stats, all_reduce, self._running_mean_reward)
        found = self.advantage(answers)
        own = getattr(self.settings, "advantage", "")
        _check_advantages(found, groups, own or "of this algorithm")
        if own:
            _check_finite(found, answers, own)
        self.metrics, self.returns = answers.metrics, answers.value_targets
        masks = self.settings.mask_malformed_calls or self.settings.branch_credit == "last"
        kept = [[self.loss_mask(e) for e in group] for group in groups] if masks else answers.action_masks
        spread = expand_to_tokens(found, kept) if self.settings.whiten == "none" else self._whiten(answers, found, kept)
        return branches.divide_by_branches(spread, groups) if self.settings.branch_credit == "even" else spread

    def _whiten(self, answers: AnswerBatch, advantages: Any, token_masks: TokenMasks) -> NestedValues:
        """Whiten the advantages over the answers or the tokens of all processes."""
        if self.settings.whiten == "samples":
            return expand_to_tokens(credit.whiten_answer_advantages(answers.rewards, advantages, answers.all_reduce), token_masks)
        trained = [
            [mask if self.is_in_loss(e) else np.zeros(len(e.tokens), dtype=bool) for e, mask in zip(group, masks, strict=True)]
            for group, masks in zip(answers.groups, token_masks, strict=True)
        ]
        return whiten_token_advantages(expand_to_tokens(advantages, token_masks), trained, answers.all_reduce)

    def _subtract_penalties(self, groups: Groups, kl_penalties: NestedValues | None) -> list[list[Numbers]]:
        """Subtract the KL and the penalties from the reward of each token."""
        if self.settings.overlong_buffer:
            self._check_max_length(self.max_new_tokens)
        kl_penalties = kl_penalties or [[None for _ in group] for group in groups]
        return [
            [self._subtract_answer_penalties(e, own) for e, own in zip(group, owns, strict=True)]
            for group, owns in zip(groups, kl_penalties, strict=True)
        ]

    def _subtract_answer_penalties(self, episode: Episode, kl_penalties: Sequence[float] | None) -> Numbers:
        """Subtract the KL, the malformed-call penalty and the length penalty from the rewards of one answer."""
        s, row = self.settings, np.array(episode.rewards, dtype=np.float64)
        if kl_penalties is not None:
            if len(kl_penalties) != len(row):
                raise ValueError(f"there are {len(kl_penalties)} penalties for {len(row)} tokens")
            row -= kl_penalties
        if s.malformed_call_penalty:
            for _, end in episode.malformed_turn_spans:
                row[end - 1] -= s.malformed_call_penalty
        if s.overlong_buffer and episode.num_policy_tokens:
            last = len(row) - 1 - episode.action_mask[::-1].index(True)
            row[last] += s.overlong_penalty * credit.compute_overlong_penalty(
                episode.num_policy_tokens, self.max_new_tokens, s.overlong_buffer
            )
        return row

    def is_in_advantages(self, episode: Episode) -> bool:
        """Return whether an episode's reward is used for advantages: it has a score, and is not only a baseline."""
        return (
            episode.is_scored
            and not (self.traits.needs_greedy_sample and episode.meta.get("greedy"))
            and not episode.meta.get("mismatched")
        )

    def is_in_loss(self, episode: Episode) -> bool:
        """Return whether an episode is trained on: overlong filtering masks a truncated answer, but keeps its reward."""
        return self.is_in_advantages(episode) and not (self.settings.mask_truncated_completions and episode.is_cut_by_token_or_time_limit)

    def loss_mask(self, episode: Episode) -> Sequence[bool]:
        """Return the tokens in the loss: the policy's tokens, without turns with a malformed call and earlier branches if these are masked."""
        mask = turns.mask_out_malformed_turns(episode) if self.settings.mask_malformed_calls else episode.action_mask
        return branches.mask_out_earlier_branches(episode, mask) if self.settings.branch_credit == "last" else mask

    # ---- loss -----------------------------------------------------------------------------------------------------

    def compute_row_weights(
        self, lengths: Sequence[int], group_ids: Sequence[str], *, max_length: int = 0, all_reduce: AllReduce = single_process_all_reduce
    ) -> list[float]:
        """Compute the weight of each row's tokens over one optimizer step."""
        how, cap = self.settings.loss_aggregation, self.settings.max_new_tokens or max_length
        if how == "seq-mean-token-sum-norm":
            self._check_max_length(cap)
        return aggregate.compute_row_weights(lengths, group_ids, how, max_length=cap, all_reduce=all_reduce)

    def _check_max_length(self, cap: int) -> None:
        if not cap:
            raise ConfigError("seq-mean-token-sum-norm and overlong_buffer need a limit on the answer length; set max_new_tokens")
        if (buffer := self.settings.overlong_buffer) > cap:
            raise ConfigError(f"overlong_buffer is {buffer}, more than the longest allowed answer, {cap}; set it lower")

    def compute_token_batch_stats(self, columns: Mapping[str, Tensor], all_reduce: AllReduce = single_process_all_reduce) -> Tensor:
        """Compute one value per token from all tokens of an optimizer step, with the function that the algorithm's loss declares."""
        own: Callable[..., Tensor] = vars(self.spec.components["loss"])["compute_token_batch_stats"]
        settings = vars(self.settings)
        return own(columns, all_reduce, **{key: settings[key] for key in self.spec.get_component_defaults_and_types("loss")})

    def compute_token_losses(self, inputs: LossInputs) -> tuple[Tensor, dict[str, Tensor]]:
        """Compute the loss of each token: the sum of its policy, KL, entropy and value terms."""
        policy = self.loss(inputs)
        loss: Tensor = policy.loss if isinstance(policy, SurrogateLoss) else policy
        _check_loss(loss, inputs, getattr(self.settings, "loss", "") or "of this algorithm")
        if self.settings.importance_sampling_correction != "none":
            loss = loss * self._compute_mismatch_correction(inputs)
        metrics = {"policy_loss": loss.detach()}
        if isinstance(policy, SurrogateLoss):
            sides = {"low": policy.clipped_low, "high": policy.clipped_high, "region": policy.clipped_low + policy.clipped_high}
            metrics |= {f"clip_ratio/{side}_mean": clipped.detach() for side, clipped in sides.items()}
        return (loss if self.is_policy_loss_only else self._add_loss_terms(inputs, loss, metrics)), metrics

    def _compute_mismatch_correction(self, x: LossInputs) -> Tensor:
        """Compute the weight of each token that corrects the mismatch between sampler and trainer."""
        s = self.settings
        cap, floor = s.importance_sampling_cap, s.importance_sampling_floor
        return mismatch.compute_mismatch_correction(
            x.old_logprobs, x.rollout_logprobs, x.rows, x.num_rows, s.importance_sampling_correction, max_ratio=cap, min_ratio=floor
        )

    def _add_loss_terms(self, x: LossInputs, loss: Tensor, metrics: dict[str, Tensor]) -> Tensor:
        """Add the KL, entropy and critic terms to the policy loss; each is logged if its inputs are available."""
        s = self.settings
        if x.reference_logprobs is not None:
            metrics["kl"] = kl.estimate_kl(x.logprobs.detach(), x.reference_logprobs, "k3")
            if s.kl_in == "loss" and self.beta:
                loss = loss + terms.compute_kl_term(x, self.beta, s.kl_estimator)
        if x.entropy is not None:
            metrics["entropy"] = x.entropy.detach()
            loss = loss - s.entropy_coef * x.entropy if s.entropy_coef else loss
        if x.values is not None and x.old_values is not None and x.returns is not None:
            error = terms.compute_value_loss(x.values, x.old_values, x.returns, s.epsilon_value)
            metrics["value_loss"] = error.detach()
            # during critic warmup, 0.0 * loss gives every weight a gradient in every process
            loss = error + 0.0 * loss if self.is_critic_warmup else loss + s.vf_coef * error
        return loss

    # ---- state across steps -----------------------------------------------------------------------------------------

    def on_step_end(self, rewards: Sequence[float], kl_value: float | None, all_reduce: AllReduce = single_process_all_reduce) -> None:
        """Update the running mean reward and the adaptive beta after a step."""
        added, count = all_reduce([sum(rewards), float(len(rewards))])
        if count:
            self._running_weight = 0.9 * self._running_weight + 0.1
            self._running_mean_reward += (added / count - self._running_mean_reward) * 0.1 / self._running_weight
        self.controller.update(kl_value, round(count))
        self.is_critic_warmup = self.controller.num_steps < self.critic_warmup_steps

    def get_reference_update_fraction(self) -> float:
        """Return how far to move the reference toward the policy after this step."""
        return self.controller.get_reference_update_fraction()

    def state_dict(self) -> dict[str, Any]:
        """Return the running mean reward, the current beta, and the number of steps."""
        return {
            "beta": self.controller.beta,
            "running": self._running_mean_reward,
            "seen": self._running_weight,
            "steps": self.controller.num_steps,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state from `state_dict`."""
        self.controller.beta, self._running_mean_reward, self._running_weight = (
            float(state["beta"]),
            float(state["running"]),
            float(state["seen"]),
        )
        self.controller.num_steps = int(state["steps"])
        self.is_critic_warmup = self.controller.num_steps < self.critic_warmup_steps


def _build_traits(settings: SimpleNamespace, spec: AlgorithmSpec) -> AlgorithmTraits:
    """Decide what the algorithm needs, from its components and its settings."""
    s, traits = settings, spec.traits
    divergence = getattr(s, "divergence", "sampled")
    needs_value, needs_entropy, has_models = "values" in traits, s.entropy_coef != 0, bool(spec.frozen_models)
    needs_reference = s.beta > 0 or "reference_logprobs" in traits or "reference" in spec.frozen_models
    penalties = {"penalties"} if s.beta > 0 and s.kl_in == "reward" else set[str]()
    flags, loss = {name: name in traits for name in TRAITS_BY_NAME}, spec.components["loss"]
    flags["skips_zero_variance"] &= not has_models
    flags["backprop_zero_advantage"] |= has_models or needs_value or needs_entropy or (s.beta > 0 and s.kl_in == "loss")
    every_setting = tuple(spec.get_component_defaults_and_types("loss")) if "noop_on_policy" in traits else ()
    return AlgorithmTraits(
        **flags,
        **{field.name: getattr(s, field.metadata["setting"]) for field in TRAITS_BY_SETTING},
        needs_value=needs_value,
        divergence_kind="" if divergence == "sampled" else divergence,
        needs_reference=needs_reference,
        frozen_models=spec.frozen_models,
        syncs_reference=needs_reference and s.ref_model_sync_steps > 0,
        needs_entropy=needs_entropy,
        needs_batch_stats=getattr(loss, "compute_token_batch_stats", None) is not None,
        token_inputs=traits & DECLARABLE_INPUTS | penalties,
        off_policy_defaults={} if s.old_from_sampler else {"importance_sampling_correction": "token_truncate"},
        noop_on_policy=every_setting or getattr(loss, "noop_on_policy", ()),
    )


def define_policy_gradient(
    name: str, description: str | None, advantage: Any, loss: Any, *, select_groups: Any = None, **defaults: Any
) -> AlgorithmSpec:
    """Define a policy-gradient algorithm: its `__name__`, docstring, advantage, loss, and changed defaults. `select_groups` chooses the
    groups of a step, as `Algorithm.select_groups`; its keyword parameters are settings, too.

    >>> define_policy_gradient("mine", "An example.", lambda answers: answers.rewards, lambda x: -x.advantages * x.logprobs).default_settings["beta"]
    0.0
    """
    components = {"advantage": advantage, "loss": loss} | ({"select_groups": select_groups} if select_groups is not None else {})
    return AlgorithmSpec(PolicyGradient, name, description, components, defaults)
