"""What is printed before a run begins: the sizes that follow from the configuration, in units."""

from __future__ import annotations

from pathlib import Path

from rich.table import Table

from rlvr.learn.crew import Crew
from rlvr.model import parameters


def banner(crew: Crew, folder: Path) -> Table:
    """The derived batch table, and where the algorithm departs from its preset."""
    config, rollout = crew.config, crew.config.rollout
    episodes = rollout.prompts_per_step * rollout.num_generations
    updates = config.train.minibatches_per_step * crew.algorithm.num_iterations
    departs = ", ".join(f"{name}={value}" for name, value, differs in crew.algorithm.describe() if differs)
    table = Table(title=f"{config.env['name']} · {config.algorithm['name']}", title_justify="left", show_header=False, box=None)
    for name, value in (
        ("policy", f"{parameters(crew.model):,} parameters, {crew.tokenizer.vocab_size:,} token ids, {crew.accelerator.device}"),
        ("window", f"{crew.mdp.max_length} tokens, of which the policy may choose {crew.mdp.max_new_tokens}"),
        ("episodes a step", f"{rollout.prompts_per_step} prompts x {rollout.num_generations} generations = {episodes:,}"),
        (
            "optimizer steps a step",
            f"{updates}, of {episodes // config.train.minibatches_per_step:,} episodes each"
            + (" (exactly on-policy)" if updates == 1 else ""),
        ),
        (
            "in all",
            f"{config.train.steps} steps, {config.train.steps * episodes:,} episodes, {config.train.steps * updates:,} optimizer steps",
        ),
        ("algorithm", f"{config.algorithm['name']}" + (f", but {departs}" if departs else ", as published")),
        ("run folder", str(folder)),
    ):
        table.add_row(name, value)
    return table
