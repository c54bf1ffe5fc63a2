"""Call a function of rlvr in a fresh interpreter, which shares nothing with this one except the arguments."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

TIMEOUT_S = 120
CHILD_CODE = """
import importlib, json, os, sys
out = os.dup(1)
os.dup2(2, 1)  # what a plugin prints goes to stderr, so that it is not taken for the result
sys.path[:], module, name, arguments = json.load(sys.stdin)
os.write(out, json.dumps(getattr(importlib.import_module(module), name)(*arguments)).encode())
"""


def call_in_subprocess(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function with plain arguments in a fresh process and return its value; RuntimeError with the last stderr line on failure."""
    paths = [path or os.getcwd() for path in sys.path]  # not PYTHONPATH, which a child process with another interpreter would read too
    child = subprocess.run(
        [sys.executable, "-c", CHILD_CODE],
        input=json.dumps([paths, function.__module__, function.__qualname__, arguments]),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        env=os.environ | {"PYTHONHASHSEED": "random"},
    )
    if child.returncode or not child.stdout:
        left = f"it exited with status {child.returncode} and without a result"
        raise RuntimeError(f"in another process: {(child.stderr.strip().splitlines() or [left])[-1]}")
    return json.loads(child.stdout)
