"""What is printed before a run begins: the sizes that follow from the configuration, in units."""

from __future__ import annotations

from pathlib import Path

from rich.table import Table

from rlvr.learn.crew import Crew
from rlvr.learn.notes import lost_to_rounding
from rlvr.learn.update.adapter import layers
from rlvr.model.weights import parameters


def banner(crew: Crew, folder: Path) -> Table:
    """The derived batch table, and where the algorithm departs from its preset."""
    config, rollout = crew.config, crew.config.rollout
    episodes, source = rollout.prompts_per_step * rollout.num_generations, ""
    if config.data is not None:
        stored = crew.stored.all if crew.stored else []
        each = sum(map(len, stored)) / len(stored) if stored else 1
        episodes = round(rollout.prompts_per_step * each)
        source = f"{len(stored):,} groups of {config.data.run}" if stored else "gold solutions"
    updates = config.train.minibatches_per_step * crew.algorithm.num_iterations
    rounds, curriculum = crew.algorithm.sampling_rounds, rollout.curriculum
    sampling = f", and others for those without spread in up to {rounds} rounds" if rounds > 1 else ""
    chosen = f", chosen from {curriculum.candidates} times as many by solve rate" if curriculum else ""
    processes = crew.accelerator.num_processes
    lora = config.model.lora
    beside = ", ".join(lora.target_modules or layers(crew.model)) if lora else ""
    careful = [note for note in (lost_to_rounding(config), crew.mdp.history_note()) if note]
    departs = ", ".join(f"{name}={value}" for name, value, differs in crew.algorithm.describe() if differs)
    table = Table(title=f"{config.env['name']} · {config.algorithm['name']}", title_justify="left", show_header=False, box=None)
    for name, value in (
        ("policy", f"{parameters(crew.model):,} parameters, {crew.tokenizer.vocab_size:,} token ids, {crew.accelerator.device}"),
        *([("adapter", f"rank {lora.rank}, alpha {lora.scale}, beside {beside}; it alone learns")] if lora else ()),
        ("window", f"{crew.mdp.max_length} tokens, of which the policy may choose {crew.mdp.max_new_tokens}"),
        ("processes", f"{processes}, each with its share of the groups" if processes > 1 else "1"),
        (
            "episodes a step",
            f"about {episodes:,}, {rollout.prompts_per_step} groups at a time: {source}"
            if source
            else f"{rollout.prompts_per_step} prompts{chosen} x {rollout.num_generations} generations = {episodes:,}{sampling}",
        ),
        (
            "optimizer steps a step",
            f"{updates}, of {episodes // config.train.minibatches_per_step:,} episodes each"
            + (" (exactly on-policy)" if updates == 1 and not source and not rollout.max_staleness else ""),
        ),
        *([("sampled ahead", sampled_ahead(crew))] if rollout.max_staleness else []),
        (
            "in all",
            f"{config.train.steps} steps, {config.train.steps * episodes:,} episodes, {config.train.steps * updates:,} optimizer steps",
        ),
        ("algorithm", f"{config.algorithm['name']}" + (f", but {departs}" if departs else ", as published")),
        *(("note", note) for note in careful),
        ("run folder", str(folder)),
    ):
        table.add_row(name, value)
    return table


def sampled_ahead(crew: Crew) -> str:
    """How old the answers may be, and what is done about it."""
    most = crew.config.rollout.max_staleness
    settings = {name: value for name, value, _ in crew.algorithm.describe()}
    how = settings.get("importance_sampling_correction")
    if crew.algorithm.bypass:
        done = "the clipped ratio is to the sampler's own probabilities (old_from_sampler)"
    elif how and how != "none":
        done = f"importance_sampling_correction={how} weighs it out"
    elif crew.algorithm.when_stale:
        done = "nothing weighs that out, as you asked (importance_sampling_correction=none)"
    else:
        done = "this algorithm has no correction for it"
    return f"up to {most} step{'s' if most > 1 else ''}, by weights as much older; {done}"
