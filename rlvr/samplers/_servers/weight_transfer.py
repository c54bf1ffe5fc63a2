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
from rlvr.samplers._http import HttpClient, HttpResponse

NCCL_ARGUMENT = """--weight-transfer-config '{"backend": "nccl"}'"""
POLL_INTERVAL_S = 0.05
"""How often to check whether a server has failed during the transfer."""


def make_nccl_settings(address: str, port: int, members: int, rank: int) -> Any:
    """Make vLLM's settings for a broadcast between GPUs."""
    if not torch.cuda.is_available():
        raise ConfigError("transfer is 'nccl', and the trainer has no CUDA GPU; set transfer: files")
    from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo

    return NCCLTrainerInitInfo(address, port, members, rank=rank)


TRANSFER_BACKENDS: dict[str, Callable[[str, int, int, int], Any]] = {"nccl": make_nccl_settings}
"""By backend name: a function from address, port, group size and rank to vLLM's settings."""


class WeightTransferClient:
    """Client through which vLLM's sender sends commands to all servers at once.

    The first error is kept as `failure`.
    """

    def __init__(self, servers: Sequence[HttpClient], send_command: Callable[..., Mapping[HttpClient, HttpResponse]]) -> None:
        """Set up the client. `send_command` sends a command to servers, with one body or one for each, and returns their replies."""
        self._servers, self._send_command, self.failure = servers, send_command, None
        sizes = [int(reply.json()["world_size"]) for reply in send_command(servers, "/get_world_size", method="GET").values()]
        self.group_size, self.rank_offsets = 1 + sum(sizes), [1 + sum(sizes[:i]) for i in range(len(sizes))]
        """Rank of each server's first worker. The trainer's main process has rank 0."""

    failure: BaseException | None

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        """Let each server's workers join the weight transfer group of this run, under their own ranks.

        Before that they leave the group of an earlier run.
        """
        self.remove_workers_from_group()
        self._send_all(
            "/init_weight_transfer_engine", *({"init_info": init_info | {"rank_offset": offset}} for offset in self.rank_offsets)
        )

    def start_weight_update(self) -> None:
        """Announce new weights."""
        self._send_all("/start_weight_update")

    def update_weights(self, update_info: Any) -> None:
        """Let the servers receive the weights; return when all have."""
        self._send_all("/update_weights", {"update_info": update_info})

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        """Tell the servers that all weights were sent."""
        self._send_all("/finish_weight_update")

    def remove_workers_from_group(self) -> None:
        """Let the workers leave the group."""
        self._send_command(self._servers, "/shutdown_weight_transfer_engine", strict=False)

    def _send_all(self, path: str, *bodies: Any) -> None:
        try:
            self._send_command(self._servers, path, *bodies, fail_fast=True)
        except BaseException as error:
            self.failure = self.failure or error
            raise


class WeightSource:
    """The trainer's weights in the form that vLLM's sender reads."""

    weights: Weights
    dtype: str | None = None

    def metadata(self) -> list[Any]:
        """Return name, dtype and shape of each tensor."""
        from vllm.distributed.weight_transfer.base import ParamMeta

        return [ParamMeta(name, like.dtype, tuple(like.shape)) for name, like in self.weights.get_meta_tensors(self.dtype).items()]

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        return self.weights.iter_tensors(self.dtype)


class WeightTransfer:
    """Weight transfer from the trainer to its servers. All processes of the trainer call `send` together; the main one sends."""

    def __init__(
        self, backend: str, servers: Sequence[HttpClient], send_command: Callable[..., Mapping[HttpClient, HttpResponse]], timeout_s: float
    ) -> None:
        """Set up the transfer. `send_command` sends a command to servers and returns their replies."""
        self.backend, self.url, self.timeout_s = backend, servers[0].url, timeout_s
        self.client, self._source, self._sender = WeightTransferClient(servers, send_command), WeightSource(), None
        self._factory = import_module("vllm.distributed.weight_transfer.factory").WeightTransferTrainerFactory

    _sender: Any

    def send(self, weights: Weights, dtype: str | None) -> None:
        """Send all tensors, in the given dtype. A group that failed once is not used again."""
        self._source.weights, self._source.dtype = weights, dtype
        if self._sender is None:
            address = weights.run_on_main(lambda: _find_local_address(self.url))
            self._sender = self._run_with_timeout(lambda: self._join_group(*address))
        sender, self._sender = self._sender, None
        self._run_with_timeout(sender.send_weights)
        self._sender = sender

    def close(self) -> None:
        """Leave the group, if it has not failed."""
        sender, self._sender = self._sender, None
        if sender is not None:
            with suppress(SamplerError):
                if get_rank() == 0:
                    self._run_with_timeout(self.client.remove_workers_from_group)
                self._run_with_timeout(sender.shutdown)

    def _join_group(self, address: str, port: int) -> Any:
        info = TRANSFER_BACKENDS[self.backend](address, port, self.client.group_size, get_rank())
        return self._factory.trainer_init(info, client=self.client, source=self._source)

    def _run_with_timeout(self, work: Callable[[], Any]) -> Any:
        """Run a function with a timeout; only in the main process, whose calls wait for servers."""
        if get_rank():
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
        until = time.monotonic() + self.timeout_s
        while True:
            try:
                return done.result(timeout=POLL_INTERVAL_S)
            except Late:
                if done.done():
                    raise
                if self.client.failure is not None:
                    raise self.client.failure from None
                if time.monotonic() > until:
                    raise SamplerError(
                        f"the weights did not reach the servers within completion_timeout_s ({self.timeout_s:g} s)"
                    ) from None


def get_rank() -> int:
    """Return the rank of this process of the trainer; the main one is 0."""
    return torch.distributed.get_rank() if torch.distributed.is_initialized() else 0


def _find_local_address(url: str) -> tuple[str, int]:
    """Return the address of this machine in a server's network, and a free port. Nothing is sent.

    >>> _find_local_address("http://127.0.0.1:8000")[0]
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
