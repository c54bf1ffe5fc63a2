"""The process of a local engine without vLLM: the product's worker and its wire, with the hf sampler in place of the engine.

It starts in seconds. STAND says what it does wrong: `refuses` the model, `dies` after it has loaded weights, `idles` without a
token, or is `slow`. The bytes in the file
STAND_SAYS are sent once in place of a message, and the file is removed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from rlvr.config.config import ModelConfig
from rlvr.contracts import Completion, RequestQueue, SamplingParams
from rlvr.errors import ConfigError
from rlvr.models.model_loading import load_model
from rlvr.models.plain_weights import compute_model_logprobs
from rlvr.samplers._local import engine_worker as worker
from rlvr.samplers._local.message_socket import MessageSocket
from rlvr.samplers.hf import HFSampler

TROUBLE = os.environ.get("STAND", "")
PAUSE_S, SLOW_PAUSE_S = 0.002, 0.15
"""After each token, so that tests find it at work."""


class StandInEngine:
    """The part of a `ColocatedEngine` that the worker uses."""

    is_on_gpu = False
    max_model_len = 128

    def __init__(self, model: Any, place: Any, *, completion_timeout_s: float, tied_weights: Sequence[str] | None, folder: Path) -> None:
        if TROUBLE == "refuses":
            raise ConfigError("this engine cannot run this model")
        torch.set_num_threads(1)
        self.sampler, self.num_tokens = HFSampler(), 0

    def reload_weights(self, method: str, settings: dict[str, Any], version: int) -> None:
        assert method == "reload_from_folder"
        if TROUBLE == "dies":
            raise RuntimeError("out of memory")
        self.sampler.update_from_model(load_model(ModelConfig(path=settings["folder"])), version)

    def compute_logprobs(self, tokens: Sequence[int]) -> list[float]:
        return compute_model_logprobs(self.sampler.model, tokens)

    def sleep(self) -> None:
        pass

    def count_all_generated_tokens(self) -> int:
        return self.num_tokens

    def stream_from_queue(self, queue: RequestQueue, sampling: SamplingParams) -> Iterator[tuple[int, Completion] | None]:
        if TROUBLE == "idles":  # it takes requests, goes on and samples nothing
            while queue.pop(99) is not None:
                yield None
            return
        for given in self.sampler.stream_from_queue(queue, sampling):
            self.num_tokens += given is None  # it gives control back after each token
            time.sleep(SLOW_PAUSE_S if TROUBLE == "slow" else PAUSE_S)
            yield given


class InterruptedSocket(MessageSocket):
    """Sends something else once, if a test says so."""

    def send(self, message: dict[str, Any]) -> None:
        says = Path(os.environ.get("STAND_SAYS", "/nowhere"))
        try:
            says.rename(taken := says.with_name(f"{says.name}-{os.getpid()}"))
        except OSError:
            return super().send(message)
        self.sock.sendall(taken.read_bytes())


if __name__ == "__main__":
    assert {"MessageSocket", "ColocatedEngine"} <= vars(worker).keys()
    vars(worker)["MessageSocket"] = InterruptedSocket
    vars(worker)["ColocatedEngine"] = StandInEngine
    assert Path(worker.__file__).is_file()
    worker.main()
