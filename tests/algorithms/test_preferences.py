"""Preference losses: the learner's gradient against the loss written out, ties, and the best of N."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from hypothesis import given, settings
from hypothesis import strategies as st

from rlvr.algorithms.functions import preferences
from rlvr.algorithms.functions.ranking import compute_bradley_terry_loss
from rlvr.contracts.algorithm import LossInputs
from rlvr.episode import Episode, StopReason
from rlvr.errors import ConfigError
from rlvr.task import Fault, Verdict
from rlvr.training.update.learner import Learner, OptimizationSettings
from tests.fixtures.gradients import apart, fixed_groups, gradient
from tests.fixtures.learning import episode, factory, learn, tiny_model
from tests.fixtures.two_threads import at_once


@settings(max_examples=50, deadline=None)
@given(
    d=st.floats(-30, 30),
    beta=st.floats(0.01, 1),
    smoothing=st.sampled_from([0.0, 0.1, 0.5]),
    how=st.sampled_from(preferences.PREFERENCE_LOSSES),
)
def test_the_pull_is_the_slope_of_the_loss(d: float, beta: float, smoothing: float, how: str) -> None:
    h = torch.tensor(d / beta, dtype=torch.float64, requires_grad=True)  # the margin before beta
    log = torch.nn.functional.logsigmoid
    dpo = -(1 - smoothing) * log(beta * h) - smoothing * log(-beta * h)
    truth = (h - 1 / (2 * beta)) ** 2 if how == "ipo" else dpo
    assert preferences.compute_pair_loss(d, beta, how, smoothing) == pytest.approx(float(truth.detach()), rel=1e-9, abs=1e-12)
    [slope] = torch.autograd.grad(truth, h)
    assert preferences.compute_pair_advantage(d, beta, how, smoothing) == pytest.approx(-float(slope), rel=1e-9, abs=1e-12)


def summed(model: Any, episode: Any) -> torch.Tensor:
    ids = torch.tensor([episode.tokens])
    logs = model(input_ids=ids, use_cache=False).logits[0].log_softmax(-1)
    return sum((logs[t - 1, episode.tokens[t]] for t, on in enumerate(episode.action_mask) if on), torch.zeros(()))


@pytest.mark.parametrize(("how", "smoothing"), [("dpo", 0.0), ("dpo", 0.2), ("ipo", 0.0)])
def test_the_learners_gradient_is_that_of_the_loss_written_out(how: str, smoothing: float) -> None:
    model, reference, groups, beta = tiny_model(layers=2), tiny_model(7, layers=2), fixed_groups(), 0.3
    pairs = [(g, p) for g in groups for p in [preferences.find_best_worst_pair([e.reward if e.is_scored else None for e in g])] if p]
    assert 3 <= len(pairs) < len(groups)
    total = torch.zeros(())
    for group, (best, worst) in pairs:
        with torch.no_grad():
            held = summed(reference, group[best]) - summed(reference, group[worst])
        d = beta * (summed(model, group[best]) - summed(model, group[worst]) - held)
        log = torch.nn.functional.logsigmoid
        loss = (d / beta - 1 / (2 * beta)) ** 2 if how == "ipo" else -(1 - smoothing) * log(d) - smoothing * log(-d)
        total = total + loss / len(pairs)
    truth = torch.cat([g.flatten() for g in torch.autograd.grad(total, list(model.parameters()))])
    algorithm = factory("online_dpo")(preference_loss=how, label_smoothing=smoothing, beta=beta)
    learner = Learner(
        model,
        algorithm.inner,
        OptimizationSettings(max_tokens_per_microbatch=30),
        accelerator=Accelerator(cpu=True),
        total_steps=1,
        frozen_models={"reference": reference},
    )
    assert apart(gradient(learner, groups), truth) < 1e-5
    assert algorithm.metrics["preference/loss"] == pytest.approx(float(total.detach()), rel=1e-4)
    assert algorithm.metrics["preference/num_pairs"] == len(pairs)


@pytest.mark.parametrize(("name", "cost"), [("dpo", math.log(2)), ("kto", 0.5), ("online_ipo", 25.0), ("sft", None)])
def test_the_loss_that_is_logged_is_that_of_the_method(name: str, cost: float | None) -> None:
    """At the start the policy is the reference, so every margin is 0."""
    model, groups = tiny_model(layers=2), fixed_groups()
    best = [
        g[p[0]]
        for g in groups
        for p in [preferences.find_best_worst_pair([e.reward if e.is_scored else None for e in g])]
        if p and g[p[0]].reward > 0
    ]
    if cost is None:  # each group's best answer, and those of flat groups
        flat = [next(e for e in g if e.is_scored) for g in groups if len({e.reward for e in g if e.is_scored}) == 1]
        chosen = [*best, *(e for e in flat if e.reward > 0)]
        with torch.no_grad():
            cost = -float(sum(summed(model, e) for e in chosen)) / sum(e.num_policy_tokens for e in chosen)
    learner = Learner(model, factory(name)().inner, OptimizationSettings(), accelerator=Accelerator(cpu=True), total_steps=1)
    assert learner.update(groups)["loss"] == pytest.approx(cost, rel=1e-5)


def test_an_even_pair_costs_log_two_and_a_tie_is_no_pair() -> None:
    assert preferences.compute_pair_loss(0.0, 0.1, "dpo", 0.0) == math.log(2)
    assert preferences.find_best_worst_pair([0.5, 0.5 + 1e-9]) is None and preferences.find_best_worst_pair([None, 1.0]) is None
    assert preferences.find_best_worst_pair([0.2, None, 0.9, 0.9, 0.2]) == (2, 0)


def test_pairs_share_no_member_and_stop_at_a_tie() -> None:
    assert preferences.pair_best_with_worst([0.0, 1.0, None, 0.5, 1.0, 0.2], max_pairs=3) == [(1, 0), (4, 5)]
    assert (
        preferences.pair_best_with_worst([0.0, 1.0, 0.0, 1.0]) == [(1, 0)]
        and preferences.pair_best_with_worst([1.0, 1.0], max_pairs=2) == []
    )


# ---- a whole step of the algorithm against loops over the definitions, in float64 ---------------------------------------------


class Stand:
    """Random groups, and the log-probabilities of policy and reference, as a naive reader of the papers would hold them."""

    def __init__(self, seed: int) -> None:
        dice = random.Random(seed)
        self.groups, self.logs, self.held = [], [], []
        for g in range(dice.randint(1, 4)):
            group = []
            for k in range(dice.randint(1, 5)):
                n, t = dice.randint(1, 3), dice.randint(1, 6)
                reward = dice.choice([0.0, 0.3, 0.5, 1.0])
                verdict = Verdict(None, "gone", fault=Fault.INFRA) if dice.random() < 0.15 else Verdict(reward, "")
                acted = [False] * n + [True, *(dice.random() < 0.7 for _ in range(t - 1))]
                pays = [0.0] * (n + t)
                pays[max(j for j, on in enumerate(acted) if on)] = reward if verdict.is_scored else 0.0
                meta = {"mismatched": True} if k and dice.random() < 0.3 else {}
                group.append(
                    Episode(
                        f"t{g}", f"g{g}", [1] * (n + t), acted, [0.0] * (n + t), pays, StopReason.TERMINATED, verdict=verdict, meta=meta
                    )
                )
            self.groups.append(group)
            self.logs.append([self._logs(e, dice) for e in group])
            self.held.append([[-3 * dice.random() if on else 0.0 for on in e.action_mask] for e in group])

    @staticmethod
    def _logs(e: Episode, dice: random.Random) -> torch.Tensor:
        return torch.tensor([-3 * dice.random() if on else 0.0 for on in e.action_mask], dtype=torch.float64, requires_grad=True)

    def shift(self, g: int, i: int, beta: float, normalised: bool) -> Any:
        """s of one answer, token by token."""
        e, total = self.groups[g][i], torch.zeros((), dtype=torch.float64)
        for t, on in enumerate(e.action_mask):
            if on:
                total = total + beta * (self.logs[g][i][t] - self.held[g][i][t])
        return total / e.num_policy_tokens if normalised else total

    def answers(self) -> list[tuple[int, int]]:
        return [(g, i) for g, group in enumerate(self.groups) for i, e in enumerate(group) if e.is_scored and not e.is_auxiliary]

    def learned(self, algorithm: Any) -> list[torch.Tensor]:
        """The gradient that the learner would make: weights, credit and losses put together as it does."""
        penalties = [
            [[algorithm.beta * (x - y) for x, y in zip(logs.tolist(), held, strict=True)] for logs, held in zip(ls, hs, strict=True)]
            for ls, hs in zip(self.logs, self.held, strict=True)
        ]
        advantages = algorithm.compute_advantages(self.groups, penalties=penalties if algorithm.traits.needs_reference else None)
        rows = [(g, i) for g, group in enumerate(self.groups) for i, e in enumerate(group) if algorithm.is_in_loss(e)]
        moving = [algorithm.traits.count_zero_advantage or any(advantages[g][i]) for g, i in rows]
        lengths = [self.groups[g][i].num_policy_tokens if moves else 0 for (g, i), moves in zip(rows, moving, strict=True)]
        weights = algorithm.compute_row_weights(lengths, [str(g) for g, _ in rows])
        loss = torch.zeros((), dtype=torch.float64)
        for r, (g, i) in enumerate(rows):
            on = torch.tensor(self.groups[g][i].action_mask)
            new = self.logs[g][i][on]
            inputs = LossInputs(
                logprobs=new, old_logprobs=new.detach(), rollout_logprobs=new.detach(), num_rows=1, rows=torch.zeros(len(new), dtype=torch.long),
                advantages=torch.tensor(advantages[g][i], dtype=torch.float64)[on],
            )  # fmt: skip
            loss = loss + weights[r] * algorithm.compute_token_losses(inputs)[0].sum()
        return self.gradients(loss)

    def gradients(self, loss: Any) -> list[torch.Tensor]:
        leaves = [logs for row in self.logs for logs in row]
        if not loss.requires_grad:
            return [torch.zeros_like(leaf) for leaf in leaves]
        found = torch.autograd.grad(loss, leaves, allow_unused=True)
        return [torch.zeros_like(leaf) if g is None else g for leaf, g in zip(leaves, found, strict=True)]


def log_sigmoid(x: Any) -> Any:
    return -torch.log(1 + torch.exp(-x))


def naive_dpo(stand: Stand, beta: float, how: str, smoothing: float, normalised: bool) -> tuple[Any, int]:
    losses = []
    for g, group in enumerate(stand.groups):
        here = [(group[i].reward, i) for gg, i in stand.answers() if gg == g]
        if here and max(here)[0] > min(here)[0]:
            top = max(reward for reward, _ in here)
            best, worst = next(i for reward, i in here if reward == top), min(here)[1]
            h = (stand.shift(g, best, beta, normalised) - stand.shift(g, worst, beta, normalised)) / beta
            if how == "ipo":
                losses.append((h - 1 / (2 * beta)) ** 2)
            else:
                losses.append(-(1 - smoothing) * log_sigmoid(beta * h) - smoothing * log_sigmoid(-beta * h))
    return (sum(losses) / len(losses) if losses else torch.zeros(())), len(losses)


def naive_kto(stand: Stand, beta: float, wanted: float, unwanted: float, normalised: bool) -> tuple[Any, int]:
    far = [
        float(stand.shift(g, i, beta, normalised).detach()) / beta
        for g, group in enumerate(stand.groups)
        for i, e in enumerate(group)
        if e.meta.get("mismatched")
    ]
    z = max(0.0, sum(far) / len(far)) if far else 0.0
    losses = []
    for g, i in stand.answers():
        ratio = stand.shift(g, i, beta, normalised) / beta
        good = stand.groups[g][i].reward >= 0.5
        inside = beta * (ratio - z) if good else beta * (z - ratio)
        losses.append((wanted if good else unwanted) * (1 - 1 / (1 + torch.exp(-inside))))
    return (sum(losses) / len(losses) if losses else torch.zeros(())), len(losses)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6), beta=st.floats(0.02, 1), smoothing=st.sampled_from([0.0, 0.2]), normalised=st.booleans(),
    how=st.sampled_from(preferences.PREFERENCE_LOSSES),
)  # fmt: skip
def test_dpo_is_the_naive_loop(seed: int, beta: float, smoothing: float, normalised: bool, how: str) -> None:
    stand, smoothing = Stand(seed), smoothing if how == "dpo" else 0.0
    algorithm = factory("dpo")(beta=beta, preference_loss=how, label_smoothing=smoothing, length_normalised=normalised)
    truth, pairs = naive_dpo(stand, beta, how, smoothing, normalised)
    for got, expected in zip(stand.learned(algorithm), stand.gradients(truth), strict=True):
        assert torch.allclose(got, expected, rtol=1e-10, atol=1e-12)
    assert algorithm.metrics["preference/num_pairs"] == pairs
    if pairs:
        assert algorithm.metrics["preference/loss"] == pytest.approx(float(truth.detach()), rel=1e-10, abs=1e-12)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6), beta=st.floats(0.02, 1), wanted=st.sampled_from([1.0, 1.5]), unwanted=st.sampled_from([1.0, 0.25]),
    normalised=st.booleans(),
)  # fmt: skip
def test_kto_is_the_naive_loop(seed: int, beta: float, wanted: float, unwanted: float, normalised: bool) -> None:
    stand = Stand(seed)
    algorithm = factory("kto")(beta=beta, desirable_weight=wanted, undesirable_weight=unwanted, length_normalised=normalised)
    truth, answers = naive_kto(stand, beta, wanted, unwanted, normalised)
    for got, expected in zip(stand.learned(algorithm), stand.gradients(truth), strict=True):
        assert torch.allclose(got, expected, rtol=1e-10, atol=1e-12)
    figures = algorithm.metrics
    assert figures["preference/num_desirable"] + figures["preference/num_undesirable"] == answers
    if answers:
        assert figures["preference/loss"] == pytest.approx(float(truth.detach()), rel=1e-10, abs=1e-12)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), score_threshold=st.sampled_from([0.0, 0.4]))
def test_best_of_n_is_the_mean_over_the_best_answers_tokens(seed: int, score_threshold: float) -> None:
    stand = Stand(seed)
    chosen = []
    for g, group in enumerate(stand.groups):
        here = [i for gg, i in stand.answers() if gg == g and group[i].reward > score_threshold]
        chosen += [(g, next(i for i in here if group[i].reward == max(group[k].reward for k in here)))] if here else []
    algorithm = factory("best_of_n")(score_threshold=score_threshold)
    got = stand.learned(algorithm)
    assert algorithm.metrics == {"imitation/selected_answers": len(chosen)}
    logs = [x for g, i in chosen for x, on in zip(stand.logs[g][i], stand.groups[g][i].action_mask, strict=True) if on]
    truth = -sum(logs) / len(logs) if logs else torch.zeros(())
    for a, b in zip(got, stand.gradients(truth), strict=True):
        assert torch.allclose(a, b, rtol=1e-10, atol=1e-12)


def two_sides(beta: float) -> tuple[Any, dict[str, float]]:
    """A pair whose sums are 0.3 and -0.5 away from the reference's, by hand."""
    group = [episode([1], [2, 3], [-1.0, -1.0], 1.0, "g"), episode([1], [4], [-1.0], 0.0, "g")]
    algorithm = factory("dpo")(beta=beta)
    advantages = algorithm.compute_advantages([group], penalties=[[[0.0, beta * 0.1, beta * 0.2], [0.0, beta * -0.5]]])
    return advantages, dict(algorithm.metrics)


