"""The transport protocol: sends commands to rollout workers and returns events. It hides the cluster from the driver."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any, Protocol

from rlvr.cluster.rollout_tasks import RolloutTask
from rlvr.cluster.scheduler_commands import DispatchTask, LoadWeights
from rlvr.cluster.weights.weight_updates import WeightUpdate
from rlvr.contracts import SamplingParams


@dataclass(frozen=True, slots=True)
class WorkerStarted:
    """A worker is ready for its first command.

    >>> WorkerStarted("c0.0").worker
    'c0.0'
    """

    worker: str


@dataclass(frozen=True, slots=True)
class WeightsLoaded:
    """A worker has loaded weights.

    >>> WeightsLoaded(LoadWeights("c0.0", 1, 1)).command.version
    1
    """

    command: LoadWeights


@dataclass(frozen=True, slots=True)
class TaskEnded:
    """A worker has finished a task, or has cancelled it.

    >>> TaskEnded(DispatchTask("c0.0", "0:1", 0, 1), b"").verification_s
    0.0
    """

    command: DispatchTask
    data: bytes
    """The episodes as columns; empty if it was cancelled."""
    verification_s: float = 0.0
    """Duration of the verification."""


@dataclass(frozen=True, slots=True)
class WorkerLost:
    """A worker is lost, or must be replaced.

    >>> WorkerLost("c0.0", "killed").may_be_cause
    True
    """

    worker: str
    reason: str
    may_be_cause: bool = True
    """Whether its task may be the cause."""
    is_permanent: bool = False
    """Whether a restart would fail in the same way."""


Event = WorkerStarted | WeightsLoaded | TaskEnded | WorkerLost
NumBytes = int
"""A number of bytes."""


class Transport(Protocol):
    """Starts rollout workers and calls them. Only `poll` blocks. After a worker is lost, it causes no more events."""

    def start_worker(self, worker: str) -> None:
        """Begin to start a worker."""
        ...

    def kill_worker(self, worker: str) -> None:
        """Kill the process of a worker. It may be gone already."""
        ...

    def store_weights(self, version: int, update: WeightUpdate) -> None:
        """Store weights for the workers; from any thread. The buckets are read now, since the trainer changes its weights later."""
        ...

    def free_unneeded_weights(self, needed_versions: Set[int]) -> None:
        """Free the weights that none of these versions needs."""
        ...

    def send_weight_update(self, command: LoadWeights) -> NumBytes:
        """Let a worker load a stored version of the weights, whole or as deltas from the version that it has; return the bytes to send."""
        ...

    def start_task(self, command: DispatchTask, rollout_task: RolloutTask, sampling: SamplingParams, policy_version: int) -> None:
        """Let a worker run a task; `policy_version` is written into its episodes."""
        ...

    def cancel_task(self, command: DispatchTask) -> None:
        """Let a worker cancel a task."""
        ...

    def get_worker_location_and_log(self, worker: str) -> Mapping[str, Any]:
        """Describe a worker for the event log: its location and its last log lines. Does not block."""
        ...

    def poll(self, timeout_s: float) -> list[Event]:
        """Return the events since the last call; wait for one until the timeout."""
        ...

    def close(self) -> None:
        """End all workers."""
        ...
