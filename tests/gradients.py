"""The gradient of one step of every preset on one fixed set of episodes. `python -m tests.gradients OUT` writes them down.

Run under `accelerate launch`, each process takes its share of the groups; the gradients must come out the same.
"""

from __future__ import annotations

import random
import sys
from typing import Any

import torch
from accelerate import Accelerator
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from rlvr.algos.recipes import PRESETS
from rlvr.episode import End, Episode
from rlvr.learn.update.learner import Learner, Optimization
from rlvr.learn.update.policy import Policy
from rlvr.model.batch import Rows
from rlvr.plugins.registry import build
from rlvr.task import Fault, Verdict
from tests.learning import tiny_model

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in PRESETS},
    "ppo_once": ("ppo", {"num_iterations": 1}),
    "ppo_pretraining": ("ppo", {"value_pretraining_steps": 5}),
    "grpo_kl": ("grpo", {"beta": 0.2, "kl_estimator": "k3_ratio", "entropy_coef": 0.01}),
    "grpo_batch": ("grpo", {"scale_rewards": "batch", "loss_aggregation": "prompt-mean"}),
    "grpo_tis": ("grpo", {"importance_sampling_correction": "token_truncate"}),
    "grpo_bypass": ("grpo", {"old_from_sampler": True}),
}


def fixed_groups(seed: int = 0) -> list[list[Episode]]:
    """Six groups of four answers of 1 to 9 tokens, some over two turns, one unscored, one group flat; a greedy answer in each."""
    dice = random.Random(seed)
    groups = []
    for g in range(6):
        prompt = [dice.randrange(8) for _ in range(dice.randint(1, 4))]
        members = []
        for k in range(5):
            said = [dice.randrange(8) for _ in range(dice.randint(1, 9))]
            acted = [False] * len(prompt) + [j < 3 or j > 5 for j in range(len(said))]
            tokens = [*prompt, *said]
            reward = 0.5 if g == 5 else dice.choice([0.0, 0.25, 1.0])
            unscored = g == 1 and k == 2
            pays = [0.0] * len(tokens)
            pays[max(j for j, on in enumerate(acted) if on)] = 0.0 if unscored else reward
            verdict = Verdict(None, "gone", fault=Fault.INFRA) if unscored else Verdict(reward, "")
            logs = [-2.0 - 0.3 * dice.random() if on else 0.0 for on in acted]
            end = End.TRUNCATED if g == 2 and k == 1 else End.TERMINATED
            members.append(
                Episode(f"t{g}", f"g{g}", tokens, acted, logs, pays, end, verdict=verdict, meta={"greedy": True} if k == 4 else {})
            )
        groups.append(members)
    return groups


def learner_for(name: str, accelerator: Accelerator, *, budget: int = 8192, model: Any = None, parts: int = 1) -> Learner:
    preset, settings = VARIANTS[name]
    algorithm = build("algorithm", preset, **settings)
    optimization = Optimization(learning_rate=1e-3, max_tokens_per_microbatch=budget, minibatches_per_step=parts)
    subject = model or tiny_model(layers=2)
    frozen = tiny_model(7, layers=2)
    return Learner(
        subject, algorithm, optimization, accelerator=accelerator, total_steps=3, max_completion_length=9, reference=frozen, temperature=0.8
    )


def gradient(learner: Learner, groups: list[list[Episode]]) -> torch.Tensor:
    """Of the last optimizer step of one update, before clipping."""
    seen: list[torch.Tensor] = []
    clip = learner.accelerator.clip_grad_norm_

    def note(parameters: Any, *args: Any, **kwargs: Any) -> Any:
        parameters = list(parameters)
        seen.append(torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).detach().flatten().clone() for p in parameters]))
        return clip(parameters, *args, **kwargs)

    learner.accelerator.clip_grad_norm_ = note
    try:
        learner.update(groups)
    finally:
        learner.accelerator.clip_grad_norm_ = clip
    return seen[-1]


def apart(a: torch.Tensor, b: torch.Tensor) -> float:
    """The relative distance of two gradients."""
    return float((a - b).norm() / b.norm())


def sharded(rank: int, processes: int) -> float:
    """FSDP2 by hand (accelerate shards on accelerators only): how far the sharded gradient is from the whole one."""
    mesh, rows = init_device_mesh("cpu", (processes,)), [e for group in fixed_groups() for e in group]
    material = Rows([e.tokens for e in rows], [e.acted for e in rows])

    def gradient_of(policy: Policy, chosen: range) -> torch.Tensor:
        for batch in material.batches(chosen, budget=10**6):
            (policy(batch).logprobs.sum() * len(rows) / len(chosen)).backward()
        found: list[Any] = [p.grad for p in policy.parameters()]
        return torch.cat([(g.full_tensor() if hasattr(g, "full_tensor") else g).flatten() for g in found])

    whole, split = Policy(tiny_model(layers=2)), Policy(tiny_model(layers=2))
    for part in (*split.model.model.layers, split):
        fully_shard(part, mesh=mesh)
    assert len(rows) % processes == 0
    return apart(gradient_of(split, range(rank, len(rows), processes)), gradient_of(whole, range(len(rows))))


def main(out: str) -> None:
    accelerator = Accelerator(cpu=True)
    groups, rows = fixed_groups(), {}
    mine = groups[accelerator.process_index :: accelerator.num_processes]
    for name in VARIANTS:
        rows[name] = gradient(learner_for(name, accelerator, budget=24), mine)
    fsdp2 = sharded(accelerator.process_index, accelerator.num_processes)
    if accelerator.is_main_process:
        torch.save({"fsdp2": fsdp2, "processes": accelerator.num_processes, "gradients": rows}, out)
    accelerator.end_training()


if __name__ == "__main__":
    main(sys.argv[1])
