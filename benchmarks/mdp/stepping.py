"""Compare the time of a token step with a CartPole step. One JSON line: microseconds for each step, and the ratios.

    python benchmarks/mdp/stepping.py

Both environments are bare (no wrappers), alternate in one process, and take random actions; resets and verdicts are
part of the time. The token environment is `arithmetic` on printable characters, with windows of 128 and 1024 tokens.
"""

from __future__ import annotations

import json
import statistics
import time
from typing import Any

import gymnasium

import rlvr
from rlvr.mdp.env import TokenEnv

LENGTHS = (128, 1024)
STEPS, ROUNDS = 4000, 7


def microseconds(env: gymnasium.Env[Any, Any], actions: list[Any]) -> float:
    """The times of one step, resets included."""
    env.reset(seed=0)
    began = time.perf_counter()
    for action in actions:
        _, _, terminated, truncated, _ = env.step(action)
        if terminated or truncated:
            env.reset()
    return (time.perf_counter() - began) / len(actions) * 1e6


def drawn(env: gymnasium.Env[Any, Any]) -> list[Any]:
    """Random actions, drawn before the clock starts; no stop ids, so that every episode fills its window."""
    stops = env.tokenizer.stop_ids if isinstance(env, TokenEnv) else frozenset()
    env.action_space.seed(0)
    return [action for action in (env.action_space.sample() for _ in range(2 * STEPS)) if action not in stops][:STEPS]


def main() -> None:
    """Measure everything alternately, so that other load on the machine affects all equally; report medians."""
    environments: dict[str, Any] = {"cartpole": gymnasium.make("CartPole-v1").unwrapped}
    for length in LENGTHS:
        for obs in ("ids", "dict"):
            made = gymnasium.make("rlvr:rlvr/Arithmetic-v0", obs=obs, max_new_tokens=length - 32, max_length=length)
            environments[f"{obs}_{length}"] = made.unwrapped
    actions = {name: drawn(env) for name, env in environments.items()}
    taken: dict[str, list[float]] = {name: [] for name in environments}
    for _ in range(ROUNDS):
        for name, env in environments.items():
            taken[name].append(microseconds(env, actions[name]))
    median = {name: statistics.median(values) for name, values in taken.items()}
    ratios = {name: round(value / median["cartpole"], 2) for name, value in median.items() if name != "cartpole"}
    row = {"benchmark": "stepping", "rlvr": rlvr.__version__, "gymnasium": gymnasium.__version__, "steps": STEPS * ROUNDS}
    print(json.dumps({**row, "times_cartpole": ratios, "us_per_step": {name: round(value, 2) for name, value in median.items()}}))


if __name__ == "__main__":
    main()
