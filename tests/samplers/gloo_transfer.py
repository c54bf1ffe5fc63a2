"""vLLM's weight transfer with gloo in place of NCCL, for trainers and servers without GPUs.

The orders, the names and shapes, the rounds and the way into the model are those of the NCCL engine; only the group and its broadcast
are others. A server gets it as `--worker-extension-cls tests.samplers.gloo_transfer.Gloo`.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar

import torch
from vllm.distributed.weight_transfer.base import TrainerInitInfo
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory, WeightTransferTrainerFactory
from vllm.distributed.weight_transfer.nccl_common import NCCLWeightTransferInitInfo, worker_init_payload
from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerWeightTransferEngine, NCCLWeightTransferEngine

WAIT = timedelta(seconds=60)
dist: Any = torch.distributed


class Group:
    """As vLLM's communicator, for tensors on the CPU."""

    def __init__(self, address: str, port: int, rank: int, members: int) -> None:
        store = dist.TCPStore(address, port, members, rank == 0, WAIT)
        self.gloo = dist.ProcessGroupGloo(store, rank, members, WAIT)

    def broadcast(self, tensor: torch.Tensor) -> None:
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor = 0, 0
        self.gloo.broadcast([tensor], options).wait()

    def destroy(self) -> None:
        del self.gloo


@dataclass
class GlooInit(TrainerInitInfo):
    backend: ClassVar[str] = "gloo"
    address: str
    port: int
    members: int


class Sender(NCCLTrainerWeightTransferEngine):
    @classmethod
    def trainer_init(cls, init_info: Any, *, client: Any, source: Any = None) -> Any:
        engine = cls(client=client, source=source, is_sender=init_info.is_sender, packed=False)
        if engine.is_sender:
            told = NCCLWeightTransferInitInfo(
                master_address=init_info.address, master_port=init_info.port, rank_offset=1, world_size=init_info.members
            )
            with ThreadPoolExecutor(max_workers=1) as pool:
                joined = pool.submit(client.init_weight_transfer_engine, worker_init_payload(told))
                engine.model_update_group = Group(init_info.address, init_info.port, 0, init_info.members)
                joined.result()
        return engine

    def _broadcast(self, source: Any, meta: Any) -> None:
        for _, tensor in source if not self.is_sender else self._checked_iter(source, meta):
            if self.is_sender:
                self.model_update_group.broadcast(tensor.cpu().contiguous())


class Receiver(NCCLWeightTransferEngine):
    def init_transfer_engine(self, init_info: Any) -> None:
        rank = init_info.rank_offset + self.parallel_config.rank
        self.model_update_group = Group(init_info.master_address, init_info.master_port, rank, init_info.world_size)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        self.receive_weights(self.parse_update_info(update_info))

    def receive_weights(self, update_info: Any) -> None:
        assert self.model_update_group is not None
        for name, kind, shape in zip(update_info.names, update_info.dtype_names, update_info.shapes, strict=True):
            tensor = torch.empty(shape, dtype=getattr(torch, kind))
            self.model_update_group.broadcast(tensor)
            self.model.load_weights([(name, tensor)])


class Gloo:
    """A worker extension, for its side effect: the backend is known to the server's workers."""

    def gloo_is_known(self) -> bool:
        return True


def gloo(address: str, port: int, members: int, rank: int) -> GlooInit:
    """For `rlvr.samplers._servers.weight_transfer.TRANSFER_BACKENDS`."""
    return GlooInit(address, port, members, rank=rank)


if "gloo" not in WeightTransferEngineFactory._registry:
    WeightTransferEngineFactory.register_engine("gloo", Receiver)
    WeightTransferTrainerFactory.register_engine("gloo", Sender)
