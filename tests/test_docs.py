"""Every block of the READMEs and of docs/ does what the page says, in the hands of somebody who reads it in order.

What a page marks as not run is listed here, so that the list cannot grow in silence, and is told at the end of a test run.
"""

from __future__ import annotations

import ast
import importlib
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from rlvr.registry.plugins import check_settings, get_parameters, load_factory
from tests.fixtures.pages import PAGES, ROOT, RUN, Block, Reader, blocks_of, pattern_of

MAKE = f"make -s -C {ROOT} -o setup VENV={sys.prefix}"
FEW = "sft_warmup.max_steps=2 train.steps=1 eval.tasks=4 rollout.prompts_per_step=4"
INSTEAD = {
    # what these do in full is set up a machine for minutes, and run these very tests
    "make train": f'{MAKE} train ARGS="sft_warmup.max_steps=2 train.steps=2 rollout.prompts_per_step=8 eval.tasks=10 --out $PWD/made"',
    "make test": f"{MAKE} test ARGS=tests/test_task.py",
    # minutes each; the first lines of both are the same with fewer steps
    "rlvr train agent_quickstart --out runs/agent": f"rlvr train agent_quickstart {FEW} --out runs/agent",
    "rlvr train agent_quickstart 'env.tools=[]' --out runs/alone": f"rlvr train agent_quickstart 'env.tools=[]' {FEW} --out runs/alone",
}
NOT_RUN = {
    "README.md: git clone: it would install into the environment of the tests",
    "README.md: rlvr train train.jsonl: it downloads a model",
    "docs/coming_from.md: from trl import GRPOConfig, GRPOTrainer: it is TRL's interface, shown to compare",
    "docs/coming_from.md: import verifiers.v1 as vf: it is the interface of verifiers, shown to compare",
    "docs/endpoints.md: export OPENAI_API_KEY: needs an endpoint",
    "docs/serve.md: import asyncio: needs a service",
    "docs/sampling.md: export VLLM_SERVER_DEV_MODE=1: needs two GPUs",
    "docs/sampling.md: rlvr train recipe.yaml rollout.max_staleness=1: needs two GPUs",
}
"""Page: how the block begins: why."""
BEFORE_A_RELEASE = {
    "docs/sampling.md: rlvr train quickstart 'rollout.sampler={name: vllm": "tests/samplers/test_vllm.py trains with the same engine",
    "docs/sandbox.md: rlvr check sandbox docker": "tests/sandbox/test_process.py attacks the same sandbox in the same ways",
}
"""Page: how the block begins: the test that CI runs."""
BLOCKS = [block for page in PAGES for block in blocks_of(page)]
INSTEAD |= {  # the recipe's 64 only take longer; what the page sets after it holds
    line: f"rlvr train {found[1]} rollout.prompts_per_step=4 {found[2]}"
    for block in BLOCKS
    for line in (whole.partition("  #")[0].rstrip() for whole in block.text.splitlines())
    if (found := re.fullmatch(r"rlvr train (quickstart|distill) (.+)", line)) and not block.not_run
}
FEWER_STEPS = {"docs/train.md": ("train: {steps: 40, learning_rate: 1.0e-3}", "train: {steps: 4, learning_rate: 1.0e-3}")}
"""Page: a line of its files, and what it is here. The tutorial has the same recipe, and all of its steps are run."""


@pytest.fixture(scope="session")
def readers(tmp_path_factory: pytest.TempPathFactory, preloaded: Path) -> dict[str, Reader]:
    found = {}
    for page in PAGES:
        name = page.relative_to(ROOT).as_posix()
        blocks = [block for block in BLOCKS if block.page == name]
        if name in FEWER_STEPS:
            assert any(FEWER_STEPS[name][0] in block.text for block in blocks)
            blocks = [replace(block, text=block.text.replace(*FEWER_STEPS[name])) for block in blocks]
        found[name] = Reader(tmp_path_factory.mktemp(page.parent.name), blocks, INSTEAD, preloaded=preloaded)
    return found


def _marks(block: Block) -> list[pytest.MarkDecorator]:
    page = [pytest.mark.slow, pytest.mark.xdist_group(block.page)]  # the blocks of a page follow each other; pages may run at once
    if f"{block.page}: {block.title}".startswith(tuple(BEFORE_A_RELEASE)):
        page.append(pytest.mark.release)
    return [*page, getattr(pytest.mark, block.needs)] if block.needs else page


@pytest.mark.parametrize(
    "block", [pytest.param(block, id=f"{block.where} {block.title:.40}", marks=_marks(block)) for block in BLOCKS if not block.not_run]
)
def test_block(block: Block, readers: dict[str, Reader]) -> None:
    readers[block.page].read(block.where)


