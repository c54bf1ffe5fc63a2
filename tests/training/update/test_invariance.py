"""What must not change the gradient: how rows are cut into micro-batches, their order, who else is in the batch, how many processes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from accelerate import Accelerator

from rlvr.episode import Episode, StopReason
from rlvr.training.update.learner import TOKEN_INPUTS, Learner
from rlvr.training.update.step_data import StepData
from tests.fixtures.gradients import VARIANTS, apart, fixed_groups, gradient, learner_for
from tests.training.peers.launch import ended, started


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@lru_cache
def whole(name: str) -> torch.Tensor:
    return gradient(learner_for(name, Accelerator(cpu=True)), fixed_groups())


@pytest.mark.slow
@pytest.mark.parametrize("name", VARIANTS)
def test_the_token_budget_is_a_pure_speed_knob(name: str) -> None:
    assert float(whole(name).norm()) > 0
    for budget in (1, 16, 40):
        assert apart(gradient(learner_for(name, Accelerator(cpu=True), budget=budget), fixed_groups()), whole(name)) < 1e-6


@pytest.mark.parametrize("name", VARIANTS)
def test_packed_and_padded_rows_have_one_gradient(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for below in (0.0, 9.0):
        monkeypatch.setattr("rlvr.training.update.packing.MAX_PACKED_TOKEN_FRACTION", below)
        subject = learner_for(name, Accelerator(cpu=True), budget=40)
        assert not subject.padding_reason
        found.append(gradient(subject, fixed_groups()))
    assert apart(*found) < 1e-6


@pytest.mark.parametrize("name", VARIANTS)
def test_the_order_of_groups_and_members_does_not_matter(name: str) -> None:
    first = VARIANTS[name][0] in ("sft", "best_of_n", "dpo", "online_dpo", "online_ipo")  # of equal answers they take the first
    turned = [group if first else group[::-1] for group in fixed_groups()[::-1]]
    assert apart(gradient(learner_for(name, Accelerator(cpu=True)), turned), whole(name)) < 1e-6


@pytest.mark.parametrize("name", VARIANTS)
def test_what_cannot_train_does_not_matter(name: str) -> None:
    groups = fixed_groups()
    groups[0].append(Episode("t0", "g0", [1, 2], [False, True], [0.0] * 2, [0.0] * 2, StopReason.FAILED, error="a worker died"))
    groups.append([Episode("t9", "g9", [1, 2, 3], [False, False, False], [0.0] * 3, [0.0] * 3, StopReason.FAILED)])
    assert apart(gradient(learner_for(name, Accelerator(cpu=True)), groups), whole(name)) < 1e-6


def test_more_padding_does_not_matter() -> None:
    """Tokens after the last acted one are no input, and longer neighbours only pad."""
    groups = fixed_groups()
    longer = [
        [
            Episode(
                e.task_id, e.group, [*e.tokens, 1, 2, 3], [*e.action_mask, False, False, False], [*e.logprobs, 0.0, 0.0, 0.0],
                [*e.rewards, 0.0, 0.0, 0.0], e.stop_reason, verdict=e.verdict, meta=e.meta,
            )
            for e in group
        ]
        for group in groups
    ]  # fmt: skip
    assert torch.equal(gradient(learner_for("grpo", Accelerator(cpu=True)), longer), whole("grpo"))


@pytest.mark.slow
def test_two_processes_have_one_gradient_replicated_or_sharded(tmp_path: Path, preloaded: Path) -> None:
    out = tmp_path / "two.pt"
    codes = ended(started(2, "tests.fixtures.gradients", [str(out)], tmp_path, preloaded=preloaded), 150)
    assert codes == [0, 0], "".join((tmp_path / f"{rank}.out").read_text()[-3000:] for rank in range(2))
    saved = torch.load(out, weights_only=True)
    assert saved["processes"] == 2 and saved["fsdp2"] < 1e-6
    distances = {name: apart(found, whole(name)) for name, found in saved["gradients"].items()}
    assert set(distances) == set(VARIANTS) and max(distances.values()) < 1e-6, distances


@pytest.mark.parametrize("has_linear_head", [True, False])
@pytest.mark.parametrize("budget", [16, 8192])
def test_an_input_from_the_whole_vocabulary_is_computed_under_the_weights_before_the_update(
    has_linear_head: bool, budget: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The entropy, computed as an input of one's own would be, has the gradient of the entropy that the learner computes."""

    def compute_entropy(learner: Learner, step: StepData) -> torch.Tensor:
        return learner.compute_from_vocabulary(step, lambda logprobs, tokens: -(logprobs.exp() * logprobs).sum(-1))

    monkeypatch.setitem(cast("dict[str, Any]", TOKEN_INPUTS), "entropy", ("old_entropy", compute_entropy))
    subject = learner_for("gtpo", Accelerator(cpu=True), budget=budget)
    if not has_linear_head:
        subject.policy.logit_transform = None
    assert apart(gradient(subject, fixed_groups()), whole("gtpo")) < 1e-6
