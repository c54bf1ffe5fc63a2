"""Build tasks from packages of PyPI, and measure them: how many, seconds for each, flaky ones, and attacks that are paid.

    python benchmarks/envs/repositories.py [--packages toolz,boltons] [--sdists FOLDER] [--max-tasks 80] [--checked 3] [--out FILE]

Each package is downloaded as an sdist (`pip download --no-binary`) into FOLDER, if none of that name is there, and unpacked. Its tests run in the sandbox.
A line for each package: tests that pass, functions, tasks, seconds a task, what was dropped and why. Then, of `--checked` tasks of each package,
the original is verified five times, which must score 1 each time, and the unchanged files once; all attacks of
`tests/envs/test_repository_attacks.py` on a file are verified on each of them. The limits: 1,000 tasks, 0 flaky, 0 attacks paid.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import rlvr
from rlvr.contracts import Transcript
from rlvr.errors import RlvrError
from tests.envs.test_repository_attacks import iter_attacked_files

PACKAGES = [
    "toolz", "more-itertools", "boltons", "sortedcontainers", "humanize", "inflection", "parse", "tabulate", "wcwidth",
    "textdistance", "roman", "pyrsistent", "cachetools", "xmltodict", "semver", "idna", "isodate", "tinydb", "python-slugify",
    "sqlparse",
]  # fmt: skip
MIN_TASKS, NUM_REPEATS = 1000, 5


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packages", default=",".join(PACKAGES))
    parser.add_argument("--sdists", type=Path, default=Path(tempfile.gettempdir()) / "rlvr-sdists")
    parser.add_argument("--max-tasks", type=int, default=80)
    parser.add_argument("--tasks-per-function", type=int, default=4)
    parser.add_argument("--max-build-s", type=float, default=900.0)
    parser.add_argument("--checked", type=int, default=3)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--cache", default="")
    parser.add_argument("--out", type=Path, help="a file to which the lines are appended; packages that are in it are left out")
    given = parser.parse_args()
    rows = [json.loads(line) for line in given.out.read_text().splitlines()] if given.out and given.out.exists() else []
    for package in given.packages.split(","):
        if package not in {row["package"] for row in rows}:
            rows.append(measure_package(package, given))
            print(json.dumps(rows[-1]), flush=True)
            if given.out:
                with given.out.open("a") as file:
                    file.write(json.dumps(rows[-1]) + "\n")
    total = {
        key: sum(row.get(key, 0) for row in rows)
        for key in ("tasks", "seconds", "checked", "flaky", "gold_runs", "flaky_tests", "empty_paid", "attacks", "paid")
    }
    figures = {
        **total,
        "packages": sum("tasks" in row and row["tasks"] > 0 for row in rows),
        "refused": {row["package"]: row["refused"] for row in rows if row.get("refused")},
        "seconds_a_task": round(total["seconds"] / max(1, total["tasks"]), 2),
        "passed": total["tasks"] >= MIN_TASKS and not total["flaky"] and not total["paid"] and not total["empty_paid"],
    }
    print(json.dumps(figures))
    sys.exit(not figures["passed"])


def measure_package(package: str, given: argparse.Namespace) -> dict[str, Any]:
    """Build the tasks of a package and check some of them."""
    row: dict[str, Any] = {"package": package}
    folder = unpack_sdist(package, given.sdists)
    if folder is None:
        return row | {"refused": "it has no sdist that can be downloaded"}
    settings = {
        "max_tasks": given.max_tasks,
        "max_build_s": given.max_build_s,
        "tasks_per_function": given.tasks_per_function,
        "workers": given.workers,
        "cache": given.cache,
    }
    began = time.monotonic()
    try:
        with rlvr.make_env("repository", path=str(folder), **settings) as env:
            env.prepare()
            report = env.report
            row |= {
                "version": folder.name,
                "framework": report.framework,
                "tests": report.num_passed_tests,
                "functions": report.num_functions,
                "functions_with_tasks": report.num_functions_with_tasks,
                "tasks": sum(report.kept.values()),
                "seconds": report.seconds,
                "is_complete": report.is_complete,
                "gold_runs": report.num_gold_runs,
                "flaky_tests": report.num_flaky_tests,
                "dropped": report.count_dropped(),
                **check_tasks(env, given.checked),
            }
    except RlvrError as error:
        row |= {"refused": str(error)[:400], "seconds": round(time.monotonic() - began, 1)}
    return row


def check_tasks(env: Any, count: int) -> dict[str, int]:
    """Verify the original five times, the unchanged files, and every attack, on the first tasks of each split in turn."""
    found = {"checked": 0, "flaky": 0, "empty_paid": 0, "attacks": 0, "paid": 0, "unscored": 0}
    chosen = [env.task(split, index) for index in range(count) for split in env.splits if index < env.num_tasks(split)][:count]
    for task in chosen:
        posed, project = env._get_posed(task)
        verify = env.verifier.verify_transcript
        original = {path: project.files[path] for path in posed.buggy_files}
        golds = [verify(task, Transcript("ready", original)).score for _ in range(NUM_REPEATS)]
        found["checked"] += 1
        found["flaky"] += any(score != 1.0 for score in golds)
        unchanged = {path: text.encode() for path, text in posed.buggy_files.items()}
        found["empty_paid"] += verify(task, Transcript("ready", unchanged)).score != 0.0
        path, name = posed.functions[0]
        for attack, text in iter_attacked_files(posed.buggy_files[path], name):
            score = verify(task, Transcript("ready", unchanged | {path: text.encode("utf-8", "surrogateescape")})).score
            found["attacks"] += 1
            found["unscored"] += score is None
            if score:
                found["paid"] += 1
                print(f"paid: {task.id}: {attack}", file=sys.stderr)
    return found


def unpack_sdist(package: str, folder: Path) -> Path | None:
    """Download and unpack an sdist, if it is not there; returns its folder."""
    stem = re.sub(r"[-_.]+", "[-_.]", package)

    def find() -> list[Path]:
        return sorted(path for path in folder.glob("*.tar.gz") if re.match(rf"{stem}-\d", path.name, re.IGNORECASE))

    folder.mkdir(parents=True, exist_ok=True)
    if not find():
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-binary", ":all:", "--no-deps", "-d", str(folder), package]
        subprocess.run(command, timeout=300, check=False)
    if not (archives := find()):
        return None
    place = folder / archives[-1].name.removesuffix(".tar.gz")
    if not place.is_dir():
        with tarfile.open(archives[-1]) as archive:
            archive.extractall(folder, filter="data")
    return place if place.is_dir() else None


if __name__ == "__main__":
    main()
