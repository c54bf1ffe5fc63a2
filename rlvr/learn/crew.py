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
from rlvr.evaluation.evaluate import count_of
from rlvr.learn import agreement, checkpoint
from rlvr.learn.checkpoint import Progress
from rlvr.learn.processes import by_main
from rlvr.learn.questions.questions import Questions, questions_for
from rlvr.learn.questions.schedule import Schedule
from rlvr.learn.questions.stored import Stored, digest, gold_groups, stored_groups, unchanged
from rlvr.learn.update import adapter, packing
from rlvr.learn.update.learner import Learner, Optimization
from rlvr.learn.update.sharded import Fill, FromFolder, FromMain
from rlvr.mdp.rules import TokenMDP
from rlvr.mdp.tokenizers import tokenizer_from
from rlvr.model import honesty
from rlvr.model.batch import Rows
from rlvr.model.compiled import compile_layers
from rlvr.model.deterministic import is_deterministic
from rlvr.model.device import trained_in
from rlvr.model.teacher import check_teacher
from rlvr.model.weights import LOADING, blank_from, model_from
from rlvr.plugins.registry import from_config
from rlvr.rollout.parts import rollout_of
from rlvr.rollout.rollout import Rollout
from rlvr.samplers._support import support_for

PROMPTS_LOOKED_AT = 10_000
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
class Crew:
    """The components of one run.

    >>> crew = assemble(config, accelerator, stack)                    # doctest: +SKIP
    """

    config: RunConfig
    environment: Environment
    tokenizer: Tokenizer
    mdp: TokenMDP
    model: Any
    algorithm: Any
    sampler: Sampler
    rollout: Rollout
    questions: Questions
    accelerator: Accelerator
    sampling: Sampling
    slow: str
    """Why sampling from this model is slow; empty where it is not."""
    checks: Sequence[honesty.Finding] = ()
    """The results of the numerics checks."""
    uncompiled: str = ""  # why layers are not compiled although requested
    stored: Stored | None = None
    """Offline data to train on instead of sampling, if any."""
    fill: Fill | None = None
    """Loads sharded weights; the model itself then has no weights yet."""
    learner: Learner = field(init=False)
    """Set by `setup_learner`, when the initial weights are known."""
    writer: checkpoint.Writer = field(default_factory=lambda: checkpoint.Writer(60.0))
    """Writes the checkpoints; the loop closes its own at the end."""
    saved: dict[str, Stateful] = field(default_factory=dict)
    """Further states in a checkpoint, by name. They are collected first, which waits for running sampling."""

    @property
    def exact(self) -> bool:
        """Whether repeating a step is bitwise identical. False if timing affects batch composition or truncation."""
        asked = self.config.rollout
        by_time = asked.episode_s is not None or asked.overlong == "cut" or (self.sampler.company and not self.rollout.lockstep)
        timed = self.mdp.takes_part and by_time
        return is_deterministic(self.config, self.accelerator.device) and not timed

    @property
    def limit(self) -> float | None:
        """The allowed log-probability difference of sampler and trainer; None if they legitimately differ or were not compared."""
        rollout, model = self.config.rollout, self.config.model
        plain = not rollout.stale and self.config.data is None
        wide = model.dtype == "float32" and trained_in(self.model, self.accelerator.mixed_precision, self.accelerator.device) == "float32"
        exact = self.accelerator.device.type == "cpu" or torch.get_float32_matmul_precision() == "highest"
        compared = any(finding.way == agreement.SAMPLER for finding in self.checks)
        return honesty.run_limit(self.checks, rollout.temperature) if plain and wide and exact and compared else None

    def hand_over(self, version: int) -> None:
        """Send the current weights to the sampler. A collective operation."""
        self.sampler.receive(self.learner.weights, version)


