"""Preference losses: the learner's gradient against the loss written out, ties, and the best of N."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from hypothesis import given, settings
from hypothesis import strategies as st

from rlvr.algos import preferences
from rlvr.algos.recipes import factory
from rlvr.errors import ConfigError
from rlvr.learn.learner import Learner, Optimization
from tests.gradients import apart, fixed_groups, gradient
from tests.learning import learn, tiny_model


@settings(max_examples=50, deadline=None)
@given(d=st.floats(-30, 30), beta=st.floats(0.01, 1), smoothing=st.sampled_from([0.0, 0.1, 0.5]), how=st.sampled_from(preferences.LOSSES))
def test_the_pull_is_the_slope_of_the_loss(d: float, beta: float, smoothing: float, how: str) -> None:
    h = torch.tensor(d / beta, dtype=torch.float64, requires_grad=True)  # the margin before beta
    log = torch.nn.functional.logsigmoid
    dpo = -(1 - smoothing) * log(beta * h) - smoothing * log(-beta * h)
    truth = (h - 1 / (2 * beta)) ** 2 if how == "ipo" else dpo
    assert preferences.loss(d, beta, how, smoothing) == pytest.approx(float(truth.detach()), rel=1e-9, abs=1e-12)
    [slope] = torch.autograd.grad(truth, h)
    assert preferences.pull(d, beta, how, smoothing) == pytest.approx(-float(slope), rel=1e-9, abs=1e-12)


def summed(model: Any, episode: Any) -> torch.Tensor:
    ids = torch.tensor([episode.tokens])
    logs = model(input_ids=ids, use_cache=False).logits[0].log_softmax(-1)
    return sum((logs[t - 1, episode.tokens[t]] for t, on in enumerate(episode.acted) if on), torch.zeros(()))


@pytest.mark.parametrize(("how", "smoothing"), [("dpo", 0.0), ("dpo", 0.2), ("ipo", 0.0)])
def test_the_learners_gradient_is_that_of_the_loss_written_out(how: str, smoothing: float) -> None:
    model, reference, groups, beta = tiny_model(layers=2), tiny_model(7, layers=2), fixed_groups(), 0.3
    pairs = [(g, p) for g in groups for p in [preferences.pair([e.reward if e.scored else None for e in g])] if p]
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
        model, algorithm, Optimization(max_tokens_per_microbatch=30), accelerator=Accelerator(cpu=True), total_steps=1, reference=reference
    )
    assert apart(gradient(learner, groups), truth) < 1e-5
    assert algorithm.figures["preference/loss"] == pytest.approx(float(total.detach()), rel=1e-4)
    assert algorithm.figures["preference/pairs"] == len(pairs)


def test_an_even_pair_costs_log_two_and_a_tie_is_no_pair() -> None:
    assert preferences.loss(0.0, 0.1, "dpo", 0.0) == math.log(2)
    assert preferences.pair([0.5, 0.5 + 1e-9]) is None and preferences.pair([None, 1.0]) is None
    assert preferences.pair([0.2, None, 0.9, 0.9, 0.2]) == (2, 0)


def test_the_best_of_each_group() -> None:
    groups = fixed_groups()
    tops = preferences.best(groups, at_least=0.5)
    assert all(e.reward == max(x.reward for x in group if x.scored) for e, group in zip(preferences.best(groups), groups, strict=True))
    assert tops and all(e.reward > 0.5 for e in tops)


def test_one_batch_of_pairs_is_good_for_one_step() -> None:
    with pytest.raises(ConfigError, match="minibatches_per_step"):
        Learner(
            tiny_model(), factory("online_dpo")(), Optimization(minibatches_per_step=2), accelerator=Accelerator(cpu=True), total_steps=1
        )


def test_it_learns_the_bandit_and_not_with_the_sign_flipped() -> None:
    assert learn("online_dpo", "bandit", steps=40) > 0.9
    assert learn("online_dpo", "bandit", steps=40, sign=-1.0) < 0.3