def test_what_is_not_run_is_known(record_property: Callable[[str, object], None]) -> None:
    left_out = [block for block in BLOCKS if block.not_run]
    record_property("documented", f"{len(BLOCKS) - len(left_out)} blocks of {len(PAGES)} pages are run, and {len(left_out)} are not:")
    for block in left_out:
        record_property("documented", f"{block.where}: {block.title:.60}: {block.not_run}")
    known = [tuple(line.split(": ", 2)) for line in sorted(NOT_RUN)]
    found = sorted((block.page, block.title, block.not_run) for block in left_out)
    assert [(page, why) for page, _, why in known] == [(page, why) for page, _, why in found]
    assert all(title.startswith(begins) for (_, begins, _), (_, title, _) in zip(known, found, strict=True))


def test_python_that_is_not_run_is_python() -> None:
    for block in BLOCKS:
        if block.not_run and block.language == "python":
            compile(block.text, block.where, "exec")


def test_python_that_is_not_run_imports_what_exists() -> None:
    imports = [
        (name.name, node.module)
        for block in BLOCKS
        if block.language == "python" and block.not_run
        for node in ast.walk(ast.parse(block.text))
        if isinstance(node, ast.ImportFrom) and str(node.module).partition(".")[0] == "rlvr"
        for name in node.names
    ]
    assert imports and [f"{module}.{name}" for name, module in imports if not hasattr(importlib.import_module(str(module)), name)] == []


@pytest.mark.parametrize("page", ["docs/data.md", "docs/their_environments.md"])
def test_environments_in_yaml_have_the_settings_that_the_page_gives_them(page: str) -> None:
    """Their packages are not installed here, so these blocks are not run as a whole."""
    found = [yaml.safe_load(block.text)["env"] for block in BLOCKS if block.language == "yaml" and block.page == page]
    assert found
    for env in found:
        name = env.pop("name")
        check_settings("env", name, get_parameters(load_factory("env", name)), env)


def test_no_block_is_of_an_unknown_kind() -> None:
    assert [block.where for block in BLOCKS if block.language not in (*RUN, "yaml", "json", "text")] == []
    assert [block.where for block in BLOCKS if block.needs not in ("", "docker", "vllm")] == []
    stand_ins = [line for line in INSTEAD if not any(re.search(rf"^{re.escape(line)}(\b|$)", block.text, re.M) for block in BLOCKS)]
    assert stand_ins == [], "no page says this any more"


def test_a_block_that_is_left_to_a_release_is_there() -> None:
    titles = [f"{block.page}: {block.title}" for block in BLOCKS]
    assert [begins for begins in BEFORE_A_RELEASE if sum(title.startswith(begins) for title in titles) != 1] == []


def test_links_lead_somewhere() -> None:
    lost = []
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#\s]+)", page.read_text("utf-8")):
            if not target.startswith("https://") and not (page.parent / target).exists():
                lost.append(f"{page.name}: {target}")
    assert lost == []


def test_the_architecture_page_names_every_room_and_no_file_that_is_gone() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    picture = (ROOT / "docs" / "pictures" / "architecture.svg").read_text("utf-8")
    named = set(re.findall(r"`((?:rlvr|envs|verifiers|sandbox|tests)/[\w./]*)`", page)) | set(
        re.findall(r"(?:rlvr|tests)/[\w/]+\.py", picture)
    )
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []
    rooms = {f"rlvr/{path.name}/" for path in (ROOT / "rlvr").iterdir() if (path / "__init__.py").is_file() and not path.is_symlink()}
    assert rooms - named == set()
    assert [room for room in sorted(rooms) if f">{room.split('/')[1]}<" not in picture] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: f"{page.parent.name}/{page.name}")
def test_a_page_is_read_in_five_minutes(page: Path) -> None:
    assert len(page.read_text("utf-8").split()) <= 1300 or page.name == "glossary.md"  # a dictionary is not read from end to end


@pytest.fixture
def reader(tmp_path: Path) -> Reader:
    return Reader(tmp_path, [])


@pytest.mark.parametrize("text", ["rlvr lst envs", "rlvr list envs --jsn", "rlvr show env arithmetik", "false | true"])
def test_a_wrong_command_is_found(reader: Reader, text: str) -> None:
    with pytest.raises(AssertionError, match="ended with"):
        reader.run(Block("page.md", 1, "bash", text))


def test_a_wrong_output_is_found(reader: Reader) -> None:
    reader.run(Block("page.md", 1, "bash", "echo took 3.2 s for 7 tasks", shown="took 1 s for 7 tasks\n"))
    with pytest.raises(AssertionError, match="but this was printed"):
        reader.run(Block("page.md", 1, "bash", "echo took 3.2 s for 7 tasks", shown="took 1 s for 8 tasks\n"))


def test_only_dots_and_times_may_differ() -> None:
    shown = pattern_of("a  b\n...\n| 1.5 | (x) in 2.5 s\n")
    assert shown.search("zero\na b\nmore\nmore\n| 1.5 |  (x) in 1,200 s")
    assert not shown.search("a b\n| 1.6 | (x) in 1 s") and not shown.search("a c\n| 1.5 | (x) in 1 s")
