"""Classes with `reset` and `step` over texts, as Gymnasium has them: what they are paid, and what they may do wrong."""

from __future__ import annotations

import inspect
from typing import Any, ClassVar

import pytest

import rlvr
from rlvr.errors import ConfigError

api: Any = rlvr


class Golf(api.Env):
    """A miss costs 1, the hit ends the game; at most five tries."""

    opened: ClassVar[int] = 0

    def __init__(self) -> None:
        type(self).opened += 1

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        self.tries = 0
        return f"hole {(seed or 0) % 1000}", {}

    def step(self, action: str) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.tries += 1
        return "miss", -1.0, action == "hit", self.tries >= 5, {}

    def close(self) -> None:
        type(self).opened -= 1


def play(env: Any, answer: Any, **settings: Any) -> list[tuple[float | None, str]]:
    return [(sample.score, sample.reason) for sample in rlvr.evaluate(env, answer, tasks=2, **settings).samples]


def test_breaking_off_pays_nothing_where_every_turn_costs() -> None:
    range_: dict[str, Any] = {"reward_range": (-5, 0)}
    assert [score for score, _ in play(rlvr.make_env(Golf, **range_), lambda prompt: "hit")] == [0.8, 0.8]
    assert [score for score, _ in play(rlvr.make_env(Golf, **range_), lambda prompt: "no")] == [0.0, 0.0]
    for env, answer in (
        (rlvr.make_env(Golf, **range_, max_turns=1), lambda prompt: "no"),
        (rlvr.make_env(Golf, **range_), lambda prompt: "no" if "hole" in prompt else "no " * 500),
    ):
        assert {score for score, _ in play(env, answer)} == {0.0}
        assert "was not over" in play(env, answer)[0][1]
    assert Golf.opened == 0, "environments are left open"


def test_an_action_that_the_environment_cannot_read_is_an_own_0() -> None:
    class Number(Golf):
        def step(self, action: str) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            return None, float(int(action) == 7), True, False, {}

    assert [score for score, _ in play(Number, lambda prompt: "seven")] == [0.0, 0.0]
    assert [score for score, _ in play(Number, lambda prompt: "<think>so</think>7")] == [1.0, 1.0]
    assert Number.opened == 0

    class Broken(Golf):
        def step(self, action: str) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            raise RuntimeError("the board is gone")

    assert [score for score, _ in play(Broken, lambda prompt: "7")] == [None, None]


def test_an_environment_whose_start_fails_is_closed() -> None:
    class Mute(Golf):
        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            return None, {}

    with pytest.raises(rlvr.RlvrError, match="must be a text"):
        rlvr.make_env(Mute).task("train", 0)
    assert Mute.opened == 0


def test_few_beginnings_do_not_cost_many_resets() -> None:
    class Few(Golf):
        resets: ClassVar[int] = 0

        def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
            type(self).resets += 1
            return "the only hole", {}

    env = rlvr.make_env(Few)
    assert {env.task(split, index).question for split in env.splits for index in range(20)} == {"the only hole"}
    assert Few.resets <= 8 * 40
    env.task("train", 0)
    assert Few.resets <= 8 * 40


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"max_turns": 0}, "at least 1 turn"),
        ({"reward_range": (1, 0)}, "the lowest and the highest"),
        ({"reward_range": (0,)}, "the lowest and the highest"),
        ({"env_class": 5}, "give a class with reset and step"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        rlvr.make_env("text_env", **settings)


def test_an_unknown_split_and_rewards_beyond_the_range_are_said() -> None:
    with pytest.raises(ConfigError, match="no split 'dev'"):
        rlvr.make_env(Golf).task("dev", 0)

    class Rich(Golf):
        def step(self, action: str) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            return "", 10.0, True, False, {}

    assert "reward_range" in play(Rich, lambda prompt: "7")[0][1]


def test_plugins_keep_their_signature_and_may_have_other_bases() -> None:
    from typing import Protocol

    class Named(Protocol):
        def say_name(self) -> str: ...

    class Mine(rlvr.Verifier, Named):
        def verify(self, task: rlvr.Task, answer: str) -> rlvr.Verdict:
            return rlvr.Verdict(1.0)

        def say_name(self) -> str:
            return "mine"

    assert Mine()("4", "4").score == 1.0
    assert "levels" in inspect.signature(type(rlvr.make_env("arithmetic"))).parameters
