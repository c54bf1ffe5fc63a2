"""The commands of the work scheduler to the driver."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DispatchTask:
    """Run this task. Events of the worker carry the command, so that events of an older attempt are recognized.

    >>> DispatchTask("c0", "1:7", version=0, attempt=1).attempt
    1
    """

    worker: str
    task_name: Hashable
    version: int
    attempt: int
    """Number of this copy of the task."""


@dataclass(frozen=True, slots=True)
class LoadWeights:
    """Let the worker load this version of the weights.

    >>> LoadWeights("c0", version=3, attempt=8).version
    3
    """

    worker: str
    version: int
    attempt: int
    """Number of this load, so that a restarted worker with the same name is not taken for the earlier one."""


@dataclass(frozen=True, slots=True)
class AcceptResult:
    """Accept the result of this command: it is the first copy of its task that ended.

    >>> AcceptResult(DispatchTask("c0", "1:7", 0, 1)).command.task_name
    '1:7'
    """

    command: DispatchTask


@dataclass(frozen=True, slots=True)
class CountRetry:
    """Count a retry in the metrics: the worker of a task was lost, and the scheduler will give the task to another one.

    >>> CountRetry("1:7", "killed").reason
    'killed'
    """

    task_name: Hashable
    reason: str


@dataclass(frozen=True, slots=True)
class AbandonTask:
    """Give up the task, which has lost too many workers: its episodes fail with an infrastructure fault.

    >>> AbandonTask("1:7", "killed").task_name
    '1:7'
    """

    task_name: Hashable
    reason: str


@dataclass(frozen=True, slots=True)
class CancelCopy:
    """Cancel this copy, since another one has ended. The worker reports its end, cancelled or complete.

    >>> CancelCopy(DispatchTask("c0", "1:7", 0, 1)).command.worker
    'c0'
    """

    command: DispatchTask


@dataclass(frozen=True, slots=True)
class KillWorker:
    """End the process of a worker that exceeded a timeout. The scheduler has already removed it.

    >>> KillWorker("c0", "task 1:7 did not end in 600 s").worker
    'c0'
    """

    worker: str
    reason: str


Command = DispatchTask | LoadWeights | AcceptResult | CountRetry | AbandonTask | CancelCopy | KillWorker
