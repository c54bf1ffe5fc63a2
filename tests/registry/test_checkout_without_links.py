"""A checkout in which `rlvr/envs`, `rlvr/verifiers` and `rlvr/sandbox` are no links: a downloaded archive, or a system without them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
CODE = """
import rlvr
print(rlvr.verify("numeric", answer="4", reference="4").score, len(rlvr.list("env")), rlvr.make_env("calculator_sums").task("train", 0).id)
import rlvr.verifiers.numeric as module
print(module.__file__)
"""


def test_plugins_are_found_beside_the_package(tmp_path: Path) -> None:
    linked = ("envs", "verifiers", "sandbox")
    shutil.copytree(ROOT / "rlvr", tmp_path / "rlvr", ignore=shutil.ignore_patterns(*linked, "__pycache__"))
    for name in linked:
        (tmp_path / "rlvr" / name).write_text(f"../{name}", "utf-8")  # what git writes where it cannot make a link
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    done = subprocess.run(
        [sys.executable, "-P", "-c", CODE], env=os.environ | {"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first.split()[0] == "1.0" and int(first.split()[1]) > 20
    assert second == str(tmp_path / "verifiers" / "numeric.py")
