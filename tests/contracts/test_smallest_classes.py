"""A class that lacks a method, or the right base class, is answered with the smallest class of its kind that works."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import gymnasium
import pytest

import rlvr
from rlvr.contracts.plugin import SMALLEST_PLUGINS
from rlvr.errors import ConfigError, PluginLoadError
from rlvr.registry.plugins import PLUGIN_KINDS


def run_example(message: str) -> Any:
    """Run the Python code in a message; return the class that it defines, or its algorithm."""
    code = re.search(r"\n\n(.*?)(\n\n`rlvr new|\Z)", message, re.DOTALL)
    assert code is not None, message
    namespace: dict[str, Any] = {"rlvr": rlvr, "__name__": "mine"}
    exec(code[1], namespace)
    return namespace.get("algorithm") or next(value for value in reversed(namespace.values()) if isinstance(value, type))


class Reverse(rlvr.Environment):
    """Lacks `task`."""


class Silent(rlvr.Verifier):
    """Lacks `verify`."""


class Shut(rlvr.Sandbox):
    """Lacks `run_program`."""


class Dry(rlvr.Sampler):
    """Lacks `stream_completions`."""


class Lazy(rlvr.Algorithm):
    """Lacks everything."""


class Gym(gymnasium.Env[Any, Any]):
    """An environment of Gymnasium."""


class Dumb:
    """Is nothing of this library."""


class Mute(rlvr.Tool):
    """Has no method with @tool."""


MIX: Any = {Silent: 1.0}
INCOMPLETE: list[tuple[str, Callable[[], Any], str]] = [
    ("env", lambda: rlvr.make_env(Reverse), "env 'Reverse' lacks the method `task`"),
    ("verifier", lambda: rlvr.make_verifier(Silent), "verifier 'Silent' lacks the method `verify`"),
    ("verifier", lambda: rlvr.make_verifier(MIX), "verifier 'Silent' lacks the method `verify`"),
    ("sandbox", lambda: rlvr.make_sandbox(Shut), "sandbox 'Shut' lacks the method `run_program`"),
    ("sampler", lambda: rlvr.make_sampler(Dry), "sampler 'Dry' lacks the method `stream_completions`"),
    ("algorithm", lambda: rlvr.make_algorithm(Lazy), "algorithm 'Lazy' lacks the methods `compute_advantages`, "),
    ("env", lambda: rlvr.make_env(Dumb), "env 'Dumb' is a Dumb, not an rlvr.Environment"),
    ("verifier", lambda: rlvr.make_verifier(Gym), "verifier 'Gym' is a Gym, not an rlvr.Verifier"),
    ("tool", lambda: rlvr.make_tool(Gym), "tool 'Gym' is a Gym, not an rlvr.Tool"),
    ("env", Reverse, "env 'Reverse' lacks the method `task`"),
    ("verifier", Silent, "verifier 'Silent' lacks the method `verify`"),
    ("verifier", rlvr.Verifier, r"rlvr.Verifier is a base class; write rlvr.make_verifier\(name"),
]


@pytest.mark.parametrize(("kind", "make", "words"), INCOMPLETE, ids=[words for _, _, words in INCOMPLETE])
def test_an_incomplete_class_is_answered_with_one_that_works(kind: str, make: Callable[[], Any], words: str) -> None:
    with pytest.raises((PluginLoadError, ConfigError, TypeError), match=f"^{words}") as caught:
        make()
    shown = run_example(str(caught.value))
    assert shown is not None and (kind in ("sandbox", "sampler") or f"`rlvr new {kind} NAME` writes" in str(caught.value))


def test_there_is_a_smallest_class_of_every_kind() -> None:
    assert set(SMALLEST_PLUGINS) == {kind.contract.__name__ for kind in PLUGIN_KINDS.values() if kind.contract} | {"Algorithm"}


def make_smallest(contract: str) -> Any:
    return run_example(f"\n\n{SMALLEST_PLUGINS[contract].code}")


def test_the_smallest_environment_verifier_and_tool_work() -> None:
    env = rlvr.make_env(make_smallest("Environment"))
    task = env.task("train", 0)
    assert env.verifier(str(task.reference), task.reference).passed and not env.verifier("x", task.reference).passed
    assert rlvr.evaluate(env, lambda prompt: "1", tasks=2).accuracy == 0.5
    verifier = rlvr.make_verifier(make_smallest("Verifier"))
    assert verifier("Paris", "Paris").passed and not verifier("Rome", "Paris").passed
    assert rlvr.make_tool(make_smallest("Tool"))(21) == "42"


def test_the_smallest_sandbox_sampler_and_algorithm_work() -> None:
    assert rlvr.make_sandbox(make_smallest("Sandbox")).run("print(1)").ok
    (completion,) = rlvr.make_sampler(make_smallest("Sampler")).sample([rlvr.Request([5], 4)], rlvr.SamplingParams())
    assert completion.finish_reason == "stop"
    assert isinstance(make_smallest("Algorithm"), rlvr.Algorithm)