def test_the_metrics_are_those_of_trl_by_hand() -> None:
    [[up, down]], figures = two_sides(0.5)
    margin = 0.5 * 0.8
    force = 0.5 / (1 + math.exp(margin))
    assert up[1:] == pytest.approx([force] * 2) and down[1:] == pytest.approx([-force])
    assert figures == pytest.approx(
        {
            "preference/num_pairs": 1, "loss": math.log(1 + math.exp(-margin)), "preference/loss": math.log(1 + math.exp(-margin)),
            "rewards/accuracies": 1.0,
            "rewards/chosen": 0.15, "rewards/rejected": -0.25, "rewards/margins": 0.4,
        }
    )  # fmt: skip
    group = [episode([1], [2], [0.0], reward, "g") for reward in (1.0, 0.5, 0.4, 0.3)]
    kto = factory("kto")(beta=0.5)
    far = replace(group[0], meta={"mismatched": True})
    kto.compute_advantages([[*group, far]], penalties=[[[0.0, 0.4], [0.0, 0.2], [0.0, -0.3], [0.0, -0.1], [0.0, 0.1]]])
    losses = [1 - 1 / (1 + math.exp(-x)) for x in (0.3, 0.1, 0.4, 0.2)]
    assert kto.metrics == pytest.approx(
        {
            "preference/num_desirable": 2, "preference/num_undesirable": 2, "kto/kl_baseline": 0.2, "preference/loss": sum(losses) / 4,
            "loss": sum(losses) / 4,
            "rewards/chosen": 0.3, "rewards/rejected": -0.2, "rewards/margins": 0.5,
        }
    )  # fmt: skip


