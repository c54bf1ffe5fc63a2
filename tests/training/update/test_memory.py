"""What an optimizer step costs besides computing: one micro-batch in memory, and as few waits for the device as one micro-batch needs."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from torch.utils._python_dispatch import TorchDispatchMode

from rlvr.episode import Episode
from rlvr.models.batch import Batch, TokenRows
from rlvr.registry.plugins import build
from rlvr.training.update.learner import Learner, OptimizationSettings
from tests.fixtures.learning import episode, tiny_model


class Live:
    """Counts the micro-batches that exist, by weak references to their tensors, masks included."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made, self.most, self.masks = 0, 0, 0
        self.alive: list[list[weakref.ref[torch.Tensor]]] = []
        laid = TokenRows.build_batch

        def noted(rows: TokenRows, *args: Any, **kwargs: Any) -> Batch:
            batch = laid(rows, *args, **kwargs)
            buckets = batch.layout.buckets if batch.layout is not None else []
            masks = [bucket.mask for bucket in buckets if bucket.mask is not None]
            self.made, self.masks = self.made + 1, self.masks + len(masks)
            tensors = [batch.input_ids, batch.source_positions, batch.targets, batch.row_indices, batch.entry_positions, *masks]
            self.alive = [refs for refs in self.alive if any(ref() is not None for ref in refs)]
            self.alive.append([weakref.ref(tensor) for tensor in tensors])
            self.most = max(self.most, len(self.alive))
            return batch

        monkeypatch.setattr(TokenRows, "build_batch", noted)


def six_groups() -> list[list[Episode]]:
    """Rows that are packed, in several micro-batches of 40 tokens."""
    dice = torch.Generator().manual_seed(0)
    groups = []
    for g in range(6):
        prompt = torch.randint(0, 8, (8,), generator=dice).tolist()
        said = [torch.randint(0, 8, (3 + k,), generator=dice).tolist() for k in range(4)]
        groups.append([episode(prompt, words, [-2.0] * len(words), float(k % 2), f"g{g}") for k, words in enumerate(said)])
    return groups


@pytest.mark.parametrize("checkpointing", [False, True])
def test_one_micro_batch_at_a_time(checkpointing: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm = build("algorithm", "grpo", beta=0.1, num_iterations=2)  # with passes for the old policy and for the reference
    optimization = OptimizationSettings(max_tokens_per_microbatch=40, gradient_checkpointing=checkpointing)
    learner = Learner(tiny_model(), algorithm, optimization, accelerator=Accelerator(cpu=True), total_steps=1)
    assert not learner.padding_reason
    live = Live(monkeypatch)
    metrics = learner.update(six_groups())
    assert metrics["optimizer_steps"] == 2 and live.made >= 12 and live.masks > 0
    assert live.most == 1


class Waits(TorchDispatchMode):
    """Counts what fetches a value from the device: single numbers, and tensors that go to the CPU or become lists."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += function is torch.ops.aten._local_scalar_dense.default
        return function(*args, **kwargs or {})


def waits_of(budget: int, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    """How often an update waits, and how many micro-batches it has."""
    learner = Learner(
        tiny_model(), build("algorithm", "grpo", **settings), OptimizationSettings(max_tokens_per_microbatch=budget),
        accelerator=Accelerator(cpu=True), total_steps=1,
    )  # fmt: skip
    waits, made = Waits(), list[int]()
    cpu, fetched, loss_of = torch.Tensor.cpu, torch.Tensor.tolist, Learner._compute_microbatch_loss

    def seen(tensor: Any, *args: Any, how: Any = cpu) -> Any:
        waits.count += 1
        return how(tensor, *args)

    def lost(*args: Any) -> Any:
        made.append(1)
        return loss_of(*args)

    with monkeypatch.context() as patch, waits:
        patch.setattr(torch.Tensor, "cpu", seen)
        patch.setattr(torch.Tensor, "tolist", lambda tensor: seen(tensor, how=fetched))
        patch.setattr(Learner, "_compute_microbatch_loss", lost)
        learner.update(six_groups())
    return waits.count, len(made)


@pytest.mark.parametrize("settings", [{}, {"beta": 0.1, "num_iterations": 2}], ids=["on policy", "a reference, twice"])
def test_more_micro_batches_do_not_wait_more_often(settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    few, many = (waits_of(budget, settings, monkeypatch) for budget in (4096, 40))
    assert many[1] >= few[1] + 3 and few[0] == many[0]
