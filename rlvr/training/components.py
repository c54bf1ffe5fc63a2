"""The components of a training run (model, sampler, algorithm, learner, ...), built and checked from its configuration."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from accelerate import Accelerator, DistributedType
from accelerate.utils import set_seed
from transformers import AutoModelForCausalLM

from rlvr.config.config import ModelConfig, RunConfig
from rlvr.contracts import Environment, Sampler, SamplingParams, Tokenizer
from rlvr.contracts.algorithm import Algorithm
from rlvr.episode import Episode
from rlvr.errors import ConfigError, EnvError, format_suggestion
from rlvr.evaluation.evaluate import count_available_tasks
from rlvr.mdp.token_mdp import TokenMDP
from rlvr.mdp.tokenizers import check_model_vocabulary, count_tokenizer_ids, load_tokenizer
from rlvr.models import numerics_check
from rlvr.models.batch import TokenRows
from rlvr.models.compiled_layers import try_compile_layers
from rlvr.models.determinism import requires_determinism
from rlvr.models.device import get_trainer_precision
from rlvr.models.frozen_models import check_frozen_models, check_policy_tokenizer
from rlvr.models.model_loading import MODEL_LOAD_LOCK, build_meta_model, load_model, load_position_limit
from rlvr.registry.plugins import build_from_config
from rlvr.rollout.partial_rollouts import build_rollout
from rlvr.rollout.rollout_request import RolloutRequest
from rlvr.rollout.timing import RolloutTiming
from rlvr.samplers._sampling_support import make_sampling_support_mask
from rlvr.training import sampler_mismatch
from rlvr.training.distributed.group import all_gather_values
from rlvr.training.processes import run_on_main
from rlvr.training.run_inputs import RunInputs
from rlvr.training.task_sampling.offline_dataset import (
    OfflineDataset,
    build_gold_groups,
    compute_digest,
    load_recorded_groups,
)
from rlvr.training.task_sampling.task_order import TaskOrder
from rlvr.training.task_sampling.task_sampler import TaskSampler, build_task_sampler
from rlvr.training.update import lora_adapter as adapter
from rlvr.training.update import packing
from rlvr.training.update.fsdp import FolderWeightLoader, MainProcessWeightLoader, WeightLoader
from rlvr.training.update.learner import Learner, OptimizationSettings

MIN_DIFFERENT_REFERENCES = 8
"""Of so many tasks with different references some prompts differ, or the question does not reach the policy."""
MAX_CHECKED_PROMPTS = 10_000
"""The maximum number of prompts whose length is checked before a run."""


class EpisodeCollector(Protocol):
    """What a run asks of its rollout: `rlvr.Rollout` samples in this process, and a cluster puts another one in its place."""

    main_process_samples: bool
    """True if the main process samples for all training processes; otherwise each process samples its shard."""
    sync_turns: bool
    """Whether all conversations of a batch take their turns together."""
    timing: RolloutTiming
    """The times of the latest `collect`."""

    def collect(self, requests: Sequence[RolloutRequest], sampling: SamplingParams, *, version: int = 0) -> list[Episode]:
        """Return one episode for each request, in order."""
        ...

    def compute_timing_metrics(self, step_times: Mapping[str, float]) -> dict[str, float]:
        """Return the metrics of the time of one step."""
        ...

    def close(self) -> None:
        """Stop sampling, and release what it holds."""
        ...


@dataclass(frozen=True, slots=True)
class Components:
    """Everything that a run samples and trains with, checked and complete, before the first weight changes.

    >>> components = build_components(config, accelerator, stack)  # doctest: +SKIP
    """

    config: RunConfig
    accelerator: Accelerator
    environment: Environment
    tokenizer: Tokenizer
    mdp: TokenMDP
    model: Any
    algorithm: Any
    sampler: Sampler
    rollout: EpisodeCollector
    task_sampler: TaskSampler
    sampling: SamplingParams
    slow_sampling_reason: str = ""
    """Why sampling from this model is slow; empty where it is not."""
    check_results: Sequence[numerics_check.NumericsCheck] = ()
    """The results of the numerics checks."""
    offline_dataset: OfflineDataset | None = None
    """Recorded groups to train on instead of sampling, if any."""
    weight_loader: WeightLoader | None = None
    """Loads sharded weights; the model itself then has no weights yet."""

    @property
    def is_bitwise_repeatable(self) -> bool:
        """Whether repeating a step is bitwise identical. False if timing affects batch composition or truncation."""
        asked = self.config.rollout
        by_time = asked.episode_timeout_s is not None or (self.sampler.traits.eval_batch_size and not self.rollout.sync_turns)
        timed = self.mdp.is_interactive and by_time
        return requires_determinism(self.config, self.accelerator.device) and not timed

    @property
    def logprob_tolerance(self) -> float | None:
        """The allowed log-probability difference of sampler and trainer; None if they legitimately differ or were not compared."""
        rollout, model = self.config.rollout, self.config.model
        plain = not rollout.is_off_policy and self.config.data is None
        wide = (
            model.dtype == "float32"
            and get_trainer_precision(self.model, self.accelerator.mixed_precision, self.accelerator.device) == "float32"
        )
        exact = self.accelerator.device.type == "cpu" or torch.get_float32_matmul_precision() == "highest"
        compared = any(finding.name == sampler_mismatch.SAMPLER_CHECK_NAME for finding in self.check_results)
        return (
            numerics_check.compute_logprob_tolerance(self.check_results, rollout.temperature)
            if plain and wide and exact and compared
            else None
        )


class ComponentBuilder(Protocol):
    """A function that builds the components of a run, such as `build_components`; a cluster passes its own, whose rollouts run on
    rollout workers.
    """

    def __call__(self, inputs: RunInputs, accelerator: Accelerator, stack: ExitStack, *, checkpoint_folder: Path | None) -> Components:
        """Build the components; what must be closed goes on the stack."""
        ...


def build_components(
    inputs: RunInputs | RunConfig, accelerator: Accelerator, stack: ExitStack, *, checkpoint_folder: Path | None = None
) -> Components:
    """Build and check all components of a run; what must be closed goes on the stack.

    Args:
        inputs: the configuration, with the objects that replace what it names; the caller closes an environment object.
        accelerator: the accelerator of the run.
        stack: closes the components.
        checkpoint_folder: load the weights from this checkpoint instead of the initial model.
    """
    inputs = RunInputs(inputs) if isinstance(inputs, RunConfig) else inputs
    config = inputs.config
    set_seed(config.seed)
    tokenizer = inputs.tokenizer if inputs.tokenizer is not None else load_tokenizer(config.tokenizer_name)
    if config.model.path is not None and (inputs.tokenizer is not None or config.tokenizer):
        check_policy_tokenizer(config.model, tokenizer)
    environment: Environment = inputs.environment or stack.enter_context(build_from_config("env", config.env))
    if config.eval.tasks and config.eval.split not in environment.splits:
        raise ConfigError(
            f"eval.split is {config.eval.split!r}; {format_suggestion(config.eval.split, environment.splits)}. eval.tasks=0 measures nothing, and "
            f"eval.split={environment.splits[0]} measures on these tasks"
        )
    asked = config.rollout
    positions = load_position_limit(config.model) if inputs.model is None else numerics_check.get_position_limit(inputs.model.config)
    mdp = TokenMDP(environment, tokenizer, **asked.token_limits, position_limit=positions)
    schedule, curriculum = TaskOrder(environment, "train", seed=config.seed), asked.curriculum
    questions = build_task_sampler(config.rollout, schedule)
    algorithm = inputs.algorithm if inputs.algorithm is not None else build_algorithm(config)
    build_optimization_settings(config).check_and_configure_algorithm(
        algorithm, mdp.max_new_tokens, has_adapter=config.model.lora is not None, is_sharded=accelerator.is_fsdp2
    )
    _check_group_size(config, algorithm, environment)
    make_sampling_support_mask(config, algorithm)  # rejects top_p and top_k where the trainer could not follow them
    looks = (
        config.train.steps
        * config.rollout.prompts_per_step
        * algorithm.traits.sampling_rounds
        * (curriculum.candidates_per_task if curriculum else 1)
    )
    if inputs.batch_source is not None:  # how many tasks it takes in a step is its own affair
        looks = MAX_CHECKED_PROMPTS
    size = MAX_CHECKED_PROMPTS if schedule.num_tasks is None else min(schedule.num_tasks, MAX_CHECKED_PROMPTS)
    longest = compute_max_prompt_length(mdp, "train", map(schedule.get_index, range(min(looks, size))))
    if config.eval.tasks:
        held_out = count_available_tasks(environment, config.eval.split, config.eval.tasks)
        longest = max(longest, compute_max_prompt_length(mdp, config.eval.split, range(min(held_out, MAX_CHECKED_PROMPTS))))
    check_frozen_models(config, algorithm, mdp, longest)
    environment.prepare()
    sampler: Sampler = stack.enter_context(build_from_config("sampler", config.rollout.sampler))
    if inputs.model is None and config.model.path is not None and (config.model.local_folder / "adapter_config.json").is_file():
        raise ConfigError(
            f"model.path {config.model.path!r} has an adapter without a model; name a folder with the merged model (peft: merge_and_unload)"
        )
    model, fill = build_policy_model(config, accelerator, tokenizer, checkpoint_folder, model=inputs.model)
    rows = model.get_input_embeddings().num_embeddings
    text_ids = count_tokenizer_ids(tokenizer)
    if inputs.model is None and config.model.config is not None and rows > text_ids:
        # a new model samples the ids that mean nothing as often as the others; a pretrained one never does
        raise ConfigError(
            f"model.config.vocab_size makes {rows} ids, but the tokenizer has only {text_ids}, and an answer with one of the "
            "others cannot be read; leave vocab_size out"
        )
    check_model_vocabulary(tokenizer, rows)
    numerics_check.check_context_window(mdp, model.config, longest)
    if config.model.lora is not None:
        adapter.check_lora_config(model, config.model.lora)
        if accelerator.distributed_type is DistributedType.DEEPSPEED:
            raise ConfigError("model.lora is set, but under DeepSpeed weights cannot have an adapter; launch with fsdp2.yaml")
    precision = get_trainer_precision(model, accelerator.mixed_precision, accelerator.device)
    sampler.setup(environment, tokenizer, precision=precision, max_length=mdp.max_length)
    slow = "" if fill else sampler.check_model_support(model)  # a sampler that runs the model tests it when it gets the weights
    how: dict[str, Any] = {"precision": precision, "autocast": lambda: accelerator.autocast()}
    checks = sampler_mismatch.check_model_numerics(model, sampler, mdp, config, **how)
    sync_turns = choose_sync_turns(config, accelerator, mdp, sampler)
    rollout = stack.enter_context(build_rollout(mdp, sampler, sync_turns=sync_turns, **asked.rollout_kwargs))
    sampling = SamplingParams(asked.temperature, asked.top_p, asked.top_k, tokenizer.stop_ids)
    dataset = None
    if config.data is not None and config.data.run is not None:
        recorded = load_recorded_groups(config, mdp)
        dataset = OfflineDataset(algorithm.select_offline(recorded), seed=config.seed, digest=compute_digest(recorded))
    elif config.data is not None:
        algorithm.select_offline(list(build_gold_groups(schedule.load_tasks(0, 1), mdp)))
    return Components(
        config=config,
        accelerator=accelerator,
        environment=environment,
        tokenizer=tokenizer,
        mdp=mdp,
        model=model,
        algorithm=algorithm,
        sampler=sampler,
        rollout=rollout,
        task_sampler=questions,
        sampling=sampling,
        slow_sampling_reason=slow,
        check_results=checks,
        offline_dataset=dataset,
        weight_loader=fill,
    )


def build_algorithm(config: RunConfig) -> Any:
    """Build the algorithm; off-policy runs get its corrections where the user has set nothing else."""
    algorithm = build_from_config("algorithm", config.algorithm)
    if config.rollout.is_off_policy:
        algorithm = build_from_config("algorithm", {**algorithm.traits.off_policy_defaults, **config.algorithm})
    return algorithm


def build_policy_model(
    config: RunConfig, accelerator: Accelerator, tokenizer: Tokenizer, checkpoint_folder: Path | None, *, model: Any = None
) -> tuple[Any, WeightLoader | None]:
    """Build the model. If it will be sharded, it has no weights yet, and is returned with its weight loader.

    A model object is trained in place; to resume, it gets the weights of the checkpoint.
    """
    if model is not None:
        if accelerator.is_fsdp2:
            raise ConfigError("the model is an object, and sharded weights (FSDP2) are loaded from a folder; save it and give model=FOLDER")
        if checkpoint_folder is not None:
            model.load_state_dict(load_model(_source_of(config, checkpoint_folder), tokenizer, config.seed).state_dict())
        return model.to(accelerator.device), None
    source = _source_of(config, checkpoint_folder)
    if not accelerator.is_fsdp2:
        return load_model(source, tokenizer, config.seed).to(accelerator.device), None
    made = build_meta_model(source, tokenizer)
    return made, _build_weight_loader(made, source, accelerator, tokenizer, config.seed)


def _source_of(config: RunConfig, checkpoint_folder: Path | None) -> ModelConfig:
    return ModelConfig(path=str(checkpoint_folder), dtype=config.model.dtype) if checkpoint_folder else config.model


def _build_weight_loader(model: Any, source: ModelConfig, accelerator: Accelerator, tokenizer: Tokenizer, seed: int) -> WeightLoader:
    """Build the weight loader of a model without weights: from its folder, or from the main process if weights must be converted."""
    if source.path is not None and (rows := FolderWeightLoader.for_model(model, str(source.local_folder))):
        return rows
    held: list[Any] = []

    def load() -> Any:
        held.append(load_model(source, tokenizer, seed))
        return torch.get_rng_state()

    torch.set_rng_state(run_on_main(accelerator, load))  # as if loaded in this process
    return MainProcessWeightLoader(dict(held[0].state_dict()) if held else None)


def build_learner(components: Components, run_folder: Path, *, is_resumed: bool) -> tuple[Learner, Components, str]:
    """Build the learner from the current weights, and its frozen models.

    Without a path, the reference is a copy of the initial weights.

    Args:
        components: the components, with the weights that training starts from.
        run_folder: the run folder, which keeps the initial model where the reference needs it.
        is_resumed: the initial model is already in the run folder.

    Returns:
        The learner, the components with the model as it is trained (with its adapter, if any), and why its layers are not compiled.
    """
    config, algorithm, model, weight_loader = components.config, components.algorithm, components.model, components.weight_loader
    lora, frozen = config.model.lora, dict[str, tuple[Any, WeightLoader | None]]()
    home = run_folder / ("reference" if lora is None else "base")
    if kept := lora is not None or (algorithm.traits.needs_reference and "reference" not in config.frozen_models):
        initial, fill = _load_or_save_initial_model(components, home, is_resumed=is_resumed)
        if lora is not None:  # with the adapter off, the model is its own reference
            model, weight_loader = adapter.add_adapter(initial, lora), fill or weight_loader
        else:
            frozen["reference"] = copy.deepcopy(initial) if initial is model else initial, fill
    for name, source in config.frozen_models.items():
        frozen[name] = build_policy_model(config, components.accelerator, components.tokenizer, source.local_folder)
    supervised = algorithm.traits.is_supervised or config.data is not None  # stored answers were not sampled at this run's temperature
    learner = Learner(
        model,
        algorithm,
        build_optimization_settings(config),
        accelerator=components.accelerator,
        total_steps=config.train.steps,
        temperature=1.0 if supervised else config.rollout.temperature,
        has_sampling_temperature=not supervised or config.rollout.temperature == 1.0,
        frozen_models={name: other.eval().requires_grad_(False) for name, (other, _) in frozen.items()},
        weight_loader=weight_loader,
        frozen_weight_loaders={name: load for name, (_, load) in frozen.items()},
        seed=config.seed,
        max_new_tokens=components.mdp.max_new_tokens,
        fp32_head=config.model.fp32_head,
    )
    checks = components.check_results
    if learner.is_sharded:
        checks = [*sampler_mismatch.check_sharded_model_numerics(learner, max_length=components.mdp.max_length), *checks]
    if weight_loader is not None and kept and not is_resumed:
        learner.weights.save(home)
    not_compiled_reason = try_compile_policy(learner) if config.model.compile is not None else ""
    if (support := make_sampling_support_mask(config, algorithm)) is not None:
        components.accelerator.unwrap_model(learner.policy).make_logit_filter = support.make_policy_mask
        for other in learner.frozen_models.values():
            other.policy.make_logit_filter = support.make_reference_mask
    return learner, replace(components, model=model, weight_loader=weight_loader, check_results=checks), not_compiled_reason


def try_compile_policy(learner: Learner) -> str:
    """Compile the layers of a learner's model; return why they are not compiled, or ''. All processes compile them, or none."""
    policy = learner.accelerator.unwrap_model(learner.policy)
    rows = TokenRows([[1, 2, 3, 4], [1, 2, 4]], [[False, False, True, True], [False, False, True]])  # one prompt, so they are packed
    parts, lay = packing.plan_batches(rows, range(2), learner.max_tokens_per_microbatch, learner.packing)

    def score() -> torch.Tensor:
        policy.uses_compiled_layers = True  # what is not compiled yet is not affected
        with learner.accelerator.autocast():
            return policy(lay(parts[0], learner.device)).logprobs

    found = try_compile_layers(policy.model, score, learner.accelerator.mixed_precision)
    reason = next(filter(None, all_gather_values(found)), "")
    policy.uses_compiled_layers = not reason
    return reason


