"""`rlvr` with the same arguments, and the CPU seconds of every training step in `cpu.jsonl` of the run folder (--out).

`benchmarks.algos.distillation` starts its runs with this: on a machine with other load the seconds of the clock say little. The CPU
seconds are those of all threads of the process (sampling, judging, learning); the measurement of the held-out accuracy is not counted.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from unittest.mock import patch

from rlvr.cli.commands import main
from rlvr.training.callbacks import StepRecord
from rlvr.training.trainer import Trainer


def watched(out: Path) -> None:
    """Run the command line with a clock around each step and each measurement of the accuracy."""
    step, evaluate = Trainer.step, Trainer.evaluate
    aside = [0.0]

    def measured(trainer: Trainer) -> float | None:
        began = time.process_time()
        found = evaluate(trainer)
        aside[0] += time.process_time() - began
        return found

    def timed(trainer: Trainer) -> StepRecord:
        began, before = time.process_time(), aside[0]
        record = step(trainer)
        spent = time.process_time() - began - (aside[0] - before)
        with (out / "cpu.jsonl").open("a") as file:
            file.write(json.dumps({"step": record.step, "cpu": round(spent, 4)}) + "\n")
        return record

    with patch.object(Trainer, "step", timed), patch.object(Trainer, "evaluate", measured):
        main()


if __name__ == "__main__":
    watched(Path(sys.argv[sys.argv.index("--out") + 1]))
