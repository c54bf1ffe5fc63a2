"""How much slower training on a CPU gets while another program keeps one of its cores busy.

    python benchmarks/learn/neighbour.py                       quickstart, 30 steps, alone and with a neighbour
    python benchmarks/learn/neighbour.py --steps 5 --cores 0 1
    python benchmarks/learn/neighbour.py --threads 2 1         the same with two threads and with one: a line for each

Both runs have the same cores (two, by affinity) and the same recipe. The neighbour is a loop of Python on the first of them. Bar: with
it, a run takes at most 2.2 times as long. Run it on a machine where nothing else runs; its load is in the line. No run chooses the number
of its threads by a measurement: the last bits depend on it, and a resumed run must have the same.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

BAR = 2.2


def trained(steps: int, cores: set[int], limit: float, threads: int | None) -> float:
    """The seconds that the steps of one run took to sample and to update."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        command = [sys.executable, "-m", "rlvr", "train", "quickstart", "--out", str(out), "--json", "sft_warmup.steps=20"]
        command += [f"train.steps={steps}", "eval.tasks=20", f"log.save_every={steps}"]
        subprocess.run(
            command, check=True, timeout=limit, env=os.environ | ({} if threads is None else {"OMP_NUM_THREADS": str(threads)}),
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            preexec_fn=lambda: os.sched_setaffinity(0, cores),
        )  # fmt: skip
        rows = [json.loads(line) for line in (out / "timings.jsonl").read_text().splitlines()]
        return float(sum(row["time/sample"] + row["time/update"] for row in rows))


def main() -> int:
    """Print a line for each number of threads; exit code 1 if one is above the bar."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--cores", type=int, nargs=2, default=sorted(os.sched_getaffinity(0))[:2], help="which two cores")
    parser.add_argument("--limit", type=float, default=1800, help="seconds for one run")
    parser.add_argument("--threads", type=int, nargs="+", default=[None], help="OMP_NUM_THREADS of the runs; by default that of a run")
    asked = parser.parse_args()
    return max(measured(asked, threads) for threads in asked.threads)


def measured(asked: argparse.Namespace, threads: int | None) -> int:
    """One pair of runs: its line, and 1 above the bar."""
    load = os.getloadavg()[0]
    alone = trained(asked.steps, set(asked.cores), asked.limit, threads)
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"], preexec_fn=lambda: os.sched_setaffinity(0, {asked.cores[0]}))
    try:
        time.sleep(0.5)
        beside = trained(asked.steps, set(asked.cores), asked.limit, threads)
    finally:
        busy.kill()
        busy.wait()
    told = {"threads": threads or "default", "alone_s": round(alone, 1), "beside_s": round(beside, 1), "load_before": round(load, 1)}
    print(json.dumps({"benchmark": "neighbour", **told, "ratio": round(beside / alone, 2), "bar": BAR}), flush=True)
    return int(beside / alone > BAR)


if __name__ == "__main__":
    raise SystemExit(main())
