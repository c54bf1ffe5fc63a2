"""The components of a training run (model, sampler, algorithm, learner, ...), built from its configuration and closed at its end."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from accelerate import Accelerator, DistributedType
from accelerate.utils import set_seed
from transformers import AutoModelForCausalLM

from rlvr.config.config import ModelConfig, RunConfig
from rlvr.contracts import Environment, Sampler, Sampling, Tokenizer
from rlvr.contracts.algorithm import Algorithm
from rlvr.errors import ConfigError, EnvError, suggest
from rlvr.evaluation.evaluate import count_tasks
from rlvr.mdp.token_mdp import TokenMDP
from rlvr.mdp.tokenizers import load_tokenizer
from rlvr.models import numerics_check as honesty
from rlvr.models.batch import TokenRows
from rlvr.models.compiled_layers import compile_layers
from rlvr.models.determinism import is_deterministic
from rlvr.models.device import get_trainer_precision
from rlvr.models.model_loading import MODEL_LOAD_LOCK, build_meta_model, load_model
from rlvr.models.reference_model import check_reference_model
from rlvr.registry.plugins import build_from_config
from rlvr.rollout.partial_rollouts import build_rollout
from rlvr.rollout.rollout import Rollout
from rlvr.samplers._sampling_support import make_support
from rlvr.training import checkpoint
from rlvr.training import sampler_mismatch as agreement
from rlvr.training.checkpoint import Progress
from rlvr.training.processes import run_on_main
from rlvr.training.task_sampling.offline_dataset import (
    OfflineDataset,
    build_gold_groups,
    check_unchanged,
    compute_digest,
    load_recorded_groups,
)
from rlvr.training.task_sampling.task_order import TaskOrder
from rlvr.training.task_sampling.task_sampler import TaskSampler, build_task_sampler
from rlvr.training.update import lora_adapter as adapter
from rlvr.training.update import packing
from rlvr.training.update.fsdp import FolderWeightLoader, MainProcessWeightLoader, WeightLoader
from rlvr.training.update.learner import Learner, Optimization

MAX_CHECKED_PROMPTS = 10_000
"""The maximum number of prompts whose length is checked before a run."""


class Stateful(Protocol):
    """An object that a checkpoint can hold: its state is written as plain data and read back."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state for the checkpoint."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state from `state_dict`."""
        ...


@dataclass(slots=True)
class Trainer:
    """The components of one run.

    >>> trainer = build_trainer(config, accelerator, stack)                    # doctest: +SKIP
    """

    config: RunConfig
    environment: Environment
    tokenizer: Tokenizer
    mdp: TokenMDP
    model: Any
    algorithm: Any
    sampler: Sampler
    rollout: Rollout
    task_sampler: TaskSampler
    accelerator: Accelerator
    sampling: Sampling
    slow_sampling_reason: str
    """Why sampling from this model is slow; empty where it is not."""
    check_results: Sequence[honesty.CheckResult] = ()
    """The results of the numerics checks."""
    not_compiled_reason: str = ""  # why layers are not compiled although requested
    offline_dataset: OfflineDataset | None = None
    """Offline data to train on instead of sampling, if any."""
    weight_loader: WeightLoader | None = None
    """Loads sharded weights; the model itself then has no weights yet."""
    learner: Learner = field(init=False)
    """Set by `setup_learner`, when the initial weights are known."""
    checkpoint_writer: checkpoint.CheckpointWriter = field(default_factory=lambda: checkpoint.CheckpointWriter(60.0))
    """Writes the checkpoints; the loop closes its own at the end."""
    extra_state: dict[str, Stateful] = field(default_factory=dict)
    """Further states in a checkpoint, by name. They are collected first, which waits for running sampling."""

    @property
    def is_bitwise_repeatable(self) -> bool:
        """Whether repeating a step is bitwise identical. False if timing affects batch composition or truncation."""
        asked = self.config.rollout
        by_time = (
            asked.episode_timeout_s is not None
            or asked.straggler_policy == "truncate"
            or (self.sampler.eval_batch_size and not self.rollout.sync_turns)
        )
        timed = self.mdp.is_interactive and by_time
        return is_deterministic(self.config, self.accelerator.device) and not timed

    @property
    def max_logprob_mismatch(self) -> float | None:
        """The allowed log-probability difference of sampler and trainer; None if they legitimately differ or were not compared."""
        rollout, model = self.config.rollout, self.config.model
        plain = not rollout.is_off_policy and self.config.data is None
        wide = (
            model.dtype == "float32"
            and get_trainer_precision(self.model, self.accelerator.mixed_precision, self.accelerator.device) == "float32"
        )
        exact = self.accelerator.device.type == "cpu" or torch.get_float32_matmul_precision() == "highest"
        compared = any(finding.way == agreement.SAMPLER_CHECK_NAME for finding in self.check_results)
        return honesty.compute_run_limit(self.check_results, rollout.temperature) if plain and wide and exact and compared else None

    def sync_weights(self, version: int) -> None:
        """Send the current weights to the sampler. A collective operation."""
        self.sampler.update_weights(self.learner.weights, version)


def build_trainer(config: RunConfig, accelerator: Accelerator, stack: ExitStack, *, checkpoint_folder: Path | None = None) -> Trainer:
    """Build and check all components before the run begins. `checkpoint_folder`: load the weights from this checkpoint."""
    set_seed(config.seed)
    tokenizer = load_tokenizer(config.tokenizer_name)
    environment: Environment = stack.enter_context(build_from_config("env", config.env))
    if config.eval.tasks and config.eval.split not in environment.splits:
        raise ConfigError(
            f"eval.split is {config.eval.split!r}; {suggest(config.eval.split, environment.splits)}. eval.tasks=0 measures nothing"
        )
    asked = config.rollout
    mdp = TokenMDP(environment, tokenizer, **asked.token_limits)
    schedule, curriculum = TaskOrder(environment, "train", seed=config.seed), asked.curriculum
    questions = build_task_sampler(config.rollout, schedule)
    algorithm = build_from_config("algorithm", config.algorithm)
    if config.rollout.is_off_policy:  # settings written by the user take precedence
        algorithm = build_from_config("algorithm", {**algorithm.traits.off_policy_defaults, **config.algorithm})
    build_optimization(config).check_algorithm(
        algorithm, mdp.max_new_tokens, has_adapter=config.model.lora is not None, is_sharded=accelerator.is_fsdp2
    )
    check_group_size(config, algorithm, environment)
    make_support(config, algorithm)  # rejects top_p and top_k where the trainer could not follow them
    looks = config.train.steps * config.rollout.prompts_per_step * algorithm.traits.sampling_rounds * (curriculum.oversample if curriculum else 1)
    size = MAX_CHECKED_PROMPTS if schedule.num_tasks is None else min(schedule.num_tasks, MAX_CHECKED_PROMPTS)
    longest = check_prompt_lengths(mdp, "train", map(schedule.get_index, range(min(looks, size))))
    if config.eval.tasks:
        held_out = count_tasks(environment, config.eval.split, config.eval.tasks)
        longest = max(longest, check_prompt_lengths(mdp, config.eval.split, range(min(held_out, MAX_CHECKED_PROMPTS))))
    check_reference_model(config, algorithm, mdp, longest)
    environment.check_ready()
    sampler: Sampler = stack.enter_context(build_from_config("sampler", config.rollout.sampler))
    if config.model.path is not None and (config.model.folder / "adapter_config.json").is_file():
        raise ConfigError(
            f"model.path {config.model.path!r} has an adapter without a model; name a folder with the merged model (peft: merge_and_unload)"
        )
    model, fill = build_policy_model(config, accelerator, tokenizer, checkpoint_folder)
    rows = model.get_input_embeddings().num_embeddings
    if rows < tokenizer.vocab_size:
        raise ConfigError(f"the tokenizer has {tokenizer.vocab_size} ids, but the model has only {rows}; use the model's own tokenizer")
    honesty.check_context_window(mdp, model.config, longest)
    if config.model.lora is not None:
        adapter.check_lora_config(model, config.model.lora)
        if accelerator.distributed_type is DistributedType.DEEPSPEED:
            raise ConfigError("model.lora is set, but under DeepSpeed weights cannot have an adapter; launch with fsdp2.yaml")
    sampler.attach(environment, tokenizer)
    precision = get_trainer_precision(model, accelerator.mixed_precision, accelerator.device)
    sampler.configure(precision=precision, max_length=mdp.max_length)
    slow = "" if fill else sampler.validate_model(model)  # a sampler that runs the model tests it when it gets the weights
    how: dict[str, Any] = {"precision": precision, "autocast": lambda: accelerator.autocast()}
    checks = agreement.check_model(model, sampler, mdp, config, **how)
    lockstep = choose_sync_turns(config, accelerator, mdp, sampler)
    rollout = stack.enter_context(build_rollout(mdp, sampler, sync_turns=lockstep, **asked.rollout_settings))
    sampling = Sampling(asked.temperature, asked.top_p, asked.top_k, tokenizer.stop_ids)
    crew = Trainer(
        config, environment, tokenizer, mdp, model, algorithm, sampler, rollout, questions, accelerator, sampling, slow, checks, weight_loader=fill
    )  # fmt: skip
    if config.data is not None and config.data.run is not None:
        recorded = load_recorded_groups(config, mdp)
        crew.offline_dataset = OfflineDataset(algorithm.select_offline(recorded), seed=config.seed, digest=compute_digest(recorded))
    elif config.data is not None:
        algorithm.select_offline(list(build_gold_groups(schedule.load_tasks(0, 1), mdp)))
    return crew


def build_policy_model(
    config: RunConfig, accelerator: Accelerator, tokenizer: Tokenizer, checkpoint_folder: Path | None
) -> tuple[Any, WeightLoader | None]:
    """Build the model. If it will be sharded, it has no weights yet, and is returned with its weight loader."""
    source = ModelConfig(path=str(checkpoint_folder), dtype=config.model.dtype) if checkpoint_folder else config.model
    if not accelerator.is_fsdp2:
        return load_model(source, tokenizer, config.seed).to(accelerator.device), None
    model = build_meta_model(source, tokenizer)
    return model, build_weight_loader(model, source, accelerator, tokenizer, config.seed)


def build_weight_loader(model: Any, source: ModelConfig, accelerator: Accelerator, tokenizer: Tokenizer, seed: int) -> WeightLoader:
    """Build the weight loader of a model without weights: from its folder, or from the main process if weights must be converted."""
    if source.path is not None and (rows := FolderWeightLoader.for_model(model, str(source.folder))):
        return rows
    held: list[Any] = []

    def load() -> Any:
        held.append(load_model(source, tokenizer, seed))
        return torch.get_rng_state()

    torch.set_rng_state(run_on_main(accelerator, load))  # as if loaded in this process
    return MainProcessWeightLoader(dict(held[0].state_dict()) if held else None)


def setup_learner(crew: Trainer, folder: Path, *, is_resumed: bool) -> Learner:
    """Build the learner from the current weights; the reference, if needed, is a frozen copy of them."""
    lora, reference, fill_reference = crew.config.model.lora, None, None
    home = folder / ("reference" if lora is None else "base")
    other = crew.config.reference
    if kept := lora is not None or (crew.algorithm.traits.needs_reference and other is None):
        reference, fill_reference = load_initial_model(crew, home, is_resumed=is_resumed)
    if lora is not None:  # with the adapter off, the model is its own reference
        crew.model, crew.weight_loader = adapter.add_adapter(reference, lora), fill_reference or crew.weight_loader
        reference = fill_reference = None
    elif reference is not None:
        reference = copy.deepcopy(reference) if reference is crew.model else reference
    if other is not None:
        reference, fill_reference = build_policy_model(crew.config, crew.accelerator, crew.tokenizer, other.folder)
    supervised = crew.algorithm.traits.is_supervised or crew.config.data is not None  # stored answers were not sampled at this run's temperature
    crew.learner = Learner(
        crew.model,
        crew.algorithm,
        build_optimization(crew.config),
        accelerator=crew.accelerator,
        total_steps=crew.config.train.steps,
        temperature=1.0 if supervised else crew.config.rollout.temperature,
        has_sampling_temperature=not supervised or crew.config.rollout.temperature == 1.0,
        reference=None if reference is None else reference.eval().requires_grad_(False),
        weight_loader=crew.weight_loader,
        reference_weight_loader=fill_reference,
        seed=crew.config.seed,
        max_completion_length=crew.mdp.max_new_tokens,
        fp32_head=crew.config.model.fp32_head,
    )
    if crew.learner.is_sharded:
        crew.check_results = [*agreement.check_sharded_model(crew.learner, max_length=crew.mdp.max_length), *crew.check_results]
    if crew.weight_loader is not None and kept and not is_resumed:
        crew.learner.weights.save(home)
    crew.not_compiled_reason = compile_policy(crew.learner) if crew.config.model.compile is not None else ""
    if (support := make_support(crew.config, crew.algorithm)) is not None:
        crew.accelerator.unwrap_model(crew.learner.policy).make_logit_filter = support.make_policy_mask
        if crew.learner.reference is not None:
            crew.learner.reference.policy.make_logit_filter = support.make_reference_mask
    return crew.learner


def compile_policy(learner: Learner) -> str:
    """Compile the layers of a learner's model; return why they are not compiled, or ''."""
    if learner.is_sharded:
        return "the weights are sharded"
    policy = learner.accelerator.unwrap_model(learner.policy)
    rows = TokenRows([[1, 2, 3, 4], [1, 2, 4]], [[False, False, True, True], [False, False, True]])  # one prompt, so they are packed
    parts, lay = packing.plan_batches(rows, range(2), learner.max_tokens_per_microbatch, learner.packing)

    def score() -> torch.Tensor:
        policy.uses_compiled_layers = True  # what is not compiled yet is not affected
        with learner.accelerator.autocast():
            return policy(lay(parts[0], learner.device)).logprobs

    reason = compile_layers(policy.model, score, learner.accelerator.mixed_precision)
    policy.uses_compiled_layers = not reason
    return reason


