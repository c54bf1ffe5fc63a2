"""Train a reward model on the pairs of an earlier run.

    train_reward_model(config)
        begin            the run's pairs, some tasks held out; a new model, or the newest whole checkpoint
        for each step    pairs -> one optimizer step -> logs -> checkpoint
        end              how many held-out pairs are ranked right, and how the scores go with the verifier's

The run folder is that of any run; `checkpoints/last` is what the verifier `learned` loads.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import transformers
from rich.console import Console

from rlvr.algos.parts.preferences import paired, pairs
from rlvr.config.config import ModelConfig, RewardModelConfig, RunConfig
from rlvr.contracts import Environment
from rlvr.episode import Episode
from rlvr.errors import ConfigError
from rlvr.learn import checkpoint
from rlvr.learn.checkpoint import Progress
from rlvr.learn.crew import optimization
from rlvr.learn.notes import lost_to_rounding
from rlvr.learn.processes import accelerator_from
from rlvr.learn.questions.schedule import place_in
from rlvr.learn.questions.stored import Group, digest, stored_groups, unchanged
from rlvr.learn.update.scorer import ScorerTrainer
from rlvr.mdp.rules import TokenMDP
from rlvr.mdp.tokenizers import tokenizer_from
from rlvr.model.deterministic import ready
from rlvr.model.device import device_from
from rlvr.model.scorer import scorer_from
from rlvr.model.weights import exported
from rlvr.plugins.registry import from_config
from rlvr.rollout.rollout import seed_of
from rlvr.runs import report
from rlvr.runs.progress import Work
from rlvr.runs.runlog import RunLog, alone_in, rows_of, unbegun

Pair = tuple[list[int], list[int], float]
"""The tokens of the better answer, those of the worse one, and by how much their scores differ."""


@dataclass(frozen=True, slots=True)
class RewardReport:
    """The result of training a reward model: the last line that `rlvr train --json` prints.

    >>> RewardReport("runs/rm", steps=1, seconds=2.0, held_out_pairs=50, accuracy=0.94, correlation=0.8).status
    'finished'
    """

    run: str
    steps: int
    seconds: float
    """Since the start; for a resumed run, the sum over all its processes."""
    held_out_pairs: int
    accuracy: float | None
    """The fraction of held-out pairs that it ranks like the verifier."""
    correlation: float | None
    """The correlation of its scores with the verifier's, over all answers to held-out tasks."""
    status: str = "finished"

    def record(self) -> dict[str, Any]:
        """Return the report as plain JSON."""
        return asdict(self)


@dataclass(slots=True)
class Material:
    """The training pairs, and the held-out data.

    >>> Material([([1, 2], [1, 3], 1.0)], [], []).held_out
    []
    """

    pairs: list[Pair]
    held_out: list[Pair]
    answers: list[tuple[list[int], float]]
    """All answers to held-out tasks, with the verifier's scores."""


def train_reward_model(
    config: RunConfig, *, out: Path | None = None, resume: bool = False, verify: bool = False, console: Console | None = None
) -> RewardReport:
    """Train a reward model as configured, and write a run folder."""
    transformers.utils.logging.disable_progress_bar()
    screen, began, settings = console or Console(stderr=True), time.monotonic(), config.reward_model
    assert settings is not None
    check_settings(config)
    if verify:
        raise ConfigError("--verify repeats a step of sampling; a reward model does not sample: resume without --verify")
    if resume and out is None:
        raise ConfigError("--resume needs --out: the folder of the run to continue")
    folder = out or Path("runs") / f"reward-model-{datetime.now():%Y%m%d-%H%M%S}"
    ready(config, device_from())
    accelerator = accelerator_from(config, folder)
    if accelerator.num_processes > 1:
        raise ConfigError(f"a reward model is trained by one process, and {accelerator.num_processes} were started; start one")
    tokenizer = tokenizer_from(config.tokenizer_name)
    with ExitStack() as stack:
        environment: Environment = stack.enter_context(from_config("env", config.env))
        mdp = TokenMDP(environment, tokenizer, **config.rollout.limits)
        groups = stored_groups(config, mdp)
        material, data = material_of(groups, config, settings, mdp), digest(groups)
        place = checkpoint.newest(folder) if resume and checkpoint.any_in(folder) else None
        run = RunLog.reopen(folder, config) if resume and not unbegun(folder) else RunLog.create(folder, config)
        stack.callback(run.close)
        stack.enter_context(alone_in(folder))
        model = scorer_from(ModelConfig(path=str(place), dtype=config.model.dtype) if place else config.model, tokenizer, config.seed)
        trainer = ScorerTrainer(
            model, optimization(config), total_steps=config.train.steps, device=accelerator.device,
            centering=settings.center_rewards_coefficient,
        )  # fmt: skip
        done = Progress(0)
        if place:
            checkpoint.clean(folder)
            state, done = checkpoint.read(place)
            unchanged(state.get("data"), data, config)
            began -= done.facts.get("seconds", 0.0)  # includes the earlier processes of the run
            trainer.load_state_dict(state)
        run.rewind(done.offsets)
        told = f"{len(material.pairs):,} pairs of {config.data and config.data.run}, {len(material.held_out):,} held out"
        screen.print(f"reward model: {told}\nrun folder {folder}", highlight=False, soft_wrap=True)
        if careful := lost_to_rounding(config):
            screen.print(f"note: {careful}", highlight=False, markup=False, soft_wrap=True)
        with Work(screen, "training", config.train.steps, done.step) as work:
            for step in range(done.step, config.train.steps):
                row = one_step(trainer, material, config, step)
                seconds = round(time.monotonic() - began, 3)
                run.metrics(row, {"step": step + 1, "seconds": seconds})
                if step + 1 == config.train.steps or (step + 1) % config.log.save_every == 0:
                    state = {**trainer.state_dict(), "data": data}
                    checkpoint.save(folder, model, exported(tokenizer), state, Progress(step + 1, run.offsets(), {"seconds": seconds}))
                work.advance({"loss": row["loss"], "accuracy": row["accuracy"]})
        return end(trainer, material, run, config, screen, began)


