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

from rlvr.algorithms.functions.preferences import pair_best_with_worst, select_paired_answers
from rlvr.config.config import ModelConfig, RewardModelConfig, RunConfig
from rlvr.contracts import Environment
from rlvr.episode import Episode
from rlvr.errors import ConfigError
from rlvr.mdp.token_mdp import TokenMDP
from rlvr.mdp.tokenizers import load_tokenizer
from rlvr.models.determinism import configure_device
from rlvr.models.device import resolve_device
from rlvr.models.model_loading import to_transformers_tokenizer
from rlvr.models.reward_model import build_reward_model
from rlvr.registry.plugins import build_from_config
from rlvr.rollout.rollout import derive_seed
from rlvr.runs import report
from rlvr.runs.plugin_record import record_plugins, warn_about_plugin_changes
from rlvr.runs.progress import ProgressReporter
from rlvr.runs.run_log import RunLog, is_empty_run, lock_run_folder, read_metrics
from rlvr.runs.tables import EscapingConsole
from rlvr.training import checkpoint
from rlvr.training.checkpoint import Progress
from rlvr.training.components import build_optimization_settings
from rlvr.training.processes import build_accelerator
from rlvr.training.step_notes import explain_rounding_risk
from rlvr.training.task_sampling.offline_dataset import Group, check_episodes_unchanged, compute_digest, load_recorded_groups
from rlvr.training.task_sampling.task_order import compute_shuffled_index
from rlvr.training.update.reward_model_trainer import RewardModelTrainer

Pair = tuple[list[int], list[int], float]
"""The tokens of the better answer, those of the worse one, and by how much their scores differ."""


@dataclass(frozen=True, slots=True)
class RewardModelReport:
    """The result of training a reward model: the last line that `rlvr train --json` prints.

    >>> RewardModelReport("runs/rm", steps=1, seconds=2.0, held_out_pairs=50, accuracy=0.94, correlation=0.8).status
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

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain JSON."""
        return asdict(self)


@dataclass(slots=True)
class RewardModelData:
    """The training pairs, and the held-out data.

    >>> RewardModelData([([1, 2], [1, 3], 1.0)], [], []).held_out_pairs
    []
    """

    pairs: list[Pair]
    held_out_pairs: list[Pair]
    held_out_completions: list[tuple[list[int], float]]
    """All answers to held-out tasks, with the verifier's scores."""


def train_reward_model(
    config: RunConfig, *, out: Path | None = None, resume: bool = False, console: Console | None = None
) -> RewardModelReport:
    """Train a reward model as configured, and write a run folder."""
    transformers.utils.logging.disable_progress_bar()
    screen, began, settings = console or EscapingConsole(stderr=True), time.monotonic(), config.reward_model_training
    assert settings is not None
    _reject_settings_without_effect(config)
    if resume and out is None:
        raise ConfigError("--resume needs --out: the folder of the run to continue")
    folder = out or Path("runs") / f"reward-model-{datetime.now():%Y%m%d-%H%M%S}"
    configure_device(config, resolve_device())
    accelerator = build_accelerator(config, folder)
    if accelerator.num_processes > 1:
        raise ConfigError(f"a reward model is trained by one process, and {accelerator.num_processes} were started; start one")
    tokenizer = load_tokenizer(config.tokenizer_name)
    with ExitStack() as stack:
        environment: Environment = stack.enter_context(build_from_config("env", config.env))
        mdp = TokenMDP(environment, tokenizer, **config.rollout.token_limits)
        groups = load_recorded_groups(config, mdp)
        material, data = _build_reward_model_data(groups, config, settings, mdp), compute_digest(groups)
        place = checkpoint.find_newest_checkpoint(folder) if resume and checkpoint.has_checkpoint(folder) else None
        if resume and not is_empty_run(folder):
            run = RunLog.reopen(folder, config)
            warn_about_plugin_changes(folder)
        else:
            run = RunLog.create(folder, config)
            record_plugins(folder, (environment,))
        stack.callback(run.close)
        stack.enter_context(lock_run_folder(folder))
        model = build_reward_model(
            ModelConfig(path=str(place), dtype=config.model.dtype) if place else config.model, tokenizer, config.seed
        )
        trainer = RewardModelTrainer(
            model, build_optimization_settings(config), total_steps=config.train.steps, device=accelerator.device,
            centering=settings.center_rewards_coefficient,
        )  # fmt: skip
        done = Progress(0)
        if place:
            checkpoint.remove_partial_checkpoints(folder)
            state, done = checkpoint.load_checkpoint_state(place)
            check_episodes_unchanged(state.get("data"), data, config)
            began -= done.report_values.get("seconds", 0.0)  # includes the earlier processes of the run
            trainer.load_state_dict(state)
        run.truncate_logs(done.log_offsets)
        told = f"{len(material.pairs):,} pairs of {config.data and config.data.run}, {len(material.held_out_pairs):,} held out"
        screen.print(f"reward model: {told}\nrun folder {folder}", highlight=False, soft_wrap=True)
        if careful := explain_rounding_risk(config):
            screen.print(f"note: {careful}", highlight=False, markup=False, soft_wrap=True)
        with ProgressReporter(screen, "training", config.train.steps, done.num_completed_steps) as work:
            for step in range(done.num_completed_steps, config.train.steps):
                row = _run_training_step(trainer, material, config, step)
                seconds = round(time.monotonic() - began, 3)
                run.log_metrics(row, {"step": step + 1, "seconds": seconds})
                if step + 1 == config.train.steps or (step + 1) % config.log.save_every == 0:
                    state = {**trainer.state_dict(), "data": data}
                    checkpoint.save_checkpoint(
                        folder,
                        model,
                        to_transformers_tokenizer(tokenizer),
                        state,
                        Progress(step + 1, run.flush_and_get_offsets(), {"seconds": seconds}),
                    )
                work.advance({"loss": row["loss"], "accuracy": row["accuracy"]})
        return _finish_run(trainer, material, run, config, screen, began)


