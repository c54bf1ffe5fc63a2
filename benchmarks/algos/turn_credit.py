"""How fast does a policy learn a task of several turns when each turn has its own credit? `grpo` against `grpo_turns` and `gigpo`.

    python -m benchmarks.algos.turn_credit [--turns 32] [--steps 300] [--seeds 1] [--groups 2] [--members 4] [--learning-rate 3e-3]

In each turn the environment shows a digit, and the policy must say the one that belongs to it. The next digit depends on the one shown
and on the one said, so the members of a group are soon in different states. A right turn earns 1/turns. In the world `each`, a turn's
amount is paid in that turn; in `end`, the same sum is paid in the last turn. The model is a Qwen2 of one layer, made on the spot; the
learner is the product's. A line gives the mean score of the first and the last five steps, and the number of steps until the mean of
five is above 0.9.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from typing import Any

import torch
from accelerate import Accelerator

from rlvr.episode import Episode, StopReason
from rlvr.registry.plugins import build
from rlvr.task import Verdict
from rlvr.training.update.learner import Learner, OptimizationSettings
from tests.fixtures.learning import VOCABULARY, tiny_model

ENOUGH = 0.9


@torch.no_grad()
def conversations(model: Any, first: list[int], turns: int, generator: torch.Generator) -> tuple[Any, Any]:
    """One conversation for each first digit: the tokens, and the log-probability of each that the policy chose."""
    tokens, logprobs = torch.tensor(first)[:, None], torch.zeros(len(first), 1)
    for turn in range(turns):
        logs = model(input_ids=tokens, use_cache=False).logits[:, -1].log_softmax(-1)
        said = torch.multinomial(logs.exp(), 1, generator=generator)
        shown = (tokens[:, -1:] + 3 * said + 1) % VOCABULARY
        tokens, logprobs = torch.cat([tokens, said], 1), torch.cat([logprobs, logs.gather(1, said)], 1)
        if turn + 1 < turns:
            tokens, logprobs = torch.cat([tokens, shown], 1), torch.cat([logprobs, torch.zeros_like(logprobs[:, :1])], 1)
    return tokens.tolist(), logprobs.clamp(max=0.0).tolist()


def episode(tokens: list[int], logprobs: list[float], group: str, *, world: str) -> Episode:
    """A conversation as an episode: a digit shown, a digit said, and so on."""
    acted = [place % 2 == 1 for place in range(len(tokens))]
    right = [own and tokens[place] == (5 * tokens[place - 1] + 3) % VOCABULARY for place, own in enumerate(acted)]
    amounts = [2 * float(hit) / len(tokens) for hit in right]
    score = min(1.0, sum(amounts))
    if world == "end":
        amounts = [0.0] * (len(tokens) - 1) + [score]
    return Episode(group, group, tokens, acted, logprobs, amounts, StopReason.TERMINATED, verdict=Verdict(score, ""), turns=sum(acted))


def learn(preset: str, world: str, options: argparse.Namespace, seed: int) -> dict[str, Any]:
    """Train one preset until it is good enough or the steps are used up."""
    model, began = tiny_model(seed), time.process_time()
    steps, members, groups = options.steps, options.members, options.groups
    optimization = OptimizationSettings(learning_rate=options.learning_rate)
    learner = Learner(model, build("algorithm", preset), optimization, accelerator=Accelerator(cpu=True), total_steps=steps)
    dice, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    scores: list[float] = []
    compared = 1.0
    while len(scores) < steps and not (len(scores) >= 5 and sum(scores[-5:]) / 5 > ENOUGH):
        first = [dice.randrange(VOCABULARY) for _ in range(groups)]
        tokens, logprobs = conversations(model, [d for d in first for _ in range(members)], options.turns, generator)
        rows = [episode(tokens[k], logprobs[k], f"g{k // members}", world=world) for k in range(len(tokens))]
        scores.append(sum(e.reward for e in rows) / len(rows))
        metrics = learner.update([rows[g * members : (g + 1) * members] for g in range(groups)])
        compared = metrics.get("turns/compared_fraction", 1.0)
    reached = sum(scores[-5:]) / 5 > ENOUGH
    row = {"world": world, "preset": preset, "seed": seed, "first": sum(scores[:5]) / 5, "last": sum(scores[-5:]) / 5}
    row |= {"steps_to_0.9": len(scores) if reached else None, "steps": len(scores), "turns_compared": compared}
    return row | {"cpu_s": time.process_time() - began}


def main() -> None:
    """Run every preset in both worlds, one JSON line each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=32)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--groups", type=int, default=2)
    parser.add_argument("--members", type=int, default=4)
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--presets", nargs="+", default=["grpo", "grpo_turns", "gigpo"])
    options = parser.parse_args()
    torch.set_num_threads(1)
    for seed in range(options.seeds):
        for world in ("each", "end"):
            for preset in options.presets:
                row = learn(preset, world, options, seed)
                print(json.dumps({k: round(v, 4) if isinstance(v, float) else v for k, v in row.items()}), flush=True)


if __name__ == "__main__":
    main()
