"""A bug in a package: hidden calls of the final files decide, in a fresh sandbox."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from rlvr.conformance.conversationkit import PlayedConversation, play_conversation
from rlvr.contracts import Environment, Sandbox, Transcript
from rlvr.envs._bugfix_families import FAMILIES
from rlvr.envs.bugfix import KINDS, BuggyPackage, _build_package
from rlvr.errors import ConfigError
from rlvr.mdp.sessions import build_session_record, load_recorded_transcript
from rlvr.registry.plugins import build
from rlvr.task import Fault, Task, Verdict, make_user_prompt
from rlvr.turns import Call
from tests.attacks.worlds import BUGFIX_ATTACKS, MODULE_ATTACKS

TRIED = 400


def bugfix(sandbox: Any, *kinds: str, **settings: Any) -> Environment:
    judge = {"name": "package_tests", "verifier": {"name": "unit_tests", "sandbox": sandbox, "limits": {"wall_s": 3, "cpu_s": 2}}}
    environment: Environment = build("env", "bugfix", kinds=list(kinds or KINDS), sandbox=sandbox, verifier=judge, **settings)
    return environment


def posed(task: Task) -> tuple[BuggyPackage, str]:
    """The package, and the module that has the bug."""
    found = _build_package("bugfix/0", task.meta["kind"], task.meta["name"])
    return found, f"{found.name}/{task.meta['kind']}.py"


def left(environment: Environment, task: Task, path: str, text: str) -> Verdict:
    """The verdict on the package with another text in one module."""
    files = {name: text.encode() for name, text in posed(task)[0].files.items()}
    return environment.verifier.verify_transcript(task, Transcript("", files | {path: text.encode("utf-8", "surrogateescape")}))


@pytest.fixture(scope="module")
def environment(process_sandbox: Sandbox) -> Iterator[Environment]:
    """All kinds, in the process sandbox."""
    yield bugfix(process_sandbox)


# ---- tasks


def test_every_bug_is_posed_and_shows_in_hidden_calls_with_other_arguments(environment: Environment) -> None:
    seen = set()
    for index in range(TRIED):
        task = environment.task("train", index)
        found, path = posed(task)
        before, after = found.files[path], found.correct_files[path]
        assert before != after and all(found.files[other] == found.correct_files[other] for other in found.files if other != path)
        seen.add((task.meta["kind"], before))
        call = re.search(rf"{found.name}\.\w+\.(\w+)\((.*)\) must return", task.question)
        assert call and not any(
            case["function"] == call[1] and ", ".join(map(repr, case["args"])) == call[2] for case in task.reference["cases"]
        )
    assert len(seen) == sum(len(family.bugs) for family in FAMILIES.values())


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"kinds": ["txt"]}, "kinds has 'txt'; .*did you mean 'text'"),
        ({"kinds": "text"}, "must be a list"),
        ({"max_turns": True}, "at least 2"),
    ],
)
def test_wrong_settings_are_refused(process_sandbox: Sandbox, settings: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        build("env", "bugfix", sandbox=process_sandbox, **settings)


# ---- verdicts


def test_each_bug_scores_0_and_each_right_module_1(environment: Environment) -> None:
    """Also a fix for the shown arguments alone scores 0."""
    tasks = {
        (task.meta["kind"], posed(task)[0].files[posed(task)[1]]): task for task in (environment.task("train", n) for n in range(TRIED))
    }

    def judged(task: Task) -> tuple[str, float | None, float | None, float | None]:
        found, path = posed(task)
        call = re.search(rf"{found.name}\.\w+\.(\w+)\((.*)\) must return (.*), and it does not", task.question)
        assert call
        shown = f"\n_old = {call[1]}\ndef {call[1]}(*args):\n    return {call[3]} if args == ({call[2]},) else _old(*args)\n"
        scores = [
            left(environment, task, path, text).score for text in (found.files[path], found.correct_files[path], found.files[path] + shown)
        ]
        return task.question, scores[0], scores[1], scores[2]

    with ThreadPoolExecutor(2) as pool:
        for question, wrong, right, hard_coded in pool.map(judged, tasks.values()):
            assert (wrong, right, hard_coded) == (0.0, 1.0, 0.0), question


def test_a_conversation_and_its_record(environment: Environment) -> None:
    task = environment.task("test", 0)
    assert play_conversation(environment, task, [Call("0.0", "bash", {"command": "ls"}), "ready"])[0].score == 0.0
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


def test_code_in_the_answer_does_not_count(environment: Environment) -> None:
    task = environment.task("train", 0)
    found, path = posed(task)
    assert play_conversation(environment, task, [f"```python\n{found.correct_files[path]}```"])[0].score == 0.0


def test_a_reference_without_cases_is_the_fault_of_the_task(environment: Environment) -> None:
    references: list[Any] = [None, {}, {"files": [], "cases": []}, {"files": ["a.py"], "cases": [{}]}, {"files": [1], "cases": []}]
    for reference in references:
        verdict = environment.verifier.verify_transcript(Task(make_user_prompt("?"), reference, id="t"), Transcript("", {"a.py": b""}))
        assert verdict.score is None and verdict.fault is Fault.TASK


# ---- attacks


@pytest.mark.docker
def test_no_module_is_paid_and_none_takes_its_zero_away(docker_sandbox: Sandbox) -> None:
    environment = bugfix(docker_sandbox)
    task = environment.task("train", 0)
    path = posed(task)[1]
    with ThreadPoolExecutor(4) as pool:
        verdicts = dict(
            zip(MODULE_ATTACKS, pool.map(lambda text: left(environment, task, path, text), MODULE_ATTACKS.values()), strict=True)
        )
    assert {name: (verdict.score, verdict.reason) for name, verdict in verdicts.items() if verdict.score != 0.0} == {}
    assert left(environment, task, path, posed(task)[0].correct_files[path]).score == 1.0


@pytest.mark.docker
def test_nothing_in_the_box_is_paid(docker_sandbox: Sandbox) -> None:
    environment = bugfix(docker_sandbox)
    task = environment.task("train", 0)
    found, path = posed(task)

    def attacked(command: str) -> Verdict:
        command = re.sub(r"\bPKG\b", found.name, re.sub(r"\bF\b", path, command))
        return play_conversation(environment, task, [Call("0.0", "bash", {"command": command}), "ready"])[0]

    with ThreadPoolExecutor(4) as pool:
        verdicts = dict(zip(BUGFIX_ATTACKS, pool.map(attacked, BUGFIX_ATTACKS.values()), strict=True))
    assert {name: (verdict.score, verdict.reason) for name, verdict in verdicts.items() if verdict.score != 0.0} == {}
