"""Real agents, unmodified, play `bugfix` through the gateway, with a scripted policy and with a tiny one that was never trained.

    python benchmarks/agents/real_agents.py --bin FOLDER --framework pydantic_ai=PYTHON --episodes 4 codex pi pydantic_ai

With the scripted policy each episode must get the full score. With the tiny one the log-probability of each sampled token is recomputed by the
trainer's code, in float32, after the tokens that the policy saw; the sampled tokens must be those that are trained, masked or dropped.
A line for each agent; agents that are not installed are named. Exit code 1 if a limit is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

import rlvr
from rlvr.conformance.agentkit import make_scripted_policy, make_tiny_model
from rlvr.episode import Episode
from rlvr.gateway.presets import AGENT_PRESETS
from rlvr.models.batch import TokenRows
from rlvr.training.update.policy import Policy
from rlvr.training.update.step_data import StepData

FRAMEWORKS = Path(__file__).parent / "frameworks"
MAX_DIFFERENCE = 1e-4
LIMITS: dict[str, Any] = {"max_length": 65_536, "max_new_tokens": 65_536}


@torch.no_grad()
def measure_difference(model: Any, episodes: list[Episode]) -> float:
    """The largest distance of a sampled log-probability from the recomputed one, each branch alone."""
    rows = TokenRows([e.tokens for e in episodes], [e.action_mask for e in episodes], [e.segments for e in episodes])
    policy, worst = Policy(model), 0.0
    sampled = rows.flatten_policy_tokens([e.logprobs for e in episodes])
    for number in range(len(episodes)):
        if rows.num_acted[number]:
            batch = rows.build_padded_batch([number])
            worst = max(worst, float((policy(batch).logprobs - sampled[batch.entry_positions]).abs().max()))
    return worst


def count_tokens(episodes: list[Episode]) -> dict[str, int]:
    """How many tokens were sampled, and how many of them a step would train, mask or drop."""
    algorithm = rlvr.make_algorithm("grpo")
    step = StepData([episodes], algorithm)
    step.set_advantages(algorithm.compute_advantages([episodes]), keep_zero_advantage=False)
    counts = step.count_tokens()
    return {name: int(counts[f"tokens/{name}"]) for name in ("sampled", "to_train", "masked", "dropped")}


def play(agent: str, settings: dict[str, Any], num_episodes: int, policy: str) -> dict[str, Any]:
    env: Any = rlvr.make_env("agent", env="bugfix", timeout_s=240, idle_timeout_s=120, max_turns=8, **settings)
    tasks = [env.task("train", index) for index in range(num_episodes)]
    model = None
    if policy == "scripted":
        sampler: Any = {"name": "function", "function": make_scripted_policy(env.env, tasks)}
        limits = LIMITS
    else:
        sampler = model = make_tiny_model(LIMITS["max_length"])
        limits = LIMITS | {"max_new_tokens": 512, "max_turn_tokens": 128}
    began = time.perf_counter()
    with rlvr.Rollout(env, "bytes", sampler, max_open_sessions=2, **limits) as rollout:
        episodes = [episode for [episode] in rollout.sample(tasks, seed=1)]
    env.close()
    row: dict[str, Any] = {
        "agent": agent,
        "policy": policy,
        "episodes": len(episodes),
        "failed": sum(not e.is_scored for e in episodes),
        "full_score": sum(e.reward == 1.0 for e in episodes),
        "calls": sum(e.turns for e in episodes),
        "branches": sum(len(e.branches) for e in episodes),
        "seconds": round(time.perf_counter() - began, 1),
        "ends": sorted({str(e.meta.get("trouble") or e.error)[:160] for e in episodes} - {""}),
        "tokens": count_tokens(episodes),
    }
    sampled, *others = row["tokens"].values()
    row["passed"] = sampled == sum(others) and (row["full_score"] == len(episodes) if policy == "scripted" else True)
    if model is not None:
        row["largest_difference"] = measure_difference(model, episodes)
        row["passed"] &= row["largest_difference"] <= MAX_DIFFERENCE
    return row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("agents", nargs="*", help="names of presets, and of the frameworks that are given; none: all")
    parser.add_argument("--bin", action="append", default=[], help="a folder with installed agents")
    parser.add_argument("--framework", action="append", default=[], help="NAME=PYTHON, an interpreter with the package")
    parser.add_argument("--sandbox", default="auto", help="makes the boxes of the agents; none: the agents run on this machine as you")
    parser.add_argument("--episodes", type=int, default=2)
    parser.add_argument("--policy", choices=("scripted", "tiny", "both"), default="both")
    given = parser.parse_args()
    os.environ["PATH"] = os.pathsep.join([*map(os.path.abspath, given.bin), os.environ["PATH"]])
    settings: dict[str, dict[str, Any]] = {name: {"preset": name} for name in AGENT_PRESETS if shutil.which(AGENT_PRESETS[name].command[0])}
    for text in given.framework:
        name, _, python = text.partition("=")
        settings[name] = {"command": [python, str(FRAMEWORKS / f"with_{name}.py"), "{task}"]}
    for chosen_settings in settings.values():
        chosen_settings |= {"trusted": True} if given.sandbox == "none" else {"sandbox": given.sandbox}
    chosen = given.agents or [*settings]
    missing = [name for name in (*AGENT_PRESETS, *chosen) if name not in settings]
    rows = []
    for name in chosen:
        for policy in ("scripted", "tiny") if given.policy == "both" else (given.policy,):
            if name in settings:
                rows.append(play(name, settings[name], given.episodes, policy))
                print(json.dumps(rows[-1]), flush=True)
    passed = bool(rows) and all(row["passed"] for row in rows) and not set(missing) & set(given.agents)
    print(json.dumps({"passed": passed, "not_installed": sorted(set(missing)), "agents": len({row["agent"] for row in rows})}))
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
