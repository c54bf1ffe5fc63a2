"""A stranger's learners on our environments: nothing of theirs or ours is subclassed, patched or wrapped for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import pytest
import torch
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.env_checker import check_env

from rlvr.mdp.env import TOKEN_OBSERVATIONS
from tests.fixtures import worlds

PARTIAL = f"{worlds.__file__}:Match"
"""A verifier that pays for each character in its place: `3` and `3` with something behind it are worth 1 and 1/2."""


def digits(obs: str = "onehot_ids") -> gymnasium.Env[Any, Any]:
    """The last digit of a sum of two digits from 0 to 2, in ten ids: the answer is one of them, and then the end."""
    return gymnasium.make(
        "rlvr:rlvr/DigitSum-v0",
        digits=2,
        max_digit=2,
        verifier=PARTIAL,
        tokenizer="chars:01234=",
        max_new_tokens=2,
        max_length=7,
        obs=obs,
    )


def mean_reward(act: Callable[[Any], int], episodes: int) -> float:
    env, total = digits(), 0.0
    for seed in range(episodes):
        observation, _ = env.reset(seed=100_000 + seed)
        over = False
        while not over:
            observation, reward, terminated, truncated, _ = env.step(act(observation))
            total, over = total + float(reward), terminated or truncated
    return total / episodes


@pytest.fixture(scope="module")
def random_reward() -> float:
    env = digits()
    env.action_space.seed(0)
    return mean_reward(lambda observation: int(env.action_space.sample()), 1000)


@pytest.fixture(autouse=True)
def its_logs_stay_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SB3_LOGDIR", str(tmp_path))


@pytest.fixture
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("obs", TOKEN_OBSERVATIONS)
def test_its_checker_finds_nothing(obs: str) -> None:
    check_env(digits(obs).unwrapped, warn=True)


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_ppo_beats_a_random_policy_three_times(random_reward: float) -> None:
    learner = PPO(
        "MlpPolicy", digits(), seed=0, device="cpu", n_steps=512, batch_size=128, n_epochs=8, learning_rate=3e-3, ent_coef=0.02, gamma=1.0
    )
    learner.learn(5120)
    learned = mean_reward(lambda observation: int(learner.predict(observation, deterministic=True)[0]), 200)
    print(f"random {random_reward:.3f}, PPO {learned:.3f}, {learned / random_reward:.1f} times")
    assert random_reward > 0.02 and learned >= 3 * random_reward


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_dqn_beats_a_random_policy_three_times(random_reward: float) -> None:
    learner = DQN(
        "MlpPolicy",
        digits(),
        seed=0,
        device="cpu",
        learning_rate=1e-3,
        learning_starts=500,
        buffer_size=20_000,
        target_update_interval=250,
        exploration_fraction=0.4,
    )
    learner.learn(8000)
    learned = mean_reward(lambda observation: int(learner.predict(observation, deterministic=True)[0]), 200)
    print(f"random {random_reward:.3f}, DQN {learned:.3f}, {learned / random_reward:.1f} times")
    assert random_reward > 0.02 and learned >= 3 * random_reward
