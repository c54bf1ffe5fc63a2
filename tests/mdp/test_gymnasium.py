"""Our environments as Gymnasium's own: reachable by id from anywhere, whichever was imported first."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv
from gymnasium.wrappers import FlattenObservation, RecordEpisodeStatistics

import rlvr
from rlvr.mdp._gymnasium import format_gym_id, register_environments
from rlvr.mdp.env import TokenEnv
from rlvr.mdp.vector import TokenVectorEnv
from rlvr.registry.plugins import list_entries

ARITHMETIC = "rlvr:rlvr/Arithmetic-v0"


def python(code: str, *paths: Path) -> str:
    """Run a fresh interpreter."""
    head = "import sys; sys.path[:0] = " + repr([str(path) for path in paths]) + "\n"
    done = subprocess.run([sys.executable, "-W", "error", "-c", head + code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


MAKE = "print(type(gymnasium.make('rlvr:rlvr/Arithmetic-v0').unwrapped).__name__)"


@pytest.mark.slow
@pytest.mark.parametrize(
    "imports",
    [
        "import gymnasium",
        "import rlvr, gymnasium",
        "import gymnasium, rlvr",
        "import rlvr.mdp.env, gymnasium",
        "import rlvr.mdp.vector, gymnasium",
        "import rlvr.registry.plugins, gymnasium",
        "from rlvr import *\nimport gymnasium",
        "import rlvr, importlib.util\nassert importlib.util.find_spec('gymnasium')\nimport gymnasium",
        "import rlvr\nfrom gymnasium import spaces\nimport gymnasium",
    ],
)
def test_an_id_is_enough_whatever_was_imported_first(imports: str) -> None:
    assert python(f"{imports}\n{MAKE}") == "TokenEnv"


def test_rlvr_alone_does_not_import_gymnasium_and_leaves_it_as_it_is() -> None:
    code = (
        "import rlvr\nassert not {'gymnasium', 'numpy'} & set(sys.modules)\nfinders = len(sys.meta_path)\nimport gymnasium\n"
        "assert len(sys.meta_path) == finders - 1\n"
        "assert type(gymnasium.__loader__).__name__ == type(gymnasium.__spec__.loader).__name__ == 'SourceFileLoader'\n"
        "assert 'rlvr/Arithmetic-v0' in gymnasium.registry and 'rlvr.mdp.env' not in sys.modules\nprint('fine')"
    )
    assert python(code) == "fine"


def test_a_plugin_that_cannot_be_registered_does_not_break_importing_gymnasium(tmp_path: Path) -> None:
    for name, points in {"one": "mine = one:X\nodd name! = one:Y\nlonely = one:Z", "two": "mine = two:X"}.items():
        info = tmp_path / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[rlvr.envs]\n{points}\n")
    told = python("import rlvr, gymnasium\nprint([i for i in gymnasium.registry if i.startswith('rlvr/')])", tmp_path)
    assert "rlvr/Lonely-v0" in told and "rlvr/Arithmetic-v0" in told and "Mine" not in told and "odd" not in told.lower()


def test_every_environment_has_its_id() -> None:
    found = register_environments()
    assert {entry.name for entry in found} == {entry.name for entry in list_entries("env") if not entry.error}
    for entry in found:
        spec = gymnasium.spec(format_gym_id(entry.name))
        assert spec.max_episode_steps is None and spec.additional_wrappers == () and not spec.nondeterministic
    assert [format_gym_id(name) for name in ("guess_number", "gsm8k", "my-env")] == [
        "rlvr/GuessNumber-v0",
        "rlvr/Gsm8k-v0",
        "rlvr/MyEnv-v0",
    ]


def test_settings_reach_the_one_they_belong_to() -> None:
    env = gymnasium.make(ARITHMETIC, obs="ids", levels=["1+1"], max_new_tokens=5, tokenizer="chars:0123456789+=-")
    assert isinstance(env.unwrapped, TokenEnv)
    token_env: Any = env.unwrapped
    assert (token_env.obs, token_env.mdp.max_new_tokens, token_env.action_space.n) == ("ids", 5, 17)
    with pytest.raises(rlvr.RlvrError, match="did you mean 'levels'"):
        gymnasium.make(ARITHMETIC, level=["1+1"])


def test_a_gold_answer_earns_the_full_reward_token_by_token() -> None:
    env = gymnasium.make(ARITHMETIC, obs="ids")
    inner: Any = env.unwrapped
    for seed in range(20):
        env.reset(seed=seed)
        gold = inner.tokenizer.encode(inner.environment.gold(inner.state.task))
        for token in gold:
            assert env.step(token)[1:4] == (0.0, False, False)
        _, reward, terminated, truncated, _ = env.step(inner.tokenizer.eos_id)
        assert (reward, terminated, truncated) == (1.0, True, False)


@pytest.mark.parametrize("mode", [None, "sync", "async"])
def test_make_vec(mode: Any) -> None:
    made = gymnasium.make_vec(ARITHMETIC, num_envs=4, vectorization_mode=mode)
    assert type(made) is {None: TokenVectorEnv, "sync": SyncVectorEnv, "async": AsyncVectorEnv}[mode]
    envs: Any = made
    try:
        assert envs.num_envs == 4
        observations, infos = envs.reset(seed=[7, 7, 8, 8])
        ids = observations["input_ids"]
        assert (ids[0] == ids[1]).all() and (ids[2] == ids[3]).all() and not (ids[1] == ids[2]).all()
        _, rewards, terminated, truncated, infos = envs.step(np.array([0, 9, 0, 9]))
        assert (
            terminated.tolist() == [True, False, True, False] and not truncated.any() and infos["is_scored"].tolist() == terminated.tolist()
        )
        assert rewards.dtype == np.float64
    finally:
        envs.close()


def test_gymnasiums_wrappers_go_on_top() -> None:
    env = RecordEpisodeStatistics(FlattenObservation(gymnasium.make("rlvr:rlvr/GuessNumber-v0")))
    observation, _ = env.reset(seed=1)
    for _ in range(200):
        observation, _, terminated, truncated, info = env.step(env.action_space.sample())
        assert env.observation_space.contains(observation)
        if terminated or truncated:
            assert info["episode"]["r"] == info["score"]
            env.reset()
