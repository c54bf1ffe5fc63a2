"""Learner: one training step from groups of episodes to new weights, through accelerate.

    credit          advantages for every token                                   (the algorithm, in lists)
    passes          old, reference and critic scores, only where something needs them
    per part        weights from one global denominator, then micro-batches that just add up
    step            clip, optimizer, schedule

A micro-batch is a plain weighted sum, so its size is a knob of speed and of nothing else.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from accelerate.utils import gather_object
from torch import Tensor

from rlvr.algos import mismatch
from rlvr.contracts.algorithm import Algorithm, LossInputs
from rlvr.episode import Episode
from rlvr.errors import ConfigError, RlvrError
from rlvr.learn.update import adapter, packing, sharded
from rlvr.learn.update.optimization import Optimization
from rlvr.learn.update.policy import Policy, check_steady, checkpointed
from rlvr.learn.update.reference import Reference
from rlvr.learn.update.step import Descents, Step, Tally, finite
from rlvr.model.batch import Batch, Rows

__all__ = ["Learner", "Optimization"]

Nested = list[list[list[float]]]
PACK_BELOW = 0.9
"""Rows are packed where that computes less than this share of the tokens that padded rows would."""

KNOWN = ("sampler", "advantages", "old", "reference", "old_values", "returns")
"""The columns of a step that the loss reads."""


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
        seed: int = 0,
        max_completion_length: int = 0,
        sampled_alike: bool = True,
    ) -> None:
        if not temperature > 0:
            raise ConfigError(f"temperature is {temperature}; a policy that samples greedily has no gradient; use a value above 0")
        self.algorithm, self.optimization, self.accelerator = algorithm, optimization, accelerator
        self.max_completion_length, self.sampled_alike = max_completion_length, sampled_alike
        optimization.check(algorithm, adapted=adapter.is_on(model), max_completion_length=max_completion_length)
        check_steady(model.eval())
        if optimization.gradient_checkpointing:
            checkpointed(model)
        self.reference = Reference.of(model, temperature=temperature, frozen=reference) if algorithm.needs_reference else None
        policy = Policy(model, temperature=temperature, value_head=algorithm.needs_value)
        optimizer, self.scheduler = optimization.made_for([p for p in policy.parameters() if p.requires_grad], total_steps)
        self.unpackable = packing.fits(model, policy) or (self.reference.unpackable() if self.reference else "")
        """Why rows are padded; empty where they may be packed."""
        self.policy, self.optimizer = accelerator.prepare(policy, optimizer)
        if self.reference is not None and self.reference.adapter is None:
            self.reference.policy.to(accelerator.device)
        self.random = random.Random(seed)
        self._spare: Any = None
        self.advantages: list[list[list[float]]] = []
        self.log_ratios: list[list[list[float] | None]] = []
        """Of the last update, per group, episode and token, for the record, what is not finite left out; the ratios are the trainer's to
        the sampler's."""

    # ---- one step -------------------------------------------------------------------------------------------------

    def update(self, groups: Sequence[Sequence[Episode]]) -> dict[str, float]:
        """Learn from one step's groups; the metrics under TRL's names. An all-degenerate step moves nothing and says so."""
        step, tally, descents = Step(groups, self.algorithm, sampled_alike=self.sampled_alike), Tally(), Descents()
        self._prepare(step)
        for _ in range(self.algorithm.num_iterations):
            for part in self._parts(step):
                descents.add(outcome := self._learn(step, part, tally))
                step.stepped = step.stepped or outcome is not None
        return self._conclude(step, tally, descents)

    def _prepare(self, step: Step) -> None:
        """Credit, and the scores of frozen weights where something needs them."""
        algorithm = self.algorithm
        step.on_policy = self.optimization.minibatches_per_step == 1 and algorithm.num_iterations == 1 and not algorithm.bypass
        early = algorithm.penalises_reward or algorithm.needs_value
        penalties, values = self._before_credit(step) if early else (None, None)
        self.advantages = algorithm.credit(step.groups, penalties=penalties, values=values, total=self.total)
        step.add("advantages", self.advantages)
        step.choose(flat_too=algorithm.trains_flat)
        if not early and (self.reference is not None or not step.on_policy):
            self._after_credit(step)

    def _after_credit(self, step: Step) -> None:
        """The scores that only the loss needs, of the rows that have a gradient."""
        chosen = [r for r, moves in enumerate(step.moves) if moves]
        if self.reference is not None:
            self._score_reference(step, chosen)
        if self.algorithm.bypass:
            step.columns["old"] = step.columns["sampler"]
            step.columns["first"] = torch.full_like(step.columns["sampler"], math.nan)
        elif not step.on_policy:  # otherwise the training pass itself fills the column
            self._score_old(step, chosen)

    def _before_credit(self, step: Step) -> tuple[Nested | None, Nested | None]:
        """The scores that the credit needs: where the KL is subtracted from the rewards, or a critic's values are the baseline."""
        algorithm, everyone = self.algorithm, range(len(step.episodes))
        self._score_old(step, everyone)
        if self.reference is not None:
            self._score_reference(step, everyone)
        penalties = values = None
        if algorithm.penalises_reward:
            penalties = step.grouped(algorithm.beta * (step.columns["old"] - step.columns["reference"]))
        if algorithm.needs_value:
            values = step.grouped(step.columns["old_values"])
            step.add("returns", algorithm.value_targets(step.groups, penalties=penalties, values=values))
        return penalties, values

    @torch.no_grad()
    def _score_old(self, step: Step, chosen: Sequence[int]) -> None:
        """The policy's own scores before it is trained."""
        values = self.algorithm.needs_value
        column, known = step.empty("old"), step.empty("old_values") if values else None
        for batch, real in self._batches(step.rows, chosen):
            scores = self.policy(batch, values=values)
            if real:
                column[batch.take.cpu()] = scores.logprobs.float().cpu()
            if real and known is not None:
                known[batch.take.cpu()] = scores.values.float().cpu()

    @torch.no_grad()
    def _score_reference(self, step: Step, chosen: Sequence[int]) -> None:
        """The reference's scores, in the policy's own precision, or the KL would be that of rounding."""
        assert self.reference is not None
        column = step.empty("reference")
        for batch, real in self._batches(step.rows, chosen):
            with self.accelerator.autocast():
                logprobs = self.reference.logprobs(batch)
            if real:
                column[batch.take.cpu()] = logprobs.float().cpu()

    def _parts(self, step: Step) -> Iterator[list[int]]:
        """The rows that train, cut into one part per optimizer step. Group g of this process is group g * W + rank of the step."""
        mine, everybody = self.accelerator.process_index, self.accelerator.num_processes
        rows = {(g * everybody + mine, i): r for r, (g, i) in enumerate(step.place) if step.trains[r]}
        everyone, parts = sorted(gather_object(list(rows))), self.optimization.minibatches_per_step
        if parts > 1:
            self.random.shuffle(everyone)  # alike in all processes: how many they are does not change the cut
        for k in range(parts):
            yield [rows[place] for place in everyone[k * len(everyone) // parts : (k + 1) * len(everyone) // parts] if place in rows]

    def _learn(self, step: Step, part: Sequence[int], tally: Tally) -> tuple[float, float] | None:
        """One optimizer step on some rows; its loss and gradient norm, or None when no row has a gradient."""
        lengths, prompts = [int(step.rows.trained[r]) for r in part], [step.prompts[r] for r in part]
        mine = self.algorithm.row_weights(lengths, prompts, max_length=self.max_completion_length, total=self.total)
        weight_of = dict(zip(part, mine, strict=True))
        weights = step.rows.repeat([weight_of.get(r, 0.0) for r in range(len(step.episodes))])
        live = [r for r in part if step.moves[r]]
        if not self.total([float(len(live))])[0]:
            return None
        return self._descend(step.rows, live, partial(self._loss, step, weights, tally), still=self.algorithm.critic_alone)

    def _loss(self, step: Step, weights: Tensor, tally: Tally, batch: Batch, real: bool) -> Tensor:
        """What one micro-batch adds to the loss; nothing, if it is a filler."""
        algorithm, columns, take = self.algorithm, step.columns, batch.take.cpu()
        scores = self.policy(batch, entropy=algorithm.needs_entropy, values=algorithm.needs_value)
        new = scores.logprobs
        noted = "old" if step.on_policy else "first" if algorithm.bypass and not step.stepped else ""
        if noted and real:
            columns[noted][take] = new.detach().float().cpu()
        known = {name: columns[name][take].to(new) if real else new.detach() for name in KNOWN if name in columns}
        if step.on_policy:
            known["old"] = new.detach()
        inputs = LossInputs(new=new, entropy=scores.entropy, values=scores.values, rows=batch.row, count=batch.count, **known)
        losses, figures = algorithm.losses(inputs)
        tally.add(figures, tokens=batch.take.numel() if real else 0, computed=batch.input_ids.numel() if real else 0)
        return (losses * weights[take].to(losses)).sum() if real else losses.sum() * 0.0

    def _descend(
        self, rows: Rows, chosen: Sequence[int], loss_of: Callable[[Batch, bool], Tensor], *, still: bool = False
    ) -> tuple[float, float]:
        """Add up the micro-batches' gradients, then clip and step. What is not finite moves nothing; `still`: only the critic."""
        accelerator, o = self.accelerator, self.optimization
        factor = accelerator.num_processes * accelerator.gradient_accumulation_steps  # undo both of accelerate's means
        loss, batches = 0.0, list(self._batches(rows, chosen))
        for k, (batch, real) in enumerate(batches):
            accelerator.sync_gradients = k == len(batches) - 1
            with nullcontext() if accelerator.sync_gradients else accelerator.no_sync(self.policy):
                part = loss_of(batch, real)
                accelerator.backward(part * factor)
                loss += float(part.detach())
        for held in accelerator.unwrap_model(self.policy).model.parameters() if still else ():
            held.grad = None  # not zero: the optimizer passes over it
        norm = accelerator.clip_grad_norm_(self.policy.parameters(), o.max_grad_norm or math.inf)
        norm = float(norm.full_tensor() if hasattr(norm, "full_tensor") else norm)
        [loss] = self.total([loss])
        if not finite((loss, norm)):
            self.optimizer.zero_grad()  # so the step below moves nothing, and a scaler of the loss still hears of the overflow
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss, norm

    def _batches(self, rows: Rows, chosen: Sequence[int]) -> Iterator[tuple[Batch, bool]]:
        """Micro-batches, with fillers (marked False) so that all processes run equally many."""
        budget, device = self.optimization.max_tokens_per_microbatch, self.accelerator.device
        plan, lay = rows.plan(chosen, budget), rows.padded
        if plan and not self.unpackable:
            packed, computed = packing.plan(rows, chosen, budget)
            if computed / sum(rows.width(part) for part in plan) < PACK_BELOW:
                plan, lay = packed, partial(packing.pack, rows)
        for part in plan:
            yield lay(part, device), True
        if self.accelerator.num_processes > 1:
            yield from self._fillers(len(plan))

    def _fillers(self, mine: int) -> Iterator[tuple[Batch, bool]]:
        """One token of nothing for each micro-batch that another process has more than this one."""
        device = self.accelerator.device
        most = int(self.accelerator.gather(torch.tensor([mine], device=device)).max())
        for _ in range(most - mine):
            yield Rows([[0, 0]], [[False, True]]).padded([0], device), False

    # ---- supervised -----------------------------------------------------------------------------------------------

    def supervise(self, rows: Sequence[tuple[Sequence[int], Sequence[bool]]]) -> dict[str, float]:
        """One optimizer step of cross-entropy over the acted tokens: warm start, fine-tuning. It advances the schedule too."""
        material = Rows([tokens for tokens, _ in rows], [acted for _, acted in rows])
        [tokens] = self.total([float(material.entries)])
        if not tokens:
            raise ConfigError("no token of these rows is acted: there is nothing to learn; mark the answer's tokens")

        def loss_of(batch: Batch, real: bool) -> Tensor:
            logprobs: Tensor = self.policy(batch).logprobs
            return -logprobs.sum() / tokens if real else logprobs.sum() * 0.0

        rate = float(self.scheduler.get_last_lr()[0])
        loss, norm = self._descend(material, range(len(material.tokens)), loss_of)
        if finite((loss, norm)):
            self.scheduler.step()
        return {"loss": loss, "grad_norm": norm, "learning_rate": rate, "tokens/trained": tokens}

    # ---- figures and state ----------------------------------------------------------------------------------------

    def total(self, numbers: Sequence[float]) -> list[float]:
        """Add numbers up over all processes."""
        if self.accelerator.num_processes == 1:
            return list(numbers)
        mine = torch.tensor(numbers, dtype=torch.float64, device=self.accelerator.device)
        return list(self.accelerator.reduce(mine, "sum").tolist())

    def _conclude(self, step: Step, tally: Tally, descents: Descents) -> dict[str, float]:
        """After the last optimizer step: the metrics, and what goes on with the schedule, the algorithm and the reference."""
        algorithm = self.algorithm
        metrics = descents.figures() | {"learning_rate": float(self.scheduler.get_last_lr()[0])}
        metrics |= tally.means(self.total) | self._account(step, tally)
        metrics |= dict(algorithm.figures) | (step.logps(self.total) if algorithm.single_step else {})
        metrics = {name: value for name, value in metrics.items() if math.isfinite(value)}  # a log and a controller take no NaN
        algorithm.observe([e.reward for e in step.episodes if not e.aside], metrics.get("kl"), self.total)
        if self.reference is not None:
            metrics["beta"] = algorithm.beta
            if mix := algorithm.refresh():
                self.reference.refresh(self.whole(), mix)
        if descents.moved:  # a step that moved nothing does not move the schedule either
            self.scheduler.step()
        self.advantages = [[row if finite(row) else [] for row in group] for group in self.advantages]
        self.log_ratios = step.log_ratios()
        return metrics

    def _account(self, step: Step, tally: Tally) -> dict[str, float]:
        """Token conservation, groups, advantages, and how far the sampler was off."""
        trained = tally.tokens / self.algorithm.num_iterations
        account = step.account()
        if trained != account["tokens/to_train"]:
            raise RlvrError(f"{trained:g} tokens were trained where {account['tokens/to_train']:g} should have been: a row was lost")
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
        row |= mismatch.measurements(*torch.cat(gather_object([step.scored_twice()]), 1))
        return row

    def whole(self) -> Any:
        """The model with all its weights in one piece, for the sampler and the checkpoint. All processes ask for it at once."""
        model = self.accelerator.unwrap_model(self.policy).model
        if not (adapted := adapter.is_on(model)) and not sharded.is_sharded(model):
            return model
        self._spare = adapter.merged(model, self._spare) if adapted else sharded.whole_model(model, self._spare)
        return self._spare

    def state_dict(self) -> dict[str, Any]:
        """Everything beyond the model's weights that a resume to the bit needs: tensors and plain values only."""
        policy = self.accelerator.unwrap_model(self.policy)
        version, numbers, gauss = self.random.getstate()
        return {
            "optimizer": sharded.put_together(self.optimizer.state_dict()),
            "scheduler": self.scheduler.state_dict(),
            "algorithm": dict(self.algorithm.state_dict()),
            "random": [version, list(numbers), gauss],
            "critic": None if policy.value is None else sharded.put_together(policy.value.state_dict()),
            "reference": None if self.reference is None else self.reference.state_dict(),
            "scaler": None if self.accelerator.scaler is None else self.accelerator.scaler.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` gave, into a learner made with the same settings."""
        policy = self.accelerator.unwrap_model(self.policy)
        sharded.load_optimizer(self.optimizer, state["optimizer"])
        self.scheduler.load_state_dict(state["scheduler"])
        self.algorithm.load_state_dict(state["algorithm"])
        version, numbers, gauss = state["random"]
        self.random.setstate((version, tuple(numbers), gauss))
        if policy.value is not None:
            sharded.load_weights(policy.value, state["critic"])
        if self.reference is not None:
            self.reference.load_state_dict(state["reference"])
        if self.accelerator.scaler is not None and (scale := state.get("scaler")):  # there is none in a checkpoint of an earlier version
            self.accelerator.scaler.load_state_dict(scale)
