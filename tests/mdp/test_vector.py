"""TokenVectorEnv: the same as SyncVectorEnv, step by step, and k verifications at once."""

from __future__ import annotations

import json
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from rlvr.errors import ConfigError, EnvError
from rlvr.mdp.env import OBSERVATION_KINDS, TokenEnv
from rlvr.mdp.tokenizers import load_tokenizer
from rlvr.mdp.vector import TokenVectorEnv
from tests.fixtures import worlds
from tests.fixtures.worlds import TOKENS, Sums, Talk, Together, Unable
from tests.mdp.test_env import SUMS, TALK, in_registry

N = 5


def same(a: Any, b: Any) -> None:
    """Two batches are equal: values, types, shapes and keys, however deep."""
    assert type(a) is type(b)
    if isinstance(a, dict):
        assert list(a) == list(b)
        for key in a:
            same(a[key], b[key])
    elif isinstance(a, tuple):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            same(x, y)
    elif isinstance(a, np.ndarray) and a.dtype == object:
        assert a.shape == b.shape
        for x, y in zip(a, b, strict=True):
            same(x, y)
    elif isinstance(a, np.ndarray):
        assert a.dtype == b.dtype and a.shape == b.shape and (a == b).all()
    else:
        assert a == b


def pair(obs: str, mode: AutoresetMode, world: Any) -> tuple[TokenVectorEnv, SyncVectorEnv]:
    ours = TokenVectorEnv(N, env=world(), tokenizer=TOKENS, obs=obs, autoreset_mode=mode)
    theirs = SyncVectorEnv([lambda: TokenEnv(env=world(), tokenizer=TOKENS, obs=obs)] * N, autoreset_mode=mode)
    return ours, theirs


@pytest.mark.parametrize("world", [Sums, Talk, lambda: Talk(verifier=Unable())])
@pytest.mark.parametrize("mode", list(AutoresetMode))
@pytest.mark.parametrize("obs", OBSERVATION_KINDS)
def test_step_by_step_equal_to_gymnasiums_own(obs: str, mode: AutoresetMode, world: Any) -> None:
    ours, theirs = pair(obs, mode, world)
    assert ours.metadata["autoreset_mode"] is mode
    same(ours.observation_space, theirs.observation_space)
    same(ours.action_space, theirs.action_space)
    seeds: Any = [3, 3, 9, 9, 4]
    same(ours.reset(seed=seeds), theirs.reset(seed=seeds))
    ours.action_space.seed(0)
    finished = 0
    for _ in range(120):
        actions = ours.action_space.sample()
        batch = ours.step(actions)
        same(batch, theirs.step(actions))
        over = batch[2] | batch[3]
        finished += int(over.sum())
        if mode is AutoresetMode.SAME_STEP and over.any():
            assert {"final_obs", "final_info"} <= set(batch[4])
        if mode is AutoresetMode.DISABLED and over.any():
            same(ours.reset(options={"reset_mask": over.copy()}), theirs.reset(options={"reset_mask": over.copy()}))
    assert finished > 30
    ours.close()
    theirs.close()


def test_next_step_ignores_the_action_of_the_reset_and_pays_nothing() -> None:
    envs = TokenVectorEnv(2, env=Sums(), tokenizer=TOKENS, obs="ids")
    envs.reset(seed=[1, 2])
    _, _, terminated, _, infos = envs.step(np.array([0, 5]))
    assert terminated.tolist() == [True, False] and infos["is_scored"].tolist() == [True, False]
    _, rewards, terminated, truncated, infos = envs.step(np.array([0, 5]))
    assert rewards.tolist() == [0.0, 0.0] and not terminated.any() and not truncated.any()
    assert infos["stop_reason"].tolist() == ["", ""] and infos["is_scored"].tolist() == [False, False]
    envs.close()


