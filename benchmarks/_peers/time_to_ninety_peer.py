"""TRL's side of `time_to_ninety.py`: its GRPO trainer on the questions and settings that it receives."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer
from vs_trl_peer import Obey


def right(completions: list[Any], answer: list[str], **_: Any) -> list[float]:
    """1 for the right number after the last '#'."""
    said = [completion[0]["content"].rpartition("#") for completion in completions]
    return [float(bool(mark) and text.strip() == truth) for (_, mark, text), truth in zip(said, answer, strict=True)]


def main(plan_file: str) -> None:
    """Serve steps until the parent sends no more."""
    plan = json.loads(Path(plan_file).read_text())
    tokenizer = PreTrainedTokenizerFast.from_pretrained(plan["model"])
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    obey = Obey(lambda step: 0)
    config = GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, report_to="none", beta=0.0, loss_type="grpo", bf16=False, gradient_checkpointing=False,
        per_device_train_batch_size=plan["prompts"] * plan["generations"], num_generations=plan["generations"],
        max_completion_length=plan["cap"], learning_rate=plan["learning_rate"], warmup_steps=plan["warmup_steps"],
        lr_scheduler_type=plan["lr_scheduler"], max_steps=plan["steps"], temperature=1.0, top_p=1.0, top_k=0, weight_decay=0.0,
        save_strategy="no", logging_steps=1, disable_tqdm=True, shuffle_dataset=False,
    )  # fmt: skip
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(plan["model"], dtype=torch.float32), reward_funcs=right, args=config,
        train_dataset=Dataset.from_list(plan["tasks"]), processing_class=tokenizer, callbacks=[obey],
    )  # fmt: skip
    obey.drive(trainer)


if __name__ == "__main__":
    main(*sys.argv[1:])
