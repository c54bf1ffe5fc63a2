"""The commands of the work scheduler to the driver."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Assign:
    """Run this task. Events of the worker carry the command, so that events of an older attempt are recognized.

    >>> Assign("c0", "1:7", version=0, attempt=1).attempt
    1
    """

    worker: str
    group: Hashable
    version: int
    attempt: int
    """Number of this copy of the task."""


@dataclass(frozen=True, slots=True)
class Load:
    """Let the worker load this version of the weights.

    >>> Load("c0", version=3, attempt=8).version
    3
    """

    worker: str
    version: int
    attempt: int
    """Number of this load, so that a restarted worker with the same name is not taken for the earlier one."""


@dataclass(frozen=True, slots=True)
class Keep:
    """Accept the result of this command: it is the first copy of its task that ended.

    >>> Keep(Assign("c0", "1:7", 0, 1)).order.group
    '1:7'
    """

    order: Assign


@dataclass(frozen=True, slots=True)
class Again:
    """Count a retry: the worker of the task was lost, and another one will get it. The driver has nothing else to do.

    >>> Again("1:7", "killed").why
    'killed'
    """

    group: Hashable
    why: str


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Give up the task, which has lost too many workers: its episodes fail with an infrastructure fault.

    >>> GiveUp("1:7", "killed").group
    '1:7'
    """

    group: Hashable
    why: str


@dataclass(frozen=True, slots=True)
class Cancel:
    """Cancel this copy, since another one has ended. The worker reports its end, cancelled or complete.

    >>> Cancel(Assign("c0", "1:7", 0, 1)).order.worker
    'c0'
    """

    order: Assign


@dataclass(frozen=True, slots=True)
class Drop:
    """End the process of a worker that exceeded a timeout. The scheduler has already removed it.

    >>> Drop("c0", "task 1:7 did not end in 600 s").worker
    'c0'
    """

    worker: str
    why: str


Order = Assign | Load | Keep | Again | GiveUp | Cancel | Drop
