"""`python -m benchmarks`: the list, and one result of one form for every script."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import __main__ as runner
from benchmarks._result import build_result, decide, read_figures

ROOT = Path(__file__).parents[2]


def call(*arguments: str) -> subprocess.CompletedProcess[str]:
    fixed = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-m", "benchmarks", *arguments], cwd=ROOT, env=fixed, capture_output=True, text=True, timeout=200
    )


def test_every_script_is_listed_with_what_it_does() -> None:
    listed = runner.list_benchmarks()
    assert {"gpu_day", "mutation", "learn/kill_resume", "learn/vs_trl", "sandbox/providers", "scale/simulate"} <= set(listed)
    assert all(about.partition("\n")[0].strip() for about in listed.values())
    assert not [name for name in listed if "_" in (name[0], name.rpartition("/")[2][0])]


def test_a_name_is_found_by_its_last_part_where_that_is_unique() -> None:
    names = ["sandbox/speed", "scale/soak", "other/soak"]
    assert runner.find("speed", names) == runner.find("benchmarks/sandbox/speed.py", names) == runner.find("sandbox.speed", names)
    with pytest.raises(SystemExit, match="several benchmarks are called 'soak': scale/soak, other/soak"):
        runner.find("soak", names)
    with pytest.raises(SystemExit, match="no benchmark is called 'sped'"):
        runner.find("sped", names)


@pytest.mark.parametrize(
    ("lines", "code", "has_limit", "passed"),
    [
        (['{"s": 1}'], 0, True, True),
        (['{"s": 1}'], 1, True, False),
        (['{"s": 1}'], 0, False, None),
        (["{not json", '{"passed": false}'], 0, False, False),
        ([], -9, False, False),
    ],
)
def test_passed_is_what_the_script_says(lines: list[str], code: int, has_limit: bool, passed: bool | None) -> None:
    assert decide(read_figures(lines), code, has_limit) is passed


def test_a_result_names_the_machine_and_the_versions() -> None:
    result: dict[str, Any] = json.loads(json.dumps(build_result("x", read_figures(["a", "b"]), None)))
    assert list(result) == ["benchmark", "figures", "passed", "machine", "versions", "date"]
    assert result["figures"] == {"output": "b"} and result["versions"]["rlvr"]
    assert set(result["machine"]) == {"cpus", "memory_gb", "python", "torch", "gpu"} and result["machine"]["memory_gb"] > 0


def test_the_last_line_of_a_run_is_the_result_and_out_has_it_too(tmp_path: Path) -> None:
    done = call("--out", str(tmp_path / "results.jsonl"), "simulate", "--only", "faults", "--steps", "2", "--engines", "4")
    assert done.returncode in (0, 1), done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["benchmark"] == "scale/simulate" and result["passed"] is (done.returncode == 0)
    assert result["figures"]["rows"][0]["step_s"] > 0
    assert (tmp_path / "results.jsonl").read_text().splitlines() == [done.stdout.splitlines()[-1]]
    assert call("no_such_benchmark").returncode == 1
    wrong = call("simulate", "--no-such-option")
    assert (wrong.returncode, wrong.stdout) == (2, "") and "--no-such-option" in wrong.stderr
