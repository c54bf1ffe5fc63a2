"""The worker processes for algebra: whether two expressions are equal, decided by sympy within limits of time and memory."""

from __future__ import annotations

from pathlib import Path

from rlvr.verifiers._workers.pool import WALL_FACTOR, CpuBudget, WorkerPool
from rlvr.verifiers.math.parsing.tree import Tree

ALGEBRA_FILE = Path(__file__).with_name("algebra.py")
"""The file that handles requests in a worker. It gets trees, never the text of an answer."""


class AlgebraPool(WorkerPool):
    """A pool of workers that compare expressions."""

    def __init__(self, size: int = 1, *, cpu_s: float = 1.0, memory_mb: int = 1024, wall_factor: float = WALL_FACTOR) -> None:
        super().__init__(size, cpu_s=cpu_s, memory_mb=memory_mb, wall_factor=wall_factor, handler_file=ALGEBRA_FILE, work_name="algebra")

    def is_equal(self, a: Tree, b: Tree, budget: CpuBudget) -> bool | None:
        """Ask a worker whether two expressions are equal; None if algebra cannot decide."""
        same = self.send_request({"a": a, "b": b}, budget).get("same")
        return same if isinstance(same, bool) else None
