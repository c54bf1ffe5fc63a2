"""The summary table printed before a run: derived sizes with their units, and warnings."""

from __future__ import annotations

from pathlib import Path

from rich.table import Table

from rlvr.learn.crew import Crew
from rlvr.learn.notes import lost_to_rounding
from rlvr.learn.update.adapter import layers
from rlvr.model.defaults import told
from rlvr.model.deterministic import is_deterministic
from rlvr.model.honesty import told as told_of
from rlvr.model.weights import parameters

CRITIC = "a linear head on the policy's own last hidden states, at 0 at first; its loss also trains the policy's weights"


def banner(crew: Crew, folder: Path) -> Table:
    """Build the summary table: derived batch sizes, and settings that differ from the defaults."""
    config, rollout = crew.config, crew.config.rollout
    episodes, source = rollout.prompts_per_step * rollout.num_generations, ""
    if config.data is not None:
        stored = crew.stored.all if crew.stored else []
        each = sum(map(len, stored)) / len(stored) if stored else 1
        episodes = round(rollout.prompts_per_step * each)
        source = f"{len(stored):,} groups of {config.data.run}" if stored else "gold solutions"
    updates = config.train.minibatches_per_step * crew.algorithm.num_iterations
    rounds, curriculum = crew.algorithm.sampling_rounds, rollout.curriculum
    sampling = f", groups without spread replaced in up to {rounds} rounds" if rounds > 1 else ""
    chosen = f", chosen by solve rate from {curriculum.candidates} times as many" if curriculum else ""
    processes = crew.accelerator.num_processes
    lora = config.model.lora
    beside = ", ".join(lora.target_modules or layers(crew.model)) if lora else ""
    careful = [*crew.environment.notes] + [note for note in (lost_to_rounding(config), crew.mdp.history_note()) if note]
    departs = ", ".join(f"{name}={value}" for name, value, differs in crew.algorithm.describe() if differs)
    table = Table(title=f"{config.env['name']} · {config.algorithm['name']}", title_justify="left", show_header=False, box=None)
    for name, value in (
        ("policy", f"{parameters(crew.model):,} parameters, {crew.tokenizer.vocab_size:,} token ids, {crew.accelerator.device}"),
        *([("adapter", f"rank {lora.rank}, alpha {lora.scale}, next to {beside}; only the adapter is trained")] if lora else ()),
        ("device", told(config, crew.accelerator.device, crew.accelerator.mixed_precision)),
        ("repeatable", repeatable(crew)),
        *(("cluster", sentence) for sentence in promised(crew)),
        *([("model check", told_of(crew.checks))] if crew.checks else ()),
        ("window", f"{crew.mdp.max_length} tokens, at most {crew.mdp.max_new_tokens} of them sampled"),
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
            + (on_policy(crew) if updates == 1 and not source and not rollout.stale else ""),
        ),
        *([("critic", CRITIC)] if crew.algorithm.needs_value else []),
        *([("sampled ahead", sampled_ahead(crew))] if rollout.max_staleness else []),
        *([("answers in parts", f"of {cut:,} tokens, each by the weights of its step")] if (cut := rollout.max_tokens_per_version) else []),
        (
            "total",
            f"{config.train.steps} steps, {config.train.steps * episodes:,} episodes, {config.train.steps * updates:,} optimizer steps",
        ),
        ("algorithm", f"{config.algorithm['name']}" + (f", but {departs}" if departs else ", with its usual settings")),
        *(("note", note) for note in careful),
        ("run folder", str(folder)),
    ):
        table.add_row(name, value)
    return table


def on_policy(crew: Crew) -> str:
    """Describe that training is exactly on-policy, and which settings have no effect then."""
    idle = () if crew.algorithm.bypass else crew.algorithm.idle_on_policy
    told = f": every ratio is 1, so {', '.join(idle)} {'do' if len(idle) > 1 else 'does'} nothing" if idle else ""
    return f" (exactly on-policy{told})"


def sampled_ahead(crew: Crew) -> str:
    """Describe how old the sampling weights may be, and how that is corrected."""
    most = crew.config.rollout.max_staleness
    settings = {name: value for name, value, _ in crew.algorithm.describe()}
    how = settings.get("importance_sampling_correction")
    if crew.algorithm.bypass:
        done = "the clipped ratio is to the sampler's own probabilities (old_from_sampler)"
    elif how and how != "none":
        done = f"corrected by importance_sampling_correction={how}"
    elif crew.algorithm.when_stale:
        done = "not corrected, as requested (importance_sampling_correction=none)"
    else:
        done = "this algorithm has no correction for it"
    return f"up to {most} step{'s' if most > 1 else ''}, with weights that much older; {done}"


def promised(crew: Crew) -> list[str]:
    """Describe what does not depend on the number of rollout workers; empty without a cluster."""
    if crew.config.cluster is None:
        return []
    deterministic = is_deterministic(crew.config, crew.accelerator.device)
    company = "in the same company, which the calls fix" if crew.sampler.company else "in any company"
    tokens = "same tokens: yes, where collectors run on machines that compute the same bits"
    if not deterministic:
        tokens = "same tokens: in distribution only, since kernels here are not deterministic (train.deterministic=true asks for it)"
    elif not crew.exact:
        tokens = "same tokens: in distribution only, since times decide what is sampled together (rollout.lockstep=true fixes that)"
    elif crew.sampler.company and not crew.sampler.runs_model:
        tokens = "same tokens: mostly, since an engine decides by itself what it computes together, and last bits depend on that"
    gradients = "yes, from the same tokens" if deterministic else "up to rounding, from the same tokens"
    return [
        "same schedule: always. Tasks, seeds, groups, their order and the version of the weights are functions of the seed and the step, "
        "for any number of collectors, whichever of them are lost",
        f"{tokens}; an answer is sampled {company}",
        f"same gradients: {gradients}, with {crew.accelerator.num_processes} learning process{'es' * (crew.accelerator.num_processes > 1)}",
    ]


def repeatable(crew: Crew) -> str:
    """Describe how exactly the run can be repeated, and what to set for more."""
    if crew.exact:
        return "to the bit, if its tools are; rollout.lockstep=false is faster where they are slow" if crew.mdp.worlds else "to the bit"
    if is_deterministic(crew.config, crew.accelerator.device):
        return "up to rounding: which answers are sampled together depends on how long sessions take; rollout.lockstep=true fixes that"
    return "up to rounding; train.deterministic=true asks for the same bits, at some cost in speed"
