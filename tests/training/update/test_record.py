"""What the learner found of each token, for the record of a run: how far it is from the sampler, and what advantage it has."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rlvr.runs.run_log import episode_to_json
from tests.fixtures.learning import episode
from tests.training.update.test_learner import group, learner


@pytest.mark.parametrize(
    ("name", "settings"), [("grpo", {}), ("grpo", {"old_from_sampler": True}), ("ppo", {}), ("reinforce_pp", {"beta": 0.1})]
)
def test_log_ratios_say_how_far_the_trainer_is_from_the_sampler(name: str, settings: dict[str, Any]) -> None:
    ratios = []
    for logprob in (-2.0, -1.5):
        subject = learner(name, **settings)
        rows = [episode([1, 2], [3, k], [logprob] * 2, reward, "g") for k, reward in enumerate((1.0, 0.0, 0.2))]
        learned = subject.update_with_diagnostics([rows, group([1.0, 1.0], "flat"), group([None, None], "unscored")])
        ratios.append(learned.log_ratios)
    assert ratios[0][2] == [None, None]
    for there, here in zip(ratios[0][0], ratios[1][0], strict=True):
        assert there is not None and here is not None
        assert there[:2] == here[:2] == [0.0, 0.0] and [a - b for a, b in zip(there[2:], here[2:], strict=True)] == pytest.approx(
            [0.5, 0.5]
        )


def test_a_record_has_each_tokens_advantage_only_where_they_differ() -> None:
    said = episode([1, 2], [3, 4], [-2.0] * 2, 1.0, "g")
    alike, apart = episode_to_json(1, said, [0.0, 0.0, 0.5, 0.5]), episode_to_json(1, said, [0.0, 0.0, 0.5, 0.25], [0.0, 0.0, 0.125, -0.5])
    assert alike["advantage"] == 0.5 and not {"advantages", "log_ratio"} & alike.keys()
    assert apart["advantage"] == 0.25 and apart["advantages"] == [0.0, 0.0, 0.5, 0.25] and apart["log_ratio"] == [0.0, 0.0, 0.125, -0.5]


def test_tokens_are_counted_whatever_figures_an_algorithm_gives() -> None:
    rows = []
    for figures in ({}, {"one": torch.tensor(0.5)}):
        subject = learner(budget=8)

        def losses(inputs: Any, given: Any = subject.algorithm.compute_token_losses, figures: Any = figures) -> Any:
            return given(inputs)[0], figures

        subject.algorithm.compute_token_losses = losses  # type: ignore[method-assign]
        rows.append(subject.update([group([1.0, 0.0, 1.0, 0.0])]))
    assert rows[0]["tokens/trained"] == rows[1]["tokens/trained"] == 10 and rows[1]["one"] == pytest.approx(0.5)
