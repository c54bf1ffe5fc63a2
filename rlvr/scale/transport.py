"""The transport protocol: sends commands to rollout workers and returns events. It hides the cluster from the driver."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any, Protocol

from rlvr.contracts import Sampling
from rlvr.scale.orders import Assign, Load
from rlvr.scale.units import Unit
from rlvr.scale.weights.parcels import Parcel


@dataclass(frozen=True, slots=True)
class Started:
    """A worker is ready for its first command.

    >>> Started("c0.0").worker
    'c0.0'
    """

    worker: str


@dataclass(frozen=True, slots=True)
class Loaded:
    """A worker has loaded weights.

    >>> Loaded(Load("c0.0", 1, 1)).order.version
    1
    """

    order: Load


@dataclass(frozen=True, slots=True)
class Ended:
    """A worker has finished a task, or has cancelled it.

    >>> Ended(Assign("c0.0", "0:1", 0, 1), b"").seconds
    0.0
    """

    order: Assign
    data: bytes
    """The episodes as columns; empty if it was cancelled."""
    seconds: float = 0.0
    """Duration of the verification."""


@dataclass(frozen=True, slots=True)
class Lost:
    """A worker is lost, or must be replaced.

    >>> Lost("c0.0", "killed").blame
    True
    """

    worker: str
    why: str
    blame: bool = True
    """Whether its task may be the cause."""
    hopeless: bool = False
    """Whether a restart would fail in the same way."""


Event = Started | Loaded | Ended | Lost


class Transport(Protocol):
    """Starts rollout workers and calls them. Only `poll` blocks. After a worker is lost, it causes no more events."""

    def start(self, worker: str) -> None:
        """Begin to start a worker."""
        ...

    def stop(self, worker: str) -> None:
        """Kill the process of a worker. It may be gone already."""
        ...

    def hold(self, version: int, parcel: Parcel) -> None:
        """Store weights for the workers; from any thread. The buckets are read now, since the trainer changes its weights later."""
        ...

    def keep(self, versions: Set[int]) -> None:
        """Free the weights that none of these versions needs."""
        ...

    def load(self, order: Load) -> int:
        """Let a worker load stored weights; return how many bytes are sent."""
        ...

    def sample(self, order: Assign, unit: Unit, sampling: Sampling, label: int) -> None:
        """Let a worker run a task; `label` is the policy version of its episodes."""
        ...

    def cancel(self, order: Assign) -> None:
        """Let a worker cancel a task."""
        ...

    def about(self, worker: str) -> Mapping[str, Any]:
        """Describe a worker for the event log: its location and its last log lines. Does not block."""
        ...

    def poll(self, timeout_s: float) -> list[Event]:
        """Return the events since the last call; wait for one until the timeout."""
        ...

    def close(self) -> None:
        """End all workers."""
        ...
