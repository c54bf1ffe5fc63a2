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
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rlvr.algos.parts import mismatch
from rlvr.algos.parts.credit import Total
from rlvr.contracts import Weights
from rlvr.contracts.algorithm import NO_SCORES, Algorithm, LossInputs, Scores
from rlvr.episode import Episode
from rlvr.errors import ConfigError, RlvrError
from rlvr.learn.peers.group import gather
from rlvr.learn.update import adapter, moments, packing, sharded, state
from rlvr.learn.update.handed import handed
from rlvr.learn.update.networks.beside import attach, parameters_of
from rlvr.learn.update.optimization import Optimization
from rlvr.learn.update.policy import Policy, check_steady, checkpointed, exact
from rlvr.learn.update.reference import Reference
from rlvr.learn.update.shards import folded
from rlvr.learn.update.step import Descents, Step, Tally, finite
from rlvr.model.batch import Batch, Rows
from rlvr.model.defaults import copied, defaults_of, tokens_of

__all__ = ["Learner", "Optimization"]

LossOf = Callable[[Batch, bool], Tensor]
"""The loss of a micro-batch; the bool is False for a filler."""
FILLER = Rows([[0, 0]], [[False, True]])
"""A filler micro-batch of one token, for a process that has fewer micro-batches than another."""

KNOWN = ("sampler", "advantages", "old", "reference", "old_values", "returns", "prepared")
"""The columns of a step that are inputs of the loss."""


