"""The kit of algorithms: every algorithm passes it, and each defect is found by the check that is named after it."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlvr.conformance import check_algorithm, list_failures
from tests.fixtures.learning import PRESETS

HEAD = '''
"""Broken on purpose."""
from types import SimpleNamespace

from rlvr.algorithms.base.policy_gradient import PolicyGradient, define_policy_gradient
from rlvr.algorithms.base.algorithm_spec import AlgorithmSpec
from rlvr.algorithms import grpo


def of(base, **more):
    return AlgorithmSpec(base, "mine", more.pop("about", "Broken on purpose."), {"advantage": grpo.advantage, "loss": grpo.loss}, more)


'''
BROKEN = {
    "it says what it is for": 'make = define_policy_gradient("mine", "", grpo.advantage, grpo.loss)',
    "a better answer becomes more likely than a worse one": """
def advantage(answers):
    return [[-(r or 0.0) for r in group] for group in answers.rewards]

make = define_policy_gradient("mine", "About.", advantage, grpo.loss)
""",
    "a bandit gets better in expectation": """
def advantage(answers):
    return [[1.0 if r == 0.25 else 0.001 * (r or 0.0) for r in group] for group in answers.rewards]

make = define_policy_gradient("mine", "About.", advantage, grpo.loss)
""",
    "tokens of the environment and answers without a score get nothing": """
class Mine(PolicyGradient):
    def compute_advantages(self, groups, token_stats=None, *, all_reduce=list):
        return [[[1.0 - e.reward] * len(e.tokens) for e in group] for group in groups]

make = of(Mine)
""",
    "the gradient does not depend on the micro-batches": """
def loss(x):
    return -x.advantages * x.logprobs * x.rows.max()

make = define_policy_gradient("mine", "About.", grpo.advantage, loss)
""",
    "the weights do not depend on the order of the rows": """
class Mine(PolicyGradient):
    def compute_row_weights(self, lengths, prompts, *, max_length=0, all_reduce=list):
        return [1.0 / (k + 1) for k in range(len(lengths))]

make = of(Mine)
""",
    "answers that are far from the old policy give finite numbers": """
def loss(x):
    return -(20 * (x.logprobs - x.old_logprobs)).exp() * x.advantages

make = define_policy_gradient("mine", "About.", grpo.advantage, loss)
""",
    "a resumed run goes on with the same numbers": """
class Mine(PolicyGradient):
    steps = 0

    def on_step_end(self, rewards, kl_value, all_reduce=list):
        self.steps += 1

    def compute_advantages(self, groups, token_stats=None, *, all_reduce=list):
        return [[[(1.0 + self.steps) * a for a in row] for row in own] for own in super().compute_advantages(groups, all_reduce=all_reduce)]

make = of(Mine)
""",
}


@pytest.mark.parametrize("name", PRESETS)
def test_every_algorithm_passes(name: str) -> None:
    assert list_failures(check_algorithm(name)) == []


@pytest.mark.parametrize("check", BROKEN)
def test_a_defect_is_found(check: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(HEAD + BROKEN[check])
    found = list_failures(check_algorithm(f"{tmp_path / 'mine.py'}:make"))
    assert any(line.startswith(check) for line in found), found


def test_settings_are_those_of_the_algorithm() -> None:
    assert list_failures(check_algorithm("grpo", beta=0.1, kl_target=0.1, entropy_coef=0.01, mask_truncated_completions=True)) == []
    assert list_failures(check_algorithm("ppo", gamma=0.9)) == []