def check_settings(config: RunConfig) -> None:
    """Raise ConfigError for settings that have no effect on a reward model."""
    for name, usual, reason in (
        ("mixed_precision", "auto", "it trains in the precision of its weights, model.dtype"),
        ("gradient_checkpointing", False, "its memory is bounded by train.max_tokens_per_microbatch"),
        ("minibatches_per_step", 1, "each of its steps is one update on rollout.prompts_per_step pairs"),
    ):
        if (value := getattr(config.train, name)) not in (usual, "no"):
            raise ConfigError(f"train.{name} is {value}, which has no effect on a reward model: {reason}; set it to {usual}")
    for name, given in (
        ("warmstart", config.warmstart is not None),
        ("algorithm", config.algorithm != {"name": "grpo"}),
        ("log.report_to", bool(config.log.report_to)),
    ):
        if given:
            raise ConfigError(f"{name} is set, which has no effect on a reward model; remove it")


def material_of(groups: Sequence[Group], config: RunConfig, settings: RewardModelConfig, mdp: TokenMDP) -> Material:
    """Build pairs by the verifier's scores; whether a task is held out depends only on its id and the seed."""
    assert config.data is not None
    talks = sum(e.turns != 1 for group in groups for e in group)
    if talks:
        raise ConfigError(f"{talks} of the episodes have several turns; a reward model reads one prompt and one answer")
    paired(groups, 1)  # raises first if there is no pair at all
    share = config.data.held_out
    apart = [seed_of(config.seed, "held out", group[0].task_id) % 10_000 < share * 10_000 for group in groups]

    def rows(e: Episode) -> list[int]:
        return e.tokens if e.tokens[-1] in mdp.tokenizer.stop_ids else [*e.tokens, mdp.tokenizer.eos_id]

    def of(wanted: bool) -> list[Pair]:
        chosen = [group for group, held in zip(groups, apart, strict=True) if held is wanted]
        picked = [(group, p) for group in chosen for p in pairs([e.reward for e in group], settings.pairs_per_group)]
        return [(rows(g[a]), rows(g[b]), (g[a].reward - g[b].reward) * settings.margin) for g, (a, b) in picked]

    answers = [(rows(e), e.reward) for group, held in zip(groups, apart, strict=True) if held for e in group]
    if not (training := of(False)):
        raise ConfigError(f"all pairs belong to held-out tasks; lower data.held_out, which is {share}")
    return Material(training, of(True), answers)


def one_step(trainer: ScorerTrainer, material: Material, config: RunConfig, step: int) -> dict[str, Any]:
    """Train on one step's pairs (each pair once before any is repeated); return the metrics."""
    count, size = config.rollout.prompts_per_step, len(material.pairs)
    batch = [material.pairs[place_in(size, config.seed, "pairs", p)] for p in range(step * count, (step + 1) * count)]
    row: dict[str, Any] = {"step": step + 1, **trainer.update(batch)}
    every = config.eval.every
    return row | (measured(trainer, material) if every and (step + 1) % every == 0 else {})


def measured(trainer: ScorerTrainer, material: Material) -> dict[str, float | None]:
    """Evaluate on held-out tasks: the fraction of pairs ranked right, and the correlation with the verifier's scores."""
    flat = trainer.scores([row for a, b, _ in material.held_out for row in (a, b)])
    right = [a > b for a, b in zip(flat[::2], flat[1::2], strict=True)]
    scores, truth = trainer.scores([row for row, _ in material.answers]), [score for _, score in material.answers]
    varied = len(set(truth)) > 1 and len(set(scores)) > 1
    return {
        "eval/accuracy": sum(right) / len(right) if right else None,
        "eval/correlation": statistics.correlation(scores, truth) if varied else None,
    }


def end(trainer: ScorerTrainer, material: Material, run: RunLog, config: RunConfig, screen: Console, began: float) -> RewardReport:
    """Evaluate the reward model, print the results, and write the report."""
    found = measured(trainer, material)
    ended = RewardReport(
        str(run.folder), config.train.steps, round(time.monotonic() - began, 2), len(material.held_out),
        found["eval/accuracy"], found["eval/correlation"],
    )  # fmt: skip
    run.write_json("report.json", ended.record())
    curve = [row["accuracy"] for row in rows_of(run.folder / "metrics.jsonl")]
    screen.print(report.curve(curve, "pairs ranked right"), highlight=False)
    right, goes = ("not measured" if v is None else f"{v:.2f}" for v in (ended.accuracy, ended.correlation))
    screen.print(
        f"held-out pairs ranked right: {right} of {ended.held_out_pairs}; correlation with the verifier: {goes}; {ended.seconds:.0f} s\n"
        f"use it: verifier={{name: learned, models: [{run.folder}/checkpoints/last]}}",
        highlight=False,
        soft_wrap=True,
        markup=False,
    )
    return ended
