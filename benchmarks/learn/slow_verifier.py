"""Measure how much of a slow verifier is hidden behind sampling: steps with one that sleeps 200 ms and with one that does not, alternating.

    python benchmarks/learn/slow_verifier.py [--sampler vllm] [--repeats 5] [--hidden 128]

Prints one JSON line: the ratio of the steps' times (median over the repeats) and the share of verification that was hidden. What
lasts longer than sampling cannot be hidden: 256 answers of 200 ms take 1.6 s if 32 are judged in parallel. So the model is wide
enough for a step of some seconds; with `--hidden 128` a step is shorter than its verification, to show that case.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import Any

from rlvr.config.config import ModelConfig
from rlvr.contracts import SamplingParams, Verifier
from rlvr.mdp.token_mdp import TokenMDP
from rlvr.mdp.tokenizers import load_tokenizer
from rlvr.models.model_loading import load_model
from rlvr.registry.plugins import build
from rlvr.rollout.rollout import Rollout, RolloutRequest, derive_seed
from rlvr.task import Task, Verdict

MODEL = {
    "model_type": "llama",
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 256,
}


class Sleeping(Verifier):
    """Sleeps, and does nothing else."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def verify(self, task: Task, answer: str) -> Verdict:
        """Sleep."""
        time.sleep(self.seconds)
        return Verdict(0.0, "slept")


def step(sampler: Any, tokenizer: Any, seconds: float, repeat: int, prompts: int, group: int) -> tuple[float, float]:
    """One collection of groups: its time, and how much of verification was hidden."""
    environment = build("env", "arithmetic", verifier=Sleeping(seconds))
    tasks = [environment.task("train", prompts * repeat + i) for i in range(prompts)]
    draws = [RolloutRequest(task, f"g{i}", derive_seed(repeat, i, k)) for i, task in enumerate(tasks) for k in range(group)]
    with Rollout(TokenMDP(environment, tokenizer, max_new_tokens=128), sampler=sampler) as rollout:
        began = time.perf_counter()
        rollout.collect(draws, SamplingParams(stop_ids=tokenizer.stop_ids))
        return time.perf_counter() - began, rollout.timing.hidden


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sampler", default="hf")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--hidden", type=int, default=512, help="the model's width")
    asked = parser.parse_args()
    tokenizer = load_tokenizer("chars:0123456789+-*=# \n")
    model = load_model(ModelConfig(config=MODEL | {"hidden_size": asked.hidden, "intermediate_size": 3 * asked.hidden}), tokenizer, seed=0)
    ratios, shares, times = [], [], []
    with build("sampler", asked.sampler) as sampler:
        sampler.load_model(model, 0)
        for repeat in range(-1, asked.repeats):  # the first warms up
            instant, _ = step(sampler, tokenizer, 0.0, repeat + 1, asked.prompts, asked.group)
            slow, hidden = step(sampler, tokenizer, 0.2, repeat + 1, asked.prompts, asked.group)
            if repeat >= 0:
                ratios.append(slow / instant)
                shares.append(hidden)
                times.append(instant)
    numbers = {"slow_to_instant": ratios, "hidden_share": shares, "instant_step_s": times}
    medians = {name: round(statistics.median(values), 3) for name, values in numbers.items()}
    print(json.dumps({"sampler": asked.sampler, "hidden": asked.hidden, **medians}))


if __name__ == "__main__":
    main()
