"""The loop: sample groups, judge them, learn from them. Read it top to bottom.

    train(config)
        begin            a new run folder, or the newest whole checkpoint of an old one
        warmstart        supervised steps on gold solutions, where the recipe has them
        for each step    tasks -> episodes -> update -> the sampler takes the new weights -> logs -> checkpoint
        end              held-out accuracy before and after, the curve, the report

Nothing random is carried from step to step: tasks and seeds are functions of the run's seed and the step's number. So a
run that was killed and resumed ends with the same weights, to the bit, as one that was not.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import transformers
from rich.console import Console

from rlvr import report
from rlvr.config import RunConfig
from rlvr.errors import ConfigError
from rlvr.learn import checkpoint
from rlvr.learn.again import repeat_one_step
from rlvr.learn.banner import banner
from rlvr.learn.checkpoint import Progress
from rlvr.learn.crew import Crew, assemble, enlist
from rlvr.learn.held_out import accuracy, held_out_seen
from rlvr.learn.one_step import one_step
from rlvr.learn.warmstart import warmstart
from rlvr.model import exported
from rlvr.progress import Work
from rlvr.runlog import RunLog, rows_of


@dataclass(frozen=True, slots=True)
class TrainReport:
    """How a run ended: what `rlvr train --json` prints on its last line.

    >>> TrainReport("runs/a", steps=1, seconds=2.0, accuracy_before=0.2, accuracy_after=0.9, held_out_tasks=500).status
    'finished'
    """

    run: str
    steps: int
    seconds: float
    accuracy_before: float | None
    """On the held-out tasks, after the warm start and before the first reward."""
    accuracy_after: float | None
    held_out_tasks: int
    held_out_seen: int = 0
    """How many of them were ever trained on: must be 0."""
    status: str = "finished"
    rewards: list[float] = field(default_factory=list)

    def record(self) -> dict[str, Any]:
        """The report as plain JSON."""
        return {key: value for key, value in asdict(self).items() if key != "rewards"}


def train(
    config: RunConfig, *, out: Path | None = None, resume: bool = False, verify: bool = False, console: Console | None = None
) -> TrainReport:
    """Train as the configuration says, and leave a run folder behind; `verify` first repeats one recorded step of a resumed run."""
    screen: Console = console or Console(stderr=True)
    transformers.utils.logging.disable_progress_bar()  # one bar at a time, and it is ours
    began = time.monotonic()
    if resume and out is None:
        raise ConfigError("--resume needs --out: the folder of the run to continue")
    if verify and not resume:
        raise ConfigError("--verify repeats a step of a run that is resumed; give --resume too")
    folder = out or Path("runs") / f"{config.env['name']}-{datetime.now():%Y%m%d-%H%M%S}"
    if verify:
        screen.print(repeat_one_step(config, folder), highlight=False)
    with ExitStack() as stack:
        place = checkpoint.newest(folder) if resume and checkpoint.any_in(folder) else None
        old = RunLog.reopen(folder, config) if resume else None  # another configuration is refused before anything is built
        crew = assemble(config, folder, stack, weights=place)
        run = old or RunLog.create(folder, config)
        stack.callback(run.close)
        screen.print(banner(crew, folder))
        if config.log.report_to:
            crew.accelerator.init_trackers("rlvr", config={"config": config.dump()})
        done = resumed(crew, run, place) if place else begun(crew, run, screen)
        with Work(screen, "training", config.train.steps, done.step) as work:
            for step in range(done.step, config.train.steps):
                row, times = one_step(crew, run, step)
                crew.accelerator.log({**row, **times}, step=step + 1)
                last = step + 1 == config.train.steps
                if last or (step + 1) % config.log.save_every == 0:
                    facts = {**done.facts, "seconds": seconds_so_far(done, began)}
                    save(crew, run, Progress(step + 1, run.offsets(), facts))
                work.advance(shown(row, times))
        ended = end(crew, run, done, screen, began)
        crew.accelerator.end_training()
        return ended


def begun(crew: Crew, run: RunLog, console: Console) -> Progress:
    """A new run up to its first step: warm start, accuracy before, a checkpoint to come back to."""
    run.rewind({})  # a run that was killed before its first checkpoint begins anew
    if crew.config.warmstart is not None:
        with Work(console, "warm start", crew.config.warmstart.steps) as work:
            warmstart(crew, crew.config.warmstart, work)
    enlist(crew, run.folder, resumed=False)
    crew.sampler.load(crew.accelerator.unwrap_model(crew.model), 0)
    before = accuracy(crew)
    told = "not judged" if before is None else f"{before:.1%}"
    console.print(f"held-out accuracy before: {told}", highlight=False)
    progress = Progress(0, run.offsets(), {"accuracy_before": before})
    save(crew, run, progress)
    return progress


def resumed(crew: Crew, run: RunLog, place: Path) -> Progress:
    """An old run, exactly as it was when its newest checkpoint was written."""
    checkpoint.clean(run.folder)
    learner = enlist(crew, run.folder, resumed=True)
    state, progress = checkpoint.read(place)
    learner.load_state_dict(state)
    run.rewind(progress.offsets)
    crew.sampler.load(crew.accelerator.unwrap_model(crew.model), progress.step)
    return progress


def save(crew: Crew, run: RunLog, progress: Progress) -> None:
    """A checkpoint of everything that the next step depends on."""
    assert crew.learner is not None
    model = crew.accelerator.unwrap_model(crew.model)
    checkpoint.save(run.folder, model, exported(crew.tokenizer), crew.learner.state_dict(), progress)


def end(crew: Crew, run: RunLog, done: Progress, console: Console, began: float) -> TrainReport:
    """Accuracy after, the curve, and where everything is."""
    before, after = done.facts.get("accuracy_before"), accuracy(crew)
    rewards = [row["reward"] for row in rows_of(run.folder / "metrics.jsonl") if row["reward"] is not None]
    held_out, seen = held_out_seen(crew)
    ended = TrainReport(
        str(run.folder), crew.config.train.steps, seconds_so_far(done, began), before, after, held_out, seen, rewards=rewards
    )
    run.write_json("report.json", ended.record())
    report.picture(run.folder / "reward.png", rewards, before, after)
    console.print(report.plot(report.smooth(rewards, 5), title="reward (mean of 5 steps)"), highlight=False)
    told = [f"{value:.1%}" if value is not None else "not judged" for value in (before, after)]
    console.print(
        f"held-out accuracy {told[0]} -> {told[1]} on {held_out} tasks, {seen} of them ever trained on; {ended.seconds:.0f} s\n"
        f"run folder {run.folder}: metrics.jsonl, episodes.jsonl, reward.png, checkpoints/last",
        highlight=False,
        soft_wrap=True,
    )
    return ended


def seconds_so_far(done: Progress, began: float) -> float:
    """The time of this process and of those before it."""
    return round(float(done.facts.get("seconds", 0.0)) + time.monotonic() - began, 2)


def shown(row: dict[str, Any], times: dict[str, Any]) -> dict[str, float | str]:
    """The few numbers that stand beside the progress bar."""
    numbers = {"reward": row["reward"], "length": row["completions/mean_length"], "kl": row.get("kl"), "tok/s": times["tokens_per_second"]}
    return {name: float(value) for name, value in numbers.items() if value is not None}
