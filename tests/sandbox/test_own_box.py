"""A policy that breaks its own box gets a score of 0, and never no score."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rlvr.contracts import Sandbox
from rlvr.registry.plugins import build
from tests.attacks.own_box import BREAKAGES, judged

QUICK = (
    "kills everything",
    "kills everything again and again",
    "a fork bomb that goes on behind",
    "as many threads as may be, behind",
    "kills its session from the shell",
    "closes every descriptor",
    "answers for the session, and floods its channel",
    "removes the working folder",
    "takes every permission from every folder",
    "fills the disk",
    "uses up the inodes",
    "puts something else where the files are",
    "links the files out of the box",
    "holds leases and locks on the files",
    "a state that ends the next shell",
)
"""Those that take no second; `benchmarks/sandbox/breakages.py` runs all."""


@pytest.fixture(
    scope="module",
    params=[pytest.param("docker", marks=pytest.mark.docker), pytest.param("bubblewrap", marks=pytest.mark.bubblewrap), "process"],
)
def sandbox(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    with build("sandbox", request.param, max_sessions=1, **({"trusted": True} if request.param == "process" else {})) as built:
        yield built


def test_the_corpus_is_large_and_every_breakage_is_another() -> None:
    assert len(BREAKAGES) >= 35 and len({one.name for one in BREAKAGES}) == len({one.calls for one in BREAKAGES}) == len(BREAKAGES)
    assert {one.name for one in BREAKAGES} > set(QUICK)


def test_a_policy_that_breaks_its_own_box_gets_a_score_of_0(sandbox: Sandbox) -> None:
    tools = [build("tool", "bash", call_timeout_s=5.0), build("tool", "python", call_timeout_s=5.0), build("tool", "files")]
    scores = {one.name: judged(sandbox, tools, one)[0].score for one in BREAKAGES if one.name in QUICK}
    assert scores == dict.fromkeys(QUICK, 0.0)
