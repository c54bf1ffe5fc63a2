"""Classes with `reset` and `step` over texts, as Gymnasium has them: what they are paid, and what they may do wrong."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any, ClassVar

import numpy
import pytest

import rlvr
from rlvr.errors import ConfigError
from rlvr.registry.plugins import build_from_config

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


@pytest.mark.parametrize("declared", [(-5, 0), numpy.array([-5.0, 0.0]), (float("-inf"), float("inf")), "wide"])
def test_a_class_may_declare_the_range_of_its_rewards(declared: Any) -> None:
    class Declared(Golf):
        reward_range = declared

    class Plain:
        reward_range = declared
        reset, step = Golf.reset, Golf.step

    for env_class in (Declared, Plain):
        assert [score for score, _ in play(rlvr.make_env(env_class, reward_range=(-10, 0)), lambda prompt: "hit")] == [0.9, 0.9]
        found = play(rlvr.make_env(env_class), lambda prompt: "hit")
        assert [score for score, _ in found] == ([0.8, 0.8] if declared[0] == -5 else [0.0, 0.0]), found


def test_a_reward_above_the_range_says_which_range_would_do() -> None:
    class Rich(Golf):
        def step(self, action: str) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            return "", 5.0, True, False, {}

    (score, reason), *_ = play(Rich, lambda prompt: "hit")
    assert score is None and "reward_range=(0, 5)" in reason
    assert play(rlvr.make_env(Rich, reward_range=(0, 5)), lambda prompt: "hit")[0][0] == 1.0


def test_tasks_of_a_registered_class_have_ids_with_its_name() -> None:
    class Plain:
        reset, step = Golf.reset, Golf.step

    for name, env_class in (("golf", Golf), ("plain", Plain)):
        rlvr.register(name, env_class)
        assert rlvr.make_env(name).task("train", 0).id.startswith(f"{name}/train/")
        assert rlvr.make_env(env_class).task("train", 0).id.startswith(f"{env_class.__name__}/train/")
        assert rlvr.make_env(name, max_turns=3, reward_range=(-5, 0)).max_turns == 3
        with pytest.raises(ConfigError, match="no setting 'max_turn'; did you mean 'max_turns'"):
            rlvr.make_env(name, max_turn=3)


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
        ({"reward_range": (0, float("inf"))}, "the lowest and the highest"),
        ({"reward_range": "ab"}, "the lowest and the highest"),
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


class Sized(Golf):
    """A class with settings, of which the environment around it has one, too."""

    def __init__(self, size: int = 1, max_turns: int = 2) -> None:
        super().__init__()
        self.said = f"{size} and {max_turns}"

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        return self.said, {}


def test_settings_reach_the_class_also_where_the_environment_has_them() -> None:
    for settings in ({"size": 7, "max_turns": 9}, {"kwargs": {"size": 7, "max_turns": 9}}, {"kwargs": {"size": 7}, "max_turns": 9}):
        assert rlvr.make_env(Sized, **settings).task("train", 0).question == "7 and 9"
    assert rlvr.make_env(Sized, max_turns=9).max_turns == 9
    rlvr.register("sized_7", Sized, kwargs={"size": 7, "max_turns": 3})
    assert rlvr.make_env("sized_7").task("train", 0).question == "7 and 3"
    for wrong in ({"siz": 7}, {"kwargs": {"siz": 7}}):
        with pytest.raises(ConfigError, match="Sized has no setting 'siz'; did you mean 'size'"):
            rlvr.make_env(Sized, **wrong)
    with pytest.raises(ConfigError, match="must be a mapping"):
        rlvr.make_env(Sized, kwargs=[7])
    with pytest.raises(ConfigError, match="Golf has no setting 'seed'; it has none"):
        rlvr.make_env(Golf, kwargs={"seed": 7})


def test_a_class_in_a_file_is_an_environment_by_its_name(tmp_path: Path) -> None:
    file = tmp_path / "sized.py"
    file.write_text(
        f"from typing import Any\nimport rlvr\n\n\nclass Golf(rlvr.Env):\n    def step(self, action): ...\n\n\n{inspect.getsource(Sized)}"
    )
    env = build_from_config("env", {"name": f"{file}:Sized", "size": 7, "max_turns": 9})
    assert env.task("train", 0).question == "7 and 9" and env.max_turns == 9
    env = build_from_config("env", {"name": "text_env", "env_class": f"{file}:Sized", "kwargs": {"size": 7}})
    assert env.task("train", 0).question == "7 and 2"


def test_one_failed_start_ends_no_run_and_a_lasting_one_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlvr.envs.text_env.START_PAUSE_S", 0.0)

    class Flaky(Golf):
        failures: ClassVar[int] = 2

        def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
            if type(self).failures:
                type(self).failures -= 1
                raise ConnectionError("the server is busy")
            return super().reset(seed=seed)

    assert rlvr.make_env(Flaky).task("train", 0).question.startswith("hole")
    Flaky.failures = 10**6
    with pytest.raises(rlvr.RlvrError, match=r"Flaky could not begin .* ConnectionError: the server is busy"):
        rlvr.make_env(Flaky).task("train", 0)

    class Exits(Golf):
        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            raise SystemExit(3)

    with pytest.raises(rlvr.RlvrError, match=r"Exits\.reset ended the program: SystemExit: 3"):
        rlvr.make_env(Exits).task("train", 0)
    assert Flaky.opened == Exits.opened == 0


def test_a_failure_to_close_is_about_no_answer(caplog: pytest.LogCaptureFixture) -> None:
    class Stuck(Golf):
        def step(self, action: str) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            return "", float(action == "hit"), True, False, {}

        def close(self) -> None:
            raise SystemExit("the window is gone")

    class Panicking(Stuck):
        def close(self) -> None:
            raise GeneratorExit

    assert [score for score, _ in play(Panicking, lambda prompt: "hit")] == [1.0, 1.0]
    assert [score for score, _ in play(Stuck, lambda prompt: "hit")] == [1.0, 1.0]
    assert [score for score, _ in play(Stuck, lambda prompt: "no")] == [0.0, 0.0]
    assert sum("Stuck.close raised" in message for message in caplog.messages) == 1


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        (("", 1.0, "False", False, {}), "'False' as terminated or truncated"),
        (("", 1.0, {}, True, False), "must return observation"),
        (("", 1.0, False, True), "must return observation"),
        (("", None, True, False, {}), "the reward None; it must be a number"),
        (("", "1", True, False, {}), "the reward '1'; it must be a number"),
    ],
)
def test_a_step_of_another_form_is_said_and_is_no_0(returned: Any, words: str) -> None:
    class Odd(Golf):
        def step(self, action: str) -> Any:
            return returned

    (score, reason), *_ = play(Odd, lambda prompt: "hit")
    assert score is None and words in reason


def test_a_list_and_half_a_character_are_read() -> None:
    class Echo(Golf):
        def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
            return f"hole {seed} \ud800", {}

        def step(self, action: str) -> Any:
            return ["\ud800", 1.0, True, False, {}]

    assert [score for score, _ in play(Echo, lambda prompt: "hit")] == [1.0, 1.0]
