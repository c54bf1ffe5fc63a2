"""The commands of the work scheduler to the driver."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Run this task. Events of the worker carry the command, so that events of an older attempt are recognized.

    >>> Dispatch("c0", "1:7", version=0, attempt=1).attempt
    1
    """

    worker: str
    group: Hashable
    version: int
    attempt: int
    """Number of this copy of the task."""


@dataclass(frozen=True, slots=True)
class LoadWeights:
    """Let the worker load this version of the weights.

    >>> Load("c0", version=3, attempt=8).version
    3
    """

    worker: str
    version: int
    attempt: int
    """Number of this load, so that a restarted worker with the same name is not taken for the earlier one."""


@dataclass(frozen=True, slots=True)
class Accept:
    """Accept the result of this command: it is the first copy of its task that ended.

    >>> Accept(Dispatch("c0", "1:7", 0, 1)).order.group
    '1:7'
    """

    order: Dispatch


@dataclass(frozen=True, slots=True)
class Retry:
    """Count a retry: the worker of the task was lost, and another one will get it. The driver has nothing else to do.

    >>> Retry("1:7", "killed").why
    'killed'
    """

    group: Hashable
    reason: str


@dataclass(frozen=True, slots=True)
class Fail:
    """Give up the task, which has lost too many workers: its episodes fail with an infrastructure fault.

    >>> Fail("1:7", "killed").group
    '1:7'
    """

    group: Hashable
    reason: str


@dataclass(frozen=True, slots=True)
class Cancel:
    """Cancel this copy, since another one has ended. The worker reports its end, cancelled or complete.

    >>> Cancel(Dispatch("c0", "1:7", 0, 1)).order.worker
    'c0'
    """

    order: Dispatch


@dataclass(frozen=True, slots=True)
class Kill:
    """End the process of a worker that exceeded a timeout. The scheduler has already removed it.

    >>> Kill("c0", "task 1:7 did not end in 600 s").worker
    'c0'
    """

    worker: str
    reason: str


Command = Dispatch | LoadWeights | Accept | Retry | Fail | Cancel | Kill