def load_initial_model(crew: Trainer, reference_folder: Path, *, is_resumed: bool) -> tuple[Any, WeightLoader | None]:
    """Return the initial model: loaded from the run folder if resumed, otherwise the current one, which is saved there.

    A sharded model has no weights here; in a new run it is saved after its weights are loaded.
    """
    if crew.weight_loader is not None:
        source = ModelConfig(path=str(reference_folder), dtype=crew.config.model.dtype)
        fill = build_weight_loader(crew.model, source, crew.accelerator, crew.tokenizer, crew.config.seed) if is_resumed else None
        return crew.model, fill
    if is_resumed:
        with MODEL_LOAD_LOCK:
            return AutoModelForCausalLM.from_pretrained(reference_folder, dtype=crew.model.dtype).to(crew.accelerator.device), None

    def written() -> None:
        crew.model.save_pretrained(reference_folder)

    run_on_main(crew.accelerator, written)
    return crew.model, None


def restore(crew: Trainer, folder: Path, checkpoint_folder: Path) -> Progress:
    """Restore all components from a checkpoint; the trainer must have been built with its weights."""
    learner = setup_learner(crew, folder, is_resumed=True)
    state, progress = checkpoint.load_checkpoint(checkpoint_folder)
    if crew.offline_dataset is not None:
        check_unchanged(state.get("data"), crew.offline_dataset.digest, crew.config)
    with checkpoint.handle_load_errors(checkpoint_folder):
        adapter.load_adapter(crew.model, state.get("adapter"))
        learner.load_state_dict(state["learner"], checkpoint_folder)
        crew.task_sampler.load_state_dict(state["questions"])
        for name, member in crew.extra_state.items():
            member.load_state_dict(state[name])
    crew.sync_weights(progress.num_completed_steps)
    return progress


