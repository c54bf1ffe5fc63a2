"""The form of a result: one JSON line, the same for every benchmark.

    {"benchmark": "learn/kill_resume", "figures": {...}, "passed": true,
     "machine": {"cpus": 2, "memory_gb": 16, "python": "3.11.7", "torch": "2.13.0", "gpu": null},
     "versions": {"rlvr": "0.1.0", ...}, "date": "2030-01-31T12:00:00+00:00"}

`figures` is the last line of JSON that the script printed; if it printed several, the others are in `figures["rows"]`, and if it printed none, its last
line is in `figures["output"]`. `passed` is null where a script measures without a limit.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import rlvr

PACKAGES = ("torch", "transformers", "accelerate", "vllm", "trl", "peft", "ray", "sympy", "gymnasium", "numpy", "docker")


def read_figures(lines: list[str]) -> dict[str, Any]:
    """The figures among the printed lines.

    >>> read_figures(['a table', '{"kind": "x", "s": 1}', '{"passed": true}'])
    {'passed': True, 'rows': [{'kind': 'x', 's': 1}]}
    """
    rows: list[dict[str, Any]] = []
    for line in lines:
        if line.startswith("{"):
            try:
                rows.append(json.loads(line))
            except ValueError:
                continue
    if not rows:
        return {"output": lines[-1]} if lines else {}
    return rows[-1] if len(rows) == 1 else rows[-1] | {"rows": rows[:-1]}


def decide(figures: dict[str, Any], code: int, has_limit: bool) -> bool | None:
    """Whether the benchmark passed: by its exit code, and by what it says itself; None if it has no limit to pass.

    >>> decide({"passed": False}, 0, True), decide({}, 0, True), decide({}, 0, False), decide({}, 1, False)
    (False, True, None, False)
    """
    said = figures.get("passed", figures.get("met"))
    if code or said is False:
        return False
    return True if has_limit or said is True else None


def build_result(benchmark: str, figures: dict[str, Any], passed: bool | None) -> dict[str, Any]:
    """One result, with the machine and the versions that it was measured with."""
    versions = {"rlvr": rlvr.__version__} | {name: found for name in PACKAGES if (found := _get_version(name))}
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "benchmark": benchmark,
        "figures": figures,
        "passed": passed,
        "machine": {
            "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
            "memory_gb": round(memory, 1),
            "python": platform.python_version(),
            "torch": versions.get("torch"),
            "gpu": _get_gpu(),
        },
        "versions": versions,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def _get_version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _get_gpu() -> str | None:
    """The names of the GPUs, without importing torch."""
    if shutil.which("nvidia-smi") is None:
        return None
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    return ", ".join(done.stdout.split("\n")).strip(", ") or None
