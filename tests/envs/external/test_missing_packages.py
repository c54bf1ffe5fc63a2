"""An environment whose package is not installed says so in one message that names the command: a table over all adapters."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

import rlvr
from rlvr.errors import MissingExtra

ROWS = '{"prompt": [{"role": "user", "content": "2+2?"}], "reward_spec": {"ground_truth": "4"}, "extra_info": {}}\n'
LACKING: dict[str, tuple[str, dict[str, Any], str, str]] = {
    "bfcl": ("bfcl", {}, "bfcl_eval", "bfcl"),
    "inspect_task": ("inspect_task", {"task": "ROWS/evals.py:sums"}, "inspect_ai", "inspect"),
    "minigrid": ("gymnasium", {"id": "MiniGrid-Empty-5x5-v0"}, "minigrid", "minigrid"),
    "openenv": ("openenv", {"url": "http://127.0.0.1:1"}, "websockets", "openenv"),
    "reasoning_gym": ("reasoning_gym", {"dataset": "chain_sum"}, "reasoning_gym", "reasoning_gym"),
    "skyrl_gym": ("skyrl_gym", {"rows": "ROWS/rows.jsonl"}, "skyrl_gym", "skyrl_gym"),
    "textarena": ("textarena", {"game": "GuessTheNumber"}, "textarena", "textarena"),
    "textworld": ("textworld", {}, "textworld", "textworld"),
    "verifiers v0": ("verifiers_env", {"id": "sums", "interface": "v0"}, "verifiers", "verifiers"),
    "verifiers v1": ("verifiers_env", {"id": "sums"}, "verifiers", "verifiers"),
}
"""Environment, settings, package, extra."""
BLOCKED = sorted({package for _, _, package, _ in LACKING.values()})
BLOCKS = f"""
import sys

class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {BLOCKED!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Block())
"""


@pytest.mark.parametrize("name", LACKING)
def test_a_missing_package_is_one_message(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    env, settings, package, extra = LACKING[name]
    (tmp_path / "sitecustomize.py").write_text(BLOCKS)
    (tmp_path / "rows.jsonl").write_text(ROWS)
    (tmp_path / "evals.py").write_text("import inspect_ai\n")
    monkeypatch.syspath_prepend(str(tmp_path))  # processes of adapters search the same folders
    monkeypatch.setitem(sys.modules, "websockets", None)
    given = {key: value.replace("ROWS", str(tmp_path)) if isinstance(value, str) else value for key, value in settings.items()}
    with rlvr.make_env(env, **given) as made, pytest.raises(MissingExtra) as told:
        made.prepare()
        made.task("train", 0)
    said = str(told.value)
    assert said.startswith(f"{package} is not installed; `pip install ") and f"[{extra}]" in said and "\n" not in said, said
