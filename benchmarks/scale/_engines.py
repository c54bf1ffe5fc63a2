"""What the simulation pretends: engines that sample many answers at once, and how long answers are."""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Speed:
    """How fast an engine is. One token for each of n answers takes max(floor, each * n) + kv * (tokens in the cache) seconds.

    >>> Speed(slow=3.0).floor
    0.0055
    """

    floor: float = 5.5e-3
    each: float = 1.2e-4
    kv: float = 2e-8
    prefill: float = 5e-5
    """Seconds for a token of a prompt, or of an answer that goes on."""
    slow: float = 1.0
    """How many times as long everything takes."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """Lengths of answers: log-normal, a part of the spread between groups, cut at the limit.

    >>> Lengths(limit=100).draw(random.Random(0), 2)[0] <= 100
    True
    """

    median: float = 2320.0
    sigma: float = 0.888
    between: float = 0.4
    """The share of the variance that the members of a group have in common."""
    limit: int = 28_672

    def draw(self, chance: random.Random, members: int) -> list[int]:
        common = chance.gauss(0, self.sigma * math.sqrt(self.between))
        own = self.sigma * math.sqrt(1 - self.between)
        return [max(1, min(self.limit, round(self.median * math.exp(common + chance.gauss(0, own))))) for _ in range(members)]


@dataclass(frozen=True, slots=True)
class Known:
    """Groups of answers whose lengths were read from a run; each draw is one of them.

    >>> Known(((3, 5),)).draw(random.Random(0), 2)
    [3, 5]
    """

    groups: Sequence[Sequence[int]]
    limit: int = 1 << 30

    def draw(self, chance: random.Random, members: int) -> list[int]:
        return list(chance.choice(self.groups))[:members]


@dataclass(slots=True)
class Engine:
    """Answers that are sampled together. Between two events nothing is computed: the time of the next end has a closed form.

    >>> engine = Engine(Speed(floor=0.01, kv=0.0, prefill=0.0))
    >>> engine.begin("g", [(0, 100), (0, 50)], now=0.0)
    >>> round(engine.next_end(), 3), engine.ended(1.0 + 1e-9)
    (0.5, ['g'])
    """

    speed: Speed
    now: float = 0.0
    at: float = 0.0
    """How many tokens each answer has had that was there from the start."""
    running: int = 0
    cached: float = 0.0
    """Tokens in the cache, less `running * at`."""
    debt: float = 0.0
    """Seconds of prefill that are still to be done."""
    busy: float = 0.0
    ends: list[tuple[float, int, Hashable]] = field(default_factory=list)
    groups: dict[Hashable, dict[int, float]] = field(default_factory=dict)
    """By group: of each answer that runs, what it adds to `cached`."""
    count: int = 0

    def begin(self, group: Hashable, answers: Sequence[tuple[int, int]], now: float) -> None:
        """Start a group: each answer's tokens so far, and how many are to come."""
        self.advance(now)
        self.groups[group] = {}
        for had, to_come in answers:
            self.count += 1
            heapq.heappush(self.ends, (self.at + to_come, self.count, group))
            self.groups[group][self.count] = had - self.at
            self.cached += had - self.at
            self.running += 1
            self.debt += had * self.speed.prefill * self.speed.slow

    def cancel(self, group: Hashable, now: float) -> None:
        """Stop a group."""
        self.advance(now)
        for had in self.groups.pop(group, {}).values():
            self.cached -= had
            self.running -= 1

    def advance(self, now: float) -> None:
        """Sample until this moment."""
        seconds, self.now = now - self.now, now
        if not self.running:
            return
        self.busy += seconds
        paid = min(self.debt, seconds)
        self.debt -= paid
        if (seconds := seconds - paid) > 0:
            first, growth = self._pace()
            self.at += seconds / first if growth == 0 else (math.sqrt(first * first + 2 * growth * seconds) - first) / growth

    def next_end(self) -> float:
        """When the next answer ends."""
        while self.ends and self.ends[0][1] not in self.groups.get(self.ends[0][2], ()):
            heapq.heappop(self.ends)
        if not self.ends:
            return math.inf
        first, growth = self._pace()
        tokens = max(0.0, self.ends[0][0] - self.at)
        return self.now + self.debt + tokens * (first + growth * tokens / 2)

    def ended(self, now: float) -> list[Hashable]:
        """The groups whose last answer has ended by now."""
        self.advance(now)
        done = []
        while self.ends and self.ends[0][0] <= self.at + 1e-6:
            _, number, group = heapq.heappop(self.ends)
            members = self.groups.get(group)
            if members is None or number not in members:
                continue
            self.cached -= members.pop(number)
            self.running -= 1
            if not members:
                del self.groups[group]
                done.append(group)
        return done

    def _pace(self) -> tuple[float, float]:
        """Seconds for the next token, and by how much each further one takes longer."""
        speed = self.speed
        inside = self.cached + self.running * self.at
        first = max(speed.floor, speed.each * self.running) + speed.kv * inside
        return first * speed.slow, speed.kv * self.running * speed.slow