def test_answers_that_are_worlds_apart_are_pulled_all_or_not_at_all() -> None:
    assert [preferences.compute_pair_advantage(d, 0.1, "dpo", 0.0) for d in (-1e6, 0.0, 1e6)] == [0.1, 0.05, 0.0]


def test_an_answer_without_a_score_is_not_pulled() -> None:
    pulls = preferences.compute_kto_advantages([[1.0, None]], [[0.2, 0.2]], [], 0.1, desirable_threshold=0.5, weights=(1.0, 1.0))
    assert pulls.advantages[0][0] > 0 and pulls.advantages[0][1] == 0 and pulls.metrics["preference/num_undesirable"] == 0


@pytest.mark.parametrize("name", ["dpo", "kto", "best_of_n"])
def test_two_processes_pull_as_one_would(name: str) -> None:
    groups = [*Stand(3).groups, *Stand(4).groups]
    penalties = [[[0.1 * len(e.tokens) * x for x in e.action_mask] for e in group] for group in groups]
    algorithms = [factory(name)() for _ in range(3)]

    def credit(me: int, part: slice, **more: Any) -> Any:
        shifts: dict[str, Any] = {"penalties": penalties[part]} if algorithms[me].traits.needs_reference else {}
        return algorithms[me].compute_advantages(groups[part], **shifts, **more)

    whole = credit(2, slice(None))
    got = at_once(
        [
            lambda all_reduce: credit(0, slice(0, 3), all_reduce=all_reduce),
            lambda all_reduce: credit(1, slice(3, None), all_reduce=all_reduce),
        ]
    )
    assert [*got[0], *got[1]] == whole and any(x for group in whole for row in group for x in row)
    assert algorithms[0].metrics == algorithms[1].metrics == pytest.approx(algorithms[2].metrics)


