"""Send weights to servers by vLLM's own weight transfer: from GPU to GPUs, without files or a shared folder.

    VLLM_SERVER_DEV_MODE=1 vllm serve DIR ... --weight-transfer-config '{"backend": "nccl"}'

The main process of the trainer and the workers of all servers form one NCCL group. For each update the servers get the names and
shapes of the tensors, and then receive them, one broadcast for all. vLLM's broadcast has no timeout, so it runs in a thread that is
abandoned when a server fails or the timeout expires; the run then ends, and is resumed with a new group.
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
"""How often to check whether a server has failed during the transfer."""


def nccl(address: str, port: int, members: int, rank: int) -> Any:
    """Make vLLM's settings for a broadcast between GPUs."""
    if not torch.cuda.is_available():
        raise ConfigError("transfer is 'nccl', and the trainer has no CUDA GPU; set transfer: files")
    from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo

    return NCCLTrainerInitInfo(address, port, members, rank=rank)


TRANSFERS: dict[str, Callable[[str, int, int, int], Any]] = {"nccl": nccl}
"""By backend name: a function from address, port, group size and rank to vLLM's settings."""


class Orders:
    """Client that vLLM's sender uses to send commands to all servers at once. Records the first failure."""

    def __init__(self, servers: Sequence[Http], done: Callable[..., Mapping[Http, Reply]]) -> None:
        """Set up the client. `done` sends a command to servers, with one body or one for each, and returns their replies."""
        self._servers, self._done, self.fault = servers, done, None
        sizes = [int(reply.json()["world_size"]) for reply in done(servers, "/get_world_size", method="GET").values()]
        self.members, self.offsets = 1 + sum(sizes), [1 + sum(sizes[:i]) for i in range(len(sizes))]
        """Rank of each server's first worker. The trainer's main process has rank 0."""

    fault: BaseException | None

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        """Let each server's workers leave the group of an earlier run, and join this one under their own ranks."""
        self.leave()
        self._all("/init_weight_transfer_engine", *({"init_info": init_info | {"rank_offset": offset}} for offset in self.offsets))

    def start_weight_update(self) -> None:
        """Announce new weights."""
        self._all("/start_weight_update")

    def update_weights(self, update_info: Any) -> None:
        """Let the servers receive the weights; return when all have."""
        self._all("/update_weights", {"update_info": update_info})

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        """Tell the servers that all weights were sent."""
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
    """The trainer's weights in the form that vLLM's sender reads: first the metadata, then the tensors."""

    weights: Weights
    dtype: str | None = None

    def metadata(self) -> list[Any]:
        """Return name, dtype and shape of each tensor."""
        from vllm.distributed.weight_transfer.base import ParamMeta

        return [ParamMeta(name, like.dtype, tuple(like.shape)) for name, like in self.weights.shapes(self.dtype).items()]

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        return self.weights.tensors(self.dtype)


class Transfer:
    """Weight transfer from the trainer to its servers. All processes of the trainer call `send` together; the main one sends."""

    def __init__(self, backend: str, servers: Sequence[Http], done: Callable[..., Mapping[Http, Reply]], deadline_s: float) -> None:
        """Set up the transfer. `done` sends a command to servers and returns their replies."""
        self.backend, self.url, self.deadline_s = backend, servers[0].url, deadline_s
        self.orders, self._source, self._sender = Orders(servers, done), Source(), None
        self._factory = import_module("vllm.distributed.weight_transfer.factory").WeightTransferTrainerFactory

    _sender: Any

    def send(self, weights: Weights, dtype: str | None) -> None:
        """Send all tensors, in the given dtype. A group that failed once is not used again."""
        self._source.weights, self._source.dtype = weights, dtype
        if self._sender is None:
            address = weights.once(lambda: address_towards(self.url))
            self._sender = self._within(lambda: self._joined(*address))
        sender, self._sender = self._sender, None
        self._within(sender.send_weights)
        self._sender = sender

    def close(self) -> None:
        """Leave the group, if it has not failed."""
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
        """Run a function with a timeout; only in the main process, whose calls wait for servers."""
        if rank_here():
            return work()
        done: Future[Any] = Future()
        gpu = torch.cuda.current_device() if torch.cuda.is_available() else None

        def run() -> None:
            try:
                if gpu is not None:
                    torch.cuda.set_device(gpu)  # a new thread uses the first GPU
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
                    raise SamplerError(
                        f"the weights did not reach the servers within completion_timeout_s ({self.deadline_s:g} s)"
                    ) from None


def rank_here() -> int:
    """Return the rank of this process of the trainer; the main one is 0."""
    return torch.distributed.get_rank() if torch.distributed.is_initialized() else 0


def address_towards(url: str) -> tuple[str, int]:
    """Return the address of this machine in a server's network, and a free port. Nothing is sent.

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
