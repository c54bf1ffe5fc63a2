"""What the tests share: the sandboxes, and the rule that a test that was not run is said aloud."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import lru_cache

import pytest

from rlvr.contracts import Sandbox

NOT_RUN: list[str] = []


@lru_cache(maxsize=1)
def lacking() -> str:
    """Why the tests marked `docker` cannot run here; empty when they can."""
    from rlvr.sandbox.docker import DockerSandbox

    return "; ".join(f"{what}; {how}" for what, how in DockerSandbox.missing())


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    marked = [item for item in items if item.get_closest_marker("docker")]
    if marked and lacking() and os.environ.get("RLVR_REQUIRE_DOCKER") != "1":
        for item in marked:
            NOT_RUN.append(item.nodeid)
            item.add_marker(pytest.mark.skip(reason="no Docker Engine"))


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("docker") and lacking():
        pytest.fail(f"this test needs the docker sandbox, and RLVR_REQUIRE_DOCKER=1 is set: {lacking()}", pytrace=False)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if NOT_RUN:
        terminalreporter.section("NOT RUN: no Docker Engine", red=True, bold=True)
        terminalreporter.line(f"{len(NOT_RUN)} tests of the docker sandbox were not run: {lacking()}", red=True)
        terminalreporter.line("Set RLVR_REQUIRE_DOCKER=1 to make this a failure.", red=True)


@pytest.fixture(scope="session")
def docker_sandbox() -> Iterator[Sandbox]:
    """The docker sandbox, one for all tests."""
    from rlvr.registry import build

    with build("sandbox", "docker") as sandbox:
        yield sandbox


@pytest.fixture(scope="session")
def process_sandbox() -> Iterator[Sandbox]:
    """The process sandbox, for tests of what needs no engine."""
    from rlvr.registry import build

    with build("sandbox", "process", trusted=True) as sandbox:
        yield sandbox
