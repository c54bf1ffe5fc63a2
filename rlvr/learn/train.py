"""The training loop: sample groups, verify them, train on them.

    train(config)
        start            a new run folder (also with --resume if there is none), or the newest complete checkpoint of an old one
        SFT warmup       supervised steps on gold solutions, if configured
        for each step    tasks -> episodes -> update -> weights to the sampler -> logs -> checkpoint
                         (with rollout.max_staleness, later steps are sampled concurrently: rlvr/learn/ahead.py)
        finish           held-out accuracy before and after, the reward curve, the report

No random state is carried from step to step: tasks and seeds are functions of the run's seed, the step's number and the
position in the schedule. So a run that was killed and resumed has the final weights of one that was not: to the bit where
`rlvr.model.deterministic` holds (on a CPU), up to rounding elsewhere.

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
from rlvr.evaluation.evaluate import average
from rlvr.learn import checkpoint
from rlvr.learn.again import repeat_one_step
from rlvr.learn.ahead import look_ahead
from rlvr.learn.banner import banner
from rlvr.learn.checkpoint import Progress
from rlvr.learn.collect import carry
from rlvr.learn.crew import Crew, assemble, enlist, state_of, taken_back
from rlvr.learn.held_out import accuracy, by_member, held_out_episodes, held_out_seen, interval
from rlvr.learn.notes import Notes
from rlvr.learn.one_step import one_step
from rlvr.learn.processes import accelerator_from, by_main, deadline_told, watched
from rlvr.learn.trackers import Trackers
from rlvr.learn.update import adapter
from rlvr.learn.warmstart import warmstart
from rlvr.model.deterministic import ready
from rlvr.model.device import device_from
from rlvr.model.honesty import told as told_of
from rlvr.model.weights import exported
from rlvr.runs import report
from rlvr.runs.progress import Work
from rlvr.runs.runlog import RunLog, alone_in, rows_of, unbegun

SHARES = {"collectors": "cluster/sampling", "trainer": "cluster/trainer"}
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

    def record(self) -> dict[str, Any]:
        """Return the report as plain JSON."""
        idle = {"rewards", *(["members"] if not self.members else [])}
        return {key: value for key, value in asdict(self).items() if key not in idle}


def train(
    config: RunConfig, *, out: str | Path | None = None, resume: bool = False, verify: bool = False, console: Console | None = None,
    crew_from: Callable[..., Crew] = assemble,
) -> TrainReport:  # fmt: skip
    """Train as configured, and write a run folder; `verify` first repeats one recorded step of a resumed run."""
    transformers.utils.logging.disable_progress_bar()  # only our own progress bar
    began = time.monotonic()
    check_call(config, out, resume=resume, verify=verify, elsewhere=crew_from is not assemble)
    folder = Path(out or folder_for(config))
    ready(config, device_from())
    accelerator = accelerator_from(config, folder)
    if resume and accelerator.distributed_type is DistributedType.DEEPSPEED:
        raise ConfigError("--resume under DeepSpeed is not supported: its optimizer state cannot be gathered; launch with fsdp2.yaml")
    main = accelerator.is_main_process
    screen = (console or Console(stderr=True)) if main else Console(quiet=True)
    with ExitStack() as stack, watched(accelerator):
        stack.enter_context(deadline_told(accelerator))
        folder = by_main(accelerator, lambda: folder)  # the default name contains the time, which may differ between processes
        fresh = by_main(accelerator, lambda: not resume or unbegun(folder))
        if fresh and resume:  # a job that always passes --resume, killed before it wrote anything
            screen.print(f"{folder} contains no run yet: starting a new one", highlight=False, markup=False, soft_wrap=True)
        if verify and not fresh:
            screen.print(repeat_one_step(config, accelerator, folder, crew_from), highlight=False)
        place = by_main(accelerator, lambda: checkpoint.newest(folder) if resume and checkpoint.any_in(folder) else None)
        if not fresh:
            RunLog.reopen(folder, config)  # another configuration is rejected before anything is built
        crew = crew_from(config, accelerator, stack, weights=place)
        ahead = look_ahead(crew, stack)
        carry(crew)
        if fresh:
            by_main(accelerator, lambda: RunLog.create(folder, config).close())
        by_main(accelerator, lambda: stack.enter_context(alone_in(folder)))
        run = RunLog(folder, writes=main, reports=Trackers(accelerator, config, folder))
        stack.callback(run.close)
        crew.writer = stack.enter_context(checkpoint.Writer(config.train.process_timeout_s))
        screen.print(banner(crew, folder))
        done = resumed(crew, run, place) if place else begun(crew, run, screen)
        notes = Notes(config)
        for line in about_model(crew):
            screen.print(line, highlight=False, markup=False, soft_wrap=True)
        with Work(screen, "training", config.train.steps, done.step) as work:
            for step in range(done.step, config.train.steps):
                row, times = one_step(crew, run, step, ahead)
                by_main(accelerator, crew.writer.check)
                last = step + 1 == config.train.steps
                if last or (step + 1) % config.log.save_every == 0:
                    save(crew, run, step + 1, {**done.facts, "seconds": seconds_so_far(done, began)})
                for note in notes.about(row, times):
                    screen.print(f"note: {note}", highlight=False, markup=False)
                work.advance(shown(row, times))
                if crew.questions.watch is not None:
                    crew.questions.watch.check(row)
        ended = end(crew, run, done, screen, began)
        crew.sampler.close()  # before accelerate destroys torch's process group, which an engine may use
        del crew.learner  # its wrapper must not hold the group's last reference: it would wait for its thread while holding the GIL
        accelerator.free_memory()
        accelerator.end_training()
        return ended


def folder_for(config: RunConfig) -> Path:
    """Return the default run folder."""
    env = str(config.env["name"]).rpartition(":")[2]  # the object in path/to/file.py:Object
    return Path("runs") / f"{env}-{datetime.now():%Y%m%d-%H%M%S}"


def check_call(config: RunConfig, out: str | Path | None, *, resume: bool, verify: bool, elsewhere: bool) -> None:
    """Raise ConfigError for inconsistent arguments of `train`."""
    if resume and out is None:
        raise ConfigError("--resume needs --out: the folder of the run to continue")
    if verify and not resume:
        raise ConfigError("--verify repeats a step of a run that is resumed; give --resume too")
    if config.cluster is not None and not elsewhere:
        raise ConfigError("cluster is set, which this function does not know; call rlvr.scale.training.train, or use `rlvr train`")


def about_model(crew: Crew) -> Iterator[str]:
    """Yield notes about the model: numerics checks of a sharded model, and reasons for slow operation."""
    if crew.learner.sharded:
        yield f"model check: {told_of(crew.checks)}"
    if crew.slow:
        yield f"sampling is slow: {crew.slow}"
    if crew.uncompiled:
        yield f"layers are not compiled: {crew.uncompiled}"
    if crew.learner.unpackable:
        yield f"rows are padded instead of packed: {crew.learner.unpackable}"
    elif crew.accelerator.device.type != "cpu" and (why := crew.learner.packing.masked):
        yield f"packed rows need masks, which are slow: {why}"


def begun(crew: Crew, run: RunLog, console: Console) -> Progress:
    """Start a new run: warm start, accuracy before training, first checkpoint."""
    run.rewind({})  # a run that was killed before its first checkpoint starts from the beginning
    if crew.config.warmstart is not None:
        with Work(console, "warm start", crew.config.warmstart.steps) as work:
            warmstart(crew, crew.config.warmstart, work)
    enlist(crew, run.folder, resumed=False)
    crew.hand_over(0)
    before = accuracy(crew)
    if crew.config.eval.tasks:
        run.reports.metrics({"step": 0, "eval/accuracy": before})
        told = "not judged" if before is None else f"{before:.1%}"
        console.print(f"held-out accuracy before: {told}", highlight=False)
    return save(crew, run, 0, {"accuracy_before": before})


def resumed(crew: Crew, run: RunLog, place: Path) -> Progress:
    """Restore a run from its newest checkpoint."""
    by_main(crew.accelerator, lambda: checkpoint.clean(run.folder))
    progress = taken_back(crew, run.folder, place)
    run.rewind(progress.offsets)
    return progress


def save(crew: Crew, run: RunLog, step: int, facts: Mapping[str, Any]) -> Progress:
    """Write a checkpoint; in the background if memory allows a copy."""
    state, accelerator, writer = checkpoint.complete(state_of(crew)), crew.accelerator, crew.writer
    progress = Progress(step, by_main(accelerator, run.offsets), facts)
    by_main(accelerator, writer.wait)
    partial, tokenizer = by_main(accelerator, lambda: checkpoint.begin(run.folder, step)), exported(crew.tokenizer)

    def finished(kept: Any = state) -> None:
        if kept["adapter"] is not None:
            with checkpoint.told(partial):
                adapter.save(crew.model, kept["adapter"], partial / "adapter", str(crew.config.model.path or run.folder / "base"))
        checkpoint.finish(partial, tokenizer, kept, progress, keep=crew.config.log.keep)

    if crew.learner.sharded:
        with checkpoint.told(partial):  # all processes together
            crew.learner.weights.save(partial)
            crew.learner.write_parts(partial)
        by_main(accelerator, lambda: writer.start(step, functools.partial(finished, checkpoint.copied(state))))
        return progress
    model = crew.learner.whole()

    def plain() -> None:
        weights = model.state_dict()
        fits = checkpoint.size_of(weights, state) <= checkpoint.room()
        weights, kept = checkpoint.copied((weights, state)) if fits else (weights, state)

        def written() -> None:
            with checkpoint.told(partial):
                model.save_pretrained(partial, state_dict=weights)
            finished(kept)

        writer.start(step, written)
        if not fits:
            writer.wait()

    by_main(accelerator, plain)
    return progress


def end(crew: Crew, run: RunLog, done: Progress, console: Console, began: float) -> TrainReport:
    """Evaluate and print the final accuracy, the curve and the output paths; write the report."""
    episodes = held_out_episodes(crew)
    before, after, between = done.facts.get("accuracy_before"), average(episodes), interval(crew, episodes)
    if episodes:
        run.reports.metrics({"step": crew.config.train.steps, "eval/accuracy": after})
    steps = by_main(crew.accelerator, lambda: list(rows_of(run.folder / "metrics.jsonl")))
    rewards = [row["reward"] for row in steps if row["reward"] is not None]
    held_out, seen = held_out_seen(crew)
    ended = TrainReport(
        str(run.folder),
        crew.config.train.steps,
        seconds_so_far(done, began),
        before,
        after,
        held_out,
        seen,
        interval_after=between,
        members=by_member(crew, episodes),
        rewards=rewards,
    )
    by_main(crew.accelerator, crew.writer.wait)
    run.write_json("report.json", ended.record())
    by_main(crew.accelerator, lambda: report.picture(run.folder / "reward.png", rewards, before, after))
    console.print(report.curve(rewards, "reward"), highlight=False)
    if said := talked(steps[-1] if steps else {}):
        console.print(said, highlight=False)
    if steps and all(row.get("step/skipped") for row in steps):
        console.print("note: no step changed the weights: the checkpoint is the model that training began with", highlight=False)
    console.print(closing(ended, run.folder), highlight=False, markup=False, soft_wrap=True)
    return ended


def closing(ended: TrainReport, folder: Path) -> str:
    """Format the last lines of a run: the held-out accuracy, with its interval, and the outputs."""
    told = [f"{value:.1%}" if value is not None else "not judged" for value in (ended.accuracy_before, ended.accuracy_after)]
    between = f" (95 %: {ended.interval_after[0]:.1%} to {ended.interval_after[1]:.1%})" if ended.interval_after else ""
    counted = f"{ended.held_out_tasks} task{'s' * (ended.held_out_tasks != 1)}, {ended.held_out_seen} of them trained on"
    lines = [f"held-out accuracy {told[0]} -> {told[1]}{between} on {counted}"]
    if not ended.held_out_tasks:
        lines = ["held-out accuracy not measured (eval.tasks=0)"]
    lines[0] += f"; {ended.seconds:.0f} s"
    lines += [f"  {name}: {'not judged' if value is None else f'{value:.1%}'}" for name, value in ended.members.items()]
    return "\n".join([*lines, f"run folder {folder}: metrics.jsonl, episodes.jsonl, reward.png, checkpoints/last"])


def seconds_so_far(done: Progress, began: float) -> float:
    """Return the total time of the run, including earlier processes."""
    return round(float(done.facts.get("seconds", 0.0)) + time.monotonic() - began, 2)


def shown(row: dict[str, Any], times: dict[str, Any]) -> dict[str, float | str]:
    """Select the metrics shown next to the progress bar."""
    numbers = {"reward": row["reward"], "length": row["completions/mean_length"], "turns": row.get("turns/mean")}
    numbers |= {"calls": row.get("tools/calls"), "kl": row.get("kl"), "tok/s": times["tokens_per_second"]}
    cluster = {name: f"{times[key]:.0%}" for name, key in SHARES.items() if key in times}
    return {name: float(value) for name, value in numbers.items() if value is not None} | cluster


def talked(row: Mapping[str, Any]) -> str:
    """Format the turns and calls of a step in one line; empty for single-turn environments.

    >>> talked({"turns/mean": 2.5, "tools/calls": 1.5, "tools/errors": 0.25})
    'last step: 2.5 turns, 1.5 calls and 0.25 errors per answer'
    """
    if "turns/mean" not in row:
        return ""
    calls = f", {row['tools/calls']:.3g} calls and {row['tools/errors']:.3g} errors" if "tools/calls" in row else ""
    return f"last step: {row['turns/mean']:.3g} turns{calls} per answer"
