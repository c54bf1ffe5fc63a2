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

from rlvr.algos.base.checks import check
from rlvr.algos.base.recipe import Recipe
from rlvr.algos.base.settings import idle
from rlvr.algos.parts import aggregate, credit, kl, mismatch, terms, turns
from rlvr.algos.parts.answers import Answers, Groups, Kept, Numbers, per_token, white_tokens
from rlvr.algos.parts.credit import Total, alone
from rlvr.algos.parts.surrogate import Surrogate
from rlvr.contracts.algorithm import NO_SCORES, Algorithm, LossInputs, Nested, Scores
from rlvr.episode import Episode
from rlvr.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor


class PolicyGradient(Algorithm):
    """An algorithm with an advantage for each token and a loss made of ratio and advantage.

    >>> from rlvr.algos.grpo import make
    >>> make(scale_rewards="none").needs_reference
    False
    """

    common: Mapping[str, tuple[Any, str]] = {
        "whiten": ("none", "str"), "malformed_call_penalty": (0.0, "float"), "overlong_buffer": (0, "int"),
        "overlong_penalty": (0.5, "float"), "loss_aggregation": ("seq-mean-token-mean", "str"), "max_completion_length": (0, "int"),
        "mask_truncated_completions": (False, "bool"), "mask_malformed_calls": (False, "bool"), "dynamic_sampling_rounds": (1, "int"),
        "beta": (0.0, "float"), "kl_estimator": ("k3", "str"), "kl_in": ("loss", "str"), "kl_target": (None, "float | None"),
        "kl_horizon": (10_000, "int"), "ref_model_sync_steps": (0, "int"), "ref_model_mixup_alpha": (0.6, "float"),
        "entropy_coef": (0.0, "float"), "num_iterations": (1, "int"), "old_from_sampler": (False, "bool"),
        "importance_sampling_correction": ("none", "str"), "importance_sampling_cap": (2.0, "float"),
        "importance_sampling_floor": (0.5, "float"), "vf_coef": (0.1, "float"), "epsilon_value": (0.2, "float | None"),
        "value_pretraining_steps": (0, "int"),
    }  # fmt: skip
    """The settings of all policy-gradient algorithms: default and type."""
    of_critic = ("vf_coef", "epsilon_value", "value_pretraining_steps")
    """The common settings that only apply to algorithms with a critic."""

    def __init__(self, recipe: Recipe, settings: Mapping[str, Any]) -> None:
        check(settings, recipe.traits, recipe.name)
        self.name, self.recipe, self.settings = recipe.name, recipe, SimpleNamespace(**settings)
        self.advantage, self.loss = recipe.bound("advantage", settings), recipe.bound("loss", settings)
        s, traits = self.settings, recipe.traits
        self.num_iterations, self.sampling_rounds = s.num_iterations, s.dynamic_sampling_rounds
        self.needs_company, self.silent_if_equal = "company" in traits, "silent" in traits and "teacher" not in traits
        self.needs_turns, self.needs_greedy, self.needs_value = (need in traits for need in ("turns", "greedy", "values"))
        self.needs_teacher, divergence = "teacher" in traits, getattr(s, "divergence", "sampled")
        self.needs_divergence = "" if divergence == "sampled" else divergence
        self.needs_reference = s.beta > 0 or "reference" in traits or self.needs_teacher
        self.refreshes = self.needs_reference and s.ref_model_sync_steps > 0
        self.needs_entropy, self.needs_context = s.entropy_coef != 0, "context" in traits
        self.credit_needs = traits & {"old", "reference", "entropy", "values"}
        if s.beta > 0 and s.kl_in == "reward":
            self.credit_needs |= {"penalties"}
        self.trains_flat = self.needs_teacher or self.needs_value or self.needs_entropy or (s.beta > 0 and s.kl_in == "loss")
        self.punishes = bool(s.malformed_call_penalty or s.overlong_buffer)
        self.plain = not (self.needs_reference or self.needs_entropy or self.needs_value)
        """True if the loss has no KL, entropy or critic term."""
        self.bypass, self.prepares = s.old_from_sampler, getattr(recipe.parts["loss"], "prepare", None) is not None
        if not self.bypass:
            self.when_stale = {"importance_sampling_correction": "token_truncate"}
        if "ratio" in traits:
            self.idle_on_policy = tuple(recipe.own("loss"))
        self.controller = kl.Controller(
            s.beta, target=s.kl_target, horizon=s.kl_horizon, sync_every=s.ref_model_sync_steps, mixup=s.ref_model_mixup_alpha
        )
        self.pretraining = s.value_pretraining_steps if self.needs_value else 0
        self.critic_alone = self.pretraining > 0
        self.cap = s.max_completion_length
        """The limit on the completion length; if it is not set, the run's limit after `configure`."""
        self._running, self._seen = 0.0, 0.0

    @property
    def beta(self) -> float:
        """The current KL coefficient."""
        return self.controller.beta

    def describe(self) -> list[tuple[str, Any, bool]]:
        """Return every active setting: its name, its value, and whether it differs from the default."""
        settings = vars(self.settings)
        unused = idle(settings)
        return [(key, value, value != self.recipe.usual[key]) for key, value in settings.items() if key not in unused]

    def configure(self, *, max_completion_length: int) -> None:
        """Use the run's limit on the completion length, if the settings have none."""
        self.cap = self.settings.max_completion_length or max_completion_length
        if self.settings.overlong_buffer or self.settings.loss_aggregation == "seq-mean-token-sum-norm":
            self._check_cap(self.cap)

    # ---- credit ---------------------------------------------------------------------------------------------------

    def credit(self, groups: Groups, scores: Scores = NO_SCORES, *, total: Total = alone) -> Nested:
        """Compute the advantage of every token; 0.0 for non-policy tokens and for episodes without a score."""
        less = self.punishes or scores.penalties is not None
        earned = self._less(groups, scores.penalties) if less else [[e.rewards for e in group] for group in groups]
        counted = [[self.counts(e) for e in group] for group in groups]
        answers = Answers(groups, earned, counted, scores, total, self._running)
        found = self.advantage(answers)
        self.figures, self.returns = answers.figures, answers.targets
        kept = answers.acted if not self.settings.mask_malformed_calls else [[self.kept(e) for e in group] for group in groups]
        return per_token(found, kept) if self.settings.whiten == "none" else self._white(answers, found, kept)

    def _white(self, answers: Answers, found: Any, kept: Kept) -> Nested:
        """Whiten the advantages over the answers or the tokens of all processes."""
        if self.settings.whiten == "samples":
            return per_token(credit.white_samples(answers.rewards, found, answers.total), kept)
        trained = [
            [mask if self.trains(e) else np.zeros(len(e.tokens), dtype=bool) for e, mask in zip(group, masks, strict=True)]
            for group, masks in zip(answers.groups, kept, strict=True)
        ]
        return white_tokens(per_token(found, kept), trained, answers.total)

    def _less(self, groups: Groups, penalties: Nested | None) -> list[list[Numbers]]:
        """Subtract the KL and the penalties from the reward of each token."""
        if self.settings.overlong_buffer:
            self._check_cap(self.cap)
        penalties = penalties or [[None for _ in group] for group in groups]
        return [[self._reduced(e, own) for e, own in zip(group, owns, strict=True)] for group, owns in zip(groups, penalties, strict=True)]

    def _reduced(self, episode: Episode, penalty: Sequence[float] | None) -> Numbers:
        """Subtract the KL, the malformed-call penalty and the length penalty from the rewards of one answer."""
        s, row = self.settings, np.array(episode.rewards, dtype=np.float64)
        if penalty is not None:
            if len(penalty) != len(row):
                raise ValueError(f"there are {len(penalty)} penalties for {len(row)} tokens")
            row -= penalty
        if s.malformed_call_penalty:
            for _, end in episode.malformed_spans:
                row[end - 1] -= s.malformed_call_penalty
        if s.overlong_buffer and episode.length:
            last = len(row) - 1 - episode.acted[::-1].index(True)
            row[last] += s.overlong_penalty * credit.overlong(episode.length, self.cap, s.overlong_buffer)
        return row

    def counts(self, episode: Episode) -> bool:
        """Return whether an episode's reward is used for advantages: it has a score, and is not only a baseline."""
        return episode.scored and not (self.needs_greedy and episode.meta.get("greedy")) and not episode.meta.get("mismatched")

    def trains(self, episode: Episode) -> bool:
        """Return whether an episode is trained on: overlong filtering masks a truncated answer, but keeps its reward."""
        return self.counts(episode) and not (self.settings.mask_truncated_completions and episode.cut_off)

    def kept(self, episode: Episode) -> Sequence[bool]:
        """Return the tokens in the loss: the policy's tokens, without turns with a malformed call if these are masked."""
        return turns.well_formed(episode) if self.settings.mask_malformed_calls else episode.acted

    # ---- loss -----------------------------------------------------------------------------------------------------

    def row_weights(self, lengths: Sequence[int], prompts: Sequence[str], *, max_length: int = 0, total: Total = alone) -> list[float]:
        """Compute the weight of each row's tokens over one optimizer step."""
        how, cap = self.settings.loss_aggregation, self.settings.max_completion_length or max_length
        if how == "seq-mean-token-sum-norm":
            self._check_cap(cap)
        return aggregate.row_weights(lengths, prompts, how, max_length=cap, total=total)

    def _check_cap(self, cap: int) -> None:
        if not cap:
            raise ConfigError("seq-mean-token-sum-norm and overlong_buffer need a limit on the answer length; set max_completion_length")
        if (buffer := self.settings.overlong_buffer) > cap:
            raise ConfigError(f"overlong_buffer is {buffer}, more than the longest allowed answer, {cap}; set it lower")

    def prepare(self, columns: Mapping[str, Tensor], total: Total = alone) -> Tensor:
        """Compute the batch statistics that the loss needs."""
        own: Callable[..., Tensor] = vars(self.recipe.parts["loss"])["prepare"]
        settings = vars(self.settings)
        return own(columns, total, **{key: settings[key] for key in self.recipe.own("loss")})

    def losses(self, inputs: LossInputs) -> tuple[Tensor, dict[str, Tensor]]:
        """Compute the loss of each token: the sum of its policy, KL, entropy and value terms."""
        policy = self.loss(inputs)
        loss: Tensor = policy.loss if isinstance(policy, Surrogate) else policy
        if self.settings.importance_sampling_correction != "none":
            loss = loss * self._correction(inputs)
        figures = {"policy_loss": loss.detach()}
        if isinstance(policy, Surrogate):
            sides = {"low": policy.low, "high": policy.high, "region": policy.low + policy.high}
            figures |= {f"clip_ratio/{side}_mean": clipped.detach() for side, clipped in sides.items()}
        return (loss if self.plain else self._with_terms(inputs, loss, figures)), figures

    def _correction(self, x: LossInputs) -> Tensor:
        """Compute the weight of each token that corrects the mismatch between sampler and trainer."""
        s = self.settings
        cap, floor = s.importance_sampling_cap, s.importance_sampling_floor
        return mismatch.correction(x.old, x.sampler, x.rows, x.count, s.importance_sampling_correction, cap=cap, floor=floor)

    def _with_terms(self, x: LossInputs, loss: Tensor, figures: dict[str, Tensor]) -> Tensor:
        """Add the KL, entropy and critic terms to the policy loss; each is logged if its inputs are available."""
        s = self.settings
        if x.reference is not None:
            figures["kl"] = kl.estimate(x.new.detach(), x.reference, "k3")
            if s.kl_in == "loss" and self.beta:
                loss = loss + terms.kl_term(x, self.beta, s.kl_estimator)
        if x.entropy is not None:
            figures["entropy"] = x.entropy.detach()
            loss = loss - s.entropy_coef * x.entropy if s.entropy_coef else loss
        if x.values is not None and x.old_values is not None and x.returns is not None:
            error = terms.value_loss(x.values, x.old_values, x.returns, s.epsilon_value)
            figures["value_loss"] = error.detach()
            # during critic warmup, 0.0 * loss gives every weight a gradient in every process
            loss = error + 0.0 * loss if self.critic_alone else loss + s.vf_coef * error
        return loss

    # ---- state across steps -----------------------------------------------------------------------------------------

    def observe(self, rewards: Sequence[float], kl_value: float | None, total: Total = alone) -> None:
        """Update the running mean reward and the adaptive beta after a step."""
        added, count = total([sum(rewards), float(len(rewards))])
        if count:
            self._seen = 0.9 * self._seen + 0.1
            self._running += (added / count - self._running) * 0.1 / self._seen
        self.controller.observe(kl_value, round(count))
        self.critic_alone = self.controller.steps < self.pretraining

    def refresh(self) -> float:
        """Return how far to move the reference toward the policy after this step."""
        return self.controller.refresh()

    def state_dict(self) -> dict[str, Any]:
        """Return the running mean reward, the current beta, and the number of steps."""
        return {"beta": self.controller.beta, "running": self._running, "seen": self._seen, "steps": self.controller.steps}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state from `state_dict`."""
        self.controller.beta, self._running, self._seen = float(state["beta"]), float(state["running"]), float(state["seen"])
        self.controller.steps = int(state["steps"])
        self.critic_alone = self.controller.steps < self.pretraining


def policy_gradient(name: str, about: str | None, advantage: Any, loss: Any, **defaults: Any) -> Recipe:
    """Define a policy-gradient algorithm: its `__name__`, docstring, advantage, loss, and changed defaults.

    >>> policy_gradient("mine", "An example.", lambda answers: answers.rewards, lambda x: -x.advantages * x.new).usual["beta"]
    0.0
    """
    return Recipe(PolicyGradient, name, about, {"advantage": advantage, "loss": loss}, defaults)
