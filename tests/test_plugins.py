"""Every registered environment and verifier keeps its contract: the kits, over everything that is found."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rlvr.checks import check_plugin, failures
from rlvr.registry import entries, load

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
# What a plugin needs before it can be built here: settings, made from a folder for small files.
SETTINGS: dict[str, dict[str, Any]] = {}
GSM8K = '{"question": "Ann has %d pens and buys %d more. How many pens has she?", "answer": "She has <<%d+%d=%d>>%d pens.\\n#### %d"}\n'


def gsm8k(folder: Path) -> dict[str, Any]:
    for split, first in (("train", 3), ("test", 103)):
        rows = (GSM8K % (n, 2 * n, n, 2 * n, 3 * n, 3 * n, 3 * n) for n in range(first, first + 30))
        (folder / f"{split}.jsonl").write_text("".join(rows), "utf-8")
    return {"path": str(folder)}


def competition_math(folder: Path) -> dict[str, Any]:
    row = '{"problem": "What is half of %d?", "solution": "It is $\\\\boxed{\\\\frac{%d}{2}}$.", "subject": "Algebra", "level": 1}\n'
    for split, first in (("train", 3), ("test", 103)):
        (folder / f"{split}.jsonl").write_text("".join(row % (n, n) for n in range(first, first + 60, 2)), "utf-8")
    return {"path": str(folder)}


def mbpp(folder: Path) -> dict[str, Any]:
    """Thirty problems in the published form: add n."""
    problems = [
        {
            "task_id": n,
            "prompt": f"Write a function that adds {n} to a number.",
            "code": f"def add_{n}(x):\n    return x + {n}",
            "test_imports": [],
            "test_list": [f"assert add_{n}(1) == {n + 1}", f"assert add_{n}(-5) == {n - 5}"],
        }
        for n in range(30)
    ]
    (folder / "mbpp.json").write_text(json.dumps(problems), "utf-8")
    return {"path": str(folder / "mbpp.json")}


def humaneval(folder: Path) -> dict[str, Any]:
    """Thirty problems in the published form: add n."""
    problems = [
        {
            "task_id": f"HumanEval/{n}",
            "prompt": f'from typing import List\n\ndef add_{n}(x: int) -> int:\n    """Add {n}."""\n',
            "entry_point": f"add_{n}",
            "canonical_solution": f"    return x + {n}\n",
            "test": f"def check(candidate):\n    assert candidate(1) == {n + 1}\n    assert candidate(-5) == {n - 5}\n",
        }
        for n in range(30)
    ]
    (folder / "HumanEval.jsonl").write_text("\n".join(map(json.dumps, problems)), "utf-8")
    return {"path": str(folder)}


PREPARED = {"gsm8k": gsm8k, "competition_math": competition_math, "mbpp": mbpp, "humaneval": humaneval}


def settings_of(kind: str, name: str, folder: Path) -> dict[str, Any]:
    return PREPARED[name](folder) if kind == "env" and name in PREPARED else SETTINGS.get(name, {})


def needs_docker(kind: str, name: str) -> bool:
    """Whether the chain of `needs` ends in a container."""
    if (kind, name) == ("sandbox", "docker"):
        return True
    return any(needs_docker(other, default) for other, default in dict(getattr(load(kind, name), "needs", {})).items())


def everything() -> list[Any]:
    found = []
    for kind in ("env", "verifier"):
        for entry in entries(kind):
            marks = [pytest.mark.docker] if needs_docker(kind, entry.name) else []
            found.append(pytest.param(kind, entry.name, id=f"{kind}-{entry.name}", marks=marks))
    return found


@pytest.mark.parametrize(("kind", "name"), everything())
def test_it_keeps_its_contract(kind: str, name: str, tmp_path: Path) -> None:
    checks = check_plugin(kind, name, **settings_of(kind, name, tmp_path))
    assert failures(checks) == []
    assert sum(not check.skipped for check in checks) >= 12, [check for check in checks if check.skipped]


def test_the_kits_see_every_file_of_the_rooms() -> None:
    root = Path(__file__).resolve().parents[1]
    for kind, room in (("env", "envs"), ("verifier", "verifiers")):
        on_disk = {path.stem for path in (root / room).glob("*.py") if not path.stem.startswith("_")}
        assert on_disk <= {entry.name for entry in entries(kind)}


@pytest.mark.skipif(not (DATA / "gsm8k_train.jsonl").is_file(), reason=f"the published GSM8K files are not in {DATA}")
def test_the_published_gsm8k_is_sound() -> None:
    assert failures(check_plugin("env", "gsm8k", path=str(DATA))) == []
