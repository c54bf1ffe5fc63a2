"""Run an evaluation in one process: sample missing answers, store each sample as soon as it is verified, show progress."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from rich.console import Console

from rlvr.contracts import Environment, Sampler
from rlvr.episode import Episode
from rlvr.errors import ConfigError, EnvError
from rlvr.evaluation.plan import Plan
from rlvr.evaluation.rounds import Answers, Asked, Elsewhere, Here, mdp_for
from rlvr.evaluation.samples import TIMES, Key, SampleFile, question_of, writing
from rlvr.evaluation.suite import Item
from rlvr.mdp.rules import TokenMDP
from rlvr.plugins.registry import Spec
from rlvr.rollout.rollout import Draw
from rlvr.runs.progress import Work
from rlvr.runs.runlog import episode_row, rows_of

TICK_S = 5.0
"""Interval at which the elapsed time is stored, so that a killed process does not lose it."""


@dataclass(frozen=True, slots=True)
class Price:
    """The price of a million input tokens and of a million output tokens.

    >>> Price(0.5, 2.0).of(1_000_000, 500_000)
    1.5
    """

    read: float = 0.0
    written: float = 0.0

    def of(self, read: int, written: int) -> float:
        """Compute the cost of this many input and output tokens."""
        return (read * self.read + written * self.written) / 1e6


class Attempt:
    """Runs an evaluation in this process, and resumes from the stored samples."""

    def __init__(
        self,
        plan: Plan,
        file: SampleFile,
        *,
        concurrency: int | None = None,
        retry: bool = False,
        price: Price | None = None,
        console: Console | None = None,
        elsewhere: Elsewhere | None = None,
    ) -> None:
        """Set up the run; `elsewhere` samples in other processes instead of this one."""
        self.plan, self.file, self.concurrency, self.price, self.elsewhere = plan, file, concurrency, price, elsewhere
        self.console = console or Console(quiet=True)
        self.had = {key for key, sample in file.samples.items() if sample.score is not None or not retry}
        scores = [file.samples[key].score for key in self.had]
        self.points, self.scored = sum(score or 0.0 for score in scores), sum(score is not None for score in scores)
        self.samples = self.written = self.read = self.turns = self.calls = 0
        self.began = self.ticked = time.perf_counter()
        self.name = str(time.time_ns())

    def run(self, specs: Mapping[str, Spec], environments: Mapping[str, Environment], wanted: Mapping[str, Sequence[Draw]]) -> None:
        """Sample the missing answers, one environment after the other. The policy is not loaded if nothing is missing.

        `specs` has the policy's sampler for each environment; consecutive environments with the same sampler share it.
        """
        gone = self.file.samples.keys() - {key_of(draw) for draws in wanted.values() for draw in draws}
        if gone:
            name, index, _ = min(gone)
            raise ConfigError(f"{name} has no task {index} any more, which was sampled; restore the data, or choose another --out")
        for draws in wanted.values():
            self._same_questions(draws)
        todo = [item for item in self.plan.envs if any(key_of(draw) not in self.had for draw in wanted[item.name])]
        if not todo:
            return
        for item in todo:
            environments[item.name].ready()
        total = sum(map(len, wanted.values()))
        with Work(self.console, "samples", total, len(self.had), patience_s=TICK_S) as work:
            for spec, group in groupby(todo, key=lambda item: specs[item.name]):
                items = list(group)
                with spec.build() as sampler, self._answers(spec, sampler, items) as answers:
                    self.file.outdate()
                    work.prepared()
                    asked = (self._asked(item, environments[item.name], sampler, wanted[item.name]) for item in items)
                    for found in answers.stream(asked):
                        # already stored samples were only sampled again to fill the batch
                        if new := [(draw, episode) for draw, episode in found if key_of(draw) not in self.had]:
                            for draw, episode in new:
                                self._keep(episode, draw)
                            work.advance(self._numbers(), len(new))
                            self._tick()
        self._tick(last=True)

    @contextmanager
    def _answers(self, spec: Spec, sampler: Sampler, items: Sequence[Item]) -> Iterator[Answers]:
        """Open the source of episodes. If other processes sample, this process does not load the model."""
        if self.elsewhere is not None:
            with self.elsewhere(spec, sampler, items) as answers:
                yield answers
            return
        sampler.ready()
        yield Here(sampler)

    def _same_questions(self, wanted: Sequence[Draw]) -> None:
        """Raise if a task that has samples asks something else now, because its metrics would mix two questions."""
        for draw in wanted:
            sample = self.file.samples.get(key_of(draw))
            if sample is not None and sample.question != question_of(draw.task):
                raise ConfigError(
                    f"task {draw.task.id!r} has another prompt or reference now than when it was sampled; restore the data, "
                    f"or choose another --out (--rescore judges old samples against corrected references)"
                )

    def _asked(self, item: Item, environment: Environment, sampler: Sampler, wanted: Sequence[Draw]) -> Asked:
        mdp = mdp_for(item, environment, sampler)
        _some_room(mdp, wanted)
        sampling = self.plan.sampling_of(item, mdp.tokenizer.stop_ids)
        return Asked(item, mdp, sampling, list(self._rounds(sampler, wanted)))

    @property
    def seconds(self) -> float:
        """Seconds since the start of this run."""
        return time.perf_counter() - self.began

    def _rounds(self, sampler: Sampler, wanted: Sequence[Draw]) -> Iterator[Sequence[Draw]]:
        """Yield batches of requests. If batch composition affects the last bits of an answer, a batch always has the same members."""
        if not sampler.company:
            yield [draw for draw in wanted if key_of(draw) not in self.had]
            return
        size = self.concurrency or sampler.company
        # requests that were added when the evaluation grew have their own batches
        for _, stage in groupby(wanted, key=lambda draw: self.plan.stage(*key_of(draw))):
            together = list(stage)
            for start in range(0, len(together), size):
                asked = together[start : start + size]
                if any(key_of(draw) not in self.had for draw in asked):
                    yield asked

    def _keep(self, episode: Episode, draw: Draw) -> None:
        sample = self.file.append({**episode_row(0, episode, []), "reference": draw.task.reference})
        self.samples += 1
        self.written += sample.tokens
        self.read += sample.prompt_tokens
        self.turns += sample.talk.turns
        self.calls += sample.talk.calls or 0
        if sample.score is not None:
            self.points, self.scored = self.points + sample.score, self.scored + 1

    def _numbers(self) -> dict[str, float | str]:
        rate = self.written / max(self.seconds, 1e-9)
        numbers: dict[str, float | str] = {"average": f"{self.points / max(self.scored, 1):.1%}", "tokens/s": f"{rate:.0f}"}
        if self.turns > self.samples or self.calls:
            numbers |= {"turns": f"{self.turns / self.samples:.3g}", "calls": f"{self.calls / self.samples:.3g}"}
        if unscored := len(self.had) + self.samples - self.scored:
            numbers["unscored"] = str(unscored)
        if self.price:
            numbers["cost"] = f"{self.price.of(self.read, self.written):.2f}"
        return numbers

    def _tick(self, *, last: bool = False) -> None:
        now = time.perf_counter()
        if self.file.folder is None or (now - self.ticked < TICK_S and not last):
            return
        self.ticked = now
        line = {"attempt": self.name, "seconds": round(now - self.began, 3), "samples": self.samples, "tokens": self.written}
        with writing(self.file.folder), (self.file.folder / TIMES).open("a", encoding="utf-8") as times:
            times.write(json.dumps(line) + "\n")


def _some_room(mdp: TokenMDP, wanted: Sequence[Draw]) -> None:
    """Raise if no prompt leaves room for an answer, because the limits are wrong; if only some do not, only their answers fail."""
    why: EnvError | None = None
    for draw in wanted:
        try:
            mdp.preview(draw.task)
            return
        except EnvError as error:
            why = why or error
    if why is not None:
        raise why


def key_of(draw: Draw) -> Key:
    """Return the key of the sample that a request asks for."""
    return str(draw.meta["env"]), int(str(draw.meta["index"])), int(str(draw.meta["sample"]))


def spent(folder: Path) -> tuple[float, int]:
    """Load the total seconds and tokens of all runs of an evaluation, killed ones included."""
    if not (folder / TIMES).is_file():
        return 0.0, 0
    last = {row["attempt"]: (row["seconds"], row["tokens"]) for row in rows_of(folder / TIMES)}
    return sum(seconds for seconds, _ in last.values()), sum(tokens for _, tokens in last.values())
