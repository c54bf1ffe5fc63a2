"""Threads: as many as this process may use, and they sleep while they wait."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rlvr.models.cpu_threads import count_cores

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 8),
        ({"cpu.max": "max 100000\n"}, 8),
        ({"cpu.max": "200000 100000\n"}, 2),
        ({"cpu.max": "50000 100000\n"}, 1),
        ({"cpu.max": "1600000 100000\n"}, 8),
        ({"cpu/cpu.cfs_quota_us": "250000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 3),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 8),
    ],
)
def test_no_more_threads_than_the_quota_allows(
    tmp_path: Path, files: dict[str, str], expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert count_cores(tmp_path) == expected


CODE = """
import os, sys
from types import SimpleNamespace
from rlvr.cli import running
class Stop(Exception): pass
def loaded(*args, **settings):
    assert "torch" not in sys.modules
    return SimpleNamespace(algorithm="grpo", out="")
import rlvr.config.config
rlvr.config.config.load_config = loaded
import rlvr.training
sys.modules["rlvr.training.reward_model"] = None  # stops after torch
try:
    running.train_run("x", [], out=None, resume=False, json=False)
except Exception:
    pass
print("torch" in sys.modules, os.environ.get("OMP_WAIT_POLICY"))
"""


@pytest.mark.parametrize(
    ("given", "expected"), [({}, "passive"), ({"OMP_WAIT_POLICY": "active"}, "active"), ({"GOMP_SPINCOUNT": "9"}, "None")]
)
def test_threads_sleep_while_they_wait_unless_the_user_says_otherwise(given: dict[str, str], expected: str) -> None:
    """Set before torch is imported, because OpenMP reads it then."""
    names = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
    environment = {name: value for name, value in os.environ.items() if name not in names} | given | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", CODE], env=environment, capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == ["True", expected], done.stderr[-1500:]
