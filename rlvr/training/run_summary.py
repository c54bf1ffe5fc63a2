"""The summary table printed before a run: derived sizes with their units, and warnings."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table

from rlvr.mdp.token_mdp import TokenMDP
from rlvr.models.determinism import requires_determinism
from rlvr.models.device_defaults import describe_precision
from rlvr.models.model_loading import count_parameters
from rlvr.models.numerics_check import format_check_results as told_of
from rlvr.plugin_files import shorten_plugin_files
from rlvr.training.components import Components
from rlvr.training.step_notes import explain_rounding_risk
from rlvr.training.update.lora_adapter import list_linear_layers

SHARED_CRITIC_DESCRIPTION = "a linear head on the policy's own last hidden states, at 0 at first; its loss also trains the policy's weights"


def build_run_table(components: Components, folder: Path) -> Table:
    """Build the summary table: derived batch sizes, and settings that differ from the defaults."""
    config, rollout = components.config, components.config.rollout
    episodes, source = rollout.prompts_per_step * rollout.num_generations, ""
    if config.data is not None:
        stored = components.offline_dataset.groups if components.offline_dataset else []
        each = sum(map(len, stored)) / len(stored) if stored else 1
        episodes = round(rollout.prompts_per_step * each)
        source = f"{len(stored):,} groups of {config.data.run}" if stored else "gold solutions"
    updates = config.train.minibatches_per_step * components.algorithm.traits.num_iterations
    rounds, curriculum = components.algorithm.traits.sampling_rounds, rollout.curriculum
    sampling = f", groups without spread replaced in up to {rounds} rounds" if rounds > 1 else ""
    chosen = f", chosen by solve rate from {curriculum.candidates_per_task} times as many" if curriculum else ""
    processes = components.accelerator.num_processes
    lora = config.model.lora
    beside = ", ".join(lora.target_modules or list_linear_layers(components.model)) if lora else ""
    careful = [*components.environment.warnings] + [
        note for note in (explain_rounding_risk(config), components.mdp.describe_history_difference()) if note
    ]
    departs = ", ".join(f"{name}={value}" for name, value, differs in components.algorithm.describe_settings() if differs)
    table = Table(
        title=f"{shorten_plugin_files(config.env['name'])} · {config.algorithm['name']}", title_justify="left", show_header=False, box=None
    )
    for name, value in (
        (
            "policy",
            f"{count_parameters(components.model):,} parameters, {components.tokenizer.vocab_size:,} token ids, {components.accelerator.device}",
        ),
        *([("adapter", f"rank {lora.rank}, alpha {lora.effective_alpha}, next to {beside}; only the adapter is trained")] if lora else ()),
        ("device", describe_precision(config, components.accelerator.device, components.accelerator.mixed_precision)),
        ("repeatable", _describe_repeatability(components)),
        *(("cluster", sentence) for sentence in describe_cluster_guarantees(components)),
        *([("model check", told_of(components.check_results))] if components.check_results else ()),
        ("window", _describe_window(components.mdp)),
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
            + (describe_on_policy_effects(components) if updates == 1 and not source and not rollout.is_off_policy else ""),
        ),
        *([("critic", SHARED_CRITIC_DESCRIPTION)] if components.algorithm.traits.needs_value else []),
        *([("sampled ahead", _describe_staleness(components))] if rollout.max_staleness else []),
        *([("partial rollouts", f"of {cut:,} tokens, each by the weights of its step")] if (cut := rollout.partial_rollout_tokens) else []),
        (
            "total",
            f"{config.train.steps} steps, {config.train.steps * episodes:,} episodes, {config.train.steps * updates:,} optimizer steps",
        ),
        ("learning rate", f"{config.train.learning_rate:g}, {shorten_plugin_files(config.train.lr_scheduler)}"),
        ("algorithm", f"{config.algorithm['name']}" + (f", but {departs}" if departs else ", with its usual settings")),
        *(("note", note) for note in careful),
        ("run folder", str(folder)),
    ):
        table.add_row(name, value)
    return table


def print_run_table(console: Console, table: Table) -> None:
    """Print the summary table; into a file or a pipe without the blanks that fill its lines up to the width of the console."""
    if console.is_terminal or console.is_jupyter:
        console.print(table)
        return
    with console.capture() as captured:
        console.print(table)
    for line in captured.get().splitlines():
        console.print(line.rstrip(), highlight=False, markup=False, soft_wrap=True)


def _describe_window(mdp: TokenMDP) -> str:
    """Describe how long a conversation may be."""
    whole = f"{mdp.max_length} tokens" + (", the model's positions" if mdp.is_window_shortened else "")
    return f"{whole}, at most {min(mdp.max_new_tokens, mdp.max_length)} of them sampled"


def describe_on_policy_effects(components: Components) -> str:
    """Describe that training is exactly on-policy, and which settings have no effect then."""
    idle = () if components.algorithm.traits.use_rollout_logprobs else components.algorithm.traits.noop_on_policy
    told = f": every ratio is 1, so {', '.join(idle)} {'do' if len(idle) > 1 else 'does'} nothing" if idle else ""
    return f" (exactly on-policy{told})"


def _describe_staleness(components: Components) -> str:
    """Describe how old the sampling weights may be, and how that is corrected."""
    most = components.config.rollout.max_staleness
    settings = {name: value for name, value, _ in components.algorithm.describe_settings()}
    how = settings.get("importance_sampling_correction")
    if components.algorithm.traits.use_rollout_logprobs:
        done = "the clipped ratio is to the sampler's own probabilities (old_from_sampler)"
    elif how and how != "none":
        done = f"corrected by importance_sampling_correction={how}"
    elif components.algorithm.traits.off_policy_defaults:
        done = "not corrected, as requested (importance_sampling_correction=none)"
    else:
        done = "this algorithm has no correction for it"
    return f"up to {most} step{'s' if most > 1 else ''}, with weights that much older; {done}"


def describe_cluster_guarantees(components: Components) -> list[str]:
    """Describe what does not depend on the number of rollout workers; empty without a cluster."""
    if components.config.cluster is None:
        return []
    deterministic = requires_determinism(components.config, components.accelerator.device)
    is_batch_fixed = bool(components.sampler.traits.eval_batch_size)
    tokens = "same tokens: yes, where rollout workers run on machines that compute the same bits"
    if not deterministic:
        tokens = "same tokens: in distribution only, since kernels here are not deterministic (train.deterministic=true asks for it)"
    elif not components.is_bitwise_repeatable:
        tokens = "same tokens: in distribution only, since times decide what is sampled together (rollout.sync_turns=true fixes that)"
    elif components.sampler.traits.eval_batch_size and not components.sampler.traits.runs_model:
        tokens = "same tokens: mostly, since an engine decides by itself what it computes together, and last bits depend on that"
    gradients = "yes, from the same tokens" if deterministic else "up to rounding, from the same tokens"
    return [
        "same schedule: always. Tasks, seeds, groups, their order and the version of the weights are functions of the seed and the step, "
        "for any number of rollout workers, whichever of them are lost",
        f"{tokens}; {'each call fixes which answers are' if is_batch_fixed else 'any answers may be'} sampled in one batch",
        f"same gradients: {gradients}, with {components.accelerator.num_processes} learning process{'es' * (components.accelerator.num_processes > 1)}",
    ]


def _describe_repeatability(components: Components) -> str:
    """Describe how exactly the run can be repeated, and what to set for more."""
    if components.is_bitwise_repeatable:
        return (
            "to the bit, if its tools are; rollout.sync_turns=false is faster where they are slow"
            if components.mdp.has_sessions
            else "to the bit"
        )
    if requires_determinism(components.config, components.accelerator.device):
        return "up to rounding: which answers are sampled together depends on how long sessions take; rollout.sync_turns=true fixes that"
    return "up to rounding; train.deterministic=true asks for the same bits, at some cost in speed"