def _reject_settings_without_effect(config: RunConfig) -> None:
    """Raise ConfigError for settings that have no effect on a reward model."""
    for name, usual, reason in (
        ("mixed_precision", "auto", "it trains in the precision of its weights, model.dtype"),
        ("gradient_checkpointing", False, "its memory is bounded by train.max_tokens_per_microbatch"),
        ("minibatches_per_step", 1, "each of its steps is one update on rollout.prompts_per_step pairs"),
    ):
        if (value := getattr(config.train, name)) not in (usual, "no"):
            raise ConfigError(f"train.{name} is {value}, which has no effect on a reward model: {reason}; set it to {usual}")
    for name, given in (
        ("sft_warmup", config.sft_warmup is not None),
        ("algorithm", config.algorithm != {"name": "grpo"}),
        ("log.report_to", bool(config.log.report_to)),
    ):
        if given:
            raise ConfigError(f"{name} is set, which has no effect on a reward model; remove it")


def _build_reward_model_data(groups: Sequence[Group], config: RunConfig, settings: RewardModelConfig, mdp: TokenMDP) -> RewardModelData:
    """Build pairs by the verifier's scores; whether a task is held out depends only on its id and the seed."""
    assert config.data is not None
    num_conversations = sum(e.turns != 1 for group in groups for e in group)
    if num_conversations:
        raise ConfigError(f"{num_conversations} of the episodes have several turns; a reward model reads one prompt and one answer")
    select_paired_answers(groups, 1)  # raises first if there is no pair at all
    share = config.data.held_out_pair_task_fraction
    apart = [derive_seed(config.seed, "held out", group[0].task_id) % 10_000 < share * 10_000 for group in groups]

    def rows(e: Episode) -> list[int]:
        return e.tokens if e.tokens[-1] in mdp.tokenizer.stop_ids else [*e.tokens, mdp.tokenizer.eos_id]

    def of(wanted: bool) -> list[Pair]:
        chosen = [group for group, held in zip(groups, apart, strict=True) if held is wanted]
        picked = [(group, p) for group in chosen for p in pair_best_with_worst([e.reward for e in group], settings.pairs_per_group)]
        return [(rows(g[a]), rows(g[b]), (g[a].reward - g[b].reward) * settings.margin_coefficient) for g, (a, b) in picked]

    answers = [(rows(e), e.reward) for group, held in zip(groups, apart, strict=True) if held for e in group]
    if not (training := of(False)):
        raise ConfigError(f"all pairs belong to held-out tasks; lower data.held_out_pair_task_fraction, which is {share}")
    return RewardModelData(training, of(True), answers)


def _run_training_step(trainer: RewardModelTrainer, data: RewardModelData, config: RunConfig, step: int) -> dict[str, Any]:
    """Train on one step's pairs (each pair once before any is repeated); return the metrics."""
    count, size = config.rollout.prompts_per_step, len(data.pairs)
    batch = [data.pairs[compute_shuffled_index(size, config.seed, "pairs", p)] for p in range(step * count, (step + 1) * count)]
    row: dict[str, Any] = {"step": step + 1, **trainer.train_on_pairs(batch)}
    every = config.eval.every
    return row | (_evaluate_held_out(trainer, data) if every and (step + 1) % every == 0 else {})


def _evaluate_held_out(trainer: RewardModelTrainer, data: RewardModelData) -> dict[str, float | None]:
    """Evaluate on held-out tasks: the fraction of pairs ranked right, and the correlation with the verifier's scores."""
    flat = trainer.compute_scores([row for a, b, _ in data.held_out_pairs for row in (a, b)])
    right = [a > b for a, b in zip(flat[::2], flat[1::2], strict=True)]
    scores, truth = trainer.compute_scores([row for row, _ in data.held_out_completions]), [score for _, score in data.held_out_completions]
    varied = len(set(truth)) > 1 and len(set(scores)) > 1
    return {
        "eval/accuracy": sum(right) / len(right) if right else None,
        "eval/verifier_correlation": statistics.correlation(scores, truth) if varied else None,
    }


def _finish_run(
    trainer: RewardModelTrainer, data: RewardModelData, run: RunLog, config: RunConfig, console: Console, started_at: float
) -> RewardModelReport:
    """Evaluate the reward model, print the results, and write the report."""
    found = _evaluate_held_out(trainer, data)
    ended = RewardModelReport(
        str(run.folder), config.train.steps, round(time.monotonic() - started_at, 2), len(data.held_out_pairs),
        found["eval/accuracy"], found["eval/verifier_correlation"],
    )  # fmt: skip
    run.write_json("report.json", ended.to_dict())
    curve = [row["accuracy"] for row in read_metrics(run.folder)]
    console.print(report.plot_curve(curve, "pairs ranked right", encoding=console.encoding), highlight=False)
    right, goes = ("not measured" if v is None else f"{v:.2f}" for v in (ended.accuracy, ended.correlation))
    console.print(
        f"held-out pairs ranked right: {right} of {ended.held_out_pairs}; correlation with the verifier: {goes}; {ended.seconds:.0f} s\n"
        f"use it: verifier={{name: learned, models: [{run.folder}/checkpoints/last]}}",
        highlight=False,
        soft_wrap=True,
        markup=False,
    )
    return ended
