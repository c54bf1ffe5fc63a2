"""Every adapter imports without its framework and without torch, and says in one sentence what is missing."""

from __future__ import annotations

import json
import subprocess
import sys

BLOCKED = (
    "aviary", "datasets", "inspect_ai", "lm_eval", "nemo_gym", "openenv", "openrlhf", "skyrl", "skyrl_gym", "starlette", "swift", "torch",
    "transformers", "trl", "verifiers", "verl", "websockets",
)  # fmt: skip
ASKS = f"""
import importlib, json, pkgutil, sys

class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {BLOCKED!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Block())
import rlvr, rlvr.integrations
from rlvr.integrations.rows import make_rows
from rlvr.errors import ConfigError

names = [module.name for module in pkgutil.iter_modules(rlvr.integrations.__path__)]
modules = {{name: importlib.import_module(f"rlvr.integrations.{{name}}") for name in names}}
sums = rlvr.make_env("arithmetic")
asked = {{
    "inspect_task": lambda: modules["inspect_task"].make_inspect_task(sums),
    "lm_eval": lambda: modules["lm_eval"].make_custom_dataset(sums, "test", 2)(),
    "trl": lambda: modules["trl"].RolloutFunction(sums, make_rows(sums, "train", 2)),
}}
said = {{}}
for name, ask in asked.items():
    try:
        ask()
        said[name] = ""
    except ConfigError as error:
        said[name] = str(error)
print(json.dumps([names, said]))
"""
SAYS = {"inspect_task": "inspect_ai is not installed", "lm_eval": "datasets is not installed", "trl": "torch is not installed"}


def test_a_missing_framework_is_one_sentence() -> None:
    done = subprocess.run([sys.executable, "-c", ASKS], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    names, said = json.loads(done.stdout)
    assert {"aviary", "nemo_gym", "openenv", "openrlhf", "skyrl", "swift", "trl", "verifiers_v1", "verl"} <= set(names)
    for name, words in SAYS.items():
        assert words in said[name] and "pip install" in said[name] and "\n" not in said[name], said
