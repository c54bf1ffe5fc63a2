"""TRL's GRPO trainer on rlvr's environments through each of its three doors, with a tiny model on the CPU.

    python benchmarks/adapters/trl_doors.py [--steps 20] [--door reward|environment|rollout]

It needs TRL (1.16) next to rlvr. A model of some 100,000 parameters first learns a few gold conversations by heart, so that it calls tools
and is sometimes right. Bars: every reward is the score that `rlvr verify` gives the same text; for `rollout`, every row that reaches the
loss has exactly the tokens, the mask and the log-probabilities that rlvr sampled; no session stays open. Exit code 1 if a reward differs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
import trl
from datasets import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, set_seed
from trl import GRPOConfig, GRPOTrainer

import rlvr
from rlvr.integrations.rows import make_rows
from rlvr.integrations.texts import TextConversation
from rlvr.integrations.trl import EnvironmentFactory, RolloutFunction, make_reward_function
from rlvr.mdp.token_mdp import TokenMDP
from rlvr.mdp.tokenizers import HFTokenizer
from rlvr.turns import extract_final_text
from tests.fixtures.templates import tokenizer_for

TEMPLATE = Path(trl.__file__).parent / "chat_templates" / "qwen2_5.jinja"
TASKS, LONGEST = 4, 160


def as_trl(env: Any, tokenizer: Any, index: int) -> tuple[list[int], list[bool]]:
    """The gold conversation of a task as TRL renders it, with the tools as methods; and where the policy writes."""
    worlds = EnvironmentFactory(env)
    tools = [getattr(worlds(), spec.name) for spec in worlds.specs]
    task, call = env.task("train", index), env.oracle_turns(env.task("train", index))[0]
    function = {"name": call.name, "arguments": dict(call.arguments)}
    messages = [*task.prompt, {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}]
    messages += [{"role": "tool", "name": call.name, "content": task.reference}, {"role": "assistant", "content": task.reference}]
    ids: list[int] = []
    acted: list[bool] = []
    for upto, own in ((1, False), (2, True), (3, False), (4, True)):
        text = tokenizer.apply_chat_template(messages[:upto], tools=tools, tokenize=False, add_generation_prompt=not own)
        more = tokenizer.encode(text, add_special_tokens=False)[len(ids) :]
        ids, acted = ids + more, acted + [own] * len(more)
    return ids, acted


def policy(env: Any, tokenizer: Any, *, epochs: int, door: str) -> Any:
    """A tiny model that has read the gold conversations of the first tasks."""
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=2048, eos_token_id=tokenizer.eos_token_id, bos_token_id=None, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    mdp = TokenMDP(env, HFTokenizer(tokenizer), max_new_tokens=LONGEST)
    states = []
    for index in range(TASKS):
        state = mdp.start_conversation(env.task("train", index))
        for turn in mdp.tool_format.build_oracle_turns(state.task) or []:
            mdp.append_turn(state, [*tokenizer.encode(turn, add_special_tokens=False), tokenizer.eos_token_id])
        state.close()
        states.append(as_trl(env, tokenizer, index) if door == "environment" else (state.tokens, state.action_mask))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(epochs):
        for tokens, acted in states:
            ids = torch.tensor([tokens])
            labels = ids.masked_fill(~torch.tensor([acted]), -100)
            loss = model(input_ids=ids, labels=labels).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    return model


def verified(verifier: str, judged: list[tuple[Any, str, float | None]]) -> int:
    """How many rewards differ from what the command says of the same texts."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "answers.jsonl"
        rows = [{"id": i, "reference": t.reference, "answer": text, "meta": dict(t.meta)} for i, (t, text, _) in enumerate(judged)]
        file.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
        command = [sys.executable, "-m", "rlvr", "verify", verifier, "--file", str(file), "--json"]
        said = subprocess.run(command, capture_output=True, text=True, timeout=300)
    scores = [json.loads(line)["score"] for line in said.stdout.splitlines()]
    assert len(scores) == len(judged), said.stderr
    return sum(score != reward for score, (_, _, reward) in zip(scores, judged, strict=True))


class Watched(GRPOTrainer):
    """A trainer that looks at each row where the loss is computed, and compares it with what was handed in."""

    given: set[Any]
    rows = 0
    changed = 0

    def _compute_loss(self, model: Any, inputs: Any) -> Any:
        for i in range(len(inputs["completion_ids"])):
            if "tool_mask" not in inputs or not hasattr(self, "given"):
                break
            real, kept = inputs["completion_mask"][i].bool(), inputs["prompt_mask"][i].bool()
            logprobs = inputs["sampling_per_token_logps"][i][real].tolist()
            row = (
                tuple(inputs["prompt_ids"][i][kept].tolist()),
                tuple(inputs["completion_ids"][i][real].tolist()),
                tuple(inputs["tool_mask"][i][real].tolist()),
                tuple(round(p, 5) for p in logprobs),
            )
            self.rows += 1
            self.changed += row not in self.given
        return super()._compute_loss(model, inputs)


