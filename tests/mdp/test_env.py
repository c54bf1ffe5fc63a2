"""TokenEnv as Gymnasium sees it: every rule that its checker, its wrappers and strangers' learners rely on."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import warnings
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from rlvr.errors import ConfigError, EnvError
from rlvr.mdp.env import OBSERVATION_KINDS, TOKEN_OBSERVATIONS, TokenEnv
from rlvr.task import Task, make_user_prompt
from tests.fixtures import worlds
from tests.fixtures.worlds import TOKENS, Nonsense, Raises, Sums, Talk, Unable

EOS, ONE = 0, 5
SUMS, TALK = f"{worlds.__file__}:Sums", f"{worlds.__file__}:Talk"


def play(env: TokenEnv, actions: list[int], index: int = 7) -> tuple[Any, float, bool, bool, dict[str, Any]]:
    env.reset(seed=0, options={"index": index})
    for action in actions[:-1]:
        _, reward, terminated, truncated, _ = env.step(action)
        assert (reward, terminated, truncated) == (0.0, False, False)
    return env.step(actions[-1])


def in_registry(name: str, target: str, **kwargs: Any) -> str:
    """A Gymnasium id for an environment of the tests, registered as `register_environments` registers ours."""
    gymnasium.registry.pop(name, None)
    gymnasium.register(
        name,
        entry_point="rlvr.mdp.env:make_token_env",
        vector_entry_point="rlvr.mdp.vector:make_token_vector_env",
        kwargs={"name": target, "tokenizer": TOKENS, **kwargs},
    )
    return name


@pytest.mark.parametrize("world", [SUMS, TALK])
@pytest.mark.parametrize("obs", OBSERVATION_KINDS)
def test_gymnasiums_own_checker_finds_nothing(obs: str, world: str) -> None:
    env = gymnasium.make(in_registry("tests/World-v0", world), obs=obs, render_mode="ansi")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(env.unwrapped)
    env.close()


@pytest.mark.parametrize("obs", TOKEN_OBSERVATIONS)
def test_no_two_calls_share_memory(obs: str) -> None:
    env = TokenEnv(env=Talk(), tokenizer=TOKENS, obs=obs)

    def arrays(observation: Any) -> list[Any]:
        return list(observation.values()) if isinstance(observation, dict) else [observation]

    calls = [env.reset(seed=1, options={"index": 5}), *((five[0], five[4]) for five in (env.step(a) for a in (ONE, EOS, ONE, EOS)))]
    frozen = [[a.copy() for a in arrays(observation)] for observation, _ in calls]
    env.step(6)
    env.reset(seed=2)
    for i, (observation, info) in enumerate(calls):
        for array, before in zip(arrays(observation), frozen[i], strict=True):
            assert (array == before).all()  # what was handed out stays as it was
        for other, other_info in calls[i + 1 :]:
            assert not any(np.shares_memory(a, b) for a in arrays(observation) for b in arrays(other))
            assert info is not other_info


@pytest.mark.parametrize("obs", TOKEN_OBSERVATIONS)
def test_observations_are_what_the_space_says_and_what_the_state_holds(obs: str) -> None:
    env = TokenEnv(env=Talk(), tokenizer=TOKENS, obs=obs)
    observation, _ = env.reset(seed=3)
    rng = np.random.default_rng(0)
    for _ in range(300):
        assert env.observation_space.contains(observation)
        assert env.state is not None
        tokens, acted, length = env.state.tokens, env.state.action_mask, len(env.state.tokens)
        ids = observation["input_ids"] if obs == "dict" else observation
        assert ids.dtype == np.int64 and ids[:length].tolist() == tokens and (ids[length:] == env.pad_id).all()
        if obs == "dict":
            assert observation["length"].tolist() == [length]
            assert observation["attention_mask"].tolist() == [1] * length + [0] * (len(ids) - length)
            assert observation["loss_mask"].tolist() == [int(own) for own in acted] + [0] * (len(ids) - length)
        observation, _, terminated, truncated, _ = env.step(int(rng.integers(env.action_space.n)))
        if terminated or truncated:
            assert env.observation_space.contains(observation)
            observation, _ = env.reset()


def test_with_texts_a_step_is_a_turn_and_an_observation_what_the_environment_said() -> None:
    env = TokenEnv(env=Talk(), obs="text")
    opening, _ = env.reset(seed=1, options={"index": 5})
    assert env.state is not None
    assert opening == "\n\n".join(message["content"] for message in env.state.task.prompt)
    reply, reward, terminated, truncated, info = env.step("1")
    assert reply == env.state.step_results[0].messages[0]["content"] and (reward, terminated, truncated) == (0.0, False, False)
    while not (terminated or truncated):
        reply, reward, terminated, truncated, info = env.step("1")
    assert reply == "" and info["is_scored"]
    with pytest.raises(EnvError, match="with obs='text' an action is a whole turn"):
        env.reset()
        env.step(5)


def test_a_text_is_a_turn_for_every_kind_of_observation_and_through_wrappers() -> None:
    env = gymnasium.wrappers.TransformReward(
        gymnasium.wrappers.RecordEpisodeStatistics(gymnasium.make("rlvr/Arithmetic-v0")), lambda reward: float(reward) - 1
    )
    env.reset(seed=7)
    gold = env.unwrapped.state.task.reference  # type: ignore[attr-defined]
    _, reward, terminated, truncated, info = env.step(gold)
    assert (reward, terminated, truncated) == (0.0, True, False) and info["episode"]["r"] == 1.0 and info["text"] == gold


def test_the_pad_id_is_no_action_and_stands_inside_the_observation_space() -> None:
    for obs in ("ids", "onehot_ids"):
        env = TokenEnv(env=Sums(), tokenizer=TOKENS, obs=obs)
        assert env.pad_id == 16 and not env.action_space.contains(env.pad_id)
        assert env.observation_space.contains(np.full(env.mdp.max_length, env.pad_id))
    assert (TokenEnv(env=Sums(), tokenizer=TOKENS, obs="onehot_ids").observation_space.nvec == 17).all()  # type: ignore[attr-defined]


def test_a_step_hands_back_plain_python_types_every_time() -> None:
    env = TokenEnv(env=Talk(), tokenizer=TOKENS)
    _, first = env.reset(seed=0)
    kinds = {key: type(value) for key, value in first.items()}
    for _ in range(200):
        _, reward, terminated, truncated, info = env.step(env.action_space.sample())
        assert type(reward) is float and type(terminated) is bool and type(truncated) is bool
        assert {key: type(value) for key, value in info.items()} == kinds
        assert not any(key.startswith("_") or key in ("final_obs", "final_info") for key in info)
        json.dumps(info)
        if terminated or truncated:
            _, info = env.reset()
            assert {key: type(value) for key, value in info.items()} == kinds


def test_the_reward_comes_at_the_end_and_is_the_score() -> None:
    env = TokenEnv(env=Sums(), tokenizer=TOKENS)
    right = [*env.tokenizer.encode("7"), EOS]
    _, reward, terminated, truncated, info = play(env, right)
    assert (reward, terminated, truncated) == (1.0, True, False)
    assert (info["text"], info["stop_reason"], info["is_scored"], info["score"], info["fault"]) == ("7", "terminated", True, 1.0, "none")
    assert info["task_id"] == "sums/train/7"
    _, reward, terminated, truncated, info = play(env, [*env.tokenizer.encode("7777")])
    assert (reward, terminated, truncated, info["stop_reason"], info["turns"]) == (0.25, False, True, "truncated", 1)


def test_a_stop_on_the_last_allowed_token_terminates() -> None:
    env = TokenEnv(env=Sums(), tokenizer=TOKENS, max_new_tokens=2)
    assert play(env, [ONE, EOS])[2:4] == (True, False)
    assert play(env, [ONE, ONE])[2:4] == (False, True)


def test_on_length_terminate_ends_without_a_bootstrap() -> None:
    env = TokenEnv(env=Sums(), tokenizer=TOKENS, max_new_tokens=2, on_length="terminate")
    _, _, terminated, truncated, info = play(env, [ONE, ONE])
    assert (terminated, truncated, info["stop_reason"]) == (True, False, "truncated")


@pytest.mark.parametrize("verifier, words", [(Raises(), "Raises raised RuntimeError: the judge fell over"), (Unable(), "engine")])
@pytest.mark.parametrize("on_length", ["truncate", "terminate"])
def test_what_cannot_be_judged_is_no_zero(verifier: Any, words: str, on_length: str) -> None:
    env = TokenEnv(env=Sums(verifier=verifier), tokenizer=TOKENS, on_length=on_length)
    for actions in ([ONE, EOS], [ONE] * 4):
        _, reward, terminated, truncated, info = play(env, actions)
        assert (reward, terminated, truncated) == (0.0, False, True)
        assert (info["is_scored"], info["stop_reason"], info["fault"]) == (False, "failed", "infra") and words in info["reason"]


@pytest.mark.parametrize("value", [2.0, float("nan"), -0.5, None, "1.0", 1])
def test_a_verifier_that_returns_nonsense_is_the_machinerys_fault(value: Any) -> None:
    env = TokenEnv(env=Sums(verifier=Nonsense(value=value)), tokenizer=TOKENS)
    assert play(env, [ONE, EOS])[4]["fault"] == "infra"


def test_an_environment_that_cannot_say_its_answer_ends_the_episode_without_a_score() -> None:
    class Lost(Sums):
        def select_answer(self, task: Task, said: Sequence[str]) -> str:
            raise KeyError("answer")

    env = TokenEnv(env=Lost(), tokenizer=TOKENS)
    env.reset(seed=1)
    _, reward, terminated, truncated, info = env.step(env.tokenizer.eos_id)
    assert (reward, terminated, truncated, info["is_scored"], info["fault"], info["text"]) == (0.0, False, True, False, "infra", "")
    assert "select_answer() raised KeyError" in info["reason"]


def test_the_task_comes_from_the_seed_alone() -> None:
    a, b = TokenEnv(env=Sums(), tokenizer=TOKENS), TokenEnv(env=Sums(), tokenizer=TOKENS)
    drawn = []
    for seed in range(20):
        one, two = a.reset(seed=seed)[1]["task_id"], b.reset(seed=seed, options={})[1]["task_id"]
        assert one == two
        drawn.append(one)
        a.step(ONE)  # however far the one got, the next draw is the same
        assert a.reset()[1]["task_id"] == b.reset()[1]["task_id"]
    assert len(set(drawn)) == 20


def test_a_split_with_a_size_is_drawn_within_its_size() -> None:
    env = TokenEnv(env=Sums(below=2), tokenizer=TOKENS, split="test")
    seen = {env.reset(seed=seed)[1]["task_id"] for seed in range(100)}
    assert seen == {f"sums/test/{i}" for i in range(4)}


def test_a_task_can_be_named() -> None:
    env = TokenEnv(env=Sums(below=3), tokenizer=TOKENS, split="test")
    assert env.reset(options={"index": np.int64(8)})[1]["task_id"] == "sums/test/8"
    assert env.reset_to_task(Task(make_user_prompt("1+1="), "2", id="mine"))[1]["task_id"] == "mine"
    for bad in (9, -1, 1.5, "3"):
        with pytest.raises(EnvError, match=r"there is no task .* allowed: 0 to 8"):
            env.reset(options={"index": bad})
    with pytest.raises(EnvError, match="no option 'indx'; did you mean 'index'"):
        env.reset(options={"indx": 3})


@pytest.mark.parametrize("action", [16, -1, 2.0, 3.5, b"5", None, np.array([5]), float("nan")])
def test_an_action_that_is_no_token_is_refused_and_changes_nothing(action: Any) -> None:
    env = TokenEnv(env=Sums(), tokenizer=TOKENS)
    env.reset(seed=0)
    assert env.state is not None
    before = list(env.state.tokens)
    with pytest.raises(EnvError, match="is no token id; allowed: whole numbers from 0 to 15"):
        env.step(action)
    assert env.state.tokens == before
    env.step(np.int64(5))
    env.step(np.array(5))


def test_stepping_outside_an_episode_is_refused() -> None:
    env = TokenEnv(env=Sums(), tokenizer=TOKENS)
    with pytest.raises(EnvError, match="call reset"):
        env.step(ONE)
    play(env, [EOS])
    with pytest.raises(EnvError, match="call reset"):
        env.step(ONE)


def test_render_is_the_conversation() -> None:
    env = TokenEnv(env=Talk(), tokenizer=TOKENS, render_mode="ansi")
    assert env.render() is None
    play(env, [ONE, EOS, ONE])
    assert env.render() == "user: 7=\npolicy: 1\nenv: 1\npolicy: 1"
    env.step(EOS)
    env.step(EOS)
    assert str(env.render()).splitlines()[-1].startswith("verdict: ")


@pytest.mark.parametrize(
    "wrong, words",
    [
        ({"obs": "id"}, "did you mean 'ids'"),
        ({"split": "trian"}, "did you mean 'train'"),
        ({"on_length": "stop"}, "allowed: terminate, truncate"),
        ({"render_mode": "human"}, "allowed: ansi"),
        ({"max_new_tokens": 0}, "at least 1"),
        ({"max_length": 1}, "at least 2"),
        ({"tokenizer": "char"}, "chars:ALPHABET"),
        ({"tokenizer": "chars:"}, "at least one character"),
        ({"env": {"digits": 2}}, "needs a 'name'"),
        ({"env": None}, "a name or a mapping"),
        ({"env": object()}, "is not an environment"),
        ({"env": {"name": SUMS, "blow": 9}}, "did you mean 'below'"),
    ],
)
def test_a_wrong_setting_is_named(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        TokenEnv(**{"env": Sums(), "tokenizer": TOKENS, **wrong})


def test_what_was_built_for_a_refused_environment_is_put_away(monkeypatch: pytest.MonkeyPatch) -> None:
    world = Sums()
    monkeypatch.setattr("rlvr.mdp.env.build_from_config", lambda kind, wanted: world)
    with pytest.raises(ConfigError):
        TokenEnv(env={"name": "sums"}, tokenizer=TOKENS, split="trian")
    assert world.closed == 1
    with pytest.raises(ConfigError):
        TokenEnv(env=world, tokenizer=TOKENS, split="trian")
    assert world.closed == 1  # handed in: its owner puts it away


def test_a_prompt_that_fills_the_window_is_refused_with_what_to_do() -> None:
    env = TokenEnv(env=Sums(), tokenizer=TOKENS, max_length=4)
    with pytest.raises(EnvError, match="raise max_length"):
        env.reset(seed=0)


def test_close_any_number_of_times() -> None:
    environment = Sums()
    env = TokenEnv(env=environment, tokenizer=TOKENS)
    env.close()
    env.close()
    assert environment.closed == 2


def test_an_environment_travels_by_its_settings() -> None:
    name = in_registry("tests/Travel-v0", SUMS, obs="ids", below=9)
    env = gymnasium.make(name)
    again = gymnasium.make(pickle.loads(pickle.dumps(env.spec)))
    assert env.spec is not None and env.spec.max_episode_steps is None  # a time limit outside would skip the verifier
    json.loads(env.spec.to_json())
    a, b = env.reset(seed=4), again.reset(seed=4)
    assert (a[0] == b[0]).all() and a[1] == b[1]
    assert env.unwrapped.environment.below == 9  # type: ignore[attr-defined]


ROUNDS = """
import json, sys
from rlvr.mdp.env import TokenEnv
env = TokenEnv(env={"name": sys.argv[1]}, tokenizer=sys.argv[2], obs="ids")
env.action_space.seed(3)
rows = []
obs, info = env.reset(seed=11)
for _ in range(60):
    obs, reward, terminated, truncated, info = env.step(env.action_space.sample())
    rows.append([obs.tolist(), reward, terminated, truncated, info])
    if terminated or truncated:
        obs, info = env.reset()
print(json.dumps(rows))
"""


def test_two_processes_see_the_same() -> None:
    said = [
        subprocess.run([sys.executable, "-c", ROUNDS, TALK, TOKENS], capture_output=True, text=True, check=True, timeout=60).stdout
        for _ in range(2)
    ]
    assert said[0] == said[1] and len(json.loads(said[0])) == 60


def test_no_public_method_is_taken_for_a_goal_environments() -> None:
    assert not hasattr(TokenEnv, "compute_reward")
