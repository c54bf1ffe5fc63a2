"""Weights sent to servers by vLLM's own transfer: from GPU to GPUs, without files and without a folder that both sides see.

    VLLM_SERVER_DEV_MODE=1 vllm serve DIR ... --weight-transfer-config '{"backend": "nccl"}'

The main process of the trainer and the workers of all servers form one group. For each update the servers are told the names and
shapes of the tensors, and then receive them, one broadcast for all. vLLM's broadcast has no deadline, so it runs in a thread that is
given up when a server fails or the deadline is over; the run then ends, and is resumed with a new group.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as Late
from contextlib import suppress
from importlib import import_module
from typing import Any
from urllib.parse import urlsplit

import torch

from rlvr.contracts import Weights
from rlvr.errors import ConfigError, SamplerError
from rlvr.samplers._http import Http, Reply

BY_NCCL = """--weight-transfer-config '{"backend": "nccl"}'"""
LOOK_S = 0.05
"""How often to check whether a server has refused what is being sent."""


def nccl(address: str, port: int, members: int, rank: int) -> Any:
    """The settings of a broadcast between GPUs."""
    if not torch.cuda.is_available():
        raise ConfigError("transfer is 'nccl', and the trainer has no CUDA GPU; set transfer: files")
    from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo

    return NCCLTrainerInitInfo(address, port, members, rank=rank)


TRANSFERS: dict[str, Callable[[str, int, int, int], Any]] = {"nccl": nccl}
"""By the name of the backend: from address, port, members of the group and this process's rank to vLLM's settings."""


class Orders:
    """What vLLM's sender asks of the servers, sent to all of them at once. Remembers the first failure.

    >>> Orders(servers, done).members                                                  # doctest: +SKIP
    3
    """

    def __init__(self, servers: Sequence[Http], done: Callable[..., Mapping[Http, Reply]]) -> None:
        """`done` sends a command to servers, with one body or one for each, and returns their replies."""
        self._servers, self._done, self.fault = servers, done, None
        sizes = [int(reply.json()["world_size"]) for reply in done(servers, "/get_world_size", method="GET").values()]
        self.members, self.offsets = 1 + sum(sizes), [1 + sum(sizes[:i]) for i in range(len(sizes))]
        """The rank of each server's first worker. The trainer's main process is 0."""

    fault: BaseException | None

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        """Each server's workers join the group under ranks of their own, and leave the one that an earlier run left behind."""
        self.leave()
        self._all("/init_weight_transfer_engine", *({"init_info": init_info | {"rank_offset": offset}} for offset in self.offsets))

    def start_weight_update(self) -> None:
        """New weights will come."""
        self._all("/start_weight_update")

    def update_weights(self, update_info: Any) -> None:
        """Receive them; returns when all servers have."""
        self._all("/update_weights", {"update_info": update_info})

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        """All have come."""
        self._all("/finish_weight_update")

    def leave(self) -> None:
        """Let the workers leave the group."""
        self._done(self._servers, "/shutdown_weight_transfer_engine", strict=False)

    def _all(self, path: str, *bodies: Any) -> None:
        try:
            self._done(self._servers, path, *bodies, hasty=True)
        except BaseException as error:
            self.fault = self.fault or error
            raise


class Source:
    """The trainer's weights as vLLM's sender reads them: first what will come, then the tensors."""

    weights: Weights
    dtype: str | None = None

    def metadata(self) -> list[Any]:
        """Name, type and shape of each tensor."""
        from vllm.distributed.weight_transfer.base import ParamMeta

        return [ParamMeta(name, like.dtype, tuple(like.shape)) for name, like in self.weights.shapes(self.dtype).items()]

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        return self.weights.tensors(self.dtype)


class Transfer:
    """One trainer's way to its servers. All processes of the trainer call `send` together; the main one sends.

    >>> Transfer("nccl", servers, done, 600.0).send(weights, "bfloat16")               # doctest: +SKIP
    """

    def __init__(self, backend: str, servers: Sequence[Http], done: Callable[..., Mapping[Http, Reply]], deadline_s: float) -> None:
        """`done` sends a command to servers, as in `Orders`."""
        self.backend, self.url, self.deadline_s = backend, servers[0].url, deadline_s
        self.orders, self._source, self._sender = Orders(servers, done), Source(), None
        self._factory = import_module("vllm.distributed.weight_transfer.factory").WeightTransferTrainerFactory

    _sender: Any

    def send(self, weights: Weights, dtype: str | None) -> None:
        """Send all tensors, in a precision. A group that failed once is not used again."""
        self._source.weights, self._source.dtype = weights, dtype
        if self._sender is None:
            address = weights.once(lambda: address_towards(self.url))
            self._sender = self._within(lambda: self._joined(*address))
        sender, self._sender = self._sender, None
        self._within(sender.send_weights)
        self._sender = sender

    def close(self) -> None:
        """Leave the group, if it works."""
        sender, self._sender = self._sender, None
        if sender is not None:
            with suppress(SamplerError):
                if rank_here() == 0:
                    self._within(self.orders.leave)
                self._within(sender.shutdown)

    def _joined(self, address: str, port: int) -> Any:
        info = TRANSFERS[self.backend](address, port, self.orders.members, rank_here())
        return self._factory.trainer_init(info, client=self.orders, source=self._source)

    def _within(self, work: Callable[[], Any]) -> Any:
        """The result of something that may never end; only the main process's can wait for a server."""
        if rank_here():
            return work()
        done: Future[Any] = Future()
        gpu = torch.cuda.current_device() if torch.cuda.is_available() else None

        def run() -> None:
            try:
                if gpu is not None:
                    torch.cuda.set_device(gpu)  # a thread begins with the first one
                done.set_result(work())
            except BaseException as error:
                done.set_exception(error)

        threading.Thread(target=run, name="weight-transfer", daemon=True).start()
        until = time.monotonic() + self.deadline_s
        while True:
            try:
                return done.result(timeout=LOOK_S)
            except Late:
                if done.done():
                    raise
                if self.orders.fault is not None:
                    raise self.orders.fault from None
                if time.monotonic() > until:
                    raise SamplerError(f"the weights did not reach the servers within deadline_s ({self.deadline_s:g} s)") from None


def rank_here() -> int:
    """Which process of the trainer this is; the main one is 0."""
    return torch.distributed.get_rank() if torch.distributed.is_initialized() else 0


def address_towards(url: str) -> tuple[str, int]:
    """The address of this machine in the network of a server, and a free port. Nothing is sent.

    >>> address_towards("http://127.0.0.1:8000")[0]
    '127.0.0.1'
    """
    parts = urlsplit(url)
    try:
        kind, _, _, _, place = socket.getaddrinfo(parts.hostname, parts.port or 80, type=socket.SOCK_DGRAM)[0]
        with socket.socket(kind, socket.SOCK_DGRAM) as way, socket.socket(kind, socket.SOCK_STREAM) as free:
            way.connect(place)
            address = str(way.getsockname()[0])
            free.bind((address, 0))
            return address, int(free.getsockname()[1])
    except OSError as error:
        raise SamplerError(f"{url} cannot be reached from here: {error}") from error