class Learner:
    """Trains a causal language model with an algorithm.

    >>> Learner(model, build("algorithm", "grpo"), Optimization(), accelerator=accelerator, total_steps=100)    # doctest: +SKIP
    """

    def __init__(
        self,
        model: Any,
        algorithm: Algorithm,
        optimization: Optimization,
        *,
        accelerator: Any,
        total_steps: int,
        temperature: float = 1.0,
        reference: Any = None,
        fill: sharded.Fill | None = None,
        fill_reference: sharded.Fill | None = None,
        seed: int = 0,
        max_completion_length: int = 0,
        sampled_alike: bool = True,
        fp32_head: bool = False,
    ) -> None:
        if not temperature > 0:
            raise ConfigError(f"temperature is {temperature}; a policy that samples greedily has no gradient; use a value above 0")
        self.algorithm, self.optimization, self.accelerator = algorithm, optimization, accelerator
        self.max_completion_length, self.sampled_alike = max_completion_length, sampled_alike
        optimization.check(algorithm, max_completion_length, adapted=adapter.is_on(model), sharded=accelerator.is_fsdp2)
        if optimization.gradient_checkpointing:
            checkpointed(model)
        scale: dict[str, Any] = {"temperature": temperature, "fp32_head": fp32_head}
        self.reference = Reference.of(model, frozen=reference, **scale) if algorithm.needs_reference else None
        policy = Policy(model, value_head=algorithm.needs_value, **scale)
        self.device, self.sharded = accelerator.device, accelerator.is_fsdp2
        self.critic = attach(policy, self.reference, algorithm, optimization)
        if self.sharded:
            sharded.spread(policy, accelerator, fill)
            sharded.spread_reference(self.reference, policy, accelerator, fill_reference)
        policy.look(partial(check_steady, model))
        folded(policy)  # so that the optimizer gets shards
        self.budget = tokens_of(optimization.max_tokens_per_microbatch, self.device)
        fused, trained = defaults_of(self.device).fused_optimizer, parameters_of(policy, optimization)
        optimizer, self.scheduler = optimization.made_for(trained, total_steps, fused=fused)
        scored = [policy, *([self.reference.policy] if self.reference is not None and self.reference.adapter is None else [])]
        computed = sharded.computed_in(model, accelerator)
        self.packing = packing.packing_for(scored, self.device, computed, None if self.sharded else accelerator.autocast)
        self.unpackable = self.packing.padded  # why rows are padded; empty if they can be packed
        self.policy, self.optimizer = sharded.prepared(policy, optimizer, accelerator)
        with torch.no_grad():
            exact(self.policy(FILLER.padded([0], self.device)))  # as accelerate wraps it
        # sharded gradients are reduced immediately; otherwise each process would keep full ones
        self._unsynced: Callable[[], Any] = nullcontext if self.sharded else partial(accelerator.no_sync, self.policy)
        if self.reference is not None and self.reference.adapter is None and not self.sharded:
            self.reference.policy.to(accelerator.device)
        once = optimization.minibatches_per_step == 1 and algorithm.num_iterations == 1
        self.on_policy = once and not algorithm.bypass and not algorithm.prepares
        """True if training is exactly on-policy, so that the training pass itself gives the old log-probabilities."""
        self.random = random.Random(seed)
        self.total: Total = list if accelerator.num_processes == 1 else self._added
        """Sums numbers over all processes."""
        self._handed = handed(policy, accelerator)
        self.advantages: list[list[list[float]]] = []
        self.log_ratios: list[list[list[float] | None]] = []
        """The trainer-to-sampler log ratios of the last update, per group, episode and token, for the log; like `advantages`, empty if not
        finite."""

    # ---- one step -------------------------------------------------------------------------------------------------

    def update(self, groups: Sequence[Sequence[Episode]]) -> dict[str, float]:
        """Train on one step's groups; return metrics with TRL's names. A step without a gradient changes nothing and is reported."""
        step, tally, descents = Step(groups, self.algorithm, sampled_alike=self.sampled_alike), Tally(), Descents()
        self._prepare(step)
        for _ in range(self.algorithm.num_iterations):
            for part in self._parts(step):
                descents.add(outcome := self._learn(step, part, tally))
                step.stepped = step.stepped or outcome is not None
        return self._conclude(step, tally, descents)

    def _prepare(self, step: Step) -> None:
        """Compute the advantages, and the scores under old and reference weights if they are needed."""
        algorithm, early = self.algorithm, bool(self.algorithm.credit_needs)
        scores = self._before_credit(step) if early else NO_SCORES
        step.credited(algorithm.credit(step.groups, scores, total=self.total), flat_too=algorithm.trains_flat)
        if algorithm.returns is not None:
            step.add("returns", algorithm.returns)
        if self.reference is not None or not self.on_policy:
            self._after_credit(step, scored=early)

    def _after_credit(self, step: Step, *, scored: bool) -> None:
        """Compute the scores that only the loss needs, for rows with a gradient; `scored`: the advantages already needed them."""
        chosen, columns = [r for r, moves in enumerate(step.moves) if moves], step.columns
        if self.reference is not None and not scored and not self.algorithm.needs_divergence:
            self._score_reference(step, chosen)
        if self.algorithm.bypass:
            columns["first"] = columns["old"] if scored else torch.full_like(columns["sampler"], math.nan)
            columns["old"] = columns["sampler"]
        elif not self.on_policy and not scored:  # otherwise the training pass fills the column
            self._score_old(step, chosen)

    def _before_credit(self, step: Step) -> Scores:
        """Compute the token statistics that the advantages need: KL penalties, critic values, entropies."""
        algorithm, everyone, columns = self.algorithm, range(len(step.episodes)), step.columns
        needs = algorithm.credit_needs
        self._score_old(step, everyone)
        if self.reference is not None:
            self._score_reference(step, everyone)
        if "penalties" in needs:
            columns["penalties"] = algorithm.beta * (columns["old"] - columns["reference"])
        names = {"values": "old_values", "entropy": "old_entropy"}
        return Scores(**{need: step.grouped(columns[names.get(need, need)]) for need in needs})

    @torch.no_grad()
    def _score_old(self, step: Step, chosen: Sequence[int]) -> None:
        """Compute the policy's own scores before the update."""
        asked = {"values": self.algorithm.needs_value, "entropy": "entropy" in self.algorithm.credit_needs}
        wanted = {"logprobs": "old"} | {name: f"old_{name}" for name, needed in asked.items() if needed}
        for column in wanted.values():
            step.empty(column)
        for batch, real, _ in self._batches(step.rows, chosen):
            scores = self.policy(batch, **asked)
            for name, column in wanted.items() if real else ():
                step.note(column, batch.take, getattr(scores, name))
            del batch
        step.settle()

    @torch.no_grad()
    def _score_reference(self, step: Step, chosen: Sequence[int]) -> None:
        """Compute the reference's scores in the policy's precision, so that the KL has no rounding errors."""
        assert self.reference is not None
        step.empty("reference")
        for batch, real, _ in self._batches(step.rows, chosen):
            with nullcontext() if self.sharded else self.accelerator.autocast():
                logprobs = self.reference.logprobs(batch)
            if real:
                step.note("reference", batch.take, logprobs)
            del batch
        step.settle()

    def _parts(self, step: Step) -> Iterable[list[int]]:
        """Split the rows in the loss into one minibatch per optimizer step."""
        rows, parts = [r for r, trains in enumerate(step.trains) if trains], self.optimization.minibatches_per_step
        return [rows] if parts == 1 else step.shuffled(rows, parts, self.random, self.accelerator)

    def _learn(self, step: Step, part: Sequence[int], tally: Tally) -> tuple[float, float] | None:
        """Take one optimizer step on a minibatch; return its loss and gradient norm, or None if no row has a gradient."""
        algorithm = self.algorithm
        lengths = [int(step.rows.trained[r]) if step.moves[r] or algorithm.counts_flat else 0 for r in part]
        prompts = [str(step.place[r][0]) for r in part]
        mine = algorithm.row_weights(lengths, prompts, max_length=self.max_completion_length, total=self.total)
        weight_of = dict(zip(part, mine, strict=True))
        weights = step.rows.repeat([weight_of.get(r, 0.0) for r in range(len(step.episodes))])
        live = [r for r in part if step.moves[r]]
        if not self.total([float(len(live))])[0]:
            return None
        if algorithm.prepares:
            step.prepare(algorithm, live, self.total)
        outcome = self._descend(step.rows, live, partial(self._loss, step, weights, tally), still=algorithm.critic_alone)
        step.settle()
        return outcome

    def _loss(self, step: Step, weights: Tensor, tally: Tally, batch: Batch, real: bool) -> Tensor:
        """Compute the loss of one micro-batch; 0 for a filler."""
        algorithm, columns, take = self.algorithm, step.columns, batch.take
        scores = self.policy(batch, entropy=algorithm.needs_entropy, values=algorithm.needs_value)
        new = scores.logprobs
        noted = "old" if self.on_policy else "first" if algorithm.bypass and not step.stepped else ""
        if noted and real:
            step.note(noted, take, new)
        known = {name: copied(columns[name][take], new.device).to(new) if real else new.detach() for name in KNOWN if name in columns}
        if self.on_policy:
            known["old"] = new.detach()
        if algorithm.needs_context:
            known |= step.context(batch, real)
        inputs = LossInputs(new=new, rows=batch.row, count=batch.count, **known, **scores.terms())
        losses, figures = algorithm.losses(inputs)
        tally.add(figures, tokens=batch.take.numel() if real else 0, computed=batch.input_ids.numel() if real else 0)
        return (losses * copied(weights[take], losses.device).to(losses)).sum() if real else losses.sum() * 0.0

    def _descend(self, rows: Rows, chosen: Sequence[int], loss_of: LossOf, *, still: bool = False) -> tuple[float, float]:
        """Accumulate the micro-batches' gradients, then clip and step. A non-finite step is skipped; `still`: train only the critic."""
        accelerator, losses = self.accelerator, list[Tensor]()
        factor = accelerator.num_processes * accelerator.gradient_accumulation_steps  # undo both of accelerate's means
        for batch, real, last in self._batches(rows, chosen):
            accelerator.sync_gradients = last
            with nullcontext() if last else self._unsynced():
                part = loss_of(batch, real)
                accelerator.backward(part * factor)
                losses.append(part.detach())  # fetched at the end, so that the device computes while the next micro-batch is built
            del batch, part
        for held in accelerator.unwrap_model(self.policy).model.parameters() if still else ():
            held.grad = None  # None instead of zero, so that the optimizer skips it
        theirs = self.policy.parameters() if self.critic is None else accelerator.unwrap_model(self.policy).model.parameters()
        norm = accelerator.clip_grad_norm_(theirs, self.optimization.max_grad_norm or math.inf)
        norm = float(norm.full_tensor() if hasattr(norm, "full_tensor") else norm)
        norm = norm if self.critic is None else self.critic.clipped(norm)
        [loss] = self.total([sum(torch.stack(losses).tolist())])
        if not (math.isfinite(loss) and math.isfinite(norm)):
            self.optimizer.zero_grad()  # the step below changes nothing, but a loss scaler still detects the overflow
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss, norm

    def _batches(self, rows: Rows, chosen: Sequence[int]) -> Iterator[tuple[Batch, bool, bool]]:
        """Yield (micro-batch, has rows, is last); fillers make the number equal in all processes.

        Micro-batches are built lazily. The caller deletes each one before taking the next, so that only one is in memory.
        """
        parts, lay = packing.arranged(rows, chosen, self.budget, self.packing)
        most = int(self.accelerator.gather(torch.tensor([len(parts)], device=self.device)).max())
        for k in range(most):
            real = k < len(parts)
            yield lay(parts[k], self.device) if real else FILLER.padded([0], self.device), real, k + 1 == most

    # ---- supervised -----------------------------------------------------------------------------------------------

    def supervise(self, rows: Sequence[tuple[Sequence[int], Sequence[bool]]]) -> dict[str, float]:
        """Take one optimizer step of cross-entropy over the masked-in tokens, for SFT. Also advances the learning rate schedule."""
        material = Rows([tokens for tokens, _ in rows], [acted for _, acted in rows])
        [tokens] = self.total([float(material.entries)])
        if not tokens:
            raise ConfigError("the action masks of these rows are empty, so there is nothing to train on; mark the answer's tokens")

        def loss_of(batch: Batch, real: bool) -> Tensor:
            logprobs = self.policy(batch).logprobs
            return -logprobs.sum() / tokens if real else logprobs.sum() * 0.0

        rate = float(self.scheduler.get_last_lr()[0])
        loss, norm = self._descend(material, range(len(material.tokens)), loss_of)
        if finite((loss, norm)):
            self.scheduler.step()
        return {"loss": loss, "grad_norm": norm, "learning_rate": rate, "tokens/trained": tokens}

    # ---- metrics and state ----------------------------------------------------------------------------------------

    def _added(self, numbers: Sequence[float]) -> list[float]:
        mine = torch.tensor(numbers, dtype=torch.float64, device=self.accelerator.device)
        return list(self.accelerator.reduce(mine, "sum").tolist())

    def _conclude(self, step: Step, tally: Tally, descents: Descents) -> dict[str, float]:
        """Finish the update: collect metrics, and update the schedule, the algorithm and the reference."""
        algorithm = self.algorithm
        metrics = descents.figures() | {"learning_rate": float(self.scheduler.get_last_lr()[0])}
        metrics |= tally.means(self.total) | self._account(step, tally)
        metrics |= dict(algorithm.figures) | (step.logps(self.total) if algorithm.single_step else {})
        metrics = {name: value for name, value in metrics.items() if math.isfinite(value)}  # the log and the KL controller reject NaN
        algorithm.observe([e.reward for e in step.episodes if not e.aside], metrics.get("kl"), self.total)
        if self.reference is not None:
            metrics["beta"] = algorithm.beta
            if mix := algorithm.refresh():
                folded(self.policy)
                self.reference.refresh(self.accelerator.unwrap_model(self.policy).model, mix)
        if descents.moved:  # a step that changed nothing does not advance the schedule
            self.scheduler.step()
        self.advantages, self.log_ratios = step.logged(), step.log_ratios()
        return metrics

    def _account(self, step: Step, tally: Tally) -> dict[str, float]:
        """Compute metrics: token counts, groups, advantages, and the mismatch between sampler and trainer."""
        trained = tally.tokens / self.algorithm.num_iterations
        account = step.account()
        if trained != account["tokens/to_train"]:
            raise RlvrError(f"{trained:g} tokens were trained, but {account['tokens/to_train']:g} were expected: a row was lost")
        account["tokens/trained"] = account.pop("tokens/to_train")
        spread = step.advantage_figures()
        numbers = account | step.group_figures() | {f"advantage/{k}": v for k, v in spread.items()} | {"tokens/computed": tally.computed}
        sums = dict(zip(numbers, self.total(list(numbers.values())), strict=True))
        if sums["tokens/sampled"] != sums["tokens/trained"] + sums["tokens/masked"] + sums["tokens/dropped"]:
            raise RlvrError(f"tokens are not conserved: {sums}")
        count, added, squares = (sums.pop(f"advantage/{k}") for k in ("count", "sum", "squares"))
        mean = added / count if count else 0.0
        groups = sums.pop("groups")
        row = sums | {"frac_reward_zero_std": sums["groups/zero_std"] / groups if groups else 0.0}
        row |= {"advantage/mean": mean, "advantage/std": math.sqrt(max(0.0, squares / count - mean**2)) if count else 0.0}
        row |= mismatch.measurements(*torch.cat(gather(step.scored_twice()), 1))
        return row

    @property
    def weights(self) -> Weights:
        """The current weights, for the sampler and the checkpoint."""
        return self._handed

    def whole(self) -> Any:
        """Return a plain model in this process: the model itself, or a copy if it has an adapter or is sharded."""
        return self._handed.model()

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a bitwise identical resume, without the model's weights and the state of `write_sharded_state`."""
        return state.taken(self)

    def load_state_dict(self, saved: Mapping[str, Any], parts: Path | None = None) -> None:
        """Restore the state from `state_dict`, in a learner with the same settings; `parts`: the folder of `write_sharded_state`."""
        state.restored(self, saved, parts)

    def write_parts(self, folder: Path) -> None:
        """Write the sharded state, each process its shard. A collective operation."""
        if self.sharded:
            moments.write(folder, self.optimizer, state.moving(self))
