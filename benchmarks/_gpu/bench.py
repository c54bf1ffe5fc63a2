"""What the parts share: where they run, lines of results, times and memory of a device. It needs torch only."""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch


class Missing(Exception):
    """A package that a part needs is not installed on this machine; the part is skipped, with this reason."""


@dataclass(frozen=True)
class Bench:
    """Where a part runs, and its lines.

    >>> Bench("facts", tiny=True).pick(1000, 10)
    10
    """

    part: str
    tiny: bool = False

    @property
    def device(self) -> torch.device:
        """The GPU; the CPU at tiny size."""
        return torch.device("cpu" if self.tiny else "cuda")

    @property
    def half(self) -> torch.dtype:
        """The lower precision that is measured."""
        return torch.bfloat16

    def pick(self, full: Any, tiny: Any) -> Any:
        """A size."""
        return tiny if self.tiny else full

    def line(self, case: str, **figures: Any) -> None:
        """One line of results; it is read at once, so what comes later loses nothing."""
        print(json.dumps({"part": self.part, "case": case, **figures}, default=str), flush=True)

    def case(self, name: str, work: Callable[[], dict[str, Any]]) -> bool:
        """Measure one case. One that fails (memory, a missing kernel) says so in its line, and the others still run."""
        self.forget()
        try:
            figures, good = work(), True
        except Missing:
            raise
        except Exception as error:
            figures, good = {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}, False
        self.line(name, **figures)
        return good

    def settled(self) -> float:
        """The time, after the device has finished its work."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    def seconds(self, work: Callable[[], Any], *, times: int = 5, warm: int = 2) -> float:
        """The fastest of some runs."""
        for _ in range(1 if self.tiny else warm):
            work()
        found = []
        for _ in range(1 if self.tiny else times):
            began = self.settled()
            work()
            found.append(self.settled() - began)
        return min(found)

    def forget(self) -> None:
        """Give back cached memory and begin a new peak."""
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()

    def peak_gb(self) -> float:
        """The most memory of tensors since `forget`; 0 on a CPU."""
        return round(torch.cuda.max_memory_allocated() / 1e9, 3) if self.device.type == "cuda" else 0.0

    def held_gb(self) -> float:
        """The memory of tensors now."""
        return round(torch.cuda.memory_allocated() / 1e9, 3) if self.device.type == "cuda" else 0.0

    def product_per_s(self, dtype: torch.dtype) -> float:
        """Operations per second of a large matrix product: what a share of the peak refers to."""
        n = self.pick(8192, 256)
        a = torch.ones(n, n, device=self.device, dtype=dtype)
        return float(2 * n**3 / self.seconds(lambda: a @ a))
