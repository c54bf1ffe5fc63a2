"""The training loop: sample groups, verify them, train on them.

    train(config)
        start            a new run folder (also with --resume if there is none), or the newest complete checkpoint of an old one
        SFT warmup       supervised steps on gold solutions, if configured
        for each step    tasks -> episodes -> update -> weights to the sampler -> logs -> checkpoint
                         (with rollout.max_staleness, later steps are sampled concurrently: rlvr/training/rollout_prefetcher.py)
        finish           held-out accuracy before and after, the reward curve, the report

No random state is carried from step to step: tasks and seeds are functions of the run's seed, the step's number and the
position in the schedule. So a run that was killed and resumed has the final weights of one that was not: to the bit where
`rlvr.models.determinism` holds (on a CPU), up to rounding elsewhere.

Under `accelerate launch` every process runs this loop on its share of the groups; only the main process writes.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import transformers
from accelerate import DistributedType
from rich.console import Console

from rlvr.config.config import RunConfig
from rlvr.errors import ConfigError
from rlvr.evaluation.evaluate import compute_mean_reward
from rlvr.models.determinism import configure_device
from rlvr.models.device import resolve_device
from rlvr.models.model_loading import to_transformers_tokenizer
from rlvr.models.numerics_check import format_check_results as told_of
from rlvr.runs import report
from rlvr.runs.progress import ProgressReporter
from rlvr.runs.run_log import RunLog, is_empty_run, lock_run_folder, read_jsonl
from rlvr.training import checkpoint
from rlvr.training.checkpoint import Progress
from rlvr.training.collect import enable_partial_rollouts
from rlvr.training.held_out import average_by_sub_environment, count_contamination, estimate_interval, evaluate_held_out, sample_held_out
from rlvr.training.processes import build_accelerator, collective_error_context, monitor_peers, run_on_main
from rlvr.training.repeat_step import repeat_one_step
from rlvr.training.rollout_prefetcher import make_prefetcher
from rlvr.training.run_summary import build_run_table
from rlvr.training.sft_warmup import run_sft_warmup
from rlvr.training.step_notes import StepNotes
from rlvr.training.trackers import Trackers
from rlvr.training.trainer import Trainer, build_trainer, collect_state, restore, setup_learner
from rlvr.training.training_step import run_training_step
from rlvr.training.update import lora_adapter as adapter

PROGRESS_FRACTIONS = {"collectors": "cluster/sampling", "trainer": "cluster/trainer"}
"""Fractions of a step that the progress line of a cluster run shows: sampling and training."""


@dataclass(frozen=True, slots=True)
class TrainReport:
    """The result of a run: the last line that `rlvr train --json` prints.

    >>> TrainReport("runs/a", steps=1, seconds=2.0, accuracy_before=0.2, accuracy_after=0.9, held_out_tasks=500).status
    'finished'
    """

    run: str
    steps: int
    seconds: float
    accuracy_before: float | None
    """On the held-out tasks, after the warm start and before the first training step."""
    accuracy_after: float | None
    held_out_tasks: int
    held_out_seen: int = 0
    """The number of held-out tasks that were trained on; must be 0."""
    interval_after: list[float] | None = None
    """The 95 % interval of the accuracy after training."""
    members: dict[str, float | None] = field(default_factory=dict)
    """With a mixture: the accuracy after training on each of its environments."""
    status: str = "finished"
    rewards: list[float] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain JSON."""
        idle = {"rewards", *(["members"] if not self.members else [])}
        return {key: value for key, value in asdict(self).items() if key not in idle}


