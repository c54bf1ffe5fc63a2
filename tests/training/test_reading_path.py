"""How much one reads to follow a step: the bar that keeps the path of a plain GRPO step short."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
MOST = 1200
"""Lines of all functions that run between `one_step` and `optimizer.step`. What only some runs need belongs in functions of their
own.
"""


def test_a_plain_step_can_be_read() -> None:
    """`benchmarks/learn/reading_path.py` runs one step on a CPU and counts."""
    command = [sys.executable, "benchmarks/learn/reading_path.py", "--functions"]
    env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    _, step, _, _, _, _, *functions = done.stdout.splitlines()
    to_read = int(step.split()[3])
    longest = "\n".join(functions[:12])
    assert 0 < to_read <= MOST, f"the path of a step has {to_read} lines, and may have {MOST}; its longest functions:\n{longest}"