def assemble(config: RunConfig, accelerator: Accelerator, stack: ExitStack, *, weights: Path | None = None) -> Crew:
    """Build and check all components before the run begins. `weights` is a checkpoint folder."""
    set_seed(config.seed)
    tokenizer = tokenizer_from(config.tokenizer_name)
    environment: Environment = stack.enter_context(from_config("env", config.env))
    if config.eval.tasks and config.eval.split not in environment.splits:
        raise ConfigError(
            f"eval.split is {config.eval.split!r}; {suggest(config.eval.split, environment.splits)}. eval.tasks=0 measures nothing"
        )
    asked = config.rollout
    mdp = TokenMDP(environment, tokenizer, **asked.limits)
    schedule, curriculum = Schedule(environment, "train", seed=config.seed), asked.curriculum
    questions = questions_for(config.rollout, schedule)
    algorithm = from_config("algorithm", config.algorithm)
    if config.rollout.stale:  # settings written by the user take precedence
        algorithm = from_config("algorithm", {**algorithm.when_stale, **config.algorithm})
    optimization(config).check(algorithm, mdp.max_new_tokens, adapted=config.model.lora is not None, sharded=accelerator.is_fsdp2)
    check_company(config, algorithm, environment)
    support_for(config, algorithm)  # rejects top_p and top_k where the trainer could not follow them
    looks = config.train.steps * config.rollout.prompts_per_step * algorithm.sampling_rounds * (curriculum.candidates if curriculum else 1)
    size = PROMPTS_LOOKED_AT if schedule.size is None else min(schedule.size, PROMPTS_LOOKED_AT)
    longest = check_prompts(mdp, "train", map(schedule.index, range(min(looks, size))))
    if config.eval.tasks:
        held_out = count_of(environment, config.eval.split, config.eval.tasks)
        longest = max(longest, check_prompts(mdp, config.eval.split, range(min(held_out, PROMPTS_LOOKED_AT))))
    check_teacher(config, algorithm, mdp, longest)
    environment.ready()
    sampler: Sampler = stack.enter_context(from_config("sampler", config.rollout.sampler))
    if config.model.path is not None and (config.model.folder / "adapter_config.json").is_file():
        raise ConfigError(
            f"model.path {config.model.path!r} has an adapter without a model; name a folder with the merged model (peft: merge_and_unload)"
        )
    model, fill = policy_from(config, accelerator, tokenizer, weights)
    rows = model.get_input_embeddings().num_embeddings
    if rows < tokenizer.vocab_size:
        raise ConfigError(f"the tokenizer has {tokenizer.vocab_size} ids, but the model has only {rows}; use the model's own tokenizer")
    honesty.check_window(mdp, model.config, longest)
    if config.model.lora is not None:
        adapter.check(model, config.model.lora)
        if accelerator.distributed_type is DistributedType.DEEPSPEED:
            raise ConfigError("model.lora is set, but under DeepSpeed weights cannot have an adapter; launch with fsdp2.yaml")
    sampler.bind(environment, tokenizer)
    precision = trained_in(model, accelerator.mixed_precision, accelerator.device)
    sampler.prepare(precision=precision, max_length=mdp.max_length)
    slow = "" if fill else sampler.suits(model)  # a sampler that runs the model tests it when it gets the weights
    how: dict[str, Any] = {"precision": precision, "autocast": lambda: accelerator.autocast()}
    checks = agreement.trusted(model, sampler, mdp, config, **how)
    lockstep = in_lockstep(config, accelerator, mdp, sampler)
    rollout = stack.enter_context(rollout_of(mdp, sampler, lockstep=lockstep, **asked.collecting))
    sampling = Sampling(asked.temperature, asked.top_p, asked.top_k, tokenizer.stop_ids)
    crew = Crew(
        config, environment, tokenizer, mdp, model, algorithm, sampler, rollout, questions, accelerator, sampling, slow, checks, fill=fill
    )  # fmt: skip
    if config.data is not None and config.data.run is not None:
        recorded = stored_groups(config, mdp)
        crew.stored = Stored(algorithm.learnable(recorded), seed=config.seed, digest=digest(recorded))
    elif config.data is not None:
        algorithm.learnable(list(gold_groups(schedule.tasks(0, 1), mdp)))
    return crew


