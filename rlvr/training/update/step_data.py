"""The episodes of one training step, arranged for the learner.

Contains the rows that may train, flat vectors with one entry per policy token, and the accounting of all sampled tokens:
sampled = trained + masked + dropped, by reason.
"""

from __future__ import annotations

import math
import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlvr.algorithms.functions.advantages import AllReduce, has_no_signal
from rlvr.contracts.algorithm import Algorithm, NestedValues
from rlvr.episode import Episode
from rlvr.models.batch import Batch, Numbers, TokenRows
from rlvr.models.device_defaults import copy_to_device
from rlvr.training.distributed.group import all_gather_values

Groups = Sequence[Sequence[Episode]]


class StepData:
    """The data of one step. Rows are the scored episodes with at least one policy token, in order; their entries are the tokens
    in the algorithm's loss mask.

    >>> StepData(groups, algorithm).rows.num_policy_tokens  # doctest: +SKIP
    """

    def __init__(self, groups: Groups, algorithm: Algorithm, *, has_sampling_temperature: bool = True) -> None:
        self.groups, self.has_sampling_temperature = groups, has_sampling_temperature
        """`has_sampling_temperature`: sampling and training temperature are equal, so that log-probabilities can be compared."""
        self.row_positions = [(g, i) for g, group in enumerate(groups) for i, e in enumerate(group) if e.is_scored and e.num_policy_tokens]
        self.episodes = [groups[g][i] for g, i in self.row_positions]
        self.rows = TokenRows(
            [e.tokens for e in self.episodes],
            [_mask_out_turns(algorithm.loss_mask(e), e) for e in self.episodes],
            [e.segments for e in self.episodes],
        )
        self.is_in_loss = [algorithm.is_in_loss(e) and bool(n) for e, n in zip(self.episodes, self.rows.num_acted, strict=True)]
        self.has_grad = list(self.is_in_loss)
        self.has_optimizer_stepped = False
        """True if an optimizer step was already taken on this data."""
        sampler = self.rows.flatten_policy_tokens([e.logprobs for e in self.episodes])
        self.columns = {"rollout_logprobs": sampler, "old_logprobs": torch.zeros_like(sampler)}
        self.deferred: dict[str, list[tuple[Tensor, Tensor]]] = {}

    def add_zero_column(self, name: str) -> Tensor:
        """Add a column of zeros and return it."""
        self.columns[name] = torch.zeros(self.rows.num_policy_tokens)
        return self.columns[name]

    def defer_column_write(self, column_name: str, positions: Tensor, values: Tensor) -> None:
        """Defer writing values to a column. They stay on the device until `flush_deferred`, to avoid synchronization."""
        self.deferred.setdefault(column_name, []).append((positions.clone(), values.detach().float()))

    def flush_deferred(self) -> None:
        """Fetch all deferred values at once and write them to their columns."""
        for name, parts in self.deferred.items():
            takes, values = zip(*parts, strict=True)
            self.columns[name][torch.cat(takes)] = torch.cat(values).cpu()
        self.deferred.clear()

    def unflatten_column(self, column: Tensor) -> list[list[Numbers]]:
        """Convert a column to one array per episode, by group, with a number for every token; zeros without an entry."""
        out = [[np.zeros(len(e.tokens)) for e in group] for group in self.groups]
        values, starts = column.double().numpy(), self.rows.entry_starts
        for r, (g, i) in enumerate(self.row_positions):
            out[g][i][self.rows.acted_positions[r]] = values[starts[r] : starts[r + 1]]
        return out

    def add_column(self, name: str, nested: NestedValues) -> None:
        """Add a column from numbers per group, episode and token."""
        self.columns[name] = self.rows.flatten_policy_tokens([nested[g][i] for g, i in self.row_positions])

    def set_advantages(self, advantages: NestedValues, *, keep_zero_advantage: bool) -> None:
        """Store the advantages, and select the rows that have a gradient."""
        self.advantages = advantages
        self.add_column("advantages", advantages)
        starts = self.rows.entry_starts
        busy = self.columns["advantages"] != 0
        self.has_grad = [
            trains and (keep_zero_advantage or bool(busy[starts[r] : starts[r + 1]].any())) for r, trains in enumerate(self.is_in_loss)
        ]

    def build_logged_advantages(self) -> list[list[list[float]]]:
        """Return the advantages for the log as lists, empty if one is not finite."""
        rows = [[np.asarray(row, dtype=np.float64) for row in group] for group in self.advantages]
        return [[row.tolist() if np.isfinite(row).all() else [] for row in group] for group in rows]

    def _add_context_columns(self) -> None:
        rows = self.rows
        turns = [np.cumsum(np.diff(np.asarray([False, *e.action_mask], dtype=np.int64)) == 1) - 1 for e in self.episodes]
        found = {
            "tokens": [row[p] for row, p in zip(rows.tokens, rows.acted_positions, strict=True)],
            "episodes": [np.full(len(p), r) for r, p in enumerate(rows.acted_positions)],
            "turns": [turn[p] for turn, p in zip(turns, rows.acted_positions, strict=True)],
        }
        self.columns |= {name: torch.from_numpy(np.concatenate([np.zeros(0, dtype=np.int64), *some])) for name, some in found.items()}

    def get_token_identities(self, batch: Batch, has_rows: bool) -> dict[str, Tensor]:
        """Return the id, episode index and turn index of each token of a micro-batch; zeros for a filler."""
        if "tokens" not in self.columns:
            self._add_context_columns()
        if not has_rows:
            return dict.fromkeys(("tokens", "episodes", "turns"), torch.zeros_like(batch.row_indices))
        return {
            name: copy_to_device(self.columns[name][batch.entry_positions], batch.row_indices.device)
            for name in ("tokens", "episodes", "turns")
        }

    def compute_token_batch_stats(self, algorithm: Algorithm, row_indices: Sequence[int], all_reduce: AllReduce) -> None:
        """Compute the algorithm's batch statistics over all tokens of an optimizer step."""
        starts = self.rows.entry_starts
        places = torch.cat([torch.arange(0), *(torch.arange(starts[r], starts[r + 1]) for r in row_indices)])
        seen = {name: column[places] for name, column in self.columns.items() if name != "batch_stats"}
        self.add_zero_column("batch_stats")[places] = algorithm.compute_token_batch_stats(seen, all_reduce).float()

    def shuffle_into_minibatches(
        self, rows: Sequence[int], num_minibatches: int, generator: random.Random, accelerator: Any
    ) -> Iterator[list[int]]:
        """Shuffle the rows of all processes into minibatches, and yield this process's rows of each.

        Group g of this process is group g * W + rank of the step, with W processes.
        """
        mine, everybody = accelerator.process_index, accelerator.num_processes
        places = {(self.row_positions[r][0] * everybody + mine, self.row_positions[r][1]): r for r in rows}
        everyone = sorted(place for share in all_gather_values(list(places)) for place in share)
        generator.shuffle(everyone)  # identical in all processes, so the result does not depend on their number
        for k in range(num_minibatches):
            part = everyone[k * len(everyone) // num_minibatches : (k + 1) * len(everyone) // num_minibatches]
            yield [places[place] for place in part if place in places]

    def count_tokens(self) -> dict[str, float]:
        """Count what happened to every sampled token. The micro-batches must add up to `tokens/to_train`."""
        count: Counter[str] = Counter(
            dict.fromkeys(("sampled", "to_train", "masked", "dropped", "dropped_unscored", "dropped_zero_advantage"), 0)
        )
        for group in self.groups:
            for e in group:
                count["sampled"] += e.num_policy_tokens
                if not e.is_scored:
                    count["dropped_unscored"] += e.num_policy_tokens
        for episode, kept, trains, moves in zip(self.episodes, self.rows.num_acted.tolist(), self.is_in_loss, self.has_grad, strict=True):
            where = (
                "to_train" if moves else "dropped_zero_advantage" if trains else "dropped_baseline" if episode.is_auxiliary else "masked"
            )
            count[where] += kept
            count["masked"] += episode.num_policy_tokens - kept
        count["dropped"] = sum(n for key, n in count.items() if key.startswith("dropped_"))
        return {f"tokens/{key}": float(n) for key, n in count.items()}

    def stack_trainer_sampler_logprobs(self) -> Tensor:
        """Return two rows: the log-probabilities of trained tokens by the trainer (before any optimizer step) and by the sampler."""
        trainer = self._get_trainer_logprobs()
        known = trainer.isfinite()
        return torch.stack([trainer[known], self.columns["rollout_logprobs"][known]])

    def compute_log_ratios(self) -> list[list[list[float] | None]]:
        """Compute the trainer's minus the sampler's log-probability of each token; None for episodes that were not scored."""
        ratios = self._get_trainer_logprobs() - self.columns["rollout_logprobs"]
        out: list[list[list[float] | None]] = [[None for _ in group] for group in self.groups]
        for (g, i), row in zip(self.row_positions, self.rows.unflatten_policy_tokens(ratios), strict=True):
            out[g][i] = row if are_finite(row) else None
        return out

    def _get_trainer_logprobs(self) -> Tensor:
        """Return the trainer's log-probabilities before any optimizer step; NaN if not scored or not sampled by a policy."""
        trainer = self.columns["first" if "first" in self.columns else "old_logprobs"]
        looked_at = [
            self.has_sampling_temperature and moves and e.policy_version >= 0 for e, moves in zip(self.episodes, self.has_grad, strict=True)
        ]
        return torch.where(self.rows.repeat_per_policy_token([float(both) for both in looked_at]) > 0, trainer, math.nan)

    def compute_group_count_metrics(self) -> dict[str, float]:
        """Count the groups, and those without spread or with too few scores."""
        rewards = [[e.reward if e.is_scored and not e.is_auxiliary else None for e in group] for group in self.groups]
        lone = sum(sum(r is not None for r in group) < 2 for group in rewards)
        flat = sum(has_no_signal(group) for group in rewards)
        return {"groups": float(len(rewards)), "groups/num_zero_std": float(flat), "groups/num_too_few_scored": float(lone)}

    def compute_chosen_rejected_logps(self, all_reduce: AllReduce) -> dict[str, float]:
        """Compute the mean log-probability of chosen and of rejected answers, for preference algorithms."""
        sums = dict.fromkeys(("chosen", "rejected"), (0.0, 0.0))
        for advantage, old in zip(
            self.rows.unflatten_policy_tokens(self.columns["advantages"]),
            self.rows.unflatten_policy_tokens(self.columns["old_logprobs"]),
            strict=True,
        ):
            push = sum(advantage)
            if push:
                name = "chosen" if push > 0 else "rejected"
                sums[name] = sums[name][0] + sum(old), sums[name][1] + 1
        up, ups, down, downs = all_reduce([*sums["chosen"], *sums["rejected"]])
        return ({"logps/chosen": up / ups} if ups else {}) | ({"logps/rejected": down / downs} if downs else {})

    def compute_advantage_moment_sums(self) -> dict[str, float]:
        """Compute sums over the tokens in the loss, for mean and standard deviation of the advantages."""
        chosen = self.columns["advantages"][self.rows.repeat_per_policy_token([float(t) for t in self.is_in_loss]) > 0].double()
        if not chosen.numel():
            return {"count": 0.0, "sum": 0.0, "squares": 0.0}
        return {"count": float(chosen.numel()), "sum": float(chosen.sum()), "squares": float(chosen.square().sum())}


def _mask_out_turns(mask: Sequence[bool], episode: Episode) -> Sequence[bool]:
    spans = episode.masked_turn_spans
    if not spans:
        return mask
    kept = list(mask)
    for start, end in spans:
        kept[start:end] = [False] * (end - start)
    return kept


class OptimizerStepStats:
    """Statistics of the optimizer steps of one training step. Skipped, non-finite steps are not in the means.

    >>> stats = OptimizerStepStats()
    >>> for outcome in (None, (0.5, 2.0), (math.nan, math.inf)):
    ...     stats.add(outcome)
    >>> [stats.metrics()[name] for name in ("loss", "grad_norm", "optimizer_steps", "step/nonfinite_minibatches", "step/skipped_minibatches")]
    [0.5, 2.0, 1.0, 1.0, 1.0]
    """

    def __init__(self) -> None:
        self.loss = self.norm = 0.0
        self.num_steps = self.num_nonfinite = self.num_skipped = 0

    def add(self, loss_and_grad_norm: tuple[float, float] | None) -> None:
        """Add one step: its loss and gradient norm, or None if no row had a gradient."""
        if loss_and_grad_norm is None:
            self.num_skipped += 1
        elif not are_finite(loss_and_grad_norm):
            self.num_nonfinite += 1
        else:
            self.num_steps += 1
            self.loss, self.norm = self.loss + loss_and_grad_norm[0], self.norm + loss_and_grad_norm[1]

    def metrics(self) -> dict[str, float]:
        """Return the means, and the numbers of steps taken, non-finite, or skipped."""
        return {
            "loss": self.loss / max(1, self.num_steps),
            "grad_norm": self.norm / max(1, self.num_steps),
            "optimizer_steps": float(self.num_steps),
            "step/skipped": float(self.num_steps + self.num_nonfinite == 0),
            "step/skipped_minibatches": float(self.num_skipped),
            "step/nonfinite_minibatches": float(self.num_nonfinite),
        }


class MeanMetrics:
    """Sums of per-token metrics over the micro-batches of a step, for the means over all processes.

    >>> means = MeanMetrics()
    >>> means.add({"kl": torch.tensor([0.1, 0.3])}, num_tokens=2)
    >>> round(means.compute_means(list)["kl"], 6)
    0.2
    """

    def __init__(self) -> None:
        self.sums: defaultdict[str, list[tuple[Tensor, int]]] = defaultdict(list)
        """The sums of each metric per micro-batch, with their multiplicity. They stay on the device until `compute_means`."""
        self.num_tokens = self.num_computed_tokens = 0.0

    def add(self, metrics: Mapping[str, Tensor], *, num_tokens: int, num_computed_tokens: int = 0) -> None:
        """Add one micro-batch; a filler has no tokens and only adds the names. A scalar metric counts for every token."""
        self.num_tokens, self.num_computed_tokens = self.num_tokens + num_tokens, self.num_computed_tokens + num_computed_tokens
        for name, values in metrics.items():
            self.sums[name] += [(values.detach().sum(), 1 if values.ndim else num_tokens)] if num_tokens else []

    def compute_means(self, all_reduce: AllReduce) -> dict[str, float]:
        """Compute the mean of each metric over all tokens of all processes."""
        names = list(self.sums)
        tokens, *sums = all_reduce([self.num_tokens, *(_sum_weighted_scalars(self.sums[n]) for n in names)])
        return {name: value / tokens if tokens else 0.0 for name, value in zip(names, sums, strict=True)}


def _sum_weighted_scalars(weighted_scalars: Sequence[tuple[Tensor, int]]) -> float:
    """Compute the weighted sum of scalars on a device, fetching all at once.

    >>> _sum_weighted_scalars([(torch.tensor(0.5), 2), (torch.tensor(3.0), 1)])
    4.0
    """
    values = torch.stack([value for value, _ in weighted_scalars]).tolist() if weighted_scalars else []
    return float(sum(value * times for value, (_, times) in zip(values, weighted_scalars, strict=True)))


def are_finite(numbers: Iterable[float]) -> bool:
    """Return whether all numbers are finite."""
    return all(map(math.isfinite, numbers))