def _load_or_save_initial_model(components: Components, reference_folder: Path, *, is_resumed: bool) -> tuple[Any, WeightLoader | None]:
    """Return the initial model: loaded from the run folder if resumed, otherwise the current one, which is saved there.

    A sharded model has no weights here; in a new run it is saved after its weights are loaded.
    """
    if components.weight_loader is not None:
        source = ModelConfig(path=str(reference_folder), dtype=components.config.model.dtype)
        fill = (
            _build_weight_loader(components.model, source, components.accelerator, components.tokenizer, components.config.seed)
            if is_resumed
            else None
        )
        return components.model, fill
    if is_resumed:
        with MODEL_LOAD_LOCK:
            return AutoModelForCausalLM.from_pretrained(
                reference_folder, dtype=components.model.dtype, trust_remote_code=components.config.model.trust_remote_code
            ).to(components.accelerator.device), None

    def written() -> None:
        components.model.save_pretrained(reference_folder)

    run_on_main(components.accelerator, written)
    return components.model, None


def build_optimization_settings(config: RunConfig) -> OptimizationSettings:
    """Build the learner's settings from the configuration."""
    names = {field.name for field in fields(OptimizationSettings)}
    return OptimizationSettings(**{name: getattr(config.train, name) for name in type(config.train).model_fields if name in names})


