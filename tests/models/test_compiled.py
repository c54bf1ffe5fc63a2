"""Layers compiled by torch: the same log-probabilities, only in the learner, and never the end of a run."""

from __future__ import annotations

import copy
import io
import os
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import Tensor

from rlvr.config.config import ModelConfig
from rlvr.mdp.tokenizers import CharTokenizer
from rlvr.models import compiled_layers as compiled
from rlvr.models.batch import TokenRows
from rlvr.models.model_loading import load_model
from rlvr.training.train import train
from rlvr.training.update import packing
from rlvr.training.update.output_head import LogitTransform, compute_token_logprobs
from rlvr.training.update.policy import Policy, enable_gradient_checkpointing
from tests.fixtures.tiny import MODEL, tiny_run

ROWS = TokenRows([[1, 2, 3, 4, 5, 6, 7], [2, 1, 4, 3]], [[False, False, True, True, True, True, True], [False, False, True, True]])


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The graphs of torch, traced and differentiated as for its compiler; compiling them as C++ takes half a minute."""
    monkeypatch.setattr(compiled, "COMPILE_BACKEND", os.environ.get("RLVR_TEST_COMPILER", "aot_eager"))
    yield
    compiled._COMPILED.clear()
    compiled._FAILURES.clear()
    torch._dynamo.reset()


def policy_of(**more: Any) -> Policy:
    return Policy(load_model(ModelConfig(config=MODEL | more), CharTokenizer("0123456789+="), seed=1))


def scored(policy: Policy) -> tuple[Tensor, Tensor]:
    """Log-probabilities, and their gradient."""
    policy.zero_grad()
    logprobs = policy(ROWS.build_padded_batch([0, 1])).logprobs
    logprobs.sum().backward()
    return logprobs.detach(), torch.cat([p.grad.flatten() for p in policy.parameters() if p.grad is not None])


@pytest.mark.slow
def test_compiled_layers_give_the_same_log_probabilities_and_gradients() -> None:
    policy = policy_of()
    truth = scored(policy)
    plain, calls = copy.deepcopy(policy), list[int]()
    assert compiled.try_compile_layers(policy.model, lambda: policy(ROWS.build_padded_batch([0, 1])).logprobs) == ""
    [(kind, program)] = [(function, program) for function, program in compiled._COMPILED.items() if function.__name__ == "forward"]

    def counted(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        return program(*args, **kwargs)

    compiled._COMPILED[kind] = counted
    assert torch.equal(scored(policy)[0], truth[0]) and not calls  # a sampler calls it so
    policy.uses_compiled_layers = True
    found = scored(policy)
    assert len(calls) == MODEL["num_hidden_layers"]
    assert float((found[0] - truth[0]).abs().max()) < 1e-5 and float((found[1] - truth[1]).abs().max()) < 1e-4
    with torch.no_grad():
        for weight in policy.parameters():
            weight.mul_(0.5)
    assert torch.equal(scored(plain)[0], truth[0])  # a copy computes with its own weights
    assert not torch.allclose(scored(policy)[0], truth[0])


@pytest.mark.slow
def test_recomputed_layers_are_compiled_too() -> None:
    policy = policy_of()
    truth = scored(policy)
    enable_gradient_checkpointing(policy.model)
    assert compiled.try_compile_layers(policy.model, lambda: policy(ROWS.build_padded_batch([0, 1])).logprobs) == ""
    policy.uses_compiled_layers = True
    found = scored(policy)
    assert float((found[0] - truth[0]).abs().max()) < 1e-5 and float((found[1] - truth[1]).abs().max()) < 1e-4


@pytest.mark.slow
def test_another_arrangement_of_packed_rows_is_not_compiled_again() -> None:
    policy = policy_of()
    mode = packing.choose_packing([policy], torch.device("cpu"), "float32", None)
    assert not mode.padding_reason

    def score(lengths: list[int]) -> Tensor:
        rows = TokenRows([[1, 2, 3, 4, *[5] * n] for n in lengths], [[False] * 4 + [True] * n for n in lengths])
        parts, lay = packing.plan_batches(rows, range(len(lengths)), 4096, mode)
        policy.uses_compiled_layers = True
        return policy(lay(parts[0], torch.device("cpu"))).logprobs

    assert compiled.try_compile_layers(policy.model, lambda: score([2, 3])) == ""
    seen = torch._dynamo.utils.counters["frames"]["total"]
    for lengths in ([2, 3, 4], [1, 1, 8, 8, 2], [1, 2, 5, 5, 11, 25, 60]):
        logprobs = score(lengths)
        logprobs.sum().backward()
        assert len(logprobs) == sum(lengths)
    assert seen and torch._dynamo.utils.counters["frames"]["total"] == seen


@pytest.mark.parametrize(("dtype", "room"), [(torch.float32, 1e-6), (torch.bfloat16, 0.0)])
@pytest.mark.parametrize(("temperature", "form"), [(1.0, LogitTransform()), (0.7, LogitTransform(0.5, 30.0)), (1.3, LogitTransform(2.0))])
def test_compiled_tiles_of_the_head_have_the_gradients_of_plain_ones(
    dtype: torch.dtype, room: float, temperature: float, form: LogitTransform
) -> None:
    torch.manual_seed(0)
    states, weights, targets, slopes = torch.randn(50, 32), torch.randn(200, 32), torch.randint(0, 200, (50,)), torch.randn(50)
    found = []
    for context in (nullcontext(), compiled.use_compiled_layers()):
        hidden, weight = states.clone().requires_grad_(), weights.clone().requires_grad_()
        with context, torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
            logprobs, _ = compute_token_logprobs(hidden, weight, None, targets, temperature=temperature, tile_size=16, logit_transform=form)
        (logprobs * slopes).sum().backward()
        found.append((logprobs.detach(), hidden.grad, weight.grad))
    assert [function.__name__ for function in compiled._COMPILED] == ["_score_tile", "_differentiate_tile"] and not compiled._FAILURES
    for plain, fused in zip(*found, strict=True):
        torch.testing.assert_close(fused, plain, rtol=0.0, atol=room * float(plain.abs().max()))


def failing(graph: Any, inputs: Any) -> Any:
    raise OSError("no compiler on this machine")


@pytest.mark.slow
def test_a_compilation_that_fails_is_told_and_the_run_is_that_without_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "COMPILE_BACKEND", failing)
    said, plain = io.StringIO(), tmp_path / "plain"
    train(tiny_run(), out=plain, console=Console(file=io.StringIO()))
    train(tiny_run(model={"config": MODEL, "compile": "layers"}), out=tmp_path / "run", console=Console(file=said, width=400))
    assert "layers are not compiled: compiling its layers fails (" in said.getvalue() and "no compiler on this machine" in said.getvalue()
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == (plain / "metrics.jsonl").read_bytes()


def test_results_that_differ_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = policy_of()

    def wrong(graph: Any, inputs: Any) -> Any:
        return lambda *args: tuple(x * 1.5 if isinstance(x, Tensor) and x.is_floating_point() else x for x in graph(*args))

    monkeypatch.setattr(compiled, "COMPILE_BACKEND", wrong)

    def score() -> Tensor:
        policy.uses_compiled_layers = True
        return policy(ROWS.build_padded_batch([0, 1])).logprobs

    assert compiled.try_compile_layers(policy.model, score).startswith("with compiled layers its log-probabilities differ by")
    truth, _ = scored(policy_of())
    assert torch.equal(scored(policy)[0], truth)
    assert "has no known decoder layers" in compiled.try_compile_layers(torch.nn.Linear(2, 2), score)