def test_a_mismatched_answer_is_a_prompt_with_the_answer_to_another() -> None:
    groups = [
        [episode([1, 2], [3, 4, 5], [-1.0] * 3, 1.0, "a"), episode([1, 2], [6], [-1.0], 0.0, "a")],
        [episode([7], [8], [-1.0], 1.0, "b")],
    ]
    first, second = preferences.add_mismatched_answers(groups)
    assert first[:2] == groups[0] and second[:1] == groups[1]
    assert [(e.tokens, e.action_mask) for e in first[2:]] == [([1, 2, 8], [False, False, True])]
    assert [(e.tokens, e.action_mask) for e in second[1:]] == [([7, 3, 4, 5], [False, True, True, True])]
    assert all(e.is_auxiliary and not any(e.rewards) and not any(e.logprobs) for e in (*first[2:], *second[1:]))
    assert preferences.add_mismatched_answers(groups[:1]) == groups[:1]
    twice = [groups[0], groups[0], groups[1]]  # a stored run may have asked one prompt in several steps
    assert [[e.tokens for e in group if e.is_auxiliary] for group in preferences.add_mismatched_answers(twice)] == [
        [[1, 2, 8]],
        [[1, 2, 8]],
        [[7, 3, 4, 5]],
    ]
    assert preferences.add_mismatched_answers(twice[:2]) == twice[:2]
    lone = [groups[0], groups[0][:1]]  # nor is it another prompt where it has fewer answers
    assert preferences.add_mismatched_answers(lone) == lone
    three = [*groups, [episode([9], [10], [-1.0], 0.0, "c")]]  # each takes from the one after it
    assert [e.tokens for group in preferences.add_mismatched_answers(three) for e in group if e.is_auxiliary] == [
        [1, 2, 8],
        [7, 10],
        [9, 3, 4, 5],
    ]