def policy_from(config: RunConfig, accelerator: Accelerator, tokenizer: Tokenizer, weights: Path | None) -> tuple[Any, Fill | None]:
    """Build the model. If it will be sharded, it has no weights yet, and is returned with its weight loader."""
    source = ModelConfig(path=str(weights), dtype=config.model.dtype) if weights else config.model
    if not accelerator.is_fsdp2:
        return model_from(source, tokenizer, config.seed).to(accelerator.device), None
    model = blank_from(source, tokenizer)
    return model, filling(model, source, accelerator, tokenizer, config.seed)


def filling(model: Any, source: ModelConfig, accelerator: Accelerator, tokenizer: Tokenizer, seed: int) -> Fill:
    """Build the weight loader of a model without weights: from its folder, or from the main process if weights must be converted."""
    if source.path is not None and (rows := FromFolder.of(model, str(source.folder))):
        return rows
    held: list[Any] = []

    def load() -> Any:
        held.append(model_from(source, tokenizer, seed))
        return torch.get_rng_state()

    torch.set_rng_state(by_main(accelerator, load))  # as if loaded in this process
    return FromMain(dict(held[0].state_dict()) if held else None)


def enlist(crew: Crew, folder: Path, *, resumed: bool) -> Learner:
    """Build the learner from the current weights; the reference, if needed, is a frozen copy of them."""
    lora, reference, fill_reference = crew.config.model.lora, None, None
    home = folder / ("reference" if lora is None else "base")
    other = crew.config.reference
    if kept := lora is not None or (crew.algorithm.needs_reference and other is None):
        reference, fill_reference = frozen(crew, home, resumed=resumed)
    if lora is not None:  # with the adapter off, the model is its own reference
        crew.model, crew.fill = adapter.put_on(reference, lora), fill_reference or crew.fill
        reference = fill_reference = None
    elif reference is not None:
        reference = copy.deepcopy(reference) if reference is crew.model else reference
    if other is not None:
        reference, fill_reference = policy_from(crew.config, crew.accelerator, crew.tokenizer, other.folder)
    supervised = crew.algorithm.supervised or crew.config.data is not None  # stored answers were not sampled at this run's temperature
    crew.learner = Learner(
        crew.model,
        crew.algorithm,
        optimization(crew.config),
        accelerator=crew.accelerator,
        total_steps=crew.config.train.steps,
        temperature=1.0 if supervised else crew.config.rollout.temperature,
        sampled_alike=not supervised or crew.config.rollout.temperature == 1.0,
        reference=None if reference is None else reference.eval().requires_grad_(False),
        fill=crew.fill,
        fill_reference=fill_reference,
        seed=crew.config.seed,
        max_completion_length=crew.mdp.max_new_tokens,
        fp32_head=crew.config.model.fp32_head,
    )
    if crew.learner.sharded:
        crew.checks = [*agreement.trusted_shards(crew.learner, longest=crew.mdp.max_length), *crew.checks]
    if crew.fill is not None and kept and not resumed:
        crew.learner.weights.save(home)
    crew.uncompiled = compiled(crew.learner) if crew.config.model.compile is not None else ""
    if (support := support_for(crew.config, crew.algorithm)) is not None:
        crew.accelerator.unwrap_model(crew.learner.policy).narrow = support.of_policy
        if crew.learner.reference is not None:
            crew.learner.reference.policy.narrow = support.of_reference
    return crew.learner


def compiled(learner: Learner) -> str:
    """Compile the layers of a learner's model; return why they are not compiled, or ''."""
    if learner.sharded:
        return "the weights are sharded"
    policy = learner.accelerator.unwrap_model(learner.policy)
    rows = Rows([[1, 2, 3, 4], [1, 2, 4]], [[False, False, True, True], [False, False, True]])  # one prompt, so they are packed
    parts, lay = packing.arranged(rows, range(2), learner.budget, learner.packing)

    def score() -> torch.Tensor:
        policy.compiled = True  # what is not compiled yet is not affected
        with learner.accelerator.autocast():
            return policy(lay(parts[0], learner.device)).logprobs

    reason = compile_layers(policy.model, score, learner.accelerator.mixed_precision)
    policy.compiled = not reason
    return reason