def choose_sync_turns(config: RunConfig, accelerator: Accelerator, mdp: TokenMDP, sampler: Sampler) -> bool | None:
    """Return whether conversations wait for each other; None leaves it to the rollout. `auto` is True for deterministic runs with sessions."""
    if (
        config.rollout.sync_turns == "auto"
        and mdp.has_sessions
        and sampler.traits.eval_batch_size
        and requires_determinism(config, accelerator.device)
    ):
        return True
    return None if config.rollout.sync_turns == "auto" else config.rollout.sync_turns


def _check_group_size(config: RunConfig, algorithm: Algorithm, environment: Environment) -> None:
    """Check that the algorithm has enough completions per prompt, and several turns if it requires them."""
    name = config.algorithm["name"]
    if config.data is None and algorithm.traits.requires_group and config.rollout.num_generations < 2:
        raise ConfigError(
            f"rollout.num_generations is 1, but {name} compares an answer with others to the same prompt; set it to 2 "
            "or more, or use an algorithm that needs only one (ppo, reinforce_baseline, reinforce_pp, remax)"
        )
    if algorithm.traits.requires_multi_turn and environment.max_turns == 1:
        own = config.algorithm.get("advantage")
        who, remedy = (f"the advantage {own}", "leave out its trait multi_turn") if own else (name, "use grpo")
        raise ConfigError(
            f"{who} compares turns that begin from the same state, but in {config.env['name']} the policy has one turn, so the same "
            f"answers would be compared twice; {remedy}, or take an environment with max_turns above 1"
        )