def train(
    config: RunConfig, *, out: str | Path | None = None, resume: bool = False, verify: bool = False, console: Console | None = None,
    trainer_builder: Callable[..., Trainer] = build_trainer,
) -> TrainReport:  # fmt: skip
    """Train as configured, and write a run folder; `verify` first repeats one recorded step of a resumed run."""
    transformers.utils.logging.disable_progress_bar()  # only our own progress bar
    began = time.monotonic()
    check_arguments(config, out, resume=resume, verify=verify, has_custom_trainer=trainer_builder is not build_trainer)
    folder = Path(out or make_run_folder_path(config))
    configure_device(config, resolve_device())
    accelerator = build_accelerator(config, folder)
    if resume and accelerator.distributed_type is DistributedType.DEEPSPEED:
        raise ConfigError("--resume under DeepSpeed is not supported: its optimizer state cannot be gathered; launch with fsdp2.yaml")
    main = accelerator.is_main_process
    screen = (console or Console(stderr=True)) if main else Console(quiet=True)
    with ExitStack() as stack, monitor_peers(accelerator):
        stack.enter_context(collective_error_context(accelerator))
        folder = run_on_main(accelerator, lambda: folder)  # the default name contains the time, which may differ between processes
        fresh = run_on_main(accelerator, lambda: not resume or is_empty_run(folder))
        if fresh and resume:  # a job that always passes --resume, killed before it wrote anything
            screen.print(f"{folder} contains no run yet: starting a new one", highlight=False, markup=False, soft_wrap=True)
        if verify and not fresh:
            screen.print(repeat_one_step(config, accelerator, folder, trainer_builder), highlight=False)
        place = run_on_main(
            accelerator, lambda: checkpoint.find_newest_checkpoint(folder) if resume and checkpoint.has_checkpoint(folder) else None
        )
        if not fresh:
            RunLog.reopen(folder, config)  # another configuration is rejected before anything is built
        crew = trainer_builder(config, accelerator, stack, checkpoint_folder=place)
        ahead = make_prefetcher(crew, stack)
        enable_partial_rollouts(crew)
        if fresh:
            run_on_main(accelerator, lambda: RunLog.create(folder, config).close())
        run_on_main(accelerator, lambda: stack.enter_context(lock_run_folder(folder)))
        run = RunLog(folder, is_writer=main, reporter=Trackers(accelerator, config, folder))
        stack.callback(run.close)
        crew.checkpoint_writer = stack.enter_context(checkpoint.CheckpointWriter(config.train.collective_timeout_s))
        screen.print(build_run_table(crew, folder))
        done = resume_run(crew, run, place) if place else start_run(crew, run, screen)
        notes = StepNotes(config)
        for line in list_model_notes(crew):
            screen.print(line, highlight=False, markup=False, soft_wrap=True)
        with ProgressReporter(screen, "training", config.train.steps, done.num_completed_steps) as work:
            for step in range(done.num_completed_steps, config.train.steps):
                row, times = run_training_step(crew, run, step, ahead)
                run_on_main(accelerator, crew.checkpoint_writer.raise_if_failed)
                last = step + 1 == config.train.steps
                if last or (step + 1) % config.log.save_every == 0:
                    save_checkpoint(crew, run, step + 1, {**done.report_values, "seconds": compute_total_seconds(done, began)})
                for note in notes.find_notes(row, times):
                    screen.print(f"note: {note}", highlight=False, markup=False)
                work.advance(select_progress_metrics(row, times))
                if crew.task_sampler.reward_monitor is not None:
                    crew.task_sampler.reward_monitor.raise_if_exceeded(row)
        ended = finish_run(crew, run, done, screen, began)
        crew.sampler.close()  # before accelerate destroys torch's process group, which an engine may use
        del crew.learner  # its wrapper must not hold the group's last reference: it would wait for its thread while holding the GIL
        accelerator.free_memory()
        accelerator.end_training()
        return ended


def make_run_folder_path(config: RunConfig) -> Path:
    """Return the default run folder."""
    env = str(config.env["name"]).rpartition(":")[2]  # the object in path/to/file.py:Object
    return Path("runs") / f"{env}-{datetime.now():%Y%m%d-%H%M%S}"


def check_arguments(config: RunConfig, out: str | Path | None, *, resume: bool, verify: bool, has_custom_trainer: bool) -> None:
    """Raise ConfigError for inconsistent arguments of `train`."""
    if resume and out is None:
        raise ConfigError("--resume needs --out: the folder of the run to continue")
    if verify and not resume:
        raise ConfigError("--verify repeats a step of a run that is resumed; give --resume too")
    if config.cluster is not None and not has_custom_trainer:
        raise ConfigError("cluster is set, which this function does not know; call rlvr.cluster.training.train, or use `rlvr train`")


