"""The learner: train on groups of episodes with accelerate, one training step at a time.

    advantages          of every token (by the algorithm, in lists and arrays)
    scoring             old, reference and critic values, only if they are needed
    per minibatch       row weights with one global denominator, then a sum over micro-batches
    optimizer step      clip, optimizer, learning rate schedule

A micro-batch is a plain weighted sum, so its size affects only speed and memory.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor

from rlvr.algorithms.functions import mismatch
from rlvr.algorithms.functions.advantages import AllReduce
from rlvr.config.config import ModelConfig
from rlvr.config.training import ENDLESS_SCHEDULERS
from rlvr.contracts import Weights
from rlvr.contracts.algorithm import EMPTY_TOKEN_STATS, Algorithm, LossInputs, TokenStats
from rlvr.contracts.tokenizer import LoadedModel
from rlvr.episode import Episode
from rlvr.errors import ConfigError, RlvrError, format_suggestion
from rlvr.hints import Hinted, add_usage_to_errors, explain_keyword
from rlvr.models.batch import Batch, TokenRows
from rlvr.models.device_defaults import copy_to_device, get_device_defaults, resolve_microbatch_tokens
from rlvr.models.model_loading import load_model
from rlvr.registry.plugins import build_from_config
from rlvr.synonyms import accept_synonyms
from rlvr.training.distributed.group import all_gather_values
from rlvr.training.update import fsdp as sharded
from rlvr.training.update import learner_state as state
from rlvr.training.update import lora_adapter as adapter
from rlvr.training.update import optimizer_state, packing
from rlvr.training.update.networks.attachments import attach_networks, build_parameter_groups
from rlvr.training.update.optimization import OptimizationSettings
from rlvr.training.update.policy import Policy, check_deterministic_forward, enable_gradient_checkpointing, require_float32
from rlvr.training.update.policy_weights import build_policy_weights
from rlvr.training.update.reference import ReferencePolicy
from rlvr.training.update.sharded_tensors import reshard
from rlvr.training.update.step_data import MeanMetrics, OptimizerStepStats, StepData, are_finite

__all__ = ["Learner", "OptimizationSettings"]

MicroBatchLoss = Callable[[Batch, bool], Tensor]
"""The loss of a micro-batch; the bool is False for a filler."""
FILLER_ROWS = TokenRows([[0, 0]], [[False, True]])
"""A filler micro-batch of one token, for a process that has fewer micro-batches than another."""

UPDATE_KL_SHARE = 16
"""One in this many of a step's tokens with a gradient measures how far the update moved the policy."""
MIN_MEASURED_ROWS = 8
"""As many rows measure it at least: of fewer, the sign of what it finds would be chance."""
MAX_UPDATE_KL = 1e6
"""What is logged where a token has become impossible, since the log has no infinity."""

LOSS_COLUMNS = tuple(field.name for field in fields(LossInputs))
"""The columns of a step that are inputs of the loss are those with the name of a field of `LossInputs`."""


def _make_optimization(settings: Mapping[str, Any]) -> OptimizationSettings:
    names = [field.name for field in fields(OptimizationSettings)]
    if unknown := [name for name in settings if name not in names]:
        raise ConfigError(
            f"Learner has no setting {unknown[0]!r}; {explain_keyword(unknown[0], 'Learner') or format_suggestion(unknown[0], names)}"
        )
    return OptimizationSettings(**settings)


def _load_if_path(model: Any) -> Any:
    if isinstance(model, LoadedModel):
        return model.model
    return load_model(ModelConfig(path=str(model))) if isinstance(model, str | Path) else model


@dataclass(frozen=True, slots=True)
class UpdateResult:
    """What an update gives: its metrics, and by group, episode and token what the log has."""

    metrics: dict[str, float]
    advantages: list[list[list[float]]]
    """Empty for an episode whose advantages are not finite."""
    log_ratios: list[list[list[float] | None]]
    """The log ratios of trainer to sampler; None for an episode where they are not finite, or were not computed."""


