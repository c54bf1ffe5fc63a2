"""Do the algorithms compute what their formulas say? The learner's gradient against that of an independent reference.

    OMP_NUM_THREADS=1 python -m benchmarks.algos.agreement [--only grpo,ppo] [--bar 1e-6]

Every algorithm gets the same groups (several turns, an answer without a score, a flat group, one cut off) and a Qwen2 of a few thousand
parameters in float64. It trains in several modes: one optimizer step, two minibatches, two iterations, and one step on packed rows in
small micro-batches. Each optimizer step is compared at the weights it was taken at. Printed is the largest relative error of a gradient.
Exit code 1 if a gradient differs.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Sequence
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor
from transformers import Qwen2Config, Qwen2ForCausalLM

from benchmarks.algos.reference import ADVANTAGES, Answer, Settings, scored, trained
from benchmarks.algos.reference_loss import DIRECT, New, policy_loss
from rlvr.episode import Episode, StopReason
from rlvr.registry.plugins import build
from rlvr.task import Fault, Verdict
from rlvr.training.update.learner import Learner, OptimizationSettings

TEMPERATURE, LONGEST = 0.8, 12
MODES: dict[str, dict[str, Any]] = {
    "one": {"padded": True},
    "minibatches": {"minibatches": 2},
    "iterations": {"iterations": 2},
    "packed": {"budget": 40},
}
PPO_CLIP = {"epsilon": 0.2, "importance_sampling_level": "token", "loss_aggregation": "seq-mean-token-mean"}
GRPO: dict[str, Any] = {"scale_rewards": "group", "advantage_epsilon": 1e-4}
DPO: dict[str, Any] = {"beta": 0.1, "preference_loss": "dpo"}
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    # the algorithm, what is set in both, what is the preset's own and the reference must know
    "grpo": ("grpo", {}, GRPO | PPO_CLIP),
    "grpo k2": ("grpo", {"beta": 0.2, "kl_estimator": "k2"}, GRPO | PPO_CLIP),
    "grpo k3": ("grpo", {"beta": 0.2, "kl_estimator": "k3"}, GRPO | PPO_CLIP),
    "grpo k3_ratio": ("grpo", {"beta": 0.2, "kl_estimator": "k3_ratio"}, GRPO | PPO_CLIP),
    "grpo entropy": ("grpo", {"entropy_coef": 0.05}, GRPO | PPO_CLIP),
    "grpo dual clip": ("grpo", {"delta": 1.3}, GRPO | PPO_CLIP),
    "grpo batch": ("grpo", {"scale_rewards": "batch", "loss_aggregation": "prompt-mean"}, GRPO | PPO_CLIP),
    "grpo token_truncate": (
        "grpo", {"importance_sampling_correction": "token_truncate", "importance_sampling_cap": 1.2}, GRPO | PPO_CLIP),
    "grpo sequence_mask": (
        "grpo", {"importance_sampling_correction": "sequence_mask", "importance_sampling_cap": 1.5}, GRPO | PPO_CLIP),
    "grpo bypass": ("grpo", {"old_from_sampler": True}, GRPO | PPO_CLIP),
    "dr_grpo": ("dr_grpo", {}, PPO_CLIP | {"scale_rewards": "none", "loss_aggregation": "seq-mean-token-sum-norm"}),
    "dapo": ("dapo", {}, GRPO | PPO_CLIP | {"epsilon_high": 0.28, "loss_aggregation": "token-mean", "mask_truncated_completions": True,
                                            "dynamic_sampling_rounds": 10}),
    "gspo": ("gspo", {"epsilon": 0.02, "epsilon_high": 0.03}, GRPO | PPO_CLIP | {"importance_sampling_level": "sequence"}),
    "gspo_token": (
        "gspo_token", {"epsilon": 0.02, "epsilon_high": 0.03}, GRPO | PPO_CLIP | {"importance_sampling_level": "sequence_token"}),
    "cispo": ("cispo", {"ratio_max": 1.02}, GRPO | {"loss_aggregation": "token-mean"}),
    "sapo": ("sapo", {}, GRPO | {"loss_aggregation": "seq-mean-token-mean", "sapo_temperature_pos": 1.0, "sapo_temperature_neg": 1.05}),
    "dppo": ("dppo", {"dppo_mask_low": 0.01, "dppo_mask_high": 0.01},
             {"scale_rewards": "none", "loss_aggregation": "token-mean", "old_from_sampler": True}),
    "clip_cov": ("clip_cov", {"clip_cov_ratio": 0.1, "clip_cov_lb": 0.05}, GRPO | PPO_CLIP | {"loss_aggregation": "token-mean",
                                                                                             "clip_cov_ub": 5.0}),
    "kl_cov": ("kl_cov", {"kl_cov_ratio": 0.2}, GRPO | {"loss_aggregation": "token-mean", "kl_cov_coef": 1.0}),
    "distill grpo": ("distill", {"teacher_weight": 0.7, "advantage": "grpo"}, GRPO | PPO_CLIP | {"loss_aggregation": "token-mean"}),
    "gdpo": ("gdpo", {"reward_weights": {"form": 0.5, "value": 2.0}}, GRPO | PPO_CLIP),
    "reinforce": ("reinforce", {}, {"loss_aggregation": "seq-mean-token-sum", "ratio_max": 5.0}),
    "reinforce_baseline": ("reinforce_baseline", {}, {"loss_aggregation": "seq-mean-token-sum", "ratio_max": 5.0}),
    "remax": ("remax", {}, {"loss_aggregation": "seq-mean-token-sum", "ratio_max": 5.0}),
    "rloo": ("rloo", {}, PPO_CLIP | {"beta": 0.05, "kl_in": "reward", "importance_sampling_level": "completion"}),
    "reinforce_pp": ("reinforce_pp", {"gamma": 0.9}, PPO_CLIP | {"beta": 0.01, "kl_in": "reward", "loss_aggregation": "token-mean"}),
    "reinforce_pp_baseline": ("reinforce_pp_baseline", {}, PPO_CLIP | {"beta": 0.01, "kl_estimator": "k2",
                                                                       "loss_aggregation": "token-mean"}),
    "ppo": ("ppo", {"gamma": 0.9, "lam": 0.7, "epsilon_value": 0.01, "num_iterations": 1},
            PPO_CLIP | {"beta": 0.05, "kl_in": "reward", "loss_aggregation": "token-mean", "vf_coef": 0.1}),
    "max_rl": ("max_rl", {}, PPO_CLIP | {"loss_aggregation": "token-mean"}),
    "grpo_turns": ("grpo_turns", {"turn_discount": 0.8}, GRPO | PPO_CLIP),
    "gigpo": ("gigpo", {"turn_weight": 0.7}, GRPO | PPO_CLIP | {"turn_discount": 0.95}),
    "gtpo": ("gtpo", {"entropy_weight": 0.4}, PPO_CLIP | {"success_threshold": 0.5, "epsilon_high": 0.28, "loss_aggregation": "token-mean"}),
    "high_entropy": (
        "high_entropy", {"entropy_share": 0.25},
        GRPO | PPO_CLIP | {"epsilon_high": 0.28, "loss_aggregation": "token-mean", "mask_truncated_completions": True}),
    "dpo": ("dpo", {"label_smoothing": 0.1, "pairs_per_group": 2}, DPO),
    "online_dpo": ("online_dpo", {}, DPO),
    "online_ipo": ("online_ipo", {}, DPO | {"preference_loss": "ipo"}),
    "kto": ("kto", {"desirable_weight": 1.5, "undesirable_weight": 0.7}, {"beta": 0.1, "desirable_threshold": 0.5}),
    "sft": ("sft", {}, {"loss_aggregation": "token-mean", "score_threshold": 0.0}),
    "best_of_n": ("best_of_n", {}, {"loss_aggregation": "token-mean", "score_threshold": 0.0}),
}  # fmt: skip


def tiny(seed: int) -> Any:
    """A small model in float64."""
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=11, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        max_position_embeddings=64, tie_word_embeddings=False, bos_token_id=None, eos_token_id=None, initializer_range=0.3,
    )  # fmt: skip
    return Qwen2ForCausalLM(config).double().eval()


def score(model: Any, episode: Episode, temperature: float) -> tuple[Tensor, Tensor, Tensor]:
    """One row by itself: log-probability, entropy and hidden state for each token that the policy chose."""
    where = [t for t, on in enumerate(episode.action_mask) if on]
    out = model(input_ids=torch.tensor([episode.tokens]), use_cache=False, output_hidden_states=True)
    logs = (out.logits[0, [t - 1 for t in where]] / temperature).log_softmax(-1)
    chosen = logs[torch.arange(len(where)), [episode.tokens[t] for t in where]]
    return chosen, -(logs.exp() * logs).sum(-1), out.hidden_states[-1][0, [t - 1 for t in where]]


def one_episode(dice: random.Random, g: int, k: int, prompt: list[int], model: Any) -> Episode:
    """A member of a group. Half of them have two turns that are paid separately."""
    said = [dice.randrange(11) for _ in range(dice.randint(3, LONGEST))]
    if k in (1, 2) and len(said) > 2:
        said[:2] = [3, 4]  # so that some second turns follow the same ids
    two = g % 2 == 0 and len(said) > 4
    acted = [False] * len(prompt) + [not two or j < 2 or j > 3 for j in range(len(said))]
    tokens = [*prompt, *([*said[:2], 7, 8, *said[4:]] if two else said)]
    reward = 0.5 if g == 4 else dice.choice([0.0, 0.25, 0.75, 1.0])
    rewards = [0.0] * len(tokens)
    rewards[-1] = reward
    if two and reward > 0.25:
        rewards[len(prompt) + 1], rewards[-1] = 0.25, reward - 0.25
    kind = {4: {"greedy": True}, 5: {"mismatched": True}}.get(k, {})
    verdict = Verdict(reward, "", components={"form": dice.choice([0.0, 0.5, 1.0]), "value": dice.choice([0.0, 1.0])})
    if g == 1 and k == 2:
        rewards, verdict = [0.0] * len(tokens), Verdict(None, "gone", fault=Fault.INFRA)
    end = StopReason.TRUNCATED if g == 3 and k == 1 else StopReason.TERMINATED
    blank = Episode(f"t{g}", f"g{g}", tokens, acted, [0.0] * len(tokens), rewards, end, verdict=verdict, meta=kind)
    with torch.no_grad():
        logs = iter([min(0.0, float(x) + 0.3 * (dice.random() - 0.5)) for x in score(model, blank, TEMPERATURE)[0]])
    return Episode(f"t{g}", f"g{g}", tokens, acted, [next(logs) if on else 0.0 for on in acted], rewards, end, verdict=verdict, meta=kind)


def episodes_for(name: str, model: Any) -> list[list[Episode]]:
    """The groups of a step: four answers each, and a greedy and a mismatched one for the algorithms that compare with them."""
    dice, groups = random.Random(5), []
    for g in range(6):
        prompt = [dice.randrange(11) for _ in range(dice.randint(4, 8))]
        members = [one_episode(dice, g, k, prompt, model) for k in range(6)]
        asides = {"greedy": name == "remax", "mismatched": name == "kto"}
        groups.append([e for e in members if not e.meta or asides[next(iter(e.meta))]])
    return groups


def seen_by(
    groups: Sequence[Sequence[Episode]], model: Any, frozen: Any, head: Any, temperature: float, bypass: bool
) -> list[list[Answer]]:
    """The step as the reference sees it: every answer with its scores before the first optimizer step."""
    out = []
    with torch.no_grad():
        for g, group in enumerate(groups):
            out.append([])
            for e in group:
                logs, entropy, hidden = score(model, e, temperature)
                sampler = torch.tensor([x for x, on in zip(e.logprobs, e.action_mask, strict=True) if on], dtype=torch.float64)
                values = head(hidden).squeeze(-1) if head is not None else torch.zeros_like(logs)
                old = sampler if bypass else logs
                out[-1].append(Answer(e, g, old, score(frozen, e, temperature)[0], entropy, values, sampler))
    return out


def heat_of(name: str) -> float:
    """The temperature of the log-probabilities: imitation is at 1."""
    return 1.0 if name in ("sft", "best_of_n") else TEMPERATURE


class Watched:
    """A learner whose weights and gradients are kept at each optimizer step."""

    def __init__(self, case: str, model: Any, frozen: Any, *, minibatches: int = 1, iterations: int = 1, budget: int = 8192,
                 padded: bool = False) -> None:  # fmt: skip
        name, both, _ = CASES[case]
        more = {"num_iterations": iterations} if iterations > 1 else {}
        self.learner = Learner(
            model, build("algorithm", name, **both | more),
            OptimizationSettings(learning_rate=3e-3, max_tokens_per_microbatch=budget, minibatches_per_step=minibatches),
            accelerator=Accelerator(cpu=True), total_steps=5, frozen_models={"reference": frozen}, max_new_tokens=LONGEST, seed=3,
            temperature=heat_of(name),
        )  # fmt: skip
        if padded:
            self.learner.packing = self.learner.packing._replace(padding_reason="asked for")
        self.weights: list[dict[str, Tensor]] = []
        self.gradients: list[Tensor] = []
        self.head = self.learner.policy.value
        if self.head is not None:
            torch.manual_seed(11)
            torch.nn.init.normal_(self.head.weight, std=0.3)
        clip = self.learner.accelerator.clip_grad_norm_

        def note(parameters: Any, *args: Any, **kwargs: Any) -> Any:
            parameters = list(parameters)
            self.weights.append({k: v.detach().clone() for k, v in self.learner.policy.state_dict().items()})
            self.gradients.append(flat(parameters))
            return clip(parameters, *args, **kwargs)

        self.learner.accelerator.clip_grad_norm_ = note


def flat(parameters: Sequence[Any]) -> Tensor:
    """All gradients as one vector."""
    return torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).detach().flatten().clone() for p in parameters])


def parts_of(
    groups: Sequence[Sequence[Answer]], settings: Settings, minibatches: int, iterations: int, dice: random.Random
) -> list[list[Answer]]:
    """Which answers train in which optimizer step: the rows in order, shuffled with the run's seed, in equal parts."""
    rows, out = trained(groups, settings), []
    for _ in range(iterations):
        order = list(range(len(rows)))
        if minibatches > 1:
            dice.shuffle(order)
        for k in range(minibatches):
            out.append([rows[i] for i in order[k * len(rows) // minibatches : (k + 1) * len(rows) // minibatches]])
    return out


def compare(case: str, *, minibatches: int = 1, iterations: int = 1, budget: int = 8192, padded: bool = False) -> float:
    """The largest relative error of a gradient over the optimizer steps of one update (of two, for a running baseline)."""
    name, both, own = CASES[case]
    settings, model, frozen = {**own, **both}, tiny(1), tiny(2)
    groups = episodes_for(name, tiny(1))
    watched = Watched(case, model, frozen, minibatches=minibatches, iterations=iterations, budget=budget, padded=padded)
    twin, head = tiny(1), None if watched.head is None else torch.nn.Linear(32, 1).double()
    temperature, dice = heat_of(name), random.Random(3)
    worst, state = 0.0, dict[str, Any]()
    for _ in range(2 if name == "reinforce_baseline" else 1):
        set_weights(twin, head, {k: v.detach().clone() for k, v in watched.learner.policy.state_dict().items()})
        answers = seen_by(groups, twin, frozen, head, temperature, settings.get("old_from_sampler", False))
        start = len(watched.gradients)
        watched.learner.update(groups)
        if name in ADVANTAGES:
            ADVANTAGES[name](answers, settings, state)
        for step, part in enumerate(parts_of(answers, settings, minibatches, iterations, dice)):
            set_weights(twin, head, watched.weights[start + step])
            loss = loss_at(name, twin, head, answers, part, settings, temperature)
            parameters = [*twin.parameters(), *(head.parameters() if head is not None else ())]
            torch.autograd.backward(loss)
            expected = flat(parameters)
            for p in parameters:
                p.grad = None
            worst = max(worst, float((watched.gradients[start + step] - expected).norm() / expected.norm()))
        state["baseline"] = sum(a.reward for g in answers for a in scored(g)) / sum(len(scored(g)) for g in answers)
    assert len(watched.gradients) == (start + minibatches * iterations), "the learner took another number of optimizer steps"
    return worst


def set_weights(twin: Any, head: Any, weights: dict[str, Tensor]) -> None:
    """Give the reference's own model the weights of the policy."""
    twin.load_state_dict({k.removeprefix("model."): v for k, v in weights.items() if not k.startswith("value.")} if "value.bias" in weights
                         else {k.removeprefix("model."): v for k, v in weights.items()})  # fmt: skip
    if head is not None:
        head.load_state_dict({k.removeprefix("value."): v for k, v in weights.items() if k.startswith("value.")})


def loss_at(name: str, twin: Any, head: Any, answers: list[list[Answer]], part: list[Answer], settings: Settings, heat: float) -> Tensor:
    """The reference's loss of one optimizer step."""
    news = {}
    for a in part:
        logs, entropy, hidden = score(twin, a.episode, heat)
        values = head(hidden).squeeze(-1) if head is not None else torch.zeros_like(logs)
        news[id(a)] = New(a, logs, entropy, values, torch.zeros(a.length, dtype=torch.bool))
    if name in DIRECT:
        return DIRECT[name](answers, news, settings)
    return policy_loss(name, list(news.values()), settings, LONGEST)


def main() -> int:
    """Print a table; 1 if an error is above the bar."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="some cases, separated by commas")
    parser.add_argument("--bar", type=float, default=1e-6)
    asked = parser.parse_args()
    chosen = [c for c in CASES if not asked.only or c in asked.only.split(",")]
    missed, worst = 0, 0.0
    print(f"{'':24}" + "".join(f"{mode:>14}" for mode in MODES))
    for case in chosen:
        single = CASES[case][0] in DIRECT
        found = {mode: compare(case, **how) for mode, how in MODES.items() if not (single and mode in ("minibatches", "iterations"))}
        missed += sum(not error <= asked.bar for error in found.values())
        worst = max(worst, *found.values())
        print(f"{case:24}" + "".join(f"{found[m]:14.1e}" if m in found else f"{'-':>14}" for m in MODES), flush=True)
    print(json.dumps({"cases": len(chosen), "limit": asked.bar, "errors_above": missed, "largest_error": worst}))
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