def test_disabled_refuses_to_step_what_is_over_and_resets_only_the_masked() -> None:
    envs = TokenVectorEnv(3, env=Sums(), tokenizer=TOKENS, obs="ids", autoreset_mode="Disabled")
    before, _ = envs.reset(seed=[1, 2, 3])
    envs.step(np.array([5, 0, 5]))
    states = [list(env.state.tokens) for env in envs.token_envs if env.state]
    with pytest.raises(EnvError, match=r"without a running episode in environments \[1\]; call reset"):
        envs.step(np.array([5, 5, 5]))
    assert [list(env.state.tokens) for env in envs.token_envs if env.state] == states  # nothing half done
    after, infos = envs.reset(seed=[1, 2, 3], options={"reset_mask": np.array([True, False, True])})
    assert (after[0] == before[0]).all() and (after[2] == before[2]).all() and not (after[1] == before[1]).all()
    assert infos["_task_id"].tolist() == [True, False, True]
    envs.close()


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_members_of_a_group_keep_to_the_same_tasks_however_differently_they_go(mode: AutoresetMode) -> None:
    envs = TokenVectorEnv(4, env=Sums(), tokenizer=TOKENS, obs="ids", autoreset_mode=mode)
    _, infos = envs.reset(seed=[5, 5, 6, 6])
    met: list[list[str]] = [[name] for name in infos["task_id"]]
    rng = np.random.default_rng(0)
    for _ in range(300):
        _, _, _, _, infos = envs.step(rng.integers([0, 0, 0, 3], [16, 4, 2, 16]))
        for i, name in enumerate(infos["task_id"]):
            if name != met[i][-1]:
                met[i].append(name)
    envs.close()
    for a, b in ((0, 1), (2, 3)):
        n = min(len(met[a]), len(met[b]))
        assert n > 20 and len(met[a]) != len(met[b]) and met[a][:n] == met[b][:n]
    assert met[0][:5] != met[2][:5]


def test_finished_answers_are_verified_at_the_same_time() -> None:
    judge = Together(6)  # each verification waits until six go on at once
    envs = TokenVectorEnv(6, env=Sums(verifier=judge), tokenizer=TOKENS, obs="ids", workers=6)
    envs.reset(seed=0)
    _, rewards, terminated, _, _ = envs.step(np.zeros(6, dtype=int))
    assert judge.most == 6 and rewards.tolist() == [1.0] * 6 and terminated.all()
    envs.close()


def test_the_pool_is_bounded() -> None:
    judge = Together(2, hold_s=0.05)
    envs = TokenVectorEnv(8, env=Sums(verifier=judge), tokenizer=TOKENS, obs="ids", workers=2)
    envs.reset(seed=0)
    envs.step(np.zeros(8, dtype=int))
    assert judge.calls == 8 and judge.most == 2
    envs.close()


def test_each_answer_is_verified_once() -> None:
    judge = Together()
    envs = TokenVectorEnv(3, env=Sums(verifier=judge), tokenizer=TOKENS, obs="ids", autoreset_mode="SameStep")
    envs.reset(seed=0)
    for n in range(1, 6):
        envs.step(np.zeros(3, dtype=int))
        assert judge.calls == 3 * n
    envs.close()


def test_a_verifier_that_never_answers_costs_its_answer_and_not_the_run() -> None:
    judge = Together(2, patience_s=5.0)  # one alone waits for a second that never comes
    envs = TokenVectorEnv(2, env=Sums(verifier=judge), tokenizer=TOKENS, obs="ids", verify_timeout_s=0.05)
    envs.reset(seed=0)
    _, rewards, terminated, truncated, infos = envs.step(np.array([0, 5]))
    assert (rewards[0], terminated[0], truncated[0], infos["stop_reason"][0], infos["fault"][0]) == (0.0, False, True, "failed", "infra")
    assert "no verdict within 0.05 s" in infos["reason"][0]
    judge.release()
    envs.close()