def list_model_notes(crew: Trainer) -> Iterator[str]:
    """Yield notes about the model: numerics checks of a sharded model, and reasons for slow operation."""
    if crew.learner.is_sharded:
        yield f"model check: {told_of(crew.check_results)}"
    if crew.slow_sampling_reason:
        yield f"sampling is slow: {crew.slow_sampling_reason}"
    if crew.not_compiled_reason:
        yield f"layers are not compiled: {crew.not_compiled_reason}"
    if crew.learner.padding_reason:
        yield f"rows are padded instead of packed: {crew.learner.padding_reason}"
    elif crew.accelerator.device.type != "cpu" and (why := crew.learner.packing.no_kernel_reason):
        yield f"packed rows need masks, which are slow: {why}"


def start_run(crew: Trainer, run: RunLog, console: Console) -> Progress:
    """Start a new run: warm start, accuracy before training, first checkpoint."""
    run.truncate_logs({})  # a run that was killed before its first checkpoint starts from the beginning
    if crew.config.sft_warmup is not None:
        with ProgressReporter(console, "warm start", crew.config.sft_warmup.steps) as work:
            run_sft_warmup(crew, crew.config.sft_warmup, work)
    setup_learner(crew, run.folder, is_resumed=False)
    crew.sync_weights(0)
    before = evaluate_held_out(crew)
    if crew.config.eval.tasks:
        run.reporter.log_metrics({"step": 0, "eval/accuracy": before})
        told = "not judged" if before is None else f"{before:.1%}"
        console.print(f"held-out accuracy before: {told}", highlight=False)
    return save_checkpoint(crew, run, 0, {"accuracy_before": before})


def resume_run(crew: Trainer, run: RunLog, checkpoint_folder: Path) -> Progress:
    """Restore a run from its newest checkpoint."""
    run_on_main(crew.accelerator, lambda: checkpoint.remove_partial_checkpoints(run.folder))
    progress = restore(crew, run.folder, checkpoint_folder)
    run.truncate_logs(progress.log_offsets)
    return progress


def save_checkpoint(crew: Trainer, run: RunLog, step: int, report_values: Mapping[str, Any]) -> Progress:
    """Write a checkpoint; in the background if memory allows a copy."""
    state, accelerator, writer = checkpoint.add_random_state(collect_state(crew)), crew.accelerator, crew.checkpoint_writer
    progress = Progress(step, run_on_main(accelerator, run.flush_and_get_offsets), report_values)
    run_on_main(accelerator, writer.wait_for_write)
    partial, tokenizer = (
        run_on_main(accelerator, lambda: checkpoint.create_partial_folder(run.folder, step)),
        to_transformers_tokenizer(crew.tokenizer),
    )

    def finished(kept: Any = state) -> None:
        if kept["adapter"] is not None:
            with checkpoint.handle_write_errors(partial):
                adapter.save_adapter(crew.model, kept["adapter"], partial / "adapter", str(crew.config.model.path or run.folder / "base"))
        checkpoint.publish_checkpoint(partial, tokenizer, kept, progress, save_total_limit=crew.config.log.save_total_limit)

    if crew.learner.is_sharded:
        with checkpoint.handle_write_errors(partial):  # all processes together
            crew.learner.weights.save(partial)
            crew.learner.write_sharded_state(partial)
        run_on_main(accelerator, lambda: writer.start_write(step, functools.partial(finished, checkpoint.copy_to_host(state))))
        return progress
    model = crew.learner.gather_model()

    def plain() -> None:
        weights = model.state_dict()
        fits = checkpoint.count_tensor_bytes(weights, state) <= checkpoint.measure_copy_budget_bytes()
        weights, kept = checkpoint.copy_to_host((weights, state)) if fits else (weights, state)

        def written() -> None:
            with checkpoint.handle_write_errors(partial):
                model.save_pretrained(partial, state_dict=weights)
            finished(kept)

        writer.start_write(step, written)
        if not fits:
            writer.wait_for_write()

    run_on_main(accelerator, plain)
    return progress


