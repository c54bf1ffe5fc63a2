"""A sampler that fails in one process of several, in a way that is asked for."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from typing import Any

from rlvr.contracts import Completion, Request, Sampling
from rlvr.errors import SamplerError
from rlvr.samplers.hf import HFSampler


class Moody(HFSampler):
    """From the first update on, process 1 raises or hangs."""

    def __init__(self, *, how: str) -> None:
        super().__init__()
        self.how, self.version = how, 0

    def load(self, model: Any, version: int) -> None:
        super().load(model, version)
        self.version = version

    def stream(self, requests: Sequence[Request], sampling: Sampling) -> Iterator[tuple[int, Completion]]:
        if self.version and os.environ.get("RANK") == "1":
            if self.how == "raises":
                raise SamplerError("the engine fell over")
            time.sleep(300)
        yield from super().stream(requests, sampling)