def test_close_any_number_of_times_puts_the_one_environment_away() -> None:
    world = Sums()
    envs = TokenVectorEnv(3, env=world, tokenizer=TOKENS)
    assert all(env.environment is world for env in envs.token_envs)
    envs.close()
    closed = world.closed
    envs.close()
    assert closed >= 1 and world.closed == closed
    with pytest.raises(EnvError, match="closed"):
        envs.step(np.zeros(3, dtype=int))


def test_wrong_settings_and_actions_are_named() -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"num_envs": 0}, "at least 1"),
        ({"workers": 0}, "must be above 0"),
        ({"autoreset_mode": "SameStp"}, "did you mean 'SameStep'"),
        ({"obs": "idds"}, "did you mean 'ids'"),
    ]
    for wrong, words in cases:
        with pytest.raises(ConfigError, match=words):
            TokenVectorEnv(**{"env": Sums(), "tokenizer": TOKENS, **wrong})
    envs = TokenVectorEnv(2, env=Sums(), tokenizer=TOKENS, obs="ids")
    with pytest.raises(EnvError, match="call reset"):
        envs.step(np.array([1, 2]))
    envs.reset(seed=0)
    actions: Any
    for actions in ([1], [[1, 2]], 3):
        with pytest.raises(EnvError, match="one action for each of the 2"):
            envs.step(actions)
    first = [list(env.state.tokens) for env in envs.token_envs if env.state]
    for actions in ([1, 16], [1, -1], [1.0, 2.5]):
        with pytest.raises(EnvError, match="whole numbers from 0 to 15"):
            envs.step(actions)
    assert [list(env.state.tokens) for env in envs.token_envs if env.state] == first  # nothing half done
    envs.close()


@pytest.mark.parametrize("mode", [None, "vector_entry_point", "sync", "async"])
@pytest.mark.parametrize("world", [SUMS, TALK])
def test_make_vec_in_every_mode(mode: Any, world: str) -> None:
    name = in_registry("tests/Vec-v0", world)
    envs = gymnasium.make_vec(name, num_envs=3, vectorization_mode=mode, obs="ids")
    kinds = {None: TokenVectorEnv, "vector_entry_point": TokenVectorEnv, "sync": SyncVectorEnv, "async": AsyncVectorEnv}
    assert type(envs) is kinds[mode]
    told: list[Any] = []
    try:
        told.append(envs.reset(seed=7))
        envs.action_space.seed(1)
        for _ in range(30):
            told.append(envs.step(envs.action_space.sample()))
    finally:
        envs.close()
    reference = TokenVectorEnv(3, env={"name": world}, tokenizer=TOKENS, obs="ids")
    same(told[0], reference.reset(seed=7))
    reference.action_space.seed(1)
    for batch in told[1:]:
        same(batch, reference.step(reference.action_space.sample()))
    reference.close()


def test_make_vec_parts_the_settings_and_its_spec_makes_the_same_again() -> None:
    name = in_registry("tests/Vec-v0", SUMS)
    envs = gymnasium.make_vec(name, num_envs=2, autoreset_mode="SameStep", obs="ids", below=9, max_new_tokens=3, workers=1)
    assert envs.spec is not None
    again = gymnasium.make_vec(envs.spec)
    for made in (envs, again):
        assert isinstance(made, TokenVectorEnv) and made.num_envs == 2
        assert made.environment.below == 9 and made.token_envs[0].mdp.max_new_tokens == 3  # type: ignore[attr-defined]
        assert made.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    same(envs.reset(seed=1), again.reset(seed=1))
    json.loads(envs.spec.to_json())
    envs.close()
    again.close()


def test_one_tokenizer_may_be_handed_in() -> None:
    envs = TokenVectorEnv(2, env=Sums(), tokenizer=load_tokenizer(TOKENS))
    assert envs.token_envs[0].tokenizer is envs.token_envs[1].tokenizer
    assert worlds.TOKENS == TOKENS
    envs.close()
