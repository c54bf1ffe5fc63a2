"""A function in a fresh interpreter: it finds what this one finds, and the programs that it starts are told nothing of it."""

from __future__ import annotations

import importlib
import os
from pathlib import Path

import pytest

from rlvr.conformance.subprocess_call import call_in_subprocess


def test_modules_are_found_without_an_environment_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server of another interpreter would read PYTHONPATH, too, and import our packages in place of its own."""
    (tmp_path / "only_here.py").write_text("def told(name):\n    import os\n    return os.environ.get(name)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", "as/it/was")
    assert call_in_subprocess(importlib.import_module("only_here").told, "PYTHONPATH") == "as/it/was" == os.environ["PYTHONPATH"]
