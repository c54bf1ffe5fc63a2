"""Does a conversation wait for the slowest of the others? 64 conversations of six turns; one reply in ten takes 2 s, the others 20 ms.

    python benchmarks/rollout/waves.py [--sampler scripted] [--before FOLDER] [--conversations 64] [--slow 2.0] [--fast 0.02]

Prints one JSON line: the seconds without waves and in sync_turns, the longest time that one conversation waits for its own replies, and
their ratio (at most 1.25 with the scripted sampler). With `--before`, a checkout of another version that the same collection is
timed with, its seconds too, and whether its episodes are the same: tokens, masks, rewards and ends, and how far log-probabilities differ.
Exit code 1 if the ratio of the scripted sampler is above 1.25.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import random
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from threading import Lock
from typing import Any

from rlvr.contracts import Environment, SamplingParams, Verifier
from rlvr.mdp.token_mdp import TokenMDP
from rlvr.mdp.tokenizers import CharTokenizer
from rlvr.rollout.rollout import Rollout, RolloutRequest, derive_seed
from rlvr.samplers.scripted import ScriptedSampler
from rlvr.task import Task, Verdict, make_user_prompt

MODEL = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
}
TURNS, SHARE = 6, 0.1
MAX_RATIO = 1.25


class Length(Verifier):
    """A score that depends on what was said."""

    def verify(self, task: Task, answer: str) -> Verdict:
        """The share of one digit."""
        return Verdict(answer.count("1") / max(len(answer), 1), "counted")


class Slow(Environment):
    """Answers each turn with its number, now and then late. Which replies are late depends on the task alone."""

    max_turns, max_prompt_tokens, max_new_tokens = TURNS, 12, 400

    def __init__(self, slow: float, fast: float) -> None:
        self.verifier, self.slow, self.fast = Length(), slow, fast
        self.waited, self.lock = defaultdict[str, float](float), Lock()

    def task(self, split: str, index: int) -> Task:
        """Each has a question of its own."""
        return Task(make_user_prompt(f"{index}="), id=f"slow/{split}/{index}", reference="1")

    def reply(self, task: Task, completions: Sequence[str]) -> str | None:
        """Sleep, then say the number of the turn."""
        late = random.Random(f"{task.id} {len(completions)}").random() < SHARE
        seconds = self.slow if late else self.fast
        time.sleep(seconds)
        with self.lock:
            self.waited[task.id] += seconds
        return str(len(completions))


def sampler_of(name: str, environment: Environment, tokenizer: CharTokenizer) -> Any:
    """The sampler, ready to be asked."""
    if name == "scripted":
        sampler: Any = ScriptedSampler(answers=["1", "12", "121", "2", "11", "2112"])
    else:
        from rlvr.config.config import ModelConfig
        from rlvr.models.model_loading import load_model
        from rlvr.samplers.hf import HFSampler

        sampler = HFSampler()
        sampler.update_from_model(load_model(ModelConfig(config=MODEL), tokenizer, 0), 0)
    sampler.setup(environment, tokenizer)
    return sampler


def collection(options: argparse.Namespace, *, sync_turns: bool) -> dict[str, Any]:
    """Seconds, the longest conversation's own waiting, and the episodes."""
    environment, tokenizer = Slow(options.slow, options.fast), CharTokenizer("0123456789+=")
    sampler = sampler_of(options.sampler, environment, tokenizer)
    draws = [RolloutRequest(environment.task("train", i), str(i), derive_seed(i)) for i in range(options.conversations)]
    known = "sync_turns" in inspect.signature(Rollout.__init__).parameters
    settings: dict[str, Any] = {"sync_turns": sync_turns} if known else {}
    with Rollout(TokenMDP(environment, tokenizer, max_length=600), sampler=sampler, **settings) as rollout:
        began = time.perf_counter()
        episodes = rollout.collect(draws, SamplingParams(stop_ids=tokenizer.stop_ids))
        seconds = time.perf_counter() - began
    rows = [[e.tokens, e.action_mask, e.rewards, e.stop_reason.value, e.text, e.turns] for e in episodes]
    return {
        "seconds": seconds,
        "longest": max(environment.waited.values()),
        "turns": sum(e.turns for e in episodes) / len(episodes),
        "rows": rows,
        "logprobs": [e.logprobs for e in episodes],
    }


def compared(one: dict[str, Any], two: dict[str, Any]) -> dict[str, Any]:
    """Whether two collections are the same."""
    same = one["rows"] == two["rows"]
    gaps = [abs(a - b) for x, y in zip(one["logprobs"], two["logprobs"], strict=True) for a, b in zip(x, y, strict=False)] if same else []
    return {"episodes_equal": same, "largest_gap_of_logprobs": max(gaps, default=None)}


def main() -> None:
    """Time it, and print one line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sampler", default="scripted", choices=("scripted", "hf"))
    parser.add_argument("--before", default="", help="a checkout to compare with")
    parser.add_argument("--conversations", type=int, default=64)
    parser.add_argument("--slow", type=float, default=2.0)
    parser.add_argument("--fast", type=float, default=0.02)
    parser.add_argument("--once", action="store_true", help="print one whole collection and nothing else")
    options = parser.parse_args()
    if options.once:
        print(json.dumps(collection(options, sync_turns=True)))
        return
    free, sync_turns = collection(options, sync_turns=False), collection(options, sync_turns=True)
    line: dict[str, Any] = {
        "sampler": options.sampler,
        "turns": round(free["turns"], 2),
        "longest_alone_s": round(free["longest"], 2),
        "seconds": round(free["seconds"], 2),
        "ratio": round(free["seconds"] / free["longest"], 3),
        "sync_turns_s": round(sync_turns["seconds"], 2),
        "sync_turns": compared(free, sync_turns),
    }
    if options.before:
        command = [sys.executable, __file__, "--once", "--sampler", options.sampler, "--conversations", str(options.conversations)]
        command += ["--slow", str(options.slow), "--fast", str(options.fast)]
        done = subprocess.run(command, env={**os.environ, "PYTHONPATH": options.before}, capture_output=True, text=True, check=True)
        before = json.loads(done.stdout)
        line |= {"before_s": round(before["seconds"], 2), "before": compared(json.loads(json.dumps(free)), before)}
    print(json.dumps(line))
    if options.sampler == "scripted" and line["ratio"] > MAX_RATIO:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
