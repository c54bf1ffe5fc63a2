"""Tasks on files in a box: the final files decide, and nothing else that a policy leaves."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from rlvr.conformance.conversationkit import PlayedConversation, play_conversation
from rlvr.contracts import Environment, Sandbox, SandboxFilesSession, Transcript
from rlvr.envs.shell import KINDS
from rlvr.errors import ConfigError
from rlvr.mdp.sessions import build_session_record, load_recorded_transcript
from rlvr.registry.plugins import build
from rlvr.task import Fault, Task, Verdict, make_user_prompt
from rlvr.turns import Call
from tests.attacks.worlds import SHELL_ATTACKS

PROCESS = {"name": "process", "trusted": True}


def shell(sandbox: Any, *kinds: str, **settings: Any) -> Environment:
    environment: Environment = build("env", "shell", kinds=list(kinds or KINDS), sandbox=sandbox, **settings)
    return environment


def bash(command: str) -> Call:
    return Call("0.0", "bash", {"command": command})


@pytest.fixture(scope="module")
def unopened() -> Iterator[Environment]:
    """For what needs no box."""
    with shell(PROCESS) as environment:
        yield environment


# ---- tasks


def test_in_no_task_are_the_files_right_at_the_beginning(unopened: Environment) -> None:
    kinds = set()
    for index in range(500):
        task = unopened.task("train", index)
        session = unopened.new_session(task, seed=0)
        assert isinstance(session, SandboxFilesSession)
        files = session.sandbox_spec().files
        assert all(path.startswith(task.meta["folder"]) for path in files)
        wanted = task.reference.get("files", {})
        if wanted:
            assert any(files.get(path) != (text.encode() if text is not None else None) for path, text in wanted.items()), task.question
        kinds.add(task.meta["kind"])
    assert kinds == set(KINDS)


def test_a_kind_is_chosen_and_another_seed_gives_other_tasks() -> None:
    with shell(PROCESS, "count", seed=1) as one, shell(PROCESS, "count", seed=2) as other:
        assert {one.task("train", n).meta["kind"] for n in range(20)} == {"count"}
        assert one.task("train", 0).question != other.task("train", 0).question


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"kinds": ["coutn"]}, "kinds has 'coutn'; .*did you mean 'count'"),
        ({"kinds": "count"}, "kinds has 'count'; it must be a list"),
        ({"kinds": []}, "it must be a list of kinds"),
        ({"max_turns": 1}, "max_turns is 1; at least 2"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        build("env", "shell", sandbox=PROCESS, **settings)


# ---- conversations


@pytest.mark.slow
def test_every_kind_can_be_done_and_its_command_finds_the_answer(process_sandbox: Sandbox) -> None:
    def done(kind: str) -> tuple[str, Verdict, Verdict]:
        environment = shell(process_sandbox, kind)
        task = environment.task("test", 0)
        verdict, play = play_conversation(environment, task, environment.oracle_turns(task) or ())
        if "answer" in task.reference:
            assert play.tool_results[0][1].strip() in task.reference["answer"], (kind, play.tool_results)
        return kind, verdict, play_conversation(environment, task, [bash("ls -R"), "ready"])[0]

    with ThreadPoolExecutor(4) as pool:
        for kind, verdict, idle in pool.map(done, KINDS):
            assert (verdict.score, idle.score, idle.fault) == (1.0, 0.0, Fault.NONE), (kind, verdict, idle)


def test_a_verdict_is_given_again_from_the_record(process_sandbox: Sandbox) -> None:
    environment = shell(process_sandbox, "once")
    task = environment.task("train", 1)
    play = PlayedConversation(environment, task)
    try:
        for said in environment.oracle_turns(task) or ():
            play.step(said)
        ending = play.session_handle.collect_transcript(tuple(play.turns), tuple(play.step_results))
        record = build_session_record(play.session_handle, play.turns, play.step_results, ending)
    finally:
        play.session_handle.close()
    again = load_recorded_transcript(record)
    assert isinstance(again, Transcript) and environment.verifier.verify_transcript(task, again).score == 1.0
    (path,) = task.reference["files"]
    record["files"][path] = ""
    spoiled = load_recorded_transcript(record)
    assert isinstance(spoiled, Transcript) and environment.verifier.verify_transcript(task, spoiled).score == 0.0


def test_an_answer_by_submit_counts(process_sandbox: Sandbox) -> None:
    environment = shell(process_sandbox, "total")
    task = environment.task("train", 3)
    (right,) = task.reference["answer"]
    assert play_conversation(environment, task, [Call("0.0", "submit", {"answer": right})])[0].score == 1.0
    assert play_conversation(environment, task, [Call("0.0", "submit", {"answer": right + "0"})])[0].score == 0.0


# ---- attacks


def attacked(sandbox: Sandbox, command: str) -> Verdict:
    environment = shell(sandbox, "once")
    task = environment.task("train", 0)
    (path,) = task.reference["files"]
    command = re.sub(r"\bF\b", path, command).replace("ROOT", str(task.meta["folder"]))
    return play_conversation(environment, task, [bash(command), "ready"])[0]


@pytest.mark.docker
def test_no_attack_is_paid_and_none_takes_its_zero_away(docker_sandbox: Sandbox) -> None:
    with ThreadPoolExecutor(4) as pool:
        verdicts = dict(
            zip(SHELL_ATTACKS, pool.map(lambda command: attacked(docker_sandbox, command), SHELL_ATTACKS.values()), strict=True)
        )
    assert {name: (verdict.score, verdict.reason) for name, verdict in verdicts.items() if verdict.score != 0.0} == {}


def test_a_link_that_leads_nowhere_is_no_deleted_file(process_sandbox: Sandbox) -> None:
    environment = shell(process_sandbox, "delete")
    task = environment.task("train", 0)
    path = next(path for path, text in task.reference["files"].items() if text is None)
    turns = environment.oracle_turns(task)
    assert turns
    assert play_conversation(environment, task, turns)[0].score == 1.0
    verdict = play_conversation(environment, task, [*turns[:-1], bash(f"ln -s nowhere {path}"), "ready"])[0]
    assert (verdict.score, verdict.reason) == (0.0, f"{path} is still there")


# ---- the verifier


@pytest.mark.parametrize(
    ("evidence", "score"),
    [
        ({"a": b"1\n", "b": None}, 1.0),
        ({"a": b"1", "b": None}, 1.0),
        ({"a": b"1\n\n", "b": None}, 0.0),
        ({"a": b"1\n\n2", "b": None}, 0.0),
        ({"a": b"1\n", "b": "ENOLINK"}, 0.0),
        ({"a": b" 1\n", "b": None}, 0.0),
        ({"a": "1\n", "b": None}, 0.0),
        ({"a": "EACCES", "b": None}, 0.0),
        ({"a": b"1\n", "b": b""}, 0.0),
        ({"a": b"1\n", "b": "EACCES"}, 0.0),
        ({"a": b"1\n"}, 0.0),
        ({"b": None}, 0.0),
        ({}, 0.0),
    ],
)
def test_each_file_must_be_as_wanted(evidence: dict[str, Any], score: float) -> None:
    with build("verifier", "final_state") as verifier:
        task = Task(make_user_prompt("?"), {"files": {"a": "1\n", "b": None}}, id="t")
        assert verifier.verify_transcript(task, Transcript("", evidence)).score == score


@pytest.mark.parametrize("reference", [None, {}, [], "a", {"answer": "a"}, {"answer": [""]}, {"files": {"a": 1}}, {"files": {}}, {"a": 1}])
def test_a_reference_that_says_nothing_is_the_fault_of_the_task(reference: Any) -> None:
    with build("verifier", "final_state") as verifier:
        verdict = verifier.verify_transcript(Task(make_user_prompt("?"), reference, id="t"), Transcript("a", {}))
        assert verdict.score is None and verdict.fault is Fault.TASK
