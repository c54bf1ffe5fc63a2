"""Adapters of other people's worlds against one peer with every fault: none is ever a score, and none touches another conversation."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rlvr
from rlvr.conformance.conversationkit import PlayedConversation, play_conversation
from rlvr.envs.external._foreign_host import ForeignHost
from rlvr.task import Fault, Task
from tests.fixtures.theirs.peer import CANARY, FAILS, PAID, secret_of

THEIRS = Path(__file__).parents[2] / "fixtures" / "theirs"
SERVER = [sys.executable, str(THEIRS / "openenv_server.py"), "{port}"]
ADAPTERS: dict[str, dict[str, Any]] = {
    "gymnasium": {},
    "textarena": {},
    "textworld": {},
    "skyrl_gym": {"rows": "rows.jsonl"},
    "verifiers_env": {"id": "theirs"},
    "inspect_task": {"task": "theirs:task"},
    "openenv": {"server": SERVER, "success_threshold": 1.0},
}


@pytest.fixture(scope="module", params=ADAPTERS)
def env(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """An adapter whose world is the peer; a turn is a move as it is."""
    settings = dict(ADAPTERS[request.param])
    if "rows" in settings:
        rows = tmp_path_factory.mktemp("rows") / settings["rows"]
        rows.write_text(json.dumps({"prompt": [{"role": "user", "content": "?"}]}) + "\n")
        settings["rows"] = str(rows)
    with rlvr.make_env(request.param, **settings) as made:
        made.max_turns = 8
        if request.param != "openenv":
            made.host = ForeignHost("tests.fixtures.theirs.peer:Peer", extra="peer")
            made.parse_move = lambda text: text
        made.task("train", 0)
        yield made


@pytest.fixture
def fails(env: Any, request: pytest.FixtureRequest) -> Any:
    """Give the worlds that are opened from now on a fault."""
    host, settings, call_s = env.host, env.instance_settings, env.host.call_timeout_s

    def set_(fault: str) -> None:
        if hasattr(host, "reset"):
            host.reset = {"fault": fault}
        else:
            env.instance_settings = {**settings, "fault": fault}
        host.call_timeout_s = 0.5 if fault == "hangs" else call_s

    yield set_
    set_("")
    env.instance_settings = settings


def secret(task: Task) -> str:
    return secret_of(task.reference["seed"])


def test_the_peer_without_a_fault(env: Any) -> None:
    for index in range(3):
        task = env.task("train", index)
        assert play_conversation(env, task, ["0", secret(task)])[0].score == 1.0
        assert play_conversation(env, task, ["0", "0"])[0].score == 0.0


@pytest.mark.slow
@pytest.mark.parametrize("fault", [*FAILS, *PAID])
def test_no_fault_is_a_score_and_no_conversation_sees_another_ones(env: Any, fails: Any, fault: str) -> None:
    task = env.task("train", 1)
    neighbour = PlayedConversation(env, task)
    neighbour.step("0")
    fails(fault)
    verdict, play = play_conversation(env, task, ["0", secret(task), secret(task)])
    assert (verdict.score, verdict.fault) == (None, Fault.INFRA), verdict
    assert CANARY not in json.dumps([heard.messages for heard in play.step_results])
    fails("")
    if fault != "exits" or not hasattr(env.host, "reset"):  # a server has one process for all sessions
        neighbour.step(secret(task))
        assert neighbour.verify_and_close().score == 1.0, "the one that was open beside it"
    neighbour.session_handle.close()
    assert play_conversation(env, task, ["0", secret(task)])[0].score == 1.0, "the next one"


def test_what_the_policy_reads_is_the_text_alone(env: Any) -> None:
    task = env.task("train", 2)
    verdict, play = play_conversation(env, task, ["0", "", secret(task)])
    assert verdict.score == 1.0
    read = json.dumps([task.prompt, [heard.messages for heard in play.step_results]])
    assert CANARY not in read and "metadata" not in read and "wrong" in read


def test_a_peer_that_seeds_the_global_generator_changes_neither_ours_nor_a_neighbours_world(env: Any) -> None:
    task, before = env.task("train", 3), random.getstate()
    first, second = PlayedConversation(env, task), PlayedConversation(env, env.task("train", 4))
    first.step("0")
    second.step("0")
    for play in (first, second):
        play.step(secret(play.task))
        assert play.verify_and_close().score == 1.0
    assert random.getstate() == before and env._make_task("train", 3) == task
