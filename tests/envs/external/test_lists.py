"""Adapters of task lists and adventures, against stand-ins with the faults of the real packages: none of them is ever a score."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rlvr
from rlvr.conformance.conversationkit import PlayedConversation, play_conversation
from rlvr.errors import ConfigError, MissingExtra
from rlvr.registry.plugins import PACKAGE_FOLDER
from rlvr.task import Fault, Verdict
from rlvr.turns import Call, CallStatus

THEIRS = Path(__file__).parents[2] / "fixtures" / "theirs"


@pytest.fixture
def theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(THEIRS))


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    made = [
        {
            "prompt": [{"role": "user", "content": f"What is {n} + {n}?"}],
            "reward_spec": {"ground_truth": str(2 * n)},
            "extra_info": {"n": n},
        }
        for n in range(100, 130)
    ]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, made)) + "\n\n")
    return tmp_path / "rows.jsonl"


def judged(env: Any, *turns: str, index: int = 0) -> Verdict:
    return play_conversation(env, env.task("train", index), turns)[0]


# ---- skyrl_gym


@pytest.fixture
def sums(theirs: None, rows: Path) -> Iterator[Any]:
    with rlvr.make_env("skyrl_gym", rows=str(rows)) as env:
        env.prepare()
        yield env


def test_a_right_answer_scores_1_and_only_in_its_form(sums: Any) -> None:
    assert sums.num_tasks("train") + sums.num_tasks("test") == 30 and sums.num_tasks("test") > 0
    for index in range(3):
        gold = sums.gold(sums.task("test", index))
        assert play_conversation(sums, sums.task("test", index), [f"I add them.\n{gold}"])[0].score == 1.0
    gold = sums.gold(sums.task("train", 0))
    for said in (
        "",
        gold[5:],
        f"{gold} or 3",
        f"It is not {gold}",
        f"{gold}\nor not",
        f"#### 1 {gold}",
        f"#### 1\n{gold}",
        f"<think>{gold}</think>",
    ):
        assert judged(sums, said).score == 0.0, said


def test_a_well_formed_wrong_answer_pays_nothing_in_any_number_of_turns(theirs: None, rows: Path) -> None:
    with rlvr.make_env("skyrl_gym", id="gsm8k_multi_turn", rows=str(rows)) as env:
        gold = env.gold(env.task("train", 0))
        assert judged(env, "#### 1", "#### 2", "#### 3").score == 0.0
        assert judged(env, "#### 1", "no number", gold).score == 1.0
        assert judged(env, "#### 1", "#### 2", "#### 3", gold).score == 0.0


@pytest.mark.parametrize("number", [75, 77, 78, 79])
def test_a_reward_that_makes_no_sense_is_no_score(sums: Any, number: int) -> None:
    verdict = judged(sums, f"#### {number}")
    assert (verdict.score, verdict.fault) == (None, Fault.INFRA), verdict


@pytest.mark.parametrize("number", [13, 14])
def test_an_answer_that_breaks_its_environment_scores_0(sums: Any, number: int) -> None:
    sums.host.call_timeout_s = 1.0
    verdict = judged(sums, f"#### {number}")
    assert (verdict.score, verdict.fault) == (0.0, Fault.ANSWER), verdict


def test_an_environment_that_is_broken_whatever_is_said_is_no_score(theirs: None, rows: Path) -> None:
    with rlvr.make_env("skyrl_gym", id="aime", rows=str(rows)) as env:
        assert judged(env, "Answer: 5").fault is Fault.INFRA


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"id": "lcb"}, "runs the answer's code on this machine"),
        ({"id": "search"}, "a passage that holds the answer is rewarded"),
        ({"id": "gsm9k"}, "did you mean 'gsm8k'"),
        ({"rows": "/nowhere.jsonl"}, "give a JSONL file"),
        ({"max_turns": 0}, "at least 1"),
    ],
)
def test_wrong_settings_of_skyrl_gym_are_refused(rows: Path, settings: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        rlvr.make_env("skyrl_gym", **{"rows": str(rows), **settings})


@pytest.mark.parametrize(
    ("line", "told"), [("{", ":2 is no JSON"), ('{"prompt": "x"}', ":2 has the prompt 'x'"), ("[]", ":2 has the prompt")]
)
def test_a_bad_row_is_named_by_its_line(tmp_path: Path, rows: Path, line: str, told: str) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text(rows.read_text().splitlines()[0] + "\n" + line + "\n")
    with pytest.raises(ConfigError, match=told):
        rlvr.make_env("skyrl_gym", rows=str(bad))


def test_a_missing_package_is_one_message(rows: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with rlvr.make_env("skyrl_gym", rows=str(rows)) as env, pytest.raises(MissingExtra, match="skyrl_gym"):
        env.prepare()
    with (
        rlvr.make_env("skyrl_gym", rows=str(rows), python="/nowhere/python") as env,
        pytest.raises(ConfigError, match="python is '/nowhere/python', which cannot be started"),
    ):
        env.prepare()


def test_another_interpreter_needs_no_rlvr(theirs: None, rows: Path, tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={THEIRS} exec python3 -S "$@"\n')
    python.chmod(0o755)
    with rlvr.make_env("skyrl_gym", rows=str(rows), python=str(python)) as env:
        assert judged(env, env.gold(env.task("train", 0))).score == 1.0


def test_another_interpreter_finds_the_packages_of_pythonpath_but_not_our_folders(
    theirs: None, rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\nexec python3 -S "$@"\n')  # without site-packages, so that only PYTHONPATH has the package
    python.chmod(0o755)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(PACKAGE_FOLDER.parent), str(THEIRS))))
    with rlvr.make_env("skyrl_gym", rows=str(rows), python=str(python)) as env:
        assert judged(env, env.gold(env.task("train", 0))).score == 1.0
        assert env.host._build_command()[1] == str(THEIRS), "beside rlvr lies a folder named verifiers, which would hide the package"


# ---- textworld


@pytest.fixture
def story(theirs: None) -> Iterator[Any]:
    with rlvr.make_env("textworld") as env:
        env.prepare()
        yield env


def test_an_adventure_is_won_by_its_script_and_not_by_less(story: Any) -> None:
    for split in story.splits:
        task = story.task(split, 0)
        script = story.oracle_turns(task)
        assert "banner" not in task.question and ">" not in task.question
        assert play_conversation(story, task, script)[0].score == 1.0
        assert play_conversation(story, task, script[-1:])[0].score == 0.0
    play = PlayedConversation(story, story.task("train", 0))
    play.step("I say:\n<answer>open chest</answer>")
    play.step("I could take it; or not?")
    said = [message["content"] for heard in play.step_results for message in heard.messages]
    assert said[0] == "Nothing happens." and "no command" in said[1]
    play.session_handle.close()


@pytest.mark.parametrize("command", ["break", "sleep"])
def test_a_command_that_breaks_the_interpreter_is_the_answers_fault(story: Any, command: str) -> None:
    story.host.call_timeout_s = 1.0
    verdict = judged(story, command)
    assert (verdict.score, verdict.fault) == (0.0, Fault.ANSWER), verdict


@pytest.mark.parametrize("settings", [{"options": {"rooms": 3}}, {"options": {"nb_rooms": 0}}, {"max_turns": 0}])
def test_wrong_settings_of_textworld_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        rlvr.make_env("textworld", **settings)


# ---- verifiers_env


@pytest.fixture
def taskset(theirs: None) -> Iterator[Any]:
    with rlvr.make_env("verifiers_env", id="sums", score_timeout_s=5.0) as env:
        env.prepare()
        yield env


def right(env: Any) -> str:
    return str(2 * int(env.task("train", 0).question.split()[0]))


def test_all_rewards_are_needed_for_a_score(taskset: Any) -> None:
    assert [message["role"] for message in taskset.task("train", 0).prompt] == ["system", "user"]
    assert judged(taskset, right(taskset)).score == 1.0
    assert judged(taskset, "no").score == judged(taskset, "").score == 0.0
    with rlvr.make_env("verifiers_env", id="sums", partial=True) as env:
        assert judged(env, "no").score == pytest.approx(1 / 3)
        assert judged(env, "rude").score == 0.0, "a sum below 0 is a score"


@pytest.mark.parametrize("answer", ["large", "nan", "text", "none", "error", "raise", "hang"])
def test_a_reward_that_is_missing_or_makes_no_sense_pays_nothing(taskset: Any, answer: str) -> None:
    taskset.host.call_timeout_s = 1.0
    verdict = judged(taskset, answer)
    assert verdict.score is None or (verdict.score, verdict.fault) == (0.0, Fault.ANSWER), verdict
    assert judged(taskset, right(taskset)).score == 1.0


def test_tasks_that_cannot_be_played_and_tasksets_that_are_not_there_are_named(theirs: None) -> None:
    with rlvr.make_env("verifiers_env", id="image") as env, pytest.raises(ConfigError, match="task 1 needs a container"):
        env.prepare()
    with rlvr.make_env("verifiers_env", id="runtime") as env, pytest.raises(ConfigError, match="needs a runtime for ran"):
        env.prepare()
    with rlvr.make_env("verifiers_env", id="nothing") as env, pytest.raises(ConfigError, match="nothing"):
        env.prepare()
    with pytest.raises(ConfigError, match="give the id"):
        rlvr.make_env("verifiers_env")


@pytest.mark.parametrize("interface", ["v1", "v0"])
def test_a_taskset_is_loaded_once_however_many_conversations_there_are(theirs: None, tmp_path: Path, interface: str) -> None:
    loads = tmp_path / "loads"
    with rlvr.make_env("verifiers_env", id="sums", interface=interface, settings={"counted": str(loads)}) as env:
        env.prepare()
        for index in range(3):
            task = env.task("train", index)
            number = int(task.question.split()[0])
            assert play_conversation(env, task, [str(2 * number)])[0].score == 1.0 and play_conversation(env, task, ["no"])[0].score == 0.0
    assert loads.read_text() == "loaded "


# ---- verifiers_env, interface v0


def test_an_environment_of_v0_is_scored_by_its_rewards(theirs: None) -> None:
    with rlvr.make_env("verifiers_env", id="sums", interface="v0") as env:
        env.prepare()
        for index in range(4):  # some prompts are texts, some are messages
            task = env.task("train", index)
            assert task.prompt[-1]["role"] == "user" and play_conversation(env, task, [env.gold(task)])[0].score == 1.0
        assert env.gold(env.task("train", 0)) == right(env)
        assert judged(env, "no").score == judged(env, "").score == 0.0


def test_a_conversation_of_v0_has_its_turns(theirs: None) -> None:
    with rlvr.make_env("verifiers_env", id="twice", interface="v0") as env:
        play = PlayedConversation(env, env.task("train", 0))
        play.step("no")
        assert [one["content"] for one in play.step_results[0].messages] == ["Are you sure?"]
        play.step(right(env))
        assert play.verify_and_close().score == 1.0


@pytest.mark.parametrize("answer", ["raise", "large", "nan", "text", "bonus"])
def test_a_reward_of_v0_that_raises_or_makes_no_sense_pays_nothing(theirs: None, answer: str) -> None:
    """The package counts the one that raises as 0. The score of `bonus` is more than its functions give."""
    with rlvr.make_env("verifiers_env", id="sums", interface="v0") as env:
        verdict = judged(env, answer)
        assert (verdict.score, verdict.fault) in ((None, Fault.INFRA), (0.0, Fault.ANSWER)) and "failed" in verdict.reason
        assert judged(env, right(env)).score == 1.0


@pytest.mark.parametrize(
    "id, why",
    [
        ("tools", "has tools.*set has_tools"),
        ("sandbox", "SandboxEnv"),
        ("defined", "tools"),
        ("judged", "a judge"),
        ("group", "a whole group"),
    ],
)
def test_environments_of_v0_that_cannot_be_played_are_refused(theirs: None, id: str, why: str) -> None:
    with rlvr.make_env("verifiers_env", id=id, interface="v0") as env, pytest.raises(ConfigError, match=why):
        env.prepare()


@pytest.fixture
def adder(theirs: None) -> Iterator[Any]:
    with rlvr.make_env("verifiers_env", id="tools", interface="v0", has_tools=True, score_timeout_s=5.0) as env:
        env.prepare()
        yield env


def test_the_tools_of_a_v0_environment_are_those_of_the_policy_and_run_in_its_process(adder: Any) -> None:
    play = PlayedConversation(adder, adder.task("train", 0))
    assert [spec.name for spec in play.session_handle.tools] == ["add"]
    assert play.session_handle.tools[0].parameters["properties"] == {"a": {"type": "integer"}, "b": {"type": "integer"}}
    number = int(adder.task("train", 0).question.split()[0])
    play.step([Call("0.0", "add", {"a": number, "b": number}), Call("0.1", "add", {"a": 1, "b": 2})])
    assert [(one["role"], one["content"], one["tool_call_id"]) for one in play.step_results[0].messages] == [
        ("tool", str(2 * number), "0.0"),
        ("tool", "3", "0.1"),
    ]
    play.step(str(2 * number))
    assert play.verify_and_close().score == 1.0
    assert judged(adder, "no").score == 0.0 and judged(adder, right(adder)).score == 1.0


def test_a_wrong_call_of_a_v0_environment_is_answered_and_the_conversation_goes_on(adder: Any) -> None:
    play = PlayedConversation(adder, adder.task("train", 0))
    play.step([Call("0.0", "add", {"a": 1})])
    play.step([Call("1.0", "add", None, status=CallStatus.BAD_JSON), Call("1.1", "add", {"a": 1, "b": 1})])
    assert [ok for ok, _ in play.tool_results] == [False, False, True], "a call that cannot be read stops no other call"
    assert "'b' is missing" in play.tool_results[0][1] and "cannot be read" in play.tool_results[1][1] and play.tool_results[2][1] == "2"
    play.step(right(adder))
    assert play.verify_and_close().score == 1.0


def test_a_rollout_of_v0_that_ends_with_a_call_is_scored(adder: Any) -> None:
    play = PlayedConversation(adder, adder.task("train", 0))
    for turn in range(3):
        play.step([Call(f"{turn}.0", "add", {"a": 100, "b": 1})])
    assert play.verify_and_close().score == 0.0


def test_has_tools_of_an_environment_without_tools_is_refused(theirs: None) -> None:
    with rlvr.make_env("verifiers_env", id="sums", interface="v0", has_tools=True) as env, pytest.raises(ConfigError, match="has no tools"):
        env.prepare()
    with pytest.raises(ConfigError, match="interface: v0"):
        rlvr.make_env("verifiers_env", id="sums", has_tools=True)


@pytest.mark.parametrize("settings", [{"interface": "v2"}, {"max_turns": 3}, {"interface": "v0", "max_turns": 0}])
def test_a_wrong_interface_or_number_of_turns_is_said(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"allowed: v1, v0|a taskset of v1 has one|at least 1"):
        rlvr.make_env("verifiers_env", id="sums", **settings)


def test_the_wrong_series_of_the_package_is_said(theirs: None) -> None:
    with rlvr.make_env("verifiers_env", id="sums", interface="v0") as env:
        env.interface = "v1"
        with pytest.raises(ConfigError, match=r"verifiers 0\.3\.1 is installed, the interface v1 needs 0\.4\.x"):
            env.prepare()


@pytest.mark.parametrize("name", ["harbor", "openenv", "skyrl_gym", "textworld", "verifiers_env", "bfcl", "inspect_task"])
def test_what_is_offered_is_said_without_the_package(name: str) -> None:
    from rlvr.registry.plugins import load_factory

    loaded: Any = load_factory("env", name)
    listed = loaded.list_support_status()
    assert {row["offered"] for row in listed} - {"yours"} == {"yes", "no"} and all(row["why"] for row in listed)


# ---- inspect_task


EVALS = THEIRS / "their_evals.py"


@pytest.fixture
def inspected(theirs: None) -> Iterator[Any]:
    with rlvr.make_env("inspect_task", task=f"{EVALS}:sums") as env:
        env.prepare()
        yield env


def test_a_task_of_inspect_pays_for_a_target_and_not_for_a_sentence_around_it(inspected: Any) -> None:
    task = inspected.task("train", 0)
    gold = inspected.gold(task)
    assert [message["role"] for message in task.prompt] == ["system", "user"]
    assert judged(inspected, gold).score == judged(inspected, f"So:\nANSWER: {gold}.").score == 1.0
    for said in ("", "7", f"It is not {gold}", f"{gold} or 7", f"{gold}\nor not"):
        assert judged(inspected, said).score == 0.0, said
    with rlvr.make_env("inspect_task", task=f"{EVALS}:sums", strict=False) as env:
        assert judged(env, f"It is {gold}, I think").score == 1.0


def test_a_solver_that_asks_again_gives_the_policy_another_turn(theirs: None) -> None:
    with rlvr.make_env("inspect_task", task=f"{EVALS}:sums", settings={"times": 2}, max_turns=2) as env:
        task = env.task("train", 0)
        gold = str(2 * int(task.question.split()[2]))
        verdict, play = play_conversation(env, task, ["7", gold])
        assert verdict.score == 1.0 and [m["content"] for heard in play.step_results for m in heard.messages] == ["Think again."]
        assert judged(env, gold, "7").score == judged(env, gold).score == 0.0


@pytest.mark.parametrize("answer", ["large", "nan", "text", "list", "raise", "hang"])
def test_a_score_that_makes_no_sense_pays_nothing(inspected: Any, answer: str) -> None:
    inspected.host.call_timeout_s = 1.0
    verdict = judged(inspected, answer)
    assert verdict.score is None or (verdict.score, verdict.fault) == (0.0, Fault.ANSWER), verdict


def test_a_task_of_inspect_is_loaded_once_and_its_solvers_end(theirs: None, tmp_path: Path) -> None:
    with rlvr.make_env("inspect_task", task=f"{EVALS}:counted", settings={"loads": str(tmp_path / "loads")}) as env:
        env.prepare()
        for index in range(12):
            task = env.task("train", index)
            assert judged(env, env.gold(task), index=index).score == 1.0
        threads = len(list(Path(f"/proc/{env._scout._pid}/task").iterdir()))
        assert threads <= 4, "each prompt starts a solver; the one before it has ended"
    assert (tmp_path / "loads").read_text() == "loaded "


def test_a_solver_that_changes_what_was_said_is_no_score(theirs: None) -> None:
    with rlvr.make_env("inspect_task", task=f"{EVALS}:forgetful", max_turns=2) as env:
        verdict = judged(env, "7", "8")
        assert (verdict.score, verdict.fault) == (None, Fault.INFRA) and "changes what was said" in verdict.reason


def test_an_empty_target_is_no_answer(theirs: None) -> None:
    with rlvr.make_env("inspect_task", task=f"{EVALS}:aimless") as env:
        for said in ("ANSWER:", "ANSWER: .", "**", "anything"):
            assert judged(env, said).score == 0.0, said


def test_tasks_of_inspect_that_cannot_be_played_are_refused(theirs: None) -> None:
    with rlvr.make_env("inspect_task", task=f"{EVALS}:boxed") as env, pytest.raises(ConfigError, match="has a sandbox"):
        env.prepare()
    for wrong in ({"task": "sums"}, {"task": f"{EVALS}:sums", "max_turns": 0}):
        with pytest.raises(ConfigError):
            rlvr.make_env("inspect_task", **wrong)
