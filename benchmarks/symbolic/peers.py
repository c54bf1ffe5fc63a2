"""Compare `symbolic` with math-verify 0.9.0: correctness and speed. One line for each family, then one JSON line of totals.

    python benchmarks/symbolic/peers.py [--data FOLDER] [--take N] [--every N] [--venv FOLDER]

math-verify goes into a separate virtual environment in a temporary folder. Both judge the same pairs one after the other, in
one process each, family by family, so that other load on the machine affects both equally; ours without its cache. With --data, GSM8K
and MATH-500 answers are timed too: the golds with right and wrong candidates built from them.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rlvr.task import Task, make_user_prompt
from rlvr.verifiers.math.parsing.parser import parse_answer
from rlvr.verifiers.symbolic import Symbolic

ROOT = Path(__file__).resolve().parents[2]
CORPUS = ROOT / "tests" / "corpora" / "math"
Row = dict[str, Any]
Result = tuple[bool | None, float]
Judge = Callable[[list[Row]], list[Result]]


@contextmanager
def peer(folder: Path) -> Iterator[Judge]:
    """math-verify's verdicts and times."""
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "-q", "math-verify[antlr4_13_2]==0.9.0"], check=True)
    command = [python, ROOT / "benchmarks" / "_peers" / "symbolic_peer_main.py"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        asks, says = process.stdin, process.stdout
        assert asks is not None and says is not None

        def judge(rows: list[Row]) -> list[Result]:
            found: list[Result] = []
            for at in range(0, len(rows), 50):  # limited by the buffers of two pipes
                asks.write("".join(json.dumps(row) + "\n" for row in rows[at : at + 50]))
                asks.flush()
                replies = [json.loads(says.readline()) for _ in rows[at : at + 50]]
                found += [(reply["right"], reply["s"]) for reply in replies]
            return found

        yield judge


@contextmanager
def ours() -> Iterator[Judge]:
    """Our verdicts and times; nothing is cached between pairs."""
    with Symbolic(cache=1) as verifier:
        verifier.verify(Task(make_user_prompt("?"), id="warm", reference="|x-1|"), "|1-x|")

        def judge(rows: list[Row]) -> list[Result]:
            results = []
            for row in rows:
                task = Task(make_user_prompt("?"), id="t", reference=row["reference"], meta=row.get("meta", {}))
                parse_answer.cache_clear()
                start = time.perf_counter()
                verdict = verifier.verify(task, row["answer"])
                results.append((None if verdict.score is None else verdict.passed, time.perf_counter() - start))
            return results

        yield judge


def both(families: dict[str, list[Row]], folder: Path | None) -> Iterator[tuple[str, list[Row], list[Result], list[Result]]]:
    """Every family, judged by us and then by them."""
    with tempfile.TemporaryDirectory() as spare, ours() as we, peer(folder or Path(spare) / "venv") as they:
        for family, rows in families.items():
            yield family, rows, we(rows), they(rows)


def from_data(folder: Path, take: int) -> dict[str, list[Row]]:
    """Golds with candidates as models write them: the gold in a box in prose, with other spaces, in other commands, or wrong."""
    rng = random.Random(3)
    found: dict[str, list[Row]] = {}
    for name, file in (("gsm8k-like", "gsm8k_test.jsonl"), ("math500", "math500.jsonl")):
        golds = [json.loads(line)["answer"].rpartition("####")[2].strip() for line in (folder / file).read_text("utf-8").splitlines()]
        rows = []
        for gold in rng.sample(golds, min(take, len(golds))):
            digits = [k for k, c in enumerate(gold) if c.isdigit()]
            at = rng.choice(digits) if digits else None
            wrong = gold[:at] + str((int(gold[at]) + 3) % 10) + gold[at + 1 :] if at is not None else rng.choice(golds)
            for answer in (gold, gold.replace("frac", "dfrac").replace("ddfrac", "dfrac").replace(" ", ""), wrong, rng.choice(golds)):
                rows.append(
                    {"family": name, "reference": gold, "answer": f"We compute step by step. So the answer is $\\boxed{{{answer}}}$."}
                )
        found[name] = rows
    return found


def main() -> None:
    """Print the table and the totals."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--data", type=Path)
    options.add_argument("--take", type=int, default=100)
    options.add_argument("--every", type=int, default=1, help="judge every n-th pair of the corpus only")
    options.add_argument("--venv", type=Path, help="where math-verify is installed, or will be")
    given = options.parse_args()
    corpus = {
        file.stem: [json.loads(line) for line in file.read_text("utf-8").splitlines()][:: given.every]
        for file in sorted(CORPUS.glob("*.jsonl"))
    }
    timed = from_data(given.data, given.take) if given.data else {}
    totals = {"ours": [0, 0], "math-verify": [0, 0]}
    worse: list[str] = []
    mine: list[Result] = []
    theirs: list[Result] = []
    print(f"{'family':12} {'pairs':>6} | ours FP FN  median ms | math-verify FP FN  median ms | times faster: median, total")
    ratios = {}
    for family, group, one, other in both(corpus | timed, given.venv):
        mine, theirs = mine + one, theirs + other
        cells, errors = [], []
        for name, results in (("ours", one), ("math-verify", other)):
            wrong = [sum(bool(right) and row.get("right") is False for row, (right, _) in zip(group, results, strict=True))]
            wrong.append(sum(not right and row.get("right") is True for row, (right, _) in zip(group, results, strict=True)))
            totals[name] = [a + b for a, b in zip(totals[name], wrong, strict=True)]
            errors.append(wrong)
            cells.append(f"{wrong[0]:7} {wrong[1]:3} {1000 * statistics.median(s for _, s in results):10.3f}")
        medians = [statistics.median(s for _, s in results) for results in (one, other)]
        sums = [sum(s for _, s in results) for results in (one, other)]
        ratios[family] = (round(medians[1] / medians[0], 1), round(sums[1] / sums[0], 1))
        if any(a > b for a, b in zip(*errors, strict=True)):
            worse.append(family)
        print(f"{family:12} {len(group):6} | {cells[0]} | {cells[1]}     | {ratios[family][0]:8} {ratios[family][1]:8}")
    labels = [row["right"] for group in corpus.values() for row in group]
    line = {
        "pairs": len(labels),
        "must_reject": labels.count(False),
        "must_accept": labels.count(True),
        "false_positives": {name: counts[0] for name, counts in totals.items()},
        "false_negatives": {name: counts[1] for name, counts in totals.items()},
        "families_where_ours_is_worse": worse,
        "slower_in": [family for family, (median, _) in ratios.items() if median < 1],
        "times_faster": {name: ratios[name] for name in timed},
        "speed": {name: spread(results) for name, results in (("ours", mine), ("math-verify", theirs))},
    }
    print(json.dumps(line))


def spread(results: list[Result]) -> dict[str, float]:
    """Pairs per second, and the tail in milliseconds."""
    times = sorted(s for _, s in results)
    marks = {name: round(1000 * times[min(len(times) - 1, int(share * len(times)))], 3) for name, share in SHARES.items()}
    return {"pairs_per_s": round(len(times) / sum(times), 1), **marks}


SHARES = {"p50_ms": 0.5, "p95_ms": 0.95, "p99_ms": 0.99, "max_ms": 1.0}

if __name__ == "__main__":
    sys.exit(main())