class Learner(Hinted):
    """Trains a causal language model with an algorithm.

    >>> learner = Learner(model, "grpo", learning_rate=1e-6)  # doctest: +SKIP
    >>> learner.update(rollout.sample(tasks, n=8, seed=0))["loss"]  # doctest: +SKIP
    """

    _synonyms = {"model": "policy.model"}
    _hints = {
        "step": "write .update(groups)",
        "train_step": "write .update(groups)",
        "forward_backward": "write .update(groups): gradient and optimizer step in one",
        "optim_step": "write .update(groups): gradient and optimizer step in one",
        "save": "write .gather_model().save_pretrained(folder)",
        "save_model": "write .gather_model().save_pretrained(folder)",
    }

    @accept_synonyms
    @add_usage_to_errors
    def __init__(
        self,
        model: Any,
        algorithm: Algorithm | str | Mapping[str, Any] = "grpo",
        optimization: OptimizationSettings | None = None,
        *,
        accelerator: Any = None,
        total_steps: int | None = None,
        temperature: float = 1.0,
        frozen_models: Mapping[str, Any] = MappingProxyType({}),
        weight_loader: sharded.WeightLoader | None = None,
        frozen_weight_loaders: Mapping[str, sharded.WeightLoader | None] = MappingProxyType({}),
        seed: int = 0,
        max_new_tokens: int = 0,
        has_sampling_temperature: bool = True,
        fp32_head: bool = False,
        **settings: Any,
    ) -> None:
        """Set up the policy, its optimizer and, where the algorithm needs them, its frozen models and the critic.

        Args:
            model: the causal language model that is trained, in place; or a folder or a Hub id, from which it is loaded.
            algorithm: the algorithm, by name, as a mapping or as an object.
            optimization: the settings of the optimizer; or give them as keywords, such as learning_rate=1e-6.
            accelerator: accelerate's object for devices and processes; None: one for this process.
            total_steps: the number of steps of the whole run, for schedules that end; None: only for a constant learning rate.
            temperature: the temperature at which the episodes are sampled.
            frozen_models: the models that the algorithm compares with, by name, or their folders. Without `reference`, that is a frozen
                copy of the model as it is now, if the algorithm needs one.
            weight_loader: loads the weights of a sharded model; None: the model has its weights.
            frozen_weight_loaders: likewise, for the frozen models.
            seed: the seed of the order of the minibatches.
            max_new_tokens: the limit on the tokens of an answer, which some algorithms need; 0: none.
            has_sampling_temperature: whether the episodes were sampled at `temperature`, so that their log-probabilities compare.
            fp32_head: whether the output head is computed in float32.
            settings: the fields of `OptimizationSettings`, such as learning_rate, if `optimization` is not given.
        """
        model = _load_if_path(model)
        if optimization is not None and settings:
            raise ConfigError(f"{next(iter(settings))} is given beside `optimization`; give one of them")
        optimization = _make_optimization(settings) if optimization is None else optimization
        if total_steps is None and optimization.lr_scheduler not in ENDLESS_SCHEDULERS:
            raise ConfigError(
                f"lr_scheduler is {optimization.lr_scheduler!r}, which ends; give total_steps, the number of updates of the run"
            )
        algorithm = build_from_config("algorithm", algorithm)
        if not isinstance(algorithm, Algorithm):
            raise ConfigError(f"the algorithm is a {type(algorithm).__name__}; give a name such as grpo, or an rlvr.Algorithm")
        accelerator = Accelerator() if accelerator is None else accelerator
        model = model.to(accelerator.device) if weight_loader is None else model
        if not temperature > 0:
            raise ConfigError(f"temperature is {temperature}; a policy that samples greedily has no gradient; use a value above 0")
        self.algorithm, self.optimization, self.accelerator = algorithm, optimization, accelerator
        self.max_new_tokens, self.has_sampling_temperature = max_new_tokens, has_sampling_temperature
        optimization.check_and_configure_algorithm(
            algorithm, max_new_tokens, has_adapter=adapter.has_adapter(model), is_sharded=accelerator.is_fsdp2
        )
        if optimization.gradient_checkpointing:
            enable_gradient_checkpointing(model)
        scale: dict[str, Any] = {"temperature": temperature, "fp32_head": fp32_head}
        if missing := [name for name in algorithm.traits.frozen_models if name not in frozen_models]:
            raise ConfigError(f"the algorithm compares with a model {missing[0]!r}; give frozen_models={{{missing[0]!r}: model}}")
        self.frozen_models = {
            name: ReferencePolicy.from_model(model, frozen_model=_load_if_path(frozen_models.get(name)), **scale)
            for name in algorithm.traits.scoring_models
        }
        policy = Policy(model, value_head=algorithm.traits.needs_value, **scale)
        self.device, self.is_sharded = accelerator.device, accelerator.is_fsdp2
        self.critic = attach_networks(policy, self.reference, algorithm, optimization)
        if self.is_sharded:
            sharded.shard_policy(policy, accelerator, weight_loader)
            for name, frozen in self.frozen_models.items():
                sharded.shard_frozen_model(frozen, policy, accelerator, frozen_weight_loaders.get(name))
        policy.run_with_weights(partial(check_deterministic_forward, model))
        reshard(policy)  # so that the optimizer gets shards
        self.max_tokens_per_microbatch = resolve_microbatch_tokens(optimization.max_tokens_per_microbatch, self.device)
        fused, trained = get_device_defaults(self.device).fused_optimizer, build_parameter_groups(policy, optimization)
        optimizer, self.scheduler = optimization.build_optimizer(trained, total_steps or 1, fused=fused)
        others = [frozen.policy for frozen in self.frozen_models.values() if frozen.adapted_model is None]
        computed = sharded.get_compute_precision(model, accelerator)
        self.packing = packing.choose_packing([policy, *others], self.device, computed, None if self.is_sharded else accelerator.autocast)
        self.padding_reason = self.packing.padding_reason  # why rows are padded; empty if they can be packed
        self.policy, self.optimizer = sharded.prepare_with_accelerate(policy, optimizer, accelerator)
        with torch.no_grad():
            require_float32(self.policy(FILLER_ROWS.build_padded_batch([0], self.device)))  # as accelerate wraps it
        # sharded gradients are reduced immediately; otherwise each process would keep full ones
        self._no_sync: Callable[[], Any] = nullcontext if self.is_sharded else partial(accelerator.no_sync, self.policy)
        for other in others if not self.is_sharded else ():
            other.to(accelerator.device)
        once = optimization.minibatches_per_step == 1 and algorithm.traits.num_iterations == 1
        self.is_on_policy = once and not algorithm.traits.use_rollout_logprobs and not algorithm.traits.needs_batch_stats
        """True if training is exactly on-policy, so that the training pass itself gives the old log-probabilities."""
        self.random = random.Random(seed)
        self.all_reduce: AllReduce = list if accelerator.num_processes == 1 else self._all_reduce_sum
        """Sums numbers over all processes."""
        self._weights = build_policy_weights(policy, accelerator)

    @property
    def reference(self) -> ReferencePolicy | None:
        """The frozen model that the KL compares with; None if the algorithm needs none."""
        return self.frozen_models.get("reference")

    # ---- one step -------------------------------------------------------------------------------------------------

    def update(self, groups: Sequence[Sequence[Episode]]) -> dict[str, float]:
        """Train on one step's groups; return metrics with TRL's names. A step without a gradient changes nothing and is reported."""
        return self.update_with_diagnostics(groups).metrics

    def update_with_diagnostics(self, groups: Sequence[Sequence[Episode]]) -> UpdateResult:
        """Train on one step's groups, as `update` does; return the metrics, and what the log has of each token."""
        step, tally, descents = (
            StepData(groups, self.algorithm, has_sampling_temperature=self.has_sampling_temperature),
            MeanMetrics(),
            OptimizerStepStats(),
        )
        self._compute_advantages(step)
        for _ in range(self.algorithm.traits.num_iterations):
            for part in self._split_minibatches(step):
                descents.add(outcome := self._take_optimizer_step(step, part, tally))
                step.has_optimizer_stepped = step.has_optimizer_stepped or outcome is not None
        metrics = self._finish_update(step, tally, descents)
        advantages, log_ratios = step.build_logged_advantages(), step.compute_log_ratios()
        return UpdateResult(metrics | self._measure_update(step), advantages, log_ratios)

    def _compute_advantages(self, step: StepData) -> None:
        """Compute the advantages, and the log-probabilities under the old weights and the frozen models where they are needed."""
        algorithm, early = self.algorithm, bool(self.algorithm.traits.token_inputs)
        scores = self._compute_token_inputs(step) if early else EMPTY_TOKEN_STATS
        step.set_advantages(
            algorithm.compute_advantages(step.groups, scores, all_reduce=self.all_reduce),
            keep_zero_advantage=algorithm.traits.backprop_zero_advantage,
        )
        if algorithm.returns is not None:
            step.add_column("returns", algorithm.returns)
        if self.frozen_models or not self.is_on_policy:
            self._compute_loss_columns(step, has_token_inputs=early)

    def _compute_loss_columns(self, step: StepData, *, has_token_inputs: bool) -> None:
        """Compute the old and frozen models' log-probabilities that only the loss needs, for rows with a gradient; `has_token_inputs`:
        they were computed before.
        """
        chosen, columns = [r for r, moves in enumerate(step.has_grad) if moves], step.columns
        if not has_token_inputs:
            self._compute_frozen_logprobs(step, chosen, skip="reference" if self.algorithm.traits.divergence_kind else "")
        if self.algorithm.traits.use_rollout_logprobs:
            columns["first"] = columns["old_logprobs"] if has_token_inputs else torch.full_like(columns["rollout_logprobs"], math.nan)
            columns["old_logprobs"] = columns["rollout_logprobs"]
        elif not self.is_on_policy and not has_token_inputs:  # otherwise the training pass fills the column
            self._compute_old_outputs(step, chosen)

    def _compute_token_inputs(self, step: StepData) -> TokenStats:
        """Compute the token statistics that the advantages need, as `TOKEN_INPUTS` says."""
        everyone = range(len(step.episodes))
        self._compute_old_outputs(step, everyone)
        self._compute_frozen_logprobs(step, everyone)
        inputs = {need: TOKEN_INPUTS[need] for need in self.algorithm.traits.token_inputs}
        for column, compute in inputs.values():
            if compute is not None:
                step.columns[column] = compute(self, step)
        return TokenStats(**{need: step.unflatten_column(step.columns[column]) for need, (column, _) in inputs.items()})

    @torch.no_grad()
    def _compute_old_outputs(self, step: StepData, row_indices: Sequence[int]) -> None:
        """Compute log-probabilities, and values and entropies if needed, under the weights before the update."""
        asked = {"values": self.algorithm.traits.needs_value, "entropy": "entropy" in self.algorithm.traits.token_inputs}
        wanted = {"logprobs": "old_logprobs"} | {name: f"old_{name}" for name, needed in asked.items() if needed}
        for column in wanted.values():
            step.add_zero_column(column)
        for batch, real, _ in self._iter_microbatches(step.rows, row_indices):
            scores = self.policy(batch, **asked)
            for name, column in wanted.items() if real else ():
                step.defer_column_write(column, batch.entry_positions, getattr(scores, name))
            del batch
        step.flush_deferred()

    @torch.no_grad()
    def _compute_frozen_logprobs(self, step: StepData, row_indices: Sequence[int], *, skip: str = "") -> None:
        """Compute a column for each frozen model, in the policy's precision, so that the KL has no rounding errors."""
        for name, frozen in self.frozen_models.items():
            if name == skip:
                continue
            step.add_zero_column(name)
            for batch, real, _ in self._iter_microbatches(step.rows, row_indices):
                with nullcontext() if self.is_sharded else self.accelerator.autocast():
                    logprobs = frozen.compute_logprobs(batch)
                if real:
                    step.defer_column_write(name, batch.entry_positions, logprobs)
                del batch
            step.flush_deferred()

    def compute_from_vocabulary(self, step: StepData, statistic: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """Compute a number for each policy token from the log-probabilities of the whole vocabulary, under the weights before the update:
        `statistic` gets those of some tokens, [tokens, vocabulary], and the ids that were sampled. They are those of the run's temperature, at
        least in float32, without top_p and top_k; answers without a score have zeros.
        """
        name = "from_vocabulary"
        step.add_zero_column(name)
        for batch, real, _ in self._iter_microbatches(step.rows, range(len(step.episodes))):
            with nullcontext() if self.is_sharded else self.accelerator.autocast():
                values = self.policy.run_with_weights(partial(self.policy.compute_vocab_statistic, batch, statistic))
            if real:
                step.defer_column_write(name, batch.entry_positions, values)
            del batch
        step.flush_deferred()
        return step.columns.pop(name)

    def _split_minibatches(self, step: StepData) -> Iterable[list[int]]:
        """Split the rows in the loss into one minibatch per optimizer step."""
        rows, parts = [r for r, trains in enumerate(step.is_in_loss) if trains], self.optimization.minibatches_per_step
        return [rows] if parts == 1 else step.shuffle_into_minibatches(rows, parts, self.random, self.accelerator)

    def _take_optimizer_step(self, step: StepData, row_indices: Sequence[int], mean_metrics: MeanMetrics) -> tuple[float, float] | None:
        """Take one optimizer step on a minibatch; return its loss and gradient norm, or None if no row has a gradient."""
        algorithm = self.algorithm
        lengths = [int(step.rows.num_acted[r]) if step.has_grad[r] or algorithm.traits.count_zero_advantage else 0 for r in row_indices]
        prompts = [str(step.row_positions[r][0]) for r in row_indices]
        mine = algorithm.compute_row_weights(lengths, prompts, max_length=self.max_new_tokens, all_reduce=self.all_reduce)
        weight_of = dict(zip(row_indices, mine, strict=True))
        weights = step.rows.repeat_per_policy_token([weight_of.get(r, 0.0) for r in range(len(step.episodes))])
        live = [r for r in row_indices if step.has_grad[r]]
        if not self.all_reduce([float(len(live))])[0]:
            return None
        if algorithm.traits.needs_batch_stats:
            step.compute_token_batch_stats(algorithm, live, self.all_reduce)
        outcome = self._backward_and_step(
            step.rows, live, partial(self._compute_microbatch_loss, step, weights, mean_metrics), critic_only=algorithm.is_critic_warmup
        )
        step.flush_deferred()
        return outcome

    def _compute_microbatch_loss(self, step: StepData, weights: Tensor, mean_metrics: MeanMetrics, batch: Batch, has_rows: bool) -> Tensor:
        """Compute the loss of one micro-batch; 0 for a filler."""
        algorithm, columns, take = self.algorithm, step.columns, batch.entry_positions
        scores = self.policy(batch, entropy=algorithm.traits.needs_entropy, values=algorithm.traits.needs_value)
        new = scores.logprobs
        noted = (
            "old_logprobs"
            if self.is_on_policy
            else "first"
            if algorithm.traits.use_rollout_logprobs and not step.has_optimizer_stepped
            else ""
        )
        if noted and has_rows:
            step.defer_column_write(noted, take, new)

        def get_columns(names: Iterable[str]) -> dict[str, Any]:
            return {
                name: copy_to_device(columns[name][take], new.device).to(new) if has_rows else new.detach()
                for name in names
                if name in columns
            }

        known = get_columns(LOSS_COLUMNS) | {"frozen_logprobs": get_columns(self.frozen_models)}
        if self.is_on_policy:
            known["old_logprobs"] = new.detach()
        if algorithm.traits.needs_token_context:
            known |= step.get_token_identities(batch, has_rows)
        inputs = LossInputs(logprobs=new, rows=batch.row_indices, num_rows=batch.num_rows, **known, **scores.to_loss_inputs())
        losses, figures = algorithm.compute_token_losses(inputs)
        mean_metrics.add(
            figures,
            num_tokens=batch.entry_positions.numel() if has_rows else 0,
            num_computed_tokens=batch.input_ids.numel() if has_rows else 0,
        )
        return (losses * copy_to_device(weights[take], losses.device).to(losses)).sum() if has_rows else losses.sum() * 0.0

    def _backward_and_step(
        self, rows: TokenRows, row_indices: Sequence[int], compute_loss: MicroBatchLoss, *, critic_only: bool = False
    ) -> tuple[float, float]:
        """Accumulate the micro-batches' gradients, then clip and step. A step that is not finite changes no weights and is counted
        (`step/nonfinite_minibatches`). `critic_only`: train only the critic.
        """
        accelerator, losses = self.accelerator, list[Tensor]()
        factor = accelerator.num_processes * accelerator.gradient_accumulation_steps  # undo both of accelerate's means
        for batch, real, last in self._iter_microbatches(rows, row_indices):
            accelerator.sync_gradients = last
            with nullcontext() if last else self._no_sync():
                part = compute_loss(batch, real)
                if not part.requires_grad:
                    raise ConfigError(
                        "no weight of the model is trainable: requires_grad is False for all of them, or the loss is detached"
                    )
                accelerator.backward(part * factor)
                losses.append(part.detach())  # fetched at the end, so that the device computes while the next micro-batch is built
            del batch, part
        for held in accelerator.unwrap_model(self.policy).model.parameters() if critic_only else ():
            held.grad = None  # None instead of zero, so that the optimizer skips it
        theirs = self.policy.parameters() if self.critic is None else accelerator.unwrap_model(self.policy).model.parameters()
        norm = accelerator.clip_grad_norm_(theirs, self.optimization.max_grad_norm or math.inf)
        norm = float(norm.full_tensor() if hasattr(norm, "full_tensor") else norm)
        norm = norm if self.critic is None else self.critic.clip_gradient(norm)
        [loss] = self.all_reduce([sum(torch.stack(losses).tolist())])
        if not (math.isfinite(loss) and math.isfinite(norm)):
            self.optimizer.zero_grad()  # the step below changes nothing, but a loss scaler still detects the overflow
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss, norm

    def _iter_microbatches(self, rows: TokenRows, row_indices: Sequence[int]) -> Iterator[tuple[Batch, bool, bool]]:
        """Yield (micro-batch, has rows, is last); fillers make the number equal in all processes.

        Micro-batches are built lazily. The caller deletes each one before taking the next, so that only one is in memory.
        """
        parts, lay = packing.plan_batches(rows, row_indices, self.max_tokens_per_microbatch, self.packing)
        most = int(self.accelerator.gather(torch.tensor([len(parts)], device=self.device)).max())
        for k in range(most):
            real = k < len(parts)
            yield lay(parts[k], self.device) if real else FILLER_ROWS.build_padded_batch([0], self.device), real, k + 1 == most

    @torch.no_grad()
    def _measure_update(self, step: StepData) -> dict[str, float]:
        """Estimate how far the update moved the policy, on a part of the rows: the mean KL divergence per token from the policy before it, and
        whether it moved along the advantages: the mean of log ratio times advantage, which is below 0 if a loss has the wrong sign.

        Nothing else sees a single update that destroys a policy before the next step samples from what is left. All rows would cost a
        third of an update more; a sixteenth of the tokens costs a fiftieth.
        """
        if not step.has_optimizer_stepped:
            return {}
        before = step.columns.get("first", step.columns["old_logprobs"])
        moving = [row for row, moves in enumerate(step.has_grad) if moves]
        left, chosen = sum(int(step.rows.num_acted[row]) for row in moving) / UPDATE_KL_SHARE, list[int]()
        for row in moving:
            if left <= 0 and len(chosen) >= MIN_MEASURED_ROWS:
                break
            chosen.append(row)
            left -= int(step.rows.num_acted[row])
        after, positions = [torch.zeros(0, device=self.device)], [torch.zeros(0, dtype=torch.long)]
        for batch, real, _ in self._iter_microbatches(step.rows, chosen):
            logprobs = self.policy(batch).logprobs
            if real:
                after.append(logprobs)
                positions.append(batch.entry_positions.clone())  # nothing of the micro-batch lives on
            del batch
        at = torch.cat(positions)
        log_ratio = torch.cat(after).double().cpu() - before[at].double()  # waits for the device once, however many micro-batches there are
        known = ~log_ratio.isnan()  # under stored log-probabilities only the first minibatch has its own
        log_ratio, advantages = log_ratio[known], step.columns["advantages"][at][known].double()
        sums = [(torch.expm1(log_ratio) - log_ratio).sum(), (log_ratio * advantages).sum()]
        total, gain, count = self.all_reduce([*map(float, sums), float(log_ratio.numel())])
        return {"update_kl": min(total / count, MAX_UPDATE_KL), "update_gain": gain / count} if count else {}

    # ---- supervised -----------------------------------------------------------------------------------------------

    def train_supervised(self, rows: Sequence[tuple[Sequence[int], Sequence[bool]]]) -> dict[str, float]:
        """Take one optimizer step of cross-entropy over the masked-in tokens, for SFT. Also advances the learning rate schedule."""
        material = TokenRows([tokens for tokens, _ in rows], [acted for _, acted in rows])
        [tokens] = self.all_reduce([float(material.num_policy_tokens)])
        if not tokens:
            raise ConfigError("the action masks of these rows are empty, so there is nothing to train on; mark the answer's tokens")

        def loss_of(batch: Batch, real: bool) -> Tensor:
            logprobs = self.policy(batch).logprobs
            return -logprobs.sum() / tokens if real else logprobs.sum() * 0.0

        rate = float(self.scheduler.get_last_lr()[0])
        loss, norm = self._backward_and_step(material, range(len(material.tokens)), loss_of)
        if are_finite((loss, norm)):
            self.scheduler.step()
        return {"loss": loss, "grad_norm": norm, "learning_rate": rate, "tokens/trained": tokens}

    # ---- metrics and state ----------------------------------------------------------------------------------------

    def _all_reduce_sum(self, numbers: Sequence[float]) -> list[float]:
        mine = torch.tensor(numbers, dtype=torch.float64, device=self.accelerator.device)
        return list(self.accelerator.reduce(mine, "sum").tolist())

    def _finish_update(self, step: StepData, mean_metrics: MeanMetrics, step_stats: OptimizerStepStats) -> dict[str, float]:
        """Finish the update: collect metrics, and update the schedule, the algorithm and the reference."""
        algorithm = self.algorithm
        metrics = step_stats.metrics() | {"learning_rate": float(self.scheduler.get_last_lr()[0])}
        metrics |= mean_metrics.compute_means(self.all_reduce) | self._compute_token_metrics(step, mean_metrics)
        metrics |= dict(algorithm.metrics) | (
            step.compute_chosen_rejected_logps(self.all_reduce) if algorithm.traits.one_optimizer_step else {}
        )
        metrics = {name: value for name, value in metrics.items() if math.isfinite(value)}  # the log and the KL controller reject NaN
        algorithm.on_step_end([e.reward for e in step.episodes if not e.is_auxiliary], metrics.get("kl"), self.all_reduce)
        if self.reference is not None:
            metrics["beta"] = algorithm.beta
            if mix := algorithm.get_reference_update_fraction():
                reshard(self.policy)
                self.reference.soft_update(self.accelerator.unwrap_model(self.policy).model, mix)
        if step_stats.num_steps:  # a step that changed nothing does not advance the schedule
            self.scheduler.step()
        return metrics

    def _compute_token_metrics(self, step: StepData, mean_metrics: MeanMetrics) -> dict[str, float]:
        """Compute metrics: token counts, groups, advantages, and the mismatch between sampler and trainer."""
        trained = mean_metrics.num_tokens / self.algorithm.traits.num_iterations
        account = step.count_tokens()
        if trained != account["tokens/to_train"]:
            raise RlvrError(f"{trained:g} tokens were trained, but {account['tokens/to_train']:g} were expected: a row was lost")
        account["tokens/trained"] = account.pop("tokens/to_train")
        spread = step.compute_advantage_moment_sums()
        numbers = (
            account
            | step.compute_group_count_metrics()
            | {f"advantage/{k}": v for k, v in spread.items()}
            | {"tokens/computed_with_padding": mean_metrics.num_computed_tokens}
        )
        sums = dict(zip(numbers, self.all_reduce(list(numbers.values())), strict=True))
        if sums["tokens/sampled"] != sums["tokens/trained"] + sums["tokens/masked"] + sums["tokens/dropped"]:
            raise RlvrError(f"tokens are not conserved: {sums}")
        count, added, squares = (sums.pop(f"advantage/{k}") for k in ("count", "sum", "squares"))
        mean = added / count if count else 0.0
        groups = sums.pop("groups")
        row = sums | {"frac_reward_zero_std": sums["groups/num_zero_std"] / groups if groups else 0.0}
        row |= {"advantage/mean": mean, "advantage/std": math.sqrt(max(0.0, squares / count - mean**2)) if count else 0.0}
        row |= mismatch.compute_mismatch_metrics(*torch.cat(all_gather_values(step.stack_trainer_sampler_logprobs()), 1))
        return row

    @property
    def weights(self) -> Weights:
        """The current weights, for the sampler and the checkpoint."""
        return self._weights

    def gather_model(self) -> Any:
        """Return a plain model in this process: the model itself, or a copy if it has an adapter or is sharded."""
        return self._weights.gather_model()

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a bitwise identical resume, without the model's weights and the state of `write_sharded_state`."""
        return state.collect_state(self)

    def load_state_dict(self, saved: Mapping[str, Any], sharded_state_folder: Path | None = None) -> None:
        """Restore the state from `state_dict`, in a learner with the same settings.

        `sharded_state_folder`: the folder of `write_sharded_state`.
        """
        state.restore_state(self, saved, sharded_state_folder)

    def write_sharded_state(self, folder: Path) -> None:
        """Write the sharded state, each process its shard. A collective operation."""
        if self.is_sharded:
            optimizer_state.write_sharded_state(folder, self.optimizer, state.get_moving_reference(self))


def _compute_kl_penalties(learner: Learner, step: StepData) -> Tensor:
    """Compute beta * (old - reference) of each policy token."""
    penalties: Tensor = learner.algorithm.beta * (step.columns["old_logprobs"] - step.columns["reference"])
    return penalties


TOKEN_INPUTS: Mapping[str, tuple[str, Callable[[Learner, StepData], Tensor] | None]] = {
    "old_logprobs": ("old_logprobs", None),
    "values": ("old_values", None),
    "entropy": ("old_entropy", None),
    "reference_logprobs": ("reference", None),
    "penalties": ("penalties", _compute_kl_penalties),
}
"""The inputs of advantages, by the field of `TokenStats`: the column of the step, and what computes it, a number for each policy token.
None: the forward passes of the policy and the frozen models, which come first. One that needs the logits takes another pass:
`lambda learner, step: learner.compute_from_vocabulary(step, lambda logprobs, tokens: logprobs.amax(-1).exp())`.
If a column has the name of a field of `LossInputs`, the loss gets it, too: `get_loss_input_name` says which name that is.
"""