def collect_state(crew: Trainer) -> dict[str, Any]:
    """Collect the state of every component for the checkpoint, without the weights."""
    saved = {name: member.state_dict() for name, member in crew.extra_state.items()}
    members = {"learner": crew.learner.state_dict(), "questions": crew.task_sampler.state_dict()}
    return {
        **saved,
        **members,
        "adapter": adapter.get_adapter_state(crew.model),
        "data": crew.offline_dataset and crew.offline_dataset.digest,
    }


def build_optimization(config: RunConfig) -> Optimization:
    """Build the learner's settings from the configuration."""
    settings = config.train.model_dump()
    for key in ("steps", "mixed_precision", "deterministic", "collective_timeout_s"):
        del settings[key]
    settings["critic"] = config.train.critic  # `model_dump` has made a dict of it
    return Optimization(**settings)


def choose_sync_turns(config: RunConfig, accelerator: Accelerator, mdp: TokenMDP, sampler: Sampler) -> bool | None:
    """Return whether conversations wait for each other. If unset, True for deterministic runs, which must be repeatable."""
    if config.rollout.sync_turns is None and mdp.has_sessions and sampler.eval_batch_size and is_deterministic(config, accelerator.device):
        return True
    return config.rollout.sync_turns


def check_group_size(config: RunConfig, algorithm: Algorithm, environment: Environment) -> None:
    """Check that the algorithm has enough completions per prompt, and several turns if it requires them."""
    name = config.algorithm["name"]
    if config.data is None and algorithm.traits.requires_group and config.rollout.num_generations < 2:
        raise ConfigError(
            f"rollout.num_generations is 1, but {name} compares an answer with others to the same prompt; set it to 2 "
            "or more, or use an algorithm that needs only one (ppo, reinforce_baseline, reinforce_pp, remax)"
        )
    if algorithm.traits.requires_multi_turn and environment.max_turns == 1:
        raise ConfigError(
            f"{name} compares turns that begin from the same state, but in {config.env['name']} the policy has one turn, so the same "
            "answers would be compared twice; use grpo, or an environment with max_turns above 1"
        )


def check_prompt_lengths(mdp: TokenMDP, split: str, indices: Iterable[int]) -> int:
    """Return the length of the longest prompt; raise ConfigError if one does not fit, before the run begins."""
    longest = 0
    for index in indices:
        task = mdp.environment.task(split, index)
        try:
            state = mdp.preview_prompt(task)
        except EnvError as error:
            raise ConfigError(f"rollout.max_length: {error}") from error
        longest = max(longest, len(state.tokens))
    if longest + 1 > mdp.max_length:
        raise ConfigError(
            f"the longest prompt of split {split!r} is {longest} tokens; rollout.max_length {mdp.max_length} leaves no room to answer"
        )
    return longest
