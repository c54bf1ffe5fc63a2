"""Every registered environment and verifier keeps its contract: the kits, over everything that is found."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from rlvr.conformance import check_plugin, list_failures
from rlvr.gateway.agents import AgentClient
from rlvr.registry.plugins import list_entries, load_factory
from rlvr.task import Task
from tests.envs.test_repository import write_project
from tests.fixtures.theirs.folders import written

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT.parent / "shared" / "data"
THEIRS = ROOT / "tests" / "fixtures" / "theirs"
"""Stand-ins for the packages that some environments adapt: the real ones are extras, and run in `benchmarks/envs`."""
PROCESS = {"name": "process", "trusted": True}
"""What stands in for containers where there are none; the kits' programs are ours."""


# ---- small files for environments that read some


def lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")


def gsm8k(folder: Path) -> Path:
    for split, start in (("train", 3), ("test", 103)):
        rows = (
            {"question": f"Ann has {n} pens and buys {2 * n} more. How many?", "answer": f"{n}+{2 * n}=<<{3 * n}>>{3 * n}\n#### {3 * n}"}
            for n in range(start, start + 30)
        )
        lines(folder / f"{split}.jsonl", rows)
    return folder


def competition_math(folder: Path) -> Path:
    for split, start in (("train", 3), ("test", 103)):
        rows = (
            {"problem": f"Solve $x^2 = {n * n}$ for $x > 0$ and divide by 7.", "answer": f"\\frac{{{n}}}{{7}}", "solution": ""}
            for n in range(start, start + 30)
        )
        lines(folder / f"{split}.jsonl", rows)  # fmt: skip
    return folder


def mbpp(folder: Path) -> Path:
    lines(
        folder / "mbpp.jsonl",
        (
            {
                "task_id": n,
                "prompt": f"Write a function to add {n} to a number.",
                "code": f"def add_{n}(x):\n    return x + {n}",
                "test_list": [f"assert add_{n}({k}) == {n + k}" for k in (0, 1, 5)],
            }
            for n in range(3, 43)
        ),
    )
    return folder / "mbpp.jsonl"


def humaneval(folder: Path) -> Path:
    lines(
        folder / "HumanEval.jsonl",
        (
            {
                "task_id": f"HumanEval/{n}",
                "prompt": f'def add_{n}(x: int) -> int:\n    """Add {n} to a number."""\n',
                "entry_point": f"add_{n}",
                "canonical_solution": f"    return x + {n}\n",
                "test": f"def check(candidate):\n    assert candidate(1) == {n + 1}\n    assert candidate(-2) == {n - 2}\n",
            }
            for n in range(3, 33)
        ),
    )
    return folder / "HumanEval.jsonl"


def dataset(folder: Path) -> Path:
    lines(folder / "sums.jsonl", ({"question": f"What is {n} + {2 * n}?", "answer": str(3 * n)} for n in range(11, 71)))
    return folder / "sums.jsonl"


FILES: dict[str, Callable[[Path], Path]] = {
    "dataset": dataset,
    "gsm8k": gsm8k,
    "competition_math": competition_math,
    "mbpp": mbpp,
    "humaneval": humaneval,
}


def rows(folder: Path) -> Path:
    prompts = ((n, [{"role": "user", "content": f"What is {n} + {n}?"}]) for n in range(100, 140))
    lines(folder / "rows.jsonl", ({"prompt": prompt, "reward_spec": {"ground_truth": str(2 * n)}} for n, prompt in prompts))
    return folder / "rows.jsonl"


PLAYED: dict[str, Callable[[Path], dict[str, Any]]] = {
    "repository": lambda folder: {"path": str(write_project(folder)), "cache": str(folder / "cache"), "sandbox": PROCESS},
    "harbor": lambda folder: {"path": str(written(folder, "hello", "removed"))},
    "openenv": lambda _: {"server": [sys.executable, str(THEIRS / "openenv_server.py"), "{port}"], "success_threshold": 1.0},
    "skyrl_gym": lambda folder: {"rows": str(rows(folder))},
    "verifiers_env": lambda _: {"id": "sums"},
    "bfcl": lambda _: {"category": "parallel"},
    "inspect_task": lambda _: {"task": f"{THEIRS / 'their_evals.py'}:sums"},
}
"""Settings without which these environments have nothing to play."""