def settings(out: str, steps: int) -> GRPOConfig:
    """A run of a few tiny steps."""
    sizes = {"per_device_train_batch_size": 8, "num_generations": 4, "max_completion_length": LONGEST, "max_steps": steps}
    quiet: dict[str, Any] = {"report_to": [], "logging_steps": 1, "save_strategy": "no", "disable_tqdm": True}
    plain = {"use_cpu": True, "bf16": False, "gradient_checkpointing": False, "beta": 0.0, "max_tool_calling_iterations": 3}
    return GRPOConfig(output_dir=out, learning_rate=1e-4, **sizes, **quiet, **plain)


def run(door: str, steps: int) -> dict[str, Any]:
    """Some steps through one door; the figures."""
    set_seed(0)
    name, options = ("arithmetic", {}) if door == "reward" else ("calculator_sums", {"digits": [2, 3]})
    env = rlvr.make_env(name, **options)
    tokenizer = tokenizer_for(TEMPLATE.read_text("utf-8"), ["<|im_end|>"], more=("<|endoftext|>",))
    tokenizer.pad_token = "<|endoftext|>"
    model = policy(env, tokenizer, epochs=40 if door == "reward" else 120, door=door)
    rows = make_rows(env, "train", TASKS)
    judged: list[tuple[Any, str, float | None]] = []
    texts: dict[str, Any] = {"train": env.task}
    more: dict[str, Any] = {}
    if door == "reward":
        inner = make_reward_function(env)
    elif door == "environment":
        worlds = EnvironmentFactory(env)
        inner, more = worlds.reward, {"environment_factory": worlds}
    else:
        play = RolloutFunction(env, rows)
        inner = play.reward

    def reward(completions: Any, split: Any, index: Any, **columns: Any) -> list[float | None]:
        scores = inner(completions=completions, split=split, index=index, **columns)
        said = columns.get("rlvr_answer") or [extract_final_text(completion) for completion in completions]
        judged.extend((texts[s](s, i), text, score) for s, i, text, score in zip(split, index, said, scores, strict=True))
        return scores

    if door == "rollout":
        more = {"rollout_func": lambda prompts, trainer: remembered(play, prompts, trainer)}
    with tempfile.TemporaryDirectory() as out:
        trainer = Watched(
            model=model, reward_funcs=[reward], args=settings(out, steps), train_dataset=Dataset.from_list(rows),
            processing_class=tokenizer, **more,
        )  # fmt: skip
        if door == "rollout":
            trainer.given = set()
        began = time.perf_counter()
        trainer.train()
        seconds = time.perf_counter() - began
    scores = [score for _, _, score in judged if score is not None]
    found = {
        "door": door, "env": name, "steps": trainer.state.global_step, "seconds": round(seconds, 1), "rewards": len(judged),
        "mean": round(sum(scores) / max(len(scores), 1), 3), "unscored": len(judged) - len(scores),
        "differ_from_rlvr_verify": verified(str(env.needs["verifier"]), judged),
    }  # fmt: skip
    if door == "environment":
        found |= {
            "tool_calls": sum(bool(turn.calls) for talk in TALKS for turn in talk.turns),
            "sessions_open": sum(talk._session.is_open_and_idle for talk in TALKS),
        }
        worlds.close()
    if door == "rollout":
        found |= {"rows_at_the_loss": trainer.rows, "rows_changed": trainer.changed, "environment_tokens": ENVIRONMENT_TOKENS[0]}
        play.close()
    return found


TALKS: list[TextConversation] = []
ENVIRONMENT_TOKENS = [0]


def remembered(play: RolloutFunction, prompts: Any, trainer: Any) -> dict[str, Any]:
    """The rollout function, with its rows remembered for the comparison at the loss."""
    given = play(prompts, trainer)
    columns = (given["prompt_ids"], given["completion_ids"], given["env_mask"], given["logprobs"])
    for prompt, completion, mask, logprobs in zip(*columns, strict=True):
        as_float = torch.tensor(logprobs).tolist()
        trainer.given.add((tuple(prompt), tuple(completion), tuple(mask), tuple(round(p, 5) for p in as_float)))
        ENVIRONMENT_TOKENS[0] += len(mask) - sum(mask)
    return given


def main() -> int:
    """Run the doors, print their figures; 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--door", choices=("reward", "environment", "rollout"), action="append")
    arguments = parser.parse_args()
    begin = TextConversation.__init__

    def noted(self: TextConversation, *rest: Any, **named: Any) -> None:
        begin(self, *rest, **named)
        TALKS.append(self)

    TextConversation.__init__ = noted  # type: ignore[method-assign]
    missed = False
    for door in arguments.door or ("reward", "environment", "rollout"):
        found = run(door, arguments.steps)
        print(json.dumps(found), flush=True)
        missed |= bool(found["differ_from_rlvr_verify"] or found.get("rows_changed") or found.get("sessions_open")) or not found["rewards"]
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
