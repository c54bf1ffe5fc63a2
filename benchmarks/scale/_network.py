"""How weights reach workers in the simulation: some relays serve a queue each, and every worker has a link of its own."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Links:
    """The network. `whole_gb` 0: weights take no time on the way.

    >>> Links(whole_gb=62, relays=1, relay_mbit=590).whole_gb
    62
    """

    whole_gb: float = 0.0
    delta: float = 1.0
    """What a change from one version to the next has of a whole copy; 1: whole copies are sent."""
    relays: int = 8
    relay_mbit: float = 10_000.0
    slowest_mbit: float = 1_000.0
    fastest_mbit: float = 1_000.0
    """Links of workers lie between these; their logarithms are spread evenly."""


class Network:
    """Says how long a worker loads a version.

    >>> network = Network(Links(whole_gb=62, relays=1, relay_mbit=590), random.Random(0))
    >>> network.joined("a", None); round(network.seconds("a", version=1, now=0.0) / 60)
    14
    """

    def __init__(self, links: Links, chance: random.Random) -> None:
        self.links, self.chance = links, chance
        self.free = [0.0] * links.relays
        """By relay: when it has served all that wait."""
        self.mbit, self.has = dict[str, float](), dict[str, int]()
        self.sent_gb = 0.0

    def joined(self, worker: str, version: int | None) -> None:
        """A worker with this version, or without weights."""
        low, high = self.links.slowest_mbit, self.links.fastest_mbit
        self.mbit[worker] = low if low == high else math.exp(self.chance.uniform(math.log(low), math.log(high)))
        self.has.pop(worker, None)
        if version is not None:
            self.has[worker] = version

    def seconds(self, worker: str, version: int, now: float) -> float:
        """From now until the worker has this version: by the changes since what it has, or whole if that is less."""
        links, before = self.links, self.has.get(worker)
        if not links.whole_gb or version == before:
            return 0.0
        share = 1.0 if before is None else min(1.0, links.delta * abs(version - before))
        self.has[worker] = version
        self.sent_gb += links.whole_gb * share
        megabits = links.whole_gb * share * 8_000
        relay = min(range(links.relays), key=self.free.__getitem__)
        self.free[relay] = max(now, self.free[relay]) + megabits / links.relay_mbit
        return max(self.free[relay] - now, megabits / self.mbit[worker])