# ---- the kits


def needs_docker(kind: str, name: str) -> bool:
    """Whether the chain of `needs` ends in a container."""
    return (kind, name) == ("sandbox", "docker") or any(needs_docker(*need) for need in needs(kind, name))


def needs(kind: str, name: str) -> list[tuple[str, str]]:
    """The plugins that one needs by itself; a sandbox beside `tools` is built only for tools that run in a box, and no default does."""
    found = dict(getattr(load_factory(kind, name), "needs", {}))
    tools = [load_factory("tool", tool) for tool in found.pop("tools", ())]
    if tools and not any(getattr(tool, "needs_sandbox", False) for tool in tools):
        found.pop("sandbox", None)
    return [(other, default) for other, default in found.items() if default]


def without_docker(kind: str, name: str) -> dict[str, Any]:
    """Settings that put the process sandbox where the container would be."""
    return {
        other: PROCESS if other == "sandbox" else {"name": default, **without_docker(other, default)}
        for other, default in needs(kind, name)
        if needs_docker(other, default)
    }


SPARED = ("reasoning_gym",)
"""Environments that start their sandbox only for some settings, and not for the default ones."""

IMAGES = ("harbor",)
"""Environments that bring images, which only containers have."""


async def ask(client: AgentClient, task: Task) -> None:
    """An agent that asks once."""
    await client.chat(task.question)


def everything() -> list[Any]:
    found = []
    for kind in ("env", "verifier"):
        for entry in list_entries(kind):
            if entry.name not in IMAGES:
                marks = [pytest.mark.slow] if kind == "env" else []  # a kit plays whole conversations, also in other processes
                found.append(pytest.param(kind, entry.name, without_docker(kind, entry.name), id=f"{kind}-{entry.name}", marks=marks))
            if needs_docker(kind, entry.name) and entry.name not in SPARED:
                found.append(pytest.param(kind, entry.name, {}, id=f"{kind}-{entry.name}-docker", marks=pytest.mark.docker))
    return found


@pytest.mark.parametrize(("kind", "name", "settings"), everything())
def test_it_keeps_its_contract(kind: str, name: str, settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if (THEIRS / name).is_dir() or name in PLAYED:
        monkeypatch.syspath_prepend(str(THEIRS))
    if kind == "env" and name in PLAYED:
        settings = settings | PLAYED[name](tmp_path)
    if name == "code_contest":
        settings = settings | {"hidden": 1, "shown": 1}  # each hidden test is a program run for each answer
    if name == "with_tools":
        settings = settings | {"env": "arithmetic"}
    if name == "with_context":
        settings = settings | {"env": "search_qa"}
    if name == "agent":
        settings = settings | {"env": "arithmetic", "function": f"{__file__}:ask"}
    if name == "mixture":
        settings = settings | {"envs": {"sums": {"env": "arithmetic", "weight": 2}, "digits": "digit_sum"}}
    if kind == "env" and name in FILES:
        settings = settings | {"path": str(FILES[name](tmp_path))}
    checks = check_plugin(kind, name, **settings)
    assert list_failures(checks) == []
    assert sum(not check.skipped for check in checks) >= 12, [check for check in checks if check.skipped]


def test_the_kits_see_every_file_of_the_rooms() -> None:
    seen = {case.values[:2] for case in everything()}
    for kind, room in (("env", "envs"), ("verifier", "verifiers")):
        on_disk = {(kind, path.stem) for path in (ROOT / room).glob("*.py") if not path.stem.startswith("_")}
        assert on_disk and on_disk <= seen


@pytest.mark.slow
@pytest.mark.skipif(not (DATA / "gsm8k_train.jsonl").is_file(), reason="the published GSM8K files do not lie beside the project")
def test_the_published_gsm8k_is_sound() -> None:
    assert list_failures(check_plugin("env", "gsm8k", path=str(DATA))) == []