def frozen(crew: Crew, home: Path, *, resumed: bool) -> tuple[Any, Fill | None]:
    """Return the initial model: loaded from the run folder if resumed, otherwise the current one, which is saved there.

    A sharded model has no weights here; in a new run it is saved after its weights are loaded.
    """
    if crew.fill is not None:
        source = ModelConfig(path=str(home), dtype=crew.config.model.dtype)
        fill = filling(crew.model, source, crew.accelerator, crew.tokenizer, crew.config.seed) if resumed else None
        return crew.model, fill
    if resumed:
        with LOADING:
            return AutoModelForCausalLM.from_pretrained(home, dtype=crew.model.dtype).to(crew.accelerator.device), None

    def written() -> None:
        crew.model.save_pretrained(home)

    by_main(crew.accelerator, written)
    return crew.model, None


def taken_back(crew: Crew, folder: Path, place: Path) -> Progress:
    """Restore all components from a checkpoint; the trainer must have been built with its weights."""
    learner = enlist(crew, folder, resumed=True)
    state, progress = checkpoint.read(place)
    if crew.stored is not None:
        unchanged(state.get("data"), crew.stored.digest, crew.config)
    with checkpoint.understood(place):
        adapter.load(crew.model, state.get("adapter"))
        learner.load_state_dict(state["learner"], place)
        crew.questions.load_state_dict(state["questions"])
        for name, member in crew.saved.items():
            member.load_state_dict(state[name])
    crew.hand_over(progress.step)
    return progress


def state_of(crew: Crew) -> dict[str, Any]:
    """Collect the state of every component for the checkpoint, without the weights."""
    saved = {name: member.state_dict() for name, member in crew.saved.items()}
    members = {"learner": crew.learner.state_dict(), "questions": crew.questions.state_dict()}
    return {**saved, **members, "adapter": adapter.weights(crew.model), "data": crew.stored and crew.stored.digest}


def optimization(config: RunConfig) -> Optimization:
    """Build the learner's settings from the configuration."""
    settings = config.train.model_dump()
    for key in ("steps", "mixed_precision", "deterministic", "process_timeout_s"):
        del settings[key]
    settings["critic"] = config.train.critic  # `model_dump` has made a dict of it
    return Optimization(**settings)


def in_lockstep(config: RunConfig, accelerator: Accelerator, mdp: TokenMDP, sampler: Sampler) -> bool | None:
    """Return whether conversations wait for each other. If unset, True for deterministic runs, which must be repeatable."""
    if config.rollout.lockstep is None and mdp.worlds and sampler.company and is_deterministic(config, accelerator.device):
        return True
    return config.rollout.lockstep


def check_company(config: RunConfig, algorithm: Algorithm, environment: Environment) -> None:
    """Check that the algorithm has enough completions per prompt, and several turns if it requires them."""
    name = config.algorithm["name"]
    if config.data is None and algorithm.needs_company and config.rollout.num_generations < 2:
        raise ConfigError(
            f"rollout.num_generations is 1, but {name} compares an answer with others to the same prompt; set it to 2 "
            "or more, or use an algorithm that needs only one (ppo, reinforce_baseline, reinforce_pp, remax)"
        )
    if algorithm.needs_turns and environment.max_turns == 1:
        raise ConfigError(
            f"{name} compares turns that begin from the same state, but in {config.env['name']} the policy has one turn, so the same "
            "answers would be compared twice; use grpo, or an environment with max_turns above 1"
        )


def check_prompts(mdp: TokenMDP, split: str, indices: Iterable[int]) -> int:
    """Return the length of the longest prompt; raise ConfigError if one does not fit, before the run begins."""
    longest = 0
    for index in indices:
        task = mdp.environment.task(split, index)
        try:
            state = mdp.preview(task)
        except EnvError as error:
            raise ConfigError(f"rollout.max_length: {error}") from error
        longest = max(longest, len(state.tokens))
    if longest + 1 > mdp.max_length:
        raise ConfigError(
            f"the longest prompt of split {split!r} is {longest} tokens; rollout.max_length {mdp.max_length} leaves no room to answer"
        )
    return longest