def finish_run(crew: Trainer, run: RunLog, progress: Progress, console: Console, started_at: float) -> TrainReport:
    """Evaluate and print the final accuracy, the curve and the output paths; write the report."""
    episodes = sample_held_out(crew)
    before, after, between = progress.report_values.get("accuracy_before"), compute_mean_reward(episodes), estimate_interval(crew, episodes)
    if episodes:
        run.reporter.log_metrics({"step": crew.config.train.steps, "eval/accuracy": after})
    steps = run_on_main(crew.accelerator, lambda: list(read_jsonl(run.folder / "metrics.jsonl")))
    rewards = [row["reward"] for row in steps if row["reward"] is not None]
    held_out, seen = count_contamination(crew)
    ended = TrainReport(
        str(run.folder),
        crew.config.train.steps,
        compute_total_seconds(progress, started_at),
        before,
        after,
        held_out,
        seen,
        interval_after=between,
        members=average_by_sub_environment(crew, episodes),
        rewards=rewards,
    )
    run_on_main(crew.accelerator, crew.checkpoint_writer.wait_for_write)
    run.write_json("report.json", ended.to_dict())
    run_on_main(crew.accelerator, lambda: report.save_reward_plot(run.folder / "reward.png", rewards, before, after))
    console.print(report.plot_curve(rewards, "reward"), highlight=False)
    if said := format_turn_summary(steps[-1] if steps else {}):
        console.print(said, highlight=False)
    if steps and all(row.get("step/skipped") for row in steps):
        console.print("note: no step changed the weights: the checkpoint is the model that training began with", highlight=False)
    console.print(format_closing_lines(ended, run.folder), highlight=False, markup=False, soft_wrap=True)
    return ended


def format_closing_lines(report: TrainReport, folder: Path) -> str:
    """Format the last lines of a run: the held-out accuracy, with its interval, and the outputs."""
    told = [f"{value:.1%}" if value is not None else "not judged" for value in (report.accuracy_before, report.accuracy_after)]
    between = f" (95 %: {report.interval_after[0]:.1%} to {report.interval_after[1]:.1%})" if report.interval_after else ""
    counted = f"{report.held_out_tasks} task{'s' * (report.held_out_tasks != 1)}, {report.held_out_seen} of them trained on"
    lines = [f"held-out accuracy {told[0]} -> {told[1]}{between} on {counted}"]
    if not report.held_out_tasks:
        lines = ["held-out accuracy not measured (eval.tasks=0)"]
    lines[0] += f"; {report.seconds:.0f} s"
    lines += [f"  {name}: {'not judged' if value is None else f'{value:.1%}'}" for name, value in report.members.items()]
    return "\n".join([*lines, f"run folder {folder}: metrics.jsonl, episodes.jsonl, reward.png, checkpoints/last"])


def compute_total_seconds(done: Progress, began: float) -> float:
    """Return the total time of the run, including earlier processes."""
    return round(float(done.report_values.get("seconds", 0.0)) + time.monotonic() - began, 2)


def select_progress_metrics(row: dict[str, Any], times: dict[str, Any]) -> dict[str, float | str]:
    """Select the metrics shown next to the progress bar."""
    numbers = {"reward": row["reward"], "length": row["completions/mean_length"], "turns": row.get("turns/mean")}
    numbers |= {"calls": row.get("tools/calls"), "kl": row.get("kl"), "tok/s": times["tokens_per_second"]}
    cluster = {name: f"{times[key]:.0%}" for name, key in PROGRESS_FRACTIONS.items() if key in times}
    return {name: float(value) for name, value in numbers.items() if value is not None} | cluster


def format_turn_summary(row: Mapping[str, Any]) -> str:
    """Format the turns and calls of a step in one line; empty for single-turn environments.

    >>> talked({"turns/mean": 2.5, "tools/calls": 1.5, "tools/errors": 0.25})
    'last step: 2.5 turns, 1.5 calls and 0.25 errors per answer'
    """
    if "turns/mean" not in row:
        return ""
    calls = f", {row['tools/calls']:.3g} calls and {row['tools/errors']:.3g} errors" if "tools/calls" in row else ""
    return f"last step: {row['turns/mean']:.3g} turns{calls} per answer"