def test_one_batch_of_pairs_is_good_for_one_step() -> None:
    with pytest.raises(ConfigError, match="minibatches_per_step"):
        Learner(
            tiny_model(),
            factory("online_dpo")().inner,
            OptimizationSettings(minibatches_per_step=2),
            accelerator=Accelerator(cpu=True),
            total_steps=1,
        )


@pytest.mark.slow
def test_it_learns_the_bandit_and_not_with_the_sign_flipped() -> None:
    assert learn("online_dpo", "bandit", steps=40) > 0.9
    assert learn("online_dpo", "bandit", steps=40, sign=-1.0) < 0.3


@pytest.mark.slow
@pytest.mark.parametrize("name", ["best_of_n", "kto"])
def test_the_others_learn_the_bandit_from_fresh_answers_too(name: str) -> None:
    assert learn(name, "bandit", steps=40) > 0.9


def test_the_loss_of_a_reward_model_is_bradley_and_terrys_with_the_scores_held_around_zero() -> None:
    scores = torch.randn(3, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 30
    ours, theirs = scores.clone().requires_grad_(), scores.clone().requires_grad_()
    loss = compute_bradley_terry_loss(ours[0], ours[1], ours[2], 0.3)
    plain = -torch.nn.functional.logsigmoid(theirs[0] - theirs[1] - theirs[2]) + 0.3 * (theirs[0] + theirs[1]) ** 2
    torch.testing.assert_close(loss, plain, rtol=1e-10, atol=1e-12)
    loss.sum().backward()
    plain.sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-10, atol=1e-12)
