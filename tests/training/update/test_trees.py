"""Episodes that are trees: each policy token is trained once, in its own context, however its row is laid out."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from torch import Tensor

from rlvr.episode import Episode, Segment, find_path
from rlvr.errors import ConfigError
from rlvr.models.batch import TokenRows
from rlvr.registry.plugins import build
from rlvr.rollout.episode_encoding import EncodedEpisodes, decode_episodes, encode_episodes
from rlvr.rollout.timing import RolloutTiming
from rlvr.runs.run_log import episode_to_json
from rlvr.training.batch_sources import RolloutBatch, batch_from_json, batch_to_json
from rlvr.training.task_sampling.offline_dataset import episode_from_json
from rlvr.training.update import packing
from rlvr.training.update.packing import PackingMode, pack_rows
from rlvr.training.update.policy import Policy
from rlvr.training.update.step_data import StepData
from tests.fixtures.families import UNUSUAL, model_of
from tests.fixtures.gradients import VARIANTS, apart, fixed_groups, gradient, learner_for
from tests.training.update.test_varlen import spelt_out

UNUSUAL_FAMILY = sorted(UNUSUAL)[0]
"""One whose tokens influence each other outside of attention, so that it is never packed."""


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def grow(dice: random.Random, num_segments: int, prompt: list[int]) -> tuple[list[int], list[bool], list[Segment]]:
    """A tree: each later segment continues an earlier one or begins anew; some are without a policy token, and some begin with one."""
    tokens, acted, segments = list(prompt), [False] * len(prompt), [Segment(0)]
    for number in range(num_segments):
        if number:
            segments.append(Segment(len(tokens), dice.randrange(-1, number)))
        own = [dice.randrange(32) for _ in range(dice.randint(2, 9))]
        begins = number > 0 and segments[-1].parent >= 0 and dice.random() < 0.3
        mine = [True] * len(own) if begins else [j > 1 and dice.random() < 0.7 for j in range(len(own))]
        tokens += own
        acted += mine
    if not any(acted):
        acted[-1] = True
    return tokens, acted, segments


def forest(seed: int = 0) -> TokenRows:
    """Trees beside plain rows; two of each group have one prompt."""
    dice = random.Random(seed)
    found = []
    for _ in range(3):
        prompt = [dice.randrange(32) for _ in range(6)]
        for size in (1, 4, 7):
            tokens, acted, segments = grow(dice, size, prompt)
            found.append((tokens, acted, segments if size > 1 else []))
    return TokenRows(*zip(*found, strict=True))


def each_token_alone(model: Any, rows: TokenRows, temperature: float) -> Tensor:
    """Each policy token's log-probability after the path that leads to it, by the model's own forward."""
    out = []
    for i, tokens in enumerate(rows.tokens):
        segments = rows.segments.get(i, [Segment(0)])
        for at in rows.acted_positions[i]:
            own = max(number for number, segment in enumerate(segments) if segment.start <= at)
            path = [
                position
                for a, b in find_path(segments, own, len(tokens))
                for position in range(a, b)
                if a != segments[own].start or position < at
            ]
            ids = torch.tensor([[int(tokens[position]) for position in path]])
            out.append((model(input_ids=ids, use_cache=False).logits[0, -1].float() / temperature).log_softmax(-1)[int(tokens[at])])
    return torch.stack(out)


def compare(found: Tensor, truth: Tensor, model: Any) -> None:
    assert float((found - truth).detach().abs().max()) < 1e-5 * (1 + float(truth.detach().abs().max()))
    grads = [torch.autograd.grad(x.sum(), list(model.parameters()), allow_unused=True, retain_graph=True) for x in (found, truth)]
    for a, b in zip(*grads, strict=True):
        assert (a is None) == (b is None)
        if a is not None and b is not None:
            assert float((a - b).norm()) <= 2e-5 * float(b.norm()) + 1e-6


@pytest.mark.parametrize("family", ["qwen2", "gemma2", UNUSUAL_FAMILY])
def test_a_tree_in_any_layout_equals_each_token_alone(family: str) -> None:
    model, rows = model_of(family), forest()
    policy = Policy(model, temperature=0.7)
    truth = each_token_alone(model, rows, 0.7)
    for budget in (1, 60, 10_000):
        out = torch.zeros(rows.num_policy_tokens)
        for batch in rows.iter_batches(range(len(rows.tokens)), max_tokens=budget):
            out = out.index_copy(0, batch.entry_positions, policy(batch).logprobs)
        compare(out, truth, model)
    if family in UNUSUAL:
        return
    for kernel in (None, spelt_out):
        mode = PackingMode(kernel)
        assert packing.find_packing_mismatch(model, policy, mode) == ""
        out = torch.zeros(rows.num_policy_tokens)
        for part in packing.plan_packed_batches(rows, range(len(rows.tokens)), 60)[0]:
            batch = pack_rows(rows, part, "cpu", mode)
            out = out.index_copy(0, batch.entry_positions, policy(batch).logprobs)
        compare(out, truth, model)


@pytest.mark.parametrize("seed", range(5))
def test_random_trees_have_the_log_probabilities_of_their_paths(seed: int) -> None:
    model, rows = model_of("qwen2"), forest(seed + 1)
    policy = Policy(model, temperature=0.7)
    assert packing.find_packing_mismatch(model, policy) == ""
    batch = pack_rows(rows, range(len(rows.tokens)))
    compare(
        torch.zeros(rows.num_policy_tokens).index_copy(0, batch.entry_positions, policy(batch).logprobs),
        each_token_alone(model, rows, 0.7),
        model,
    )


@pytest.mark.parametrize("seed", range(4))
def test_trees_whose_first_branches_are_masked_share_no_more_than_a_path(seed: int) -> None:
    """Two rows that agree up to their first trained token, which comes after a fork."""
    dice, found = random.Random(seed), []
    prompt = [dice.randrange(32) for _ in range(6)]
    tokens, _, segments = grow(dice, 5, prompt)
    for _ in range(2):
        own = [7, *(dice.randrange(32) for _ in range(4))]
        acted = [False] * len(tokens) + [False, True, True, True, True]
        found.append(([*tokens, *own], acted, [*segments, Segment(len(tokens), dice.randrange(0, len(segments)))]))
    model, rows = model_of("qwen2"), TokenRows(*zip(*found, strict=True))
    policy = Policy(model, temperature=0.7)
    assert packing.find_packing_mismatch(model, policy) == ""
    batch = pack_rows(rows, [0, 1])
    packed = torch.zeros(rows.num_policy_tokens).index_copy(0, batch.entry_positions, policy(batch).logprobs)
    compare(packed, each_token_alone(model, rows, 0.7), model)


def test_a_critic_has_no_returns_for_branches() -> None:
    groups = with_a_second_branch(fixed_groups())
    with pytest.raises(ConfigError, match="has 2 branches, and the returns of a critic are those of one line"):
        learner_for("ppo", Accelerator(cpu=True)).update(groups)


def test_a_packed_tree_computes_each_of_its_tokens_once() -> None:
    prompt, common = [1] * 40, 60
    tokens = [*prompt, *range(common), *([7] * 50), *([8] * 50), *([9] * 50)]
    acted = [False] * 40 + [True] * common + ([False] * 10 + [True] * 40) * 3
    segments = [Segment(0), *(Segment(100 + 50 * k, 0) for k in range(3))]
    rows = TokenRows([tokens] * 2, [acted] * 2, [segments] * 2)
    [part], computed = packing.plan_packed_batches(rows, [0, 1], 10_000)
    distinct = 40 + 2 * (common + 3 * 49)  # the last token of a branch is only predicted
    assert computed == distinct == pack_rows(rows, part).input_ids.numel()
    assert rows.count_padded_tokens([0, 1]) == 6 * 149


def with_a_second_branch(groups: list[list[Episode]]) -> list[list[Episode]]:
    """Half of the episodes go on in another context: one after its prompt, or one of its own."""
    dice, found = random.Random(5), list[list[Episode]]()
    for group in groups:
        found.append([])
        for number, e in enumerate(group):
            if number % 2:
                found[-1].append(e)
                continue
            more = [dice.randrange(8) for _ in range(5)]
            root = Segment(len(e.tokens), -1 if number % 4 else 0)
            fork = Segment(e.prompt_length, 0)
            segments = (Segment(0), root) if root.parent < 0 else (Segment(0), fork, root)
            pays = [
                *e.rewards[: e.rewards.index(max(e.rewards))],
                *([0.0] * (len(e.tokens) - e.rewards.index(max(e.rewards)) + 4)),
                max(e.rewards),
            ]
            acted = [*e.action_mask, False, False, True, True, True]
            found[-1].append(
                replace(
                    e,
                    tokens=[*e.tokens, *more],
                    action_mask=acted,
                    logprobs=[*e.logprobs, 0.0, 0.0, -2.0, -2.1, -2.2],
                    rewards=pays,
                    segments=segments,
                )
            )
    return found


@pytest.mark.parametrize("name", ["grpo", "gspo", "dapo", "grpo_kl", "kto"])
def test_a_step_with_trees_has_one_gradient_packed_or_padded(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    groups, found = with_a_second_branch(fixed_groups()), list[torch.Tensor]()
    for below, budget in ((0.0, 40), (9.0, 40), (0.0, 8192)):
        monkeypatch.setattr("rlvr.training.update.packing.MAX_PACKED_TOKEN_FRACTION", below)
        found.append(gradient(learner_for(name, Accelerator(cpu=True), budget=budget), groups))
    assert name in VARIANTS and float(found[0].norm()) > 0
    assert apart(found[0], found[1]) < 1e-6 and apart(found[0], found[2]) < 1e-6
    flat = [[replace(e, segments=()) for e in group] for group in groups]
    assert apart(gradient(learner_for(name, Accelerator(cpu=True)), flat), found[0]) > 1e-3  # the tree matters


def test_a_tree_that_is_none_is_refused() -> None:
    e = fixed_groups()[0][0]
    for segments in ((Segment(1),), (Segment(0), Segment(0)), (Segment(0), Segment(2, 1)), (Segment(0), Segment(10_000, 0))):
        with pytest.raises(ValueError, match="are no tree of its"):
            replace(e, segments=segments)
    with pytest.raises(ValueError, match="begins a context and cannot be a policy token"):
        replace(e, segments=(Segment(0), Segment(e.prompt_length)))


def test_a_tree_survives_what_stores_and_sends_it() -> None:
    groups = with_a_second_branch(fixed_groups())
    sent = decode_episodes(EncodedEpisodes.from_bytes(encode_episodes(groups).to_bytes()))
    assert sent == groups and sum(bool(e.segments) for group in sent for e in group) == 18
    e = replace(groups[0][0], policy_version=3)
    assert episode_from_json(json.loads(json.dumps(episode_to_json(1, e, [])))).segments == e.segments
    batch = RolloutBatch(groups, {}, {}, RolloutTiming())
    assert batch_from_json(json.loads(json.dumps(batch_to_json(batch)))).groups == groups


def test_branches_share_the_advantage_or_only_the_last_one_is_trained() -> None:
    groups = with_a_second_branch(fixed_groups())
    found = {}
    for credit in ("all", "even", "last"):
        algorithm = build("algorithm", "grpo", branch_credit=credit, scale_rewards="none")
        step = StepData(groups, algorithm)
        step.set_advantages(algorithm.compute_advantages(groups), keep_zero_advantage=False)
        found[credit] = step.advantages
        assert (
            sum(step.count_tokens()[f"tokens/{name}"] for name in ("to_train", "masked", "dropped"))
            == step.count_tokens()["tokens/sampled"]
        )
    for g, group in enumerate(groups):
        for i, e in enumerate(group):
            whole, shared, last = (np.asarray(found[credit][g][i]) for credit in ("all", "even", "last"))
            assert np.allclose(shared * len(e.branches), whole)
            on_path = np.zeros(len(e.tokens), dtype=bool)
            for a, b in e.branches[-1]:
                on_path[a:b] = True
            assert np.array_equal(last, np.where(on_path, whole, 0))
    assert any(len(e.branches) > 1 and np.any(found["all"][g][i]) for g, group in enumerate(groups) for i, e in enumerate(group))
