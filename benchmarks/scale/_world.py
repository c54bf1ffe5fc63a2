"""A virtual clock, pretended engines and a pretended trainer around the real pool."""

from __future__ import annotations

import heapq
import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from _engines import Engine, Known, Lengths, Speed
from _network import Links, Network

from rlvr.cluster.scheduler_commands import AbandonTask, AcceptResult, CancelCopy, Command, CountRetry, DispatchTask, LoadWeights
from rlvr.cluster.work_scheduler import WorkScheduler

Part = tuple[int, int, int]
"""A group by the step that asks it and its place, and which part of it: all parts but the first continue answers that were cut."""


@dataclass(frozen=True, slots=True)
class Setup:
    """What is trained on what. The defaults are verl's published run: 7B on H20, 512 prompts of 16 answers (docs/advance/fully_async.md).

    >>> Setup(engines=64).groups
    512
    """

    engines: int = 64
    groups: int = 512
    members: int = 16
    prompt: int = 200
    room: int = 16
    train_s: float = 114.0
    load_s: float = 5.0
    lengths: Lengths | Known = field(default_factory=Lengths)
    speed: Speed = field(default_factory=Speed)
    links: Links = field(default_factory=Links)
    slow_share: float = 0.0
    slow_factor: float = 3.0
    spread: float = 1.0
    """The slowest of all other workers takes so many times as long as the fastest; the logarithms are spread evenly."""
    up_s: float = 0.0
    """The mean time until a worker's machine is lost; 0: never."""
    back_s: float = 120.0


@dataclass(frozen=True, slots=True)
class Rule:
    """When what is sampled.

    >>> Rule("k = 1", k=1).overlap
    True
    """

    name: str
    k: int = 0
    overlap: bool = True
    """Whether engines go on to the next batch one by one; else a batch begins when the one before is complete."""
    backups: float = 0.0
    cut: int = 0
    """Answers are cut after so many tokens and go on under the next version; 0: never."""


@dataclass(slots=True)
class Figures:
    """What came out: `made` has the time of each version."""

    made: list[float] = field(default_factory=list)
    sampled: list[float] = field(default_factory=list)
    """When each batch was complete."""
    ages: Counter[int] = field(default_factory=Counter)
    """Trained tokens by age, in steps."""
    again: int = 0
    given_up: int = 0
    busy: float = 0.0
    """The share of the engines' time in which they sample."""
    sent_gb: float = 0.0
    """Weights that were sent to workers."""
    pool_s: float = 0.0
    """Real seconds of a processor that the pool took to decide."""

    def step_s(self) -> float:
        """The mean time of a step, without the first third."""
        first = len(self.made) // 3
        return (self.made[-1] - self.made[first]) / (len(self.made) - 1 - first)

    @property
    def age(self) -> float:
        """The mean age of a trained token."""
        return sum(age * count for age, count in self.ages.items()) / max(1, self.ages.total())


class Timed:
    """A pool whose calls are timed by the seconds of the processor.

    >>> timed = Timed(WorkScheduler()); timed.add_version(0), timed.seconds > 0
    ([], True)
    """

    def __init__(self, pool: WorkScheduler) -> None:
        self.pool, self.seconds = pool, 0.0

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any, **options: Any) -> list[Command]:
            began = time.thread_time()
            try:
                return getattr(self.pool, name)(*args, **options)  # type: ignore[no-any-return]
            finally:
                self.seconds += time.thread_time() - began

        return call


