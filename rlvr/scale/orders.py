"""What a pool says: the orders to its driver."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Assign:
    """Sample this group. What the worker says about it comes back with this order, so that words about an older attempt are known as such.

    >>> Assign("c0", "1:7", version=0, attempt=1).attempt
    1
    """

    worker: str
    group: Hashable
    version: int
    attempt: int
    """Counts the copies of this group."""


@dataclass(frozen=True, slots=True)
class Load:
    """Give the worker this version of the weights.

    >>> Load("c0", version=3, attempt=8).version
    3
    """

    worker: str
    version: int
    attempt: int
    """Counts all loads, so that a worker that comes back under its old name is not taken for the earlier one."""


@dataclass(frozen=True, slots=True)
class Keep:
    """Keep what came with this order: it is the first copy of its group that ended.

    >>> Keep(Assign("c0", "1:7", 0, 1)).order.group
    '1:7'
    """

    order: Assign


@dataclass(frozen=True, slots=True)
class Again:
    """The group's worker was lost; the group will be given to another one. Nothing has to be done, but it should be counted.

    >>> Again("1:7", "killed").why
    'killed'
    """

    group: Hashable
    why: str


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The group has ended its workers too often: its episodes are failed ones, by the infrastructure.

    >>> GiveUp("1:7", "killed").group
    '1:7'
    """

    group: Hashable
    why: str


@dataclass(frozen=True, slots=True)
class Cancel:
    """Another copy of this group has ended. The worker stops with it, or ends it, and says `ended` in both cases.

    >>> Cancel(Assign("c0", "1:7", 0, 1)).order.worker
    'c0'
    """

    order: Assign


@dataclass(frozen=True, slots=True)
class Drop:
    """The worker does not answer in time: end its process. The pool has lost it already.

    >>> Drop("c0", "group 1:7 did not end in 600 s").worker
    'c0'
    """

    worker: str
    why: str


Order = Assign | Load | Keep | Again | GiveUp | Cancel | Drop
