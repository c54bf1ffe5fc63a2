"""The script for a day on a GPU, at tiny size on a CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


def day(*args: str, **environment: str) -> tuple[int, list[dict[str, Any]]]:
    fixed = {"OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"}
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "gpu_day.py"), *args],
        cwd=Path("/"), env=os.environ | fixed | environment, capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.slow
def test_every_part_runs_to_its_end(tmp_path: Path) -> None:
    code, lines = day("--tiny", "--out", str(tmp_path / "lines"))
    *figures, summary = lines
    assert code == 0 and not [line for line in lines if "failed" in line or "error" in line], lines
    assert {part["part"] for part in summary["parts"]} == {
        "facts", "update", "gradients", "profile", "head", "attention", "sampler", "large", "trl", "handover", "repeated", "determinism",
    }  # fmt: skip
    found = {(line["part"], line.get("case")): line for line in figures}
    assert found["update", "bf16"]["tokens_per_s"] > 0 and found["update", "bf16"]["packed"]
    assert found["gradients", "packed, float32"]["least_cosine"] > 0.99999 and found["gradients", "packed, bf16"]["cosine"] > 0.999
    assert found["attention", "masked"]["gap"] < 0.05
    assert found["determinism", "deterministic kernels"]["equal_steps"] == 1
    assert [json.loads(line) for line in (tmp_path / "lines").read_text().splitlines()] == lines


@pytest.mark.slow
def test_a_part_that_hangs_or_crashes_loses_only_itself(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text(
        "import os, subprocess, time\n"
        "def hang(bench):\n    bench.line('first', x=1)\n    subprocess.Popen(['sleep', '97.31'])\n    time.sleep(60)\n"
        "def crash(bench):\n    print('no line', flush=True)\n    os.abort()\n"
        "def miss(bench):\n    import a_package_that_nobody_has\n"
        "def good(bench):\n    bench.case('fails', lambda: 1 / 0)\n    bench.case('works', lambda: {'x': 2})\n"
    )
    script = (
        f"import sys; sys.path[:0] = [{str(ROOT)!r}, {str(tmp_path)!r}]\n"
        "from benchmarks import gpu_day\n"
        "sys.argv = ['gpu_day', '--tiny']\n"
        "sys.exit(gpu_day.main('', {name: ('bad', 3.0) for name in ('hang', 'crash', 'miss', 'good')}))\n"
    )
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=200)
    *lines, summary = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 1 and time.monotonic() - began < 100, done.stderr
    assert {"part": "hang", "case": "first", "x": 1} in lines and {"part": "good", "case": "works", "x": 2} in lines
    ends = {part["part"]: part for part in summary["parts"]}
    assert ends["hang"]["failed"] == "it took more than 3 s" and ends["crash"]["failed"] == "exit code -6"
    assert ends["miss"]["skipped"] and "failed" not in ends["good"]
    assert any("ZeroDivisionError" in line.get("error", "") for line in lines)
    assert "97.31" not in subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