class World:
    """One run of some steps by one rule."""

    def __init__(self, setup: Setup, rule: Rule, *, steps: int, seed: int = 0) -> None:
        self.setup, self.rule, self.steps = setup, rule, steps
        self.chance = random.Random(seed)
        self.pool = Timed(WorkScheduler(backup_task_fraction=rule.backups, num_older_versions=rule.k))
        self.network = Network(setup.links, self.chance)
        self.engines = dict[str, Engine]()
        self.figures = Figures()
        self.now, self.clock, self.stamps = 0.0, list[tuple[float, int, str, Any]](), Counter[str]()
        self.lengths = dict[tuple[int, int], list[int]]()
        self.open, self.tokens = Counter[int](), Counter[tuple[int, int, int]]()
        """By step, how many parts have not ended; by group and version, how many tokens."""
        self.waiting = list[Part]()
        """Parts that begin with the next batch, where batches do not overlap."""
        self.asked, self.trained, self.training = 0, 0, False
        self.events, self.spent = 0, 0.0

    def run(self) -> Figures:
        """Until the last step is trained."""
        self.figures.made.append(0.0)
        self._follow(self.pool.add_version(0))
        for number in range(self.setup.engines):
            self._join(f"e{number}")
        self._ask_more()
        while self.trained < self.steps:
            self.now, _, what, data = heapq.heappop(self.clock)
            self.events += 1
            getattr(self, f"_{what}")(data)
        self.spent += sum(engine.busy for engine in self.engines.values())
        self.figures.busy = self.spent / max(1e-9, self.now * self.setup.engines)
        self.figures.sent_gb, self.figures.pool_s = self.network.sent_gb, self.pool.seconds
        return self.figures

    # ---- events

    def _at(self, when: float, what: str, data: Any) -> None:
        heapq.heappush(self.clock, (when, len(self.clock) + self.events * 1_000_000, what, data))

    def _look(self, data: tuple[str, int]) -> None:
        name, stamp = data
        if stamp != self.stamps[name] or name not in self.engines:
            return
        for order in self.engines[name].ended(self.now):
            self._follow(self.pool.handle_task_ended(order))  # type: ignore[arg-type]
        self._watch(name)

    def _watch(self, name: str) -> None:
        self.stamps[name] += 1
        if name in self.engines and (when := self.engines[name].next_end()) < float("inf"):
            self._at(when, "look", (name, self.stamps[name]))

    def _loaded(self, order: LoadWeights) -> None:
        self._follow(self.pool.handle_weights_loaded(order))

    def _made(self, version: int) -> None:
        self.trained, self.training = version, False
        self.figures.made.append(self.now)
        self._follow(self.pool.add_version(version))
        self._ask_more()
        self._train()

    def _join(self, name: str) -> None:
        slow = self.setup.slow_factor if self.chance.random() < self.setup.slow_share else 1.0
        slow *= self.setup.spread ** self.chance.random() if self.setup.spread != 1 else 1.0
        self.engines[name] = Engine(replace(self.setup.speed, slow=slow), now=self.now)
        if self.setup.up_s:
            self._at(self.now + self.chance.expovariate(1 / self.setup.up_s), "die", name)
        version = None if self.now else 0
        self.network.joined(name, version)
        self._follow(self.pool.add_worker(name, version, capacity=self.setup.room))

    def _die(self, name: str) -> None:
        self.spent += self.engines.pop(name).busy
        self.stamps[name] += 1
        self._at(self.now + self.setup.back_s, "join", name)
        self._follow(self.pool.remove_worker(name, "its machine is gone", may_be_cause=False))

    # ---- what follows

    def _ask_more(self) -> None:
        """Ask every batch that may be asked now."""
        while self.asked <= min(self.trained + self.rule.k, self.steps + 2):
            if not self.rule.overlap and self.asked and self.open[self.asked - 1]:
                return
            step, self.asked = self.asked, self.asked + 1
            for place in range(self.setup.groups):
                self.lengths[step, place] = self.setup.lengths.draw(self.chance, self.setup.members)
            begun, self.waiting = self.waiting, []
            self._ask([*begun, *((step, place, 0) for place in range(self.setup.groups))], step)

    def _ask(self, parts: Sequence[Part], step: int) -> None:
        self.open[step] += len(parts)
        self._follow(self.pool.enqueue(parts, max(0, step - self.rule.k)))

    def _follow(self, orders: Sequence[Command]) -> None:
        changed = dict[str, None]()
        for order in orders:
            match order:
                case DispatchTask(name, part, _, _):
                    self.engines[name].begin(order, self._answers(part), self.now)  # type: ignore[arg-type]
                    changed[name] = None
                case LoadWeights():
                    wait_s = self.network.seconds(order.worker, order.version, self.now)
                    self._at(self.now + wait_s + self.setup.load_s, "loaded", order)
                case CancelCopy(stopped):
                    self.engines[stopped.worker].cancel(stopped, self.now)
                    changed[stopped.worker] = None
                    self._follow(self.pool.handle_task_ended(stopped))
                case AcceptResult(kept):
                    self._kept(kept.task_name, kept.version)  # type: ignore[arg-type]
                case CountRetry():
                    self.figures.again += 1
                case AbandonTask(group, _):
                    self.figures.given_up += 1
                    self._kept(group, 0)  # type: ignore[arg-type]
        for name in changed:
            self._watch(name)

    def _answers(self, part: Part) -> list[tuple[int, int]]:
        """Of each answer of a part: the tokens in the cache at its start, and the tokens to come."""
        step, place, number = part
        cut = self.rule.cut or self.setup.lengths.limit
        left = [length - number * cut for length in self.lengths[step, place]]
        return [(self.setup.prompt + number * cut, min(more, cut)) for more in left if more > 0]

    def _kept(self, part: Part, version: int) -> None:
        """A part has ended; the rest of it belongs to the next step."""
        step, place, number = part
        here = step + number
        answers = self._answers(part)
        self.tokens[step, place, version] += sum(more for _, more in answers)
        if any(length > (number + 1) * (self.rule.cut or self.setup.lengths.limit) for length in self.lengths[step, place]):
            further = (step, place, number + 1)
            if self.rule.overlap or self.asked > here + 1:
                self._ask([further], here + 1)
            else:
                self.waiting.append(further)
        else:
            for sampled in range(max(0, step - self.rule.k), here + 1):
                self.figures.ages[here - sampled] += self.tokens.pop((step, place, sampled), 0)
            del self.lengths[step, place]
        self.open[here] -= 1
        if not self.open[here]:
            self.figures.sampled.append(self.now)
        self._train()
        self._ask_more()

    def _train(self) -> None:
        """Train on the next batch when it is complete and the one before is trained."""
        step = self.trained
        if not self.training and step < self.asked and not self.open[step]:
            self.training = True
            self._at(self.now + self.setup.train_s, "made", step + 1)
