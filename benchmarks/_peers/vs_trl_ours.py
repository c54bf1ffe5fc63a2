"""Our side of `vs_trl.py` and `time_to_ninety.py`: one step of the training loop for each request of the parent."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from vs_trl_work import WORKLOADS, Work, reset_peak, resident, reward, say

from rlvr.config.config import validate_config
from rlvr.contracts import Completion, Environment, Request, Sampler, SamplingParams, Verifier
from rlvr.samplers.hf import HFSampler
from rlvr.task import Task, Verdict, make_user_prompt
from rlvr.training.components import Components, build_components
from rlvr.training.run_inputs import RunInputs
from rlvr.training.trainer import Trainer


class Share(Verifier):
    """The reward of both sides."""

    def verify(self, task: Task, answer: str) -> Verdict:
        """The score: a share of characters."""
        return Verdict(reward(answer), "share")


class Prompts(Environment):
    """The prompts of one workload, step after step."""

    max_prompt_tokens = 512

    def __init__(self, *, workload: str) -> None:
        self.work: Work = WORKLOADS[workload]
        self.max_new_tokens, self.verifier = self.work.cap, Share()

    def task(self, split: str, index: int) -> Task:
        """A task by its position in the order of steps."""
        step, place = divmod(index, self.work.prompts)
        return Task(make_user_prompt(self.work.prompts_of(step)[place]), None, id=f"{index}")


class Forced(HFSampler):
    """The shipped sampler with given lengths: its answers are cut or ended where the workload says."""

    def __init__(self, *, workload: str) -> None:
        super().__init__()
        self.work, self.step, self.eos = WORKLOADS[workload], 0, 0

    def bind(self, environment: Environment, tokenizer: Any) -> None:
        """Load, and note the tokens that end an answer."""
        self.eos = tokenizer.eos_id

    def stream_completions(self, requests: Sequence[Request], sampling: SamplingParams) -> Iterator[tuple[int, Completion]]:
        """Sample exactly so many tokens, then write the end token at the given position and nowhere else.

        The few rows of the check before a run are sampled as they are.
        """
        if len(requests) != self.work.prompts * self.work.generations:
            yield from super().stream_completions(requests, sampling)
            return
        lengths, self.step = self.work.lengths(self.step), self.step + 1
        asked = [replace(request, max_tokens=n) for request, n in zip(requests, lengths, strict=True)]
        for i, done in super().stream_completions(asked, replace(sampling, stop_ids=frozenset())):
            tokens = [self.eos + 5 if token == self.eos else token for token in done.tokens]
            if lengths[i] < self.work.cap:
                tokens[-1] = self.eos
            yield i, replace(done, tokens=tokens, finish_reason="stop" if lengths[i] < self.work.cap else "length")

    stream_from_queue = Sampler.stream_from_queue  # which calls `stream_completions`


def configuration(workload: str, model: str) -> dict[str, Any]:
    """A workload as a run's configuration."""
    work = WORKLOADS[workload]
    return {
        "env": {"name": f"{__file__}:Prompts", "workload": workload},
        "model": {"path": model},
        "rollout": {
            "sampler": {"name": f"{__file__}:Forced", "workload": workload}, "prompts_per_step": work.prompts,
            "num_generations": work.generations, "max_new_tokens": work.cap,
        },
        "train": {"steps": 1000, "learning_rate": 1e-6},
        "log": {"episodes": False},
    }  # fmt: skip


def build_unchecked(inputs: RunInputs, accelerator: Any, stack: Any, *, checkpoint_folder: Path | None) -> Components:
    """The components, without the results of the check of sampler and trainer.

    Tokens are changed after they are sampled: a step cannot hold the sampler to the trainer.
    """
    return replace(build_components(inputs, accelerator, stack, checkpoint_folder=checkpoint_folder), check_results=())


def main(config_file: str, place: str) -> None:
    """Serve steps until the parent sends no more; save the weights on request."""
    config = validate_config(json.loads(Path(config_file).read_text()), config_file)
    with Trainer(config, out=place, component_builder=build_unchecked, console=Console(quiet=True)) as trainer:
        before = reset_peak()
        say(ready=True)
        for line in sys.stdin:
            if line.startswith("save "):
                trainer.learner.gather_model().save_pretrained(line.split()[1])
                say(saved=True)
                continue
            began, spent = time.perf_counter(), time.process_time()
            record = trainer.step()
            row, times = record.metrics, record.timings
            say(
                seconds=time.perf_counter() - began, cpu=time.process_time() - spent, tokens=row["num_tokens"], reward=row["reward"],
                sample=times["time/sample"], verify=times["time/verify_after_sampling"], update=times["time/update"],
                peak_mb=resident("VmHWM") - before,
            )  # fmt: skip


if __name__ == "__main__":
    main(*sys.argv[1:])
