"""`rlvr` with the same arguments, and the CPU seconds of every training step in `cpu.jsonl` of the run folder (--out).

`benchmarks.algos.distillation` starts its runs with this: on a machine with other load the seconds of the clock say little. The CPU
seconds are those of all threads of the process (sampling, judging, learning); the measurement of the held-out accuracy is not counted.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import rlvr.training.training_step as module

import rlvr.training.train as loop
from rlvr.cli.commands import main


def watched(out: Path) -> None:
    """Wrap the step and the measurement of the accuracy in a clock."""
    step, measure = loop.run_training_step, module.evaluate_held_out
    aside = [0.0]

    def measured(*args: Any) -> Any:
        began = time.process_time()
        found = measure(*args)
        aside[0] += time.process_time() - began
        return found

    def timed(*args: Any) -> Any:
        began, before = time.process_time(), aside[0]
        row, times = step(*args)
        spent = time.process_time() - began - (aside[0] - before)
        with (out / "cpu.jsonl").open("a") as file:
            file.write(json.dumps({"step": row["step"], "cpu": round(spent, 4)}) + "\n")
        return row, times

    loop.run_training_step, module.evaluate_held_out = timed, measured


if __name__ == "__main__":
    watched(Path(sys.argv[sys.argv.index("--out") + 1]))
    main()