def compute_max_prompt_length(mdp: TokenMDP, split: str, indices: Iterable[int]) -> int:
    """Return the length of the longest prompt; raise ConfigError if that leaves no room to answer.

    Also raises ConfigError if tasks with different references all have the same prompt.
    """
    longest, prompts, references = 0, set[tuple[int, ...]](), set[str]()
    for index in indices:
        task = mdp.environment.task(split, index)
        try:
            state = mdp.preview_prompt(task)
        except EnvError as error:
            raise ConfigError(f"rollout.max_length: {error}") from error
        longest = max(longest, len(state.tokens))
        if len(prompts) < 2 and len(references) < MIN_DIFFERENT_REFERENCES:
            prompts.add(tuple(state.tokens))
            references.add(str(task.reference))
    one_turn = mdp.environment.max_turns == 1 and not mdp.has_sessions and mdp.environment.verifier.needs_reference
    if one_turn and len(prompts) == 1 and len(references) == MIN_DIFFERENT_REFERENCES:
        raise ConfigError(
            f"the first {len(references)} tasks of split {split!r} have different references and the same prompt, "
            f"{mdp.tokenizer.decode([*prompts.pop()])[-200:]!r}: the question is missing; see `rlvr play` and the column of the question"
        )
    if longest + 1 > mdp.max_length:
        raise ConfigError(
            f"the longest prompt of split {split!r} is {longest} tokens; rollout.max_length {mdp.max_length} leaves no room to answer"
        )
    return longest
