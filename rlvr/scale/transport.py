"""What carries orders to collectors and brings back what happened. The driver knows no more of a cluster than this."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any, Protocol

from rlvr.contracts import Sampling
from rlvr.scale.orders import Assign, Load
from rlvr.scale.parcels import Parcel
from rlvr.scale.units import Unit


@dataclass(frozen=True, slots=True)
class Started:
    """A collector is ready for its first order.

    >>> Started("c0.0").worker
    'c0.0'
    """

    worker: str


@dataclass(frozen=True, slots=True)
class Loaded:
    """A collector has loaded weights.

    >>> Loaded(Load("c0.0", 1, 1)).order.version
    1
    """

    order: Load


@dataclass(frozen=True, slots=True)
class Ended:
    """A collector has sampled a unit, or stopped with it because it was cancelled.

    >>> Ended(Assign("c0.0", "0:1", 0, 1), b"").seconds
    0.0
    """

    order: Assign
    data: bytes
    """The episodes as columns; empty if it was cancelled."""
    seconds: float = 0.0
    """How long verification took."""


@dataclass(frozen=True, slots=True)
class Lost:
    """A collector is gone, or not to be trusted any more.

    >>> Lost("c0.0", "killed").blame
    True
    """

    worker: str
    why: str
    blame: bool = True
    """Whether what it sampled may be the cause."""
    hopeless: bool = False
    """Whether another start would fail in the same way."""


Event = Started | Loaded | Ended | Lost


class Transport(Protocol):
    """Starts collectors and talks to them. Nothing here waits, but `poll`. After a collector is lost, its words do not come any more."""

    def start(self, worker: str) -> None:
        """Begin to start a collector."""
        ...

    def stop(self, worker: str) -> None:
        """End a collector's process, whatever it does. It may be gone already."""
        ...

    def hold(self, version: int, parcel: Parcel) -> None:
        """Keep weights where collectors can get them; any thread may. The buckets are read now: the trainer changes its weights later."""
        ...

    def keep(self, versions: Set[int]) -> None:
        """Free what none of these versions needs."""
        ...

    def load(self, order: Load) -> int:
        """Let a collector load weights that are held; returns how many bytes it gets."""
        ...

    def sample(self, order: Assign, unit: Unit, sampling: Sampling, label: int) -> None:
        """Let a collector sample a unit; `label` is the version that its episodes name."""
        ...

    def cancel(self, order: Assign) -> None:
        """Let a collector stop with a unit."""
        ...

    def about(self, worker: str) -> Mapping[str, Any]:
        """What is known of a collector for the record of its loss: where it runs, and the last lines that it printed. It does not wait."""
        ...

    def poll(self, timeout_s: float) -> list[Event]:
        """What happened since; waits until something happens, at most so long."""
        ...

    def close(self) -> None:
        """End all collectors."""
        ...
