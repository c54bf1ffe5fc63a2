"""Tiny worlds where every algorithm must learn: a bandit of several arms, and copying a token. Shared by tests and benchmarks.

The answers are sampled here by a few lines of our own, so that nothing but the learner is under test.
`benchmarks/learning_matrix.py` runs every preset in them, and on the quickstart task.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import torch
from accelerate import Accelerator
from transformers import Qwen2Config, Qwen2ForCausalLM

from rlvr.episode import End, Episode
from rlvr.learn.update.learner import Learner, Optimization
from rlvr.plugins.registry import build
from rlvr.task import Verdict

VOCABULARY = 8


def tiny_model(seed: int = 0, *, vocabulary: int = VOCABULARY, hidden: int = 32, layers: int = 1) -> Any:
    """A Qwen2 of a few thousand parameters, made on the spot."""
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=vocabulary, hidden_size=hidden, intermediate_size=2 * hidden, num_hidden_layers=layers, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=256, tie_word_embeddings=False, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    return Qwen2ForCausalLM(config)


@torch.no_grad()
def sample(model: Any, prompts: Sequence[Sequence[int]], length: int, generator: torch.Generator, *, greedy: bool = False) -> Any:
    """Prompts of one length, continued by `length` tokens; tokens and log-probabilities."""
    tokens = torch.tensor(prompts)
    logprobs = []
    for _ in range(length):
        logs = model(input_ids=tokens, use_cache=False).logits[:, -1].log_softmax(-1)
        chosen = logs.argmax(-1, keepdim=True) if greedy else torch.multinomial(logs.exp(), 1, generator=generator)
        logprobs.append(logs.gather(1, chosen))
        tokens = torch.cat([tokens, chosen], 1)
    return tokens[:, -length:].tolist(), torch.cat(logprobs, 1).tolist()


def episode(
    prompt: Sequence[int], said: Sequence[int], logprobs: Sequence[float], reward: float, group: str, *, greedy: bool = False
) -> Episode:
    """One answer as an episode whose last token is paid."""
    n, t = len(prompt), len(said)
    return Episode(
        task_id=group, group=group, tokens=[*prompt, *said], acted=[False] * n + [True] * t,
        logprobs=[0.0] * n + [min(0.0, p) for p in logprobs], rewards=[0.0] * (n + t - 1) + [reward], end=End.TERMINATED,
        verdict=Verdict(abs(reward), "", parts={"reward": abs(reward)}), meta={"greedy": True} if greedy else {},
    )  # fmt: skip


def bandit(prompt: Sequence[int], said: Sequence[int]) -> float:
    """Arm 3 pays."""
    return float(said[0] == 3)


def copying(prompt: Sequence[int], said: Sequence[int]) -> float:
    """The share of places where the answer repeats the prompt."""
    return sum(a == b for a, b in zip(prompt, said, strict=True)) / len(said)


WORLDS: dict[str, tuple[int, Callable[[Sequence[int], Sequence[int]], float]]] = {"bandit": (1, bandit), "copy": (2, copying)}


def turned(algorithm: Any, sign: float) -> Any:
    """The algorithm with every advantage times `sign`."""
    credit = algorithm.credit
    algorithm.credit = lambda *a, **k: [[[sign * x for x in row] for row in group] for group in credit(*a, **k)]
    return algorithm


def learn(
    name: str,
    world: str,
    *,
    seed: int = 0,
    steps: int = 60,
    sign: float = 1.0,
    stop_above: float = 2.0,
    learning_rate: float = 1e-2,
    **settings: Any,
) -> float:
    """Train a preset in a world; the mean reward of the last five steps, which ends it once it is above `stop_above`.

    `sign` -1 turns every advantage around.
    """
    length, reward_of = WORLDS[world]
    model = tiny_model(seed)
    algorithm = turned(build("algorithm", name, **settings), sign)
    optimization = Optimization(learning_rate=learning_rate, minibatches_per_step=1)
    learner = Learner(model, algorithm, optimization, accelerator=Accelerator(cpu=True), total_steps=steps, max_completion_length=length)
    dice, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    history = []
    for _ in range(steps):
        prompts = [[dice.randrange(VOCABULARY) for _ in range(length)] for _ in range(16)]
        said, logs = sample(model, [p for p in prompts for _ in range(8)], length, generator)
        groups = [
            [episode(p, said[k], logs[k], reward_of(p, said[k]), f"g{g}") for k in range(8 * g, 8 * g + 8)] for g, p in enumerate(prompts)
        ]
        history.append(sum(e.reward for group in groups for e in group) / 128)
        if algorithm.needs_greedy:
            best, best_logs = sample(model, prompts, length, generator, greedy=True)
            for g, p in enumerate(prompts):
                groups[g].append(episode(p, best[g], best_logs[g], reward_of(p, best[g]), f"g{g}", greedy=True))
        learner.update(groups)
        if sum(history[-5:]) / 5 > stop_above:
            break
    return sum(history[-5:]) / 5
