"""Reward model training: optimizer steps on pairs of answers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from rlvr.algorithms.functions.ranking import compute_bradley_terry_loss
from rlvr.models.device_defaults import get_device_defaults, resolve_microbatch_tokens
from rlvr.models.reward_model import RewardModel, Rows
from rlvr.training.update.optimization import OptimizationSettings
from rlvr.training.update.step_data import are_finite


class RewardModelTrainer:
    """Trains a reward model on pairs of answers.

    >>> trainer = RewardModelTrainer(model, OptimizationSettings(), total_steps=100, device="cpu")  # doctest: +SKIP
    >>> trainer.train_on_pairs([([5, 6], [5, 7], 1.0)])["loss"]  # doctest: +SKIP
    """

    def __init__(self, model: Any, optimization: OptimizationSettings, *, total_steps: int, device: Any, centering: float = 0.0) -> None:
        self.optimization, self.centering = optimization, centering
        self.scorer = RewardModel(model.to(device)).eval()  # permanently: training mode would turn dropout on
        self.max_tokens_per_microbatch = resolve_microbatch_tokens(optimization.max_tokens_per_microbatch, torch.device(device))
        fused = get_device_defaults(torch.device(device)).fused_optimizer
        self.optimizer, self.scheduler = optimization.build_optimizer(model.parameters(), total_steps, fused=fused)

    def train_on_pairs(self, pairs: Sequence[tuple[Sequence[int], Sequence[int], float]]) -> dict[str, float]:
        """Take one optimizer step on (chosen, rejected, margin) triples; return the metrics of TRL's reward trainer."""
        loss, scores = 0.0, torch.zeros(len(pairs), 2)
        for part in self._split_batches([max(len(a), len(b)) for a, b, _ in pairs]):
            some = [pairs[i] for i in part]
            both = self.scorer([row for a, b, _ in some for row in (a, b)]).view(-1, 2)
            margin = torch.tensor([m for _, _, m in some], dtype=both.dtype, device=both.device)
            cost = compute_bradley_terry_loss(both[:, 0], both[:, 1], margin, self.centering).sum() / len(pairs)
            cost.backward()
            loss += float(cost.detach())
            scores[part] = both.detach().cpu()
        norm = float(nn.utils.clip_grad_norm_(self.scorer.parameters(), self.optimization.max_grad_norm or math.inf))
        rate = float(self.scheduler.get_last_lr()[0])
        if fine := are_finite((loss, norm)):
            self.optimizer.step()
            self.scheduler.step()
        self.optimizer.zero_grad()
        gap = scores[:, 0] - scores[:, 1]
        row = {
            "loss": loss if fine else 0.0, "grad_norm": norm if fine else 0.0, "learning_rate": rate, "step/nonfinite_minibatches": float(not fine),
            "accuracy": float((gap > 0).float().mean()), "margin": float(gap.mean()),
            "mean_reward": float(scores.mean()), "min_reward": float(scores.min()), "max_reward": float(scores.max()),
        }  # fmt: skip
        return {name: value for name, value in row.items() if math.isfinite(value)}

    @torch.no_grad()
    def compute_scores(self, rows: Rows) -> list[float]:
        """Compute the score of each row, in order."""
        found = torch.zeros(len(rows))
        for part in self._split_batches([len(row) for row in rows]):
            found[part] = self.scorer([rows[i] for i in part]).cpu()
        values: list[float] = found.tolist()
        return values

    def _split_batches(self, lengths: Sequence[int]) -> Iterator[list[int]]:
        """Yield batches of rows of similar length, within the token budget."""
        order, budget = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)), self.max_tokens_per_microbatch
        while order:
            count = max(1, budget // (2 * lengths[order[0]]))
            yield order[:count]
            order = order[count:]

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a bitwise identical resume, without the weights."""
        return {"optimizer": self.optimizer.state_dict(), "scheduler": self.scheduler.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state from `state_dict`."""
        self.optimizer.load_state_dict(state["optimizer"])
        self.scheduler.load_state_dict(state["scheduler"])
