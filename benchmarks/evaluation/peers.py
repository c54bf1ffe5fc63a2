"""Compare accuracy and standard error with inspect-ai and lm-eval on the same samples.

The same word problems, policy and answers: sampled once by `rlvr eval`, then given to each peer in a separate virtual
environment, which scores them with its own matching and reduces them with its own metrics. Prints a table and one JSON line.

    python benchmarks/evaluation/peers.py --path data/gsm8k --venvs /tmp/peers
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import tempfile
import venv
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rlvr.contracts import Verifier
from rlvr.envs.gsm8k import GSM8K
from rlvr.evaluation.evaluate import evaluate
from rlvr.evaluation.export import iter_latest_rows
from rlvr.evaluation.report import EvalReport
from rlvr.evaluation.statistics import estimate_mean
from rlvr.task import Task

PINS = {"inspect": "inspect-ai==0.3.285", "lmeval": "lm-eval==0.4.13"}
HERE = Path(__file__).resolve()


class Shaky(GSM8K):
    """GSM8K answers with the published solution, its number changed, more often for some problems than for others."""

    def __init__(self, *, verifier: Verifier, path: str) -> None:
        super().__init__(verifier=verifier, path=path)
        self.asked: Counter[str] = Counter()

    def gold(self, task: Task) -> str:
        """The solution, perhaps with another number at its end."""
        self.asked[task.id] += 1
        skill = random.Random(task.id).random()
        if random.Random(f"{task.id}/{self.asked[task.id]}").random() < skill:
            return super().gold(task)
        return super().gold(task).rpartition("#### ")[0] + f"#### {int(task.reference) + 1}"


def python_of(folder: Path, name: str) -> Path:
    """The interpreter of a peer's own environment, created if it does not exist."""
    place = folder / f"venv-{name}"
    python = place / "bin" / "python"
    if not python.is_file():
        venv.create(place, with_pip=True)
        constraint = ["--constraint", str(HERE.parents[2] / "constraints.txt")] if name == "lmeval" else []
        subprocess.run([python, "-m", "pip", "install", "--quiet", *constraint, PINS[name]], check=True, timeout=1800)
    return python


def scored(python: Path, name: str, samples: Path, folder: Path) -> dict[str, Any]:
    """The figures of a peer on the samples."""
    command = [python, HERE.parents[1] / "_peers" / "evaluation_peer_main.py", name, samples]
    variables = {"HOME": str(folder), "PATH": "/usr/bin:/bin", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, cwd=folder, env=variables)
    if done.returncode:
        raise SystemExit(f"{name} failed:\n{done.stderr[-3000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def handed_over(run: Path, n: int, file: Path) -> Path:
    """The samples in the format of the peers."""
    tasks: dict[str, dict[str, Any]] = {}
    for row in iter_latest_rows(run):
        entry = {"id": row["task_id"], "question": row["prompt"][0]["content"], "target": row["reference"], "answers": []}
        tasks.setdefault(row["task_id"], entry)["answers"].append(row["text"])
    file.write_text(json.dumps({"n": n, "tasks": list(tasks.values())}), "utf-8")
    return file


def ours(report: EvalReport, run: Path) -> dict[str, Any]:
    """Our figures for the one environment."""
    (env,) = report.envs.values()
    assert env.avg is not None and not env.unscored
    right = {f"{row['task_id']} {row['sample']}": row["reward"] == 1.0 for row in iter_latest_rows(run)}
    return {"accuracy": env.avg.value, "stderr": env.avg.stderr, "right": right}


def over(right: dict[str, bool], n: int) -> dict[str, float]:
    """Our accuracy and standard error over a peer's verdicts."""
    groups: dict[str, list[bool]] = {}
    for key, value in right.items():
        groups.setdefault(key.rpartition(" ")[0], []).append(value)
    assert {len(group) for group in groups.values()} == {n}
    found = estimate_mean([sum(group) / n for group in groups.values()])
    assert found is not None
    return {"accuracy": found.value, "stderr": found.stderr}


def otherwise(row: dict[str, Any], base: dict[str, Any], run: Path) -> Iterator[str]:
    """Each sample that a peer judges differently, with the reason."""
    for sample in iter_latest_rows(run):
        key = f"{sample['task_id']} {sample['sample']}"
        if row["right"][key] != base["right"][key]:
            said, want = sample["text"].rpartition("#### ")[2], sample["reference"]
            rounded = row["by"] == "inspect" and f"{float(said):.5g}" == f"{float(want):.5g}"
            yield f"  {key}: said {said}, right is {want}: " + ("inspect compares 5 significant digits" if rounded else "NOT EXPLAINED")


def main() -> None:
    """Evaluate, run the peers, compare; fail if the figures over the same verdicts differ, or a verdict differs without a known reason."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--path", required=True, help="a folder with gsm8k's test.jsonl or gsm8k_test.jsonl")
    arguments.add_argument("--tasks", type=int, default=300)
    arguments.add_argument("--venvs", type=Path, default=Path(tempfile.gettempdir()) / "rlvr-peers")
    given = arguments.parse_args()
    given.venvs.mkdir(parents=True, exist_ok=True)
    pythons = {name: python_of(given.venvs.resolve(), name) for name in PINS}
    rows: list[dict[str, Any]] = []
    reasons: list[str] = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for n, peers in ((1, ("inspect", "lmeval")), (4, ("inspect",))):
            run = folder / f"run-{n}"
            report = evaluate({"name": f"{HERE}:Shaky", "path": given.path}, "scripted:gold", n=n, tasks=given.tasks, out=run)
            samples = handed_over(run, n, folder / f"samples-{n}.json")
            base = {"by": "rlvr", "n": n, **ours(report, run)}
            found = [{"by": name, "n": n, **scored(pythons[name], name, samples, folder)} for name in peers]
            reasons += [reason for row in found for reason in otherwise(row, base, run)]
            rows += [base, *found]
    off = max(abs(row[key] / over(row["right"], row["n"])[key] - 1) for row in rows for key in ("accuracy", "stderr"))
    print(f"{'by':<8} {'n':>2}  {'accuracy':<20} {'standard error':<22} {'rlvr over the same verdicts'}")
    for row in rows:
        same = over(row["right"], row["n"])
        print(f"{row['by']:<8} {row['n']:>2}  {row['accuracy']!r:<20} {row['stderr']!r:<22} {same['accuracy']!r:<20} {same['stderr']!r}")
    print(f"samples that a peer judges differently: {len(reasons)}")
    print("\n".join(reasons))
    print("lm-eval is not run with n = 4: its tasks score only the first of several answers to a problem.")
    figures = [{key: row[key] for key in ("by", "n", "accuracy", "stderr")} for row in rows]
    print(json.dumps({"largest_relative_distance": off, "judged_otherwise": len(reasons), "rows": figures}))
    raise SystemExit(off > 1e-14 or any("NOT EXPLAINED" in reason for reason in reasons))


if __name__ == "__main__":
    main()
