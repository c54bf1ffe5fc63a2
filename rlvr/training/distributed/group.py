"""Collective operations on Python values, through a separate gloo group.

An accelerator's backend would use device memory, and kills the process if a peer is lost. gloo raises an error after the timeout, which
is converted to a clear message.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, distributed

from rlvr import errors
from rlvr.errors import RlvrError
from rlvr.training.distributed.serialization import deserialize, serialize

T = TypeVar("T")
_GROUPS: dict[str, Any] = {}
"""The gloo group, and the default group for which it was created."""


def init_control_group(collective_timeout_s: float) -> None:
    """Create the gloo group, in all processes together, with a timeout for every operation. Does nothing with one process."""
    _GROUPS.clear()
    if distributed.is_initialized() and distributed.get_world_size() > 1:
        _GROUPS.update(
            of=distributed.group.WORLD, group=distributed.new_group(backend="gloo", timeout=timedelta(seconds=collective_timeout_s))
        )


def get_control_group() -> Any:
    """Return the gloo group, or the default group if it was not created; None with one process."""
    if not distributed.is_initialized() or distributed.get_world_size() == 1:
        return None
    return _GROUPS["group"] if _GROUPS.get("of") is distributed.group.WORLD else distributed.group.WORLD


def all_gather_values(value: T) -> list[T]:
    """Gather the values of all processes, in order."""
    if (group := get_control_group()) is None:
        return [value]
    mine = _to_byte_tensor(serialize(value))
    sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(distributed.get_world_size(group))]
    distributed.all_gather(sizes, torch.tensor([len(mine)]), group=group)
    everybody = []
    for rank, size in enumerate(sizes):  # one broadcast per process: lengths differ, and nothing is padded
        data = mine if rank == distributed.get_rank() else torch.empty(int(size), dtype=torch.uint8)
        distributed.broadcast(data, src=rank, group=group)
        everybody.append(value if rank == distributed.get_rank() else deserialize(data.numpy().data))
    return everybody


def broadcast(value: T | None) -> T:
    """Broadcast the value of the main process."""
    group = get_control_group()
    size = torch.zeros(1, dtype=torch.int64)
    main = distributed.get_rank() == 0
    data = _to_byte_tensor(serialize(value)) if main else size
    distributed.broadcast(size.fill_(len(data)) if main else size, src=0, group=group)
    data = data if main else torch.empty(int(size), dtype=torch.uint8)
    distributed.broadcast(data, src=0, group=group)
    sent: T = value if main else deserialize(data.numpy().data)  # type: ignore[assignment]
    return sent


def run_in_main_process(work: Callable[[], T]) -> T:
    """Run `work` in the main process; all processes get its result or raise its error."""
    if get_control_group() is None:
        return work()
    result, fault = None, None
    if distributed.get_rank() == 0:
        try:
            result = work()
        except RlvrError as error:
            fault = error
        except Exception as error:
            fault = RlvrError(f"the main process failed: {type(error).__name__}: {error}")
            fault.__cause__ = error
    told = broadcast((result, fault if fault is None else (type(fault).__module__, type(fault).__qualname__, str(fault))))
    if told[1] is not None:
        raise fault if fault is not None else _rebuild_error(*told[1])
    answer: T = told[0]  # type: ignore[assignment]
    return answer


def is_peer_lost(error: BaseException) -> bool:
    """Return whether an error means that another process exited or timed out."""
    text = str(error)
    known = isinstance(error, distributed.DistError) or "gloo" in text or "Connection closed by peer" in text
    return isinstance(error, RuntimeError) and known


def _rebuild_error(module: str, name: str, text: str) -> RlvrError:
    """Rebuild an error of the main process, with its class if that is an RlvrError."""
    kind = getattr(errors, name, RlvrError) if module == errors.__name__ else RlvrError
    error = RlvrError(text)
    if isinstance(kind, type) and issubclass(kind, RlvrError):
        error = kind.__new__(kind)
        error.args = (text,)
    return error


def _to_byte_tensor(data: bytes) -> Tensor:
    return torch.from_numpy(np.frombuffer(bytearray(data), dtype=np.uint8))
